#include "reshard/layouts/misfits.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/quantization.h"

namespace reshard {
namespace {

/// The one of `candidates` (with a `name`) that is most like `name`; empty where none is.
template <typename Candidates>
std::string nearest_name(const std::string& name, const Candidates& candidates) {
  constexpr std::size_t kMost = 10000;
  if (name.empty()) return {};
  std::vector<std::string> names;
  for (const auto* candidate : candidates)
    if (names.size() < kMost && !candidate->name.empty() && candidate->name.front() == name.front())
      names.push_back(candidate->name);
  return nearest(name, names);
}

std::vector<const ModelParameter*> pointers_to(const std::vector<ModelParameter>& parameters) {
  std::vector<const ModelParameter*> pointers;
  pointers.reserve(parameters.size());
  for (const ModelParameter& parameter : parameters) pointers.push_back(&parameter);
  return pointers;
}

/// The first misfits, a line each, one of each kind: layers repeat them.
std::vector<std::string> describe(const Misfits& misfits, const Model& model) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> lines;
  std::set<std::string> kinds;
  const auto is_new = [&](const std::string& name) {
    return lines.size() < kMost && kinds.insert(with_stars(name)).second;
  };
  const auto with_nearest = [](const std::string& name, const auto& candidates) {
    const std::string guess = nearest_name(name, candidates);
    return guess.empty() ? name : name + " (did you mean " + guess + "?)";
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

Error other_shape(const Misfits::Shape& misfit, const Model& model, const std::filesystem::path& where,
                  const char* chosen) {
  const auto& [tensor, expected] = misfit;
  Error error(ErrorKind::kBadInput, fmt::format("has the shape {}, but config.json asks for {}",
                                                to_string(tensor->shape), to_string(expected->shape)));
  error.in(where).tensor(tensor->name);
  if (model.quantized && (expected->linear_size != 0 || is_quantized_tensor(tensor->name)))
    return error.hint(
        "quantization_config in config.json (bits, sizes of groups and blocks) is another model's, or "
        "the checkpoint is damaged");
  return error.hint(std::string("config.json belongs to another model, or the checkpoint is damaged") + chosen);
}

Error unlisted(const std::vector<const LogicalTensor*>& tensors, const Model& model, const std::filesystem::path& where,
               const char* chosen) {
  const std::string& first = tensors.front()->name;
  Error error(ErrorKind::kBadInput,
              tensors.size() == 1
                  ? fmt::format("is not explained by config.json (model_type {})", model.family->model_type)
                  : fmt::format("{} tensors are not explained by config.json (model_type {}): {}", tensors.size(),
                                model.family->model_type, list_names(names_of(tensors))));
  error.in(where);
  if (tensors.size() == 1) error.tensor(first);
  if (model.quant_method.empty() && std::any_of(tensors.begin(), tensors.end(), [](const LogicalTensor* tensor) {
        return is_quantized_tensor(tensor->name);
      }))
    return error.hint(
        "they are of a quantised model, but config.json has no quantization_config: take the config.json "
        "that came with the weights");
  const std::string guess = nearest_name(first, pointers_to(model.parameters));
  return error.hint((guess.empty() ? std::string() : "the nearest name that it explains is " + guess + "; ") +
                    "config.json belongs to another model, or the checkpoint is of a variant (quantised, adapters, "
                    "more heads) that this family does not describe" +
                    chosen);
}

Error missing(const std::vector<std::string>& names, const std::filesystem::path& where) {
  Error error(ErrorKind::kBadInput, names.size() == 1
                                        ? std::string("is missing, but config.json asks for it")
                                        : fmt::format("{} tensors that config.json asks for are missing: {}",
                                                      names.size(), list_names(names)));
  error.in(where);
  if (names.size() == 1) error.tensor(names.front());
  if (names.size() == 1 && names.front() == "lm_head.weight")
    return error.hint("if the output matrix is the embedding's, config.json must say \"tie_word_embeddings\": true");
  return error.hint("the checkpoint is incomplete, or config.json belongs to another model");
}

/// Of a model without a family, each layer has at least one tensor.
void validate_layers(const Model& model, const std::filesystem::path& where) {
  std::vector<bool> held(model.layers);
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.layer) held[*parameter.layer] = true;
  std::vector<std::uint64_t> missing;
  for (std::uint64_t layer = 0; layer < model.layers; ++layer)
    if (!held[layer]) missing.push_back(layer);
  if (!missing.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("of the model's {} layers some have no tensors: {}.{{{}}}",
                                                  model.layers, model.family->layers, list_ranges(missing)))
        .in(where)
        .hint("the checkpoint is incomplete, or num_hidden_layers in config.json is another model's");
}

/// The scale of a weight that has none.
std::string missing_scale(const ModelParameter& weight, const Model& model) {
  const bool stacked = weight.experts != 0 && !weight.expert;
  return stacked ? weight.name + model.stacked_suffix : weight.module + "." + model.quantization_marker;
}

bool has_shape(const LogicalTensor& tensor, const ModelParameter& expected) {
  if (expected.scalar) return num_elems(tensor.shape) == 1u;
  return expected.any_shape || tensor.shape == expected.shape;
}

}  // namespace

Misfits find_misfits(const TensorMap& map, const Model& model) {
  std::unordered_map<std::string_view, const ModelParameter*> expected;
  expected.reserve(model.parameters.size());
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.tied_to.empty()) expected.emplace(parameter.name, &parameter);
  Misfits misfits;
  for (const LogicalTensor& tensor : map.logical) {
    if (tensor.filler) continue;
    const auto found = expected.find(tensor.name);
    if (found == expected.end()) {
      misfits.unlisted.push_back(&tensor);
      continue;
    }
    if (!has_shape(tensor, *found->second)) misfits.shapes.push_back({&tensor, found->second});
    // A linear in so few bits is quantised, and what it lacks is what one is known by.
    if (found->second->plain && bits(tensor.dtype) <= 8)
      misfits.missing.push_back(missing_scale(*found->second, model));
    expected.erase(found);
  }
  for (const ModelParameter& parameter : model.parameters)
    if (!parameter.optional && expected.count(parameter.name) > 0) misfits.missing.push_back(parameter.name);
  return misfits;
}

