#include "reshard/layouts/core/misfits.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/specs/config/ties.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {
namespace {

/// Returns the name of the candidate most similar to `name`; empty if none is similar. Candidates have a member `name`.
template <typename Candidates>
std::string nearest_name(const std::string& name, const Candidates& candidates) {
  constexpr std::size_t kMost = 10000;
  if (name.empty()) return {};
  std::vector<std::string> names;
  for (const auto* candidate : candidates)
    if (names.size() < kMost && !candidate->name.empty() && candidate->name.front() == name.front())
      names.push_back(candidate->name);
  const std::string guess = nearest(name, names);
  if (guess.empty()) return {};
  // Ignore the common prefix: a long prefix that all names of a layer share does not make them similar.
  const std::size_t differ = static_cast<std::size_t>(
      std::mismatch(name.begin(), name.end(), guess.begin(), guess.end()).first - name.begin());
  const std::size_t dot = name.rfind('.', differ);
  const std::size_t rest = dot == name.npos ? 0 : dot + 1;
  const std::vector<std::string> own{guess.substr(std::min(rest, guess.size()))};
  return nearest(std::string_view(name).substr(rest), own).empty() ? std::string() : guess;
}

std::vector<const ModelParameter*> pointers_to(const std::vector<ModelParameter>& parameters) {
  std::vector<const ModelParameter*> pointers;
  pointers.reserve(parameters.size());
  for (const ModelParameter& parameter : parameters) pointers.push_back(&parameter);
  return pointers;
}

/// "NAME (did you mean GUESS?)"
template <typename Candidates>
std::string with_nearest(const std::string& name, const Candidates& candidates) {
  const std::string guess = nearest_name(name, candidates);
  return guess.empty() ? name : name + " (did you mean " + guess + "?)";
}

/// Describes the first misfits, one line per kind, since layers repeat them.
std::vector<std::string> describe(const Misfits& misfits, const Model& model) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> lines;
  std::set<std::string> kinds;
  const auto is_new = [&](const std::string& name) {
    return lines.size() < kMost && kinds.insert(with_stars(name)).second;
  };
  for (const auto& [tensor, expected] : misfits.shapes)
    if (is_new(tensor->name))
      lines.push_back(fmt::format("{} has the shape {}, expected {}", tensor->name, to_string(tensor->shape),
                                  to_string(expected->shape)));
  for (const LogicalTensor* tensor : misfits.unlisted)
    if (is_new(tensor->name))
      lines.push_back("unexpected " + with_nearest(tensor->name, pointers_to(model.parameters)));
  for (const std::string& name : misfits.missing)
    if (is_new(name)) lines.push_back("missing " + with_nearest(name, misfits.unlisted));
  return lines;
}

std::vector<std::string> names_of(const std::vector<const LogicalTensor*>& tensors) {
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const LogicalTensor* tensor : tensors) names.push_back(tensor->name);
  return names;
}

bool is_quantized(const Misfits::Shape& misfit) {
  return misfit.expected->linear_size != 0 || is_quantized_tensor(misfit.tensor->name);
}

/// Notes the numbers in an expected shape that are defaults of the family, not values in config.json; empty if none
/// are.
std::string note_defaults(const Misfits::Shape& misfit, const Model& model) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : defaults_in_shape(model, *misfit.expected))
    texts.push_back(fmt::format("{}, for which family {} uses {}", key, model.family->model_type, value));
  return texts.empty() ? std::string() : "config.json has no " + join(texts, "; nor ") + "; ";
}

