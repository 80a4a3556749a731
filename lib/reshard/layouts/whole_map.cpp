#include "reshard/layouts/whole_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/fitting.h"
#include "reshard/specs/quantization.h"

namespace reshard {
namespace {

/// What to try when the checkpoint lacks tensors.
std::string missing_hint(const std::vector<std::string>& missing) {
  if (missing.size() == 1 && missing.front() == "lm_head.weight")
    return "if the output matrix is the embedding's, config.json must say \"tie_word_embeddings\": true";
  return "the checkpoint is incomplete, or config.json belongs to another model";
}

constexpr std::size_t kMostMisfits = 5;

/// The one of `names` that is most like `name`, for a hint; nothing where none is.
std::string nearest_hint(const std::string& name, const std::vector<std::string>& names, const char* says) {
  constexpr std::size_t kMost = 10000;
  const std::string guess = nearest(name, std::span(names).first(std::min(names.size(), kMost)));
  return guess.empty() ? std::string() : says + guess + "; ";
}

/// Of a model whose tensors nobody lists, each layer has at least one.
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

}  // namespace

TensorMap whole_map(const std::vector<Container>& files, const std::vector<TiedParameter>& tied) {
  TensorMap map;
  std::unordered_map<std::string_view, const Container*> names_held;
  for (const Container& file : files)
    for (const TensorEntry& tensor : file.tensors) {
      const auto [found, is_new] = names_held.emplace(tensor.name, &file);
      if (!is_new)
        throw Error(ErrorKind::kBadInput, "is in this file and in " + found->second->path.string())
            .in(file.path)
            .tensor(tensor.name);
    }
  map.reserve_logical(names_held.size());
  for (const Container& file : files) {
    const std::uint32_t first_file = map.add_files(file, {});
    for (const TensorEntry& tensor : file.tensors) {
      const auto alias =
          std::find_if(tied.begin(), tied.end(), [&](const TiedParameter& t) { return t.name == tensor.name; });
      const bool second_copy = alias != tied.end() && names_held.count(alias->source) > 0;
      const std::uint32_t stored =
          map.add_stored(tensor, first_file, second_copy ? PartitionLabel::kTied : PartitionLabel::kWhole);
      map.stored[stored].tied = second_copy;
      map.add_whole(stored, second_copy ? alias->source : tensor.name);
    }
  }
  return map;
}

std::vector<TiedParameter> tied_parameters(const std::optional<Model>& model) {
  if (!model) return {{"lm_head.weight", "model.embed_tokens.weight"}};
  std::vector<TiedParameter> tied;
  for (const ModelParameter& parameter : model->parameters)
    if (!parameter.tied_to.empty()) tied.push_back({parameter.name, parameter.tied_to});
  return tied;
}

void validate_against_model(TensorMap& map, const Model& model, const std::filesystem::path& where) {
  if (model.by_config_plan) validate_layers(model, where);
  std::unordered_map<std::string_view, const ModelParameter*> expected;
  std::vector<std::string> order;
  expected.reserve(model.parameters.size());
  order.reserve(model.parameters.size());
  for (const ModelParameter& parameter : model.parameters) {
    order.push_back(parameter.name);
    if (parameter.tied_to.empty()) expected.emplace(parameter.name, &parameter);
  }
  if (model.family_chosen)
    if (const auto lines = misfits(map, model, kMostMisfits); !lines.empty())
      throw Error(ErrorKind::kBadInput, fmt::format("the tensors are not those of the family {}: {}",
                                                    model.family->model_type, join(lines, "; ")))
          .in(where)
          .hint("take another `family`, or leave the option out");
  std::vector<std::string> unexplained;
  for (const LogicalTensor& tensor : map.logical) {
    if (tensor.filler) continue;
    const auto found = expected.find(tensor.name);
    if (found == expected.end()) {
      unexplained.push_back(tensor.name);
      continue;
    }
    if (found->second->shape != tensor.shape && !found->second->any_shape)
      throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but config.json asks for {}",
                                                    to_string(tensor.shape), to_string(found->second->shape)))
          .in(where)
          .tensor(tensor.name)
          .hint("config.json belongs to another model, or the checkpoint is damaged");
    expected.erase(found);
  }
  if (const auto problem = quantization_problem(model.quant_method); problem && !unexplained.empty())
    throw Error(ErrorKind::kUnsupported, problem->what).in(where).tensor(unexplained.front()).hint(problem->hint);
  if (!unexplained.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} {} not explained by config.json (model_type {}): {}", unexplained.size(),
                            unexplained.size() == 1 ? "tensor is" : "tensors are", model.family->model_type,
                            list_names(unexplained)))
        .in(where)
        .tensor(unexplained.front())
        .hint(
            nearest_hint(unexplained.front(), order, "the nearest name that it explains is ") +
            "config.json belongs to another model, or the checkpoint is of a variant (quantised, adapters, more heads) "
            "that this family does not describe");
  std::vector<std::string> missing;
  for (const ModelParameter& parameter : model.parameters)
    if (expected.count(parameter.name) && !parameter.optional) missing.push_back(parameter.name);
  if (!missing.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("{} {} that config.json asks for {} missing: {}", missing.size(),
                                                  missing.size() == 1 ? "tensor" : "tensors",
                                                  missing.size() == 1 ? "is" : "are", list_names(missing)))
        .in(where)
        .tensor(missing.front())
        .hint(missing_hint(missing));
  map.order_logical(order);
}

}  // namespace reshard