void validate_against_model(TensorMap& map, const Model& model, const std::filesystem::path& where, bool of_shards) {
  const char* const chosen = of_shards ? "; if the shards were made with `family` or `spec`, give the same here" : "";
  if (model.by_config_plan) validate_layers(model, where);
  const Misfits misfits = find_misfits(map, model);
  if (model.quantization_problem && (!misfits.shapes.empty() || !misfits.unlisted.empty())) {
    const std::string& name =
        misfits.unlisted.empty() ? misfits.shapes.front().tensor->name : misfits.unlisted.front()->name;
    throw Error(ErrorKind::kUnsupported, model.quantization_problem->what)
        .in(where)
        .tensor(name)
        .hint(model.quantization_problem->hint);
  }
  if (model.family_from != FamilyFrom::kConfig && !misfits.empty()) {
    const bool spec = model.family_from == FamilyFrom::kSpec;
    throw Error(ErrorKind::kBadInput,
                fmt::format("the tensors are not those of the {} {}: {}", spec ? "`spec`" : "family",
                            printable(model.family->model_type), join(describe(misfits, model), "; ")))
        .in(where)
        .hint(spec ? "mend the description, or config.json if its numbers are another model's"
                   : "take another `family`, or leave the option out");
  }
  if (!misfits.shapes.empty()) throw other_shape(misfits.shapes.front(), model, where, chosen);
  if (!misfits.unlisted.empty()) throw unlisted(misfits.unlisted, model, where, chosen);
  if (!misfits.missing.empty()) throw missing(misfits.missing, where);
  std::vector<std::string> order;
  order.reserve(model.parameters.size());
  for (const ModelParameter& parameter : model.parameters) order.push_back(parameter.name);
  map.order_logical(order);
}

}  // namespace reshard