/// Returns a remedy for the first misfit.
std::string hint_for(const Misfits& misfits, const Model& model) {
  const bool quantized = std::any_of(misfits.unlisted.begin(), misfits.unlisted.end(),
                                     [](const LogicalTensor* tensor) { return is_quantized_tensor(tensor->name); });
  if (model.quant_method.empty() && quantized)
    return "the model is quantised, but config.json has no quantization_config: use the config.json that came with the "
           "weights";
  // Families without a head fit such a checkpoint, too.
  const bool lacks_one = misfits.shapes.empty() && misfits.unlisted.empty() && misfits.missing.size() == 1;
  if (lacks_one && model.family_from == FamilyFrom::kConfig) return hint_for_missing(misfits.missing, model);
  if (const auto others = model.find_other_families ? model.find_other_families() : std::vector<std::string>();
      !others.empty())
    return propose_families(others);
  const bool spec = model.family_from == FamilyFrom::kSpec;
  if (spec) return "fix the description, or config.json if its values belong to another model";
  if (!misfits.shapes.empty()) {
    const std::string config = model.quantized && is_quantized(misfits.shapes.front())
                                   ? "config.json belongs to another model (its sizes, or bits, groups and blocks in "
                                     "quantization_config), or the checkpoint is damaged"
                                   : "config.json belongs to another model, or the checkpoint is damaged";
    const std::string hint = note_defaults(misfits.shapes.front(), model) + config;
    return model.family_from == FamilyFrom::kOption ? "choose another `family`; or " + hint : hint;
  }
  if (model.family_from == FamilyFrom::kOption) return "choose another `family`";
  if (!misfits.unlisted.empty()) {
    const std::string guess = nearest_name(misfits.unlisted.front()->name, pointers_to(model.parameters));
    return (guess.empty() ? std::string("check") : "did you mean " + guess + "? Check") +
           " that config.json matches these weights; for variants (quantised, adapters, more heads) see "
           "docs/families.md" +
           (misfits.missing.empty()
                ? "; to keep or drop tensors that are not weights, such as buffers, set `extra-tensors`"
                : "");
  }
  return hint_for_missing(misfits.missing, model);
}

/// Returns "; 3 other tensors fit no name of the family: ...", since these may be the missing tensors under other
/// names.
std::string text_of_unlisted(const Misfits& misfits, const Model& model) {
  if (misfits.unlisted.empty()) return {};
  constexpr std::size_t kMost = 4;
  std::vector<std::string> shown;
  for (const LogicalTensor* tensor : misfits.unlisted)
    if (shown.size() < kMost) shown.push_back(with_nearest(tensor->name, pointers_to(model.parameters)));
  const std::size_t count = misfits.unlisted.size();
  return fmt::format("; {} other tensor{} no name of the family: {}{}", count, count == 1 ? " fits" : "s fit",
                     join(shown, ", "), count > kMost ? ", …" : "");
}

/// Returns the error for a family that config.json determines. Extra tensors of a trainer are not an error by
/// themselves.
Error error_for(const Misfits& misfits, const Model& model, bool trained) {
  const std::string others = trained ? text_of_unlisted(misfits, model) : std::string();
  if (!misfits.shapes.empty()) {
    const auto& [tensor, expected] = misfits.shapes.front();
    const bool defaults = !defaults_in_shape(model, *expected).empty();
    return Error(ErrorKind::kBadInput,
                 fmt::format("has the shape {}, but config.json{} asks for {}{}", to_string(tensor->shape),
                             defaults ? ", with defaults of its model_type," : "", to_string(expected->shape), others))
        .tensor(tensor->name);
  }
  if (!trained && misfits.unlisted.size() == 1)
    return Error(ErrorKind::kBadInput,
                 fmt::format("is not explained by config.json (model_type {})", model.family->model_type))
        .tensor(misfits.unlisted.front()->name);
  if (!trained && !misfits.unlisted.empty())
    return {ErrorKind::kBadInput,
            fmt::format("{} tensors are not explained by config.json (model_type {}): {}", misfits.unlisted.size(),
                        model.family->model_type, list_names(names_of(misfits.unlisted)))};
  if (misfits.missing.size() == 1)
    return Error(ErrorKind::kBadInput, "is missing, but config.json asks for it" + others)
        .tensor(misfits.missing.front());
  return {ErrorKind::kBadInput, fmt::format("{} tensors that config.json asks for are missing: {}{}",
                                            misfits.missing.size(), list_names(misfits.missing), others)};
}

/// Validates that each layer of a model without a family has at least one tensor.
void validate_layers(const Model& model, const std::filesystem::path& where) {
  std::vector<bool> held(model.layers);
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.layer) held[*parameter.layer] = true;
  std::vector<std::uint64_t> missing;
  for (std::uint64_t layer = 0; layer < model.layers; ++layer)
    if (!held[layer]) missing.push_back(layer);
  if (!missing.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("some of the model's {} layers have no tensors: {}.{{{}}}",
                                                  model.layers, model.family->layers, list_ranges(missing)))
        .in(where)
        .hint("the checkpoint is incomplete, or num_hidden_layers in config.json belongs to another model");
}

/// Returns the name of a weight's missing scale.
std::string missing_scale(const ModelParameter& weight, const Model& model) {
  const bool stacked = weight.experts != 0 && !weight.expert;
  return stacked ? weight.name + model.stacked_suffix : weight.module + "." + model.quantization_marker;
}

bool has_shape(const LogicalTensor& tensor, const ModelParameter& expected) {
  switch (expected.shape_known) {
    case ShapeKnown::kExactly: return tensor.shape == expected.shape;
    case ShapeKnown::kOneElement: return num_elems(tensor.shape) == 1u;
    case ShapeKnown::kNot: return true;
  }
  return false;
}

bool is_emptied(const LogicalTensor& tensor) {
  return tensor.shape == Dims{0} && !tensor.constant() && tensor.role == TensorRole::kParameter;
}

}  // namespace

std::vector<std::string> emptied_parameters(std::span<const LogicalTensor> tensors, const Model* model) {
  std::vector<std::string> names;
  if (std::none_of(tensors.begin(), tensors.end(), is_emptied)) return names;
  const bool all = std::all_of(tensors.begin(), tensors.end(), is_emptied);
  std::unordered_map<std::string_view, const ModelParameter*> expected;
  if (model != nullptr && !model->by_config_plan)  // the parameters of such a plan are those of the files
    for (const ModelParameter& parameter : model->parameters)
      if (parameter.shape_known != ShapeKnown::kNot) expected.emplace(parameter.name, &parameter);
  for (const LogicalTensor& tensor : tensors) {
    if (!is_emptied(tensor)) continue;
    const auto found = expected.find(tensor.name);
    const bool is_parameter = tensor.name.ends_with(".weight") || tensor.name.ends_with(".bias");
    if (found != expected.end() ? num_elems(found->second->shape) != 0u : all || is_parameter)
      names.push_back(tensor.name);
  }
  return names;
}

Error emptied_error(const std::vector<std::string>& names) {
  constexpr const char* kEmpty = "empty, as ZeRO 3 leaves parameters that it does not gather before it saves";
  Error error(ErrorKind::kBadInput,
              names.size() == 1 ? fmt::format("a tensor is {}: {}", kEmpty, list_names(names))
                                : fmt::format("{} tensors are {}: {}", names.size(), kEmpty, list_names(names)));
  error.hint(
      "the values are in the run's own checkpoint, such as global_stepN/: give that; or save the model again with "
      "stage3_gather_16bit_weights_on_model_save");
  return error;
}

std::string hint_for_missing(std::span<const std::string> missing, const Model& model) {
  std::string hint = "the checkpoint is incomplete, or config.json belongs to another model";
  for (const Family::Module& module : model.family->modules)
    if (!module.tied_to.empty() && missing.size() == 1 && missing.front() == module.name + "." + module.parameter)
      return fmt::format("{}; if {} shares the weight of {}, set \"{}\" to true in config.json", hint, module.name,
                         module.tied_to, kTiedKey);
  return hint;
}

std::optional<std::string> layers_problem(std::span<const LogicalTensor> tensors, const Misfits& misfits,
                                          const Model& model) {
  if (!misfits.shapes.empty() || misfits.unlisted.empty() == misfits.missing.empty()) return std::nullopt;
  if (misfits.unlisted.size() + misfits.missing.size() == 1) return std::nullopt;  // a layer has more tensors
  const std::string prefix = model.family->layers + ".";
  const auto layer_of = [&](std::string_view name) -> std::optional<std::uint64_t> {
    if (!name.starts_with(prefix)) return std::nullopt;
    name.remove_prefix(prefix.size());
    return parse_unsigned(name.substr(0, name.find('.')), kMaxLayers - 1);
  };
  std::uint64_t held = 0;
  for (const LogicalTensor& tensor : tensors)
    if (const auto layer = layer_of(tensor.name)) held = std::max(held, *layer + 1);
  const std::uint64_t common = std::min(held, model.layers);
  const auto is_behind = [&](std::string_view name) { return layer_of(name).value_or(0) >= common; };
  if (common == 0 || held == model.layers ||
      !std::all_of(misfits.unlisted.begin(), misfits.unlisted.end(),
                   [&](const LogicalTensor* tensor) { return is_behind(tensor->name); }) ||
      !std::all_of(misfits.missing.begin(), misfits.missing.end(), is_behind))
    return std::nullopt;
  return fmt::format("{} is {} in config.json, but the files have layers 0 to {}", model.family->num_layers.text(),
                     model.layers, held - 1);
}

Misfits find_misfits(std::span<const LogicalTensor> tensors, const Model& model) {
  std::unordered_map<std::string_view, const ModelParameter*> expected;
  expected.reserve(model.parameters.size());
  for (const ModelParameter& parameter : model.parameters) expected.emplace(parameter.name, &parameter);
  Misfits misfits;
  for (const LogicalTensor& tensor : tensors) {
    if (tensor.constant() || tensor.role == TensorRole::kPart) continue;
    const auto found = expected.find(tensor.name);
    if (found == expected.end()) {
      misfits.unlisted.push_back(&tensor);
      continue;
    }
    if (!has_shape(tensor, *found->second)) misfits.shapes.push_back({&tensor, found->second});
    // A linear of at most 8 bits is quantised, so its scale must exist.
    if (found->second->plain && bits(tensor.dtype) <= 8)
      misfits.missing.push_back(missing_scale(*found->second, model));
    expected.erase(found);
  }
  // One of two tied parameters suffices.
  for (const ModelParameter& parameter : model.parameters)
    if (!parameter.tied_to.empty() && expected.erase(parameter.name) == 0) expected.erase(parameter.tied_to);
  for (const ModelParameter& parameter : model.parameters)
    if (!parameter.optional && expected.count(parameter.name) > 0) misfits.missing.push_back(parameter.name);
  return misfits;
}

namespace {

/// \throws Error kUnsupported if a name shows that another system wrote the tensors.
void refuse_strangers(std::span<const LogicalTensor> tensors, const Model& model, const std::filesystem::path& where) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const LogicalTensor& tensor : tensors)
    if (!tensor.constant()) names.push_back(tensor.name);
  if (auto stranger = stranger_among(names, &model)) throw stranger->in(where);
}

bool holds(std::span<const LogicalTensor> tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const LogicalTensor& tensor) { return !tensor.constant() && tensor.name == name; });
}

/// Returns the name of the weight that `parameter` would share if config.json tied the two; empty if there is none.
std::string untied_partner(const ModelParameter& parameter, const Model& model) {
  if (!parameter.tied_to.empty()) return model.tied_by_files.value_or(false) ? parameter.tied_to : "";
  for (const Family::Module& module : model.family->modules)
    if (!module.tied_to.empty() && parameter.name == module.name + "." + module.parameter)
      return module.tied_to + "." + module.parameter;
  return {};
}

}  // namespace

void validate_head(std::span<const LogicalTensor> tensors, const Model& model, const Misfits& misfits,
                   const std::filesystem::path& where) {
  if (!misfits.shapes.empty() || misfits.missing.size() > 1) return;
  for (const ModelParameter& parameter : model.parameters) {
    const std::string partner = untied_partner(parameter, model);
    if (partner.empty() || holds(tensors, parameter.name)) continue;
    for (const LogicalTensor* tensor : misfits.unlisted)
      if (tensor->shape.size() == 2 && parameter.shape.size() == 2 && tensor->shape[1] == parameter.shape[1] &&
          tensor->shape[0] >= parameter.shape[0])
        throw Error(
            ErrorKind::kBadInput,
            fmt::format(
                "is missing, though according to config.json it is not tied to {} ({}); {} {} may be this tensor",
                partner, kTiedKey, printable(tensor->name), to_string(tensor->shape)))
            .in(where)
            .tensor(parameter.name)
            .hint("rename that tensor (`rename`), or leave it out (`drop`)");
  }
}

namespace {

/// \param trained  Whether extra tensors are allowed.
void validate(std::span<const LogicalTensor> tensors, const Model& model, const Misfits& misfits, bool trained,
              const std::filesystem::path& where, const std::string& hint) {
  if (const auto emptied = emptied_parameters(tensors, &model); !emptied.empty())
    throw emptied_error(emptied).in(where);
  const bool fits = misfits.shapes.empty() && misfits.missing.empty() && (trained || misfits.unlisted.empty());
  // A description with other programs' names is intended for such tensors.
  const bool knows_strangers = model.family_from == FamilyFrom::kSpec && !model.family->schemes.empty();
  if ((!fits && !knows_strangers) || model.by_config_plan) refuse_strangers(tensors, model, where);
  if (model.by_config_plan) validate_layers(model, where);
  if (model.quantization_problem && (!misfits.shapes.empty() || !misfits.unlisted.empty())) {
    const std::string& name =
        misfits.unlisted.empty() ? misfits.shapes.front().tensor->name : misfits.unlisted.front()->name;
    throw Error(model.quantization_problem->kind, model.quantization_problem->what)
        .in(where)
        .tensor(name)
        .hint(model.quantization_problem->hint);
  }
  if (const auto problem = layers_problem(tensors, misfits, model))
    throw Error(ErrorKind::kBadInput, *problem)
        .in(where)
        .hint(misfits.missing.empty() ? "fix config.json, or use the config.json that came with the weights"
                                      : "files are missing, or config.json belongs to another model");
  if (trained || misfits.missing.size() == 1) validate_head(tensors, model, misfits, where);
  if (!fits) {
    const bool chosen = model.family_from != FamilyFrom::kConfig;
    const char* const by = model.family_from == FamilyFrom::kSpec ? "that `spec` describes as" : "of the family";
    Error error = chosen ? Error(ErrorKind::kBadInput,
                                 fmt::format("the tensors are not those {} {}: {}", by,
                                             printable(model.family->model_type), join(describe(misfits, model), "; ")))
                         : error_for(misfits, model, trained);
    throw error.in(where).hint(hint_for(misfits, model) + (chosen || hint.empty() ? "" : "; " + hint));
  }
}

std::vector<std::string> order_of(const Model& model) {
  std::vector<std::string> order;
  order.reserve(model.parameters.size());
  for (const ModelParameter& parameter : model.parameters) order.push_back(parameter.name);
  return order;
}

}  // namespace

void validate_against_model(SourceMap& map, const Model& model, const std::filesystem::path& where,
                            const std::string& hint) {
  validate(map.logical, model, find_misfits(map.logical, model), false, where, hint);
  map.order_logical(order_of(model));
}

void validate_against_model(std::vector<LogicalTensor>& tensors, const Model& model, const std::filesystem::path& where,
                            ExtraTensors extra) {
  validate(tensors, model, find_misfits(tensors, model), extra != ExtraTensors::kRefuse, where, {});
  std::unordered_map<std::string_view, std::size_t> places;
  for (const ModelParameter& parameter : model.parameters) places.emplace(parameter.name, places.size());
  const auto place = [&](const LogicalTensor& tensor) {
    const auto found = places.find(tensor.name);
    return found == places.end() ? places.size() : found->second;
  };
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const LogicalTensor& a, const LogicalTensor& b) { return place(a) < place(b); });
}

void validate_against_model(SourceMap& map, const Model& model, const std::filesystem::path& where,
                            ExtraTensors extra) {
  validate(map.logical, model, find_misfits(map.logical, model), extra != ExtraTensors::kRefuse, where, {});
  map.order_logical(order_of(model));
}

std::vector<std::string> validate_trained_against_model(SourceMap& map, const Model& model,
                                                        const std::filesystem::path& where) {
  const Misfits misfits = find_misfits(map.logical, model);
  std::vector<std::string> besides = names_of(misfits.unlisted);
  validate(map.logical, model, misfits, true, where, {});
  map.order_logical(order_of(model));
  return besides;
}

}  // namespace reshard
