#include "reshard/layouts/replicated_note.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// "mamba" of "mamba.in_proj".
std::string_view first_part(std::string_view name) {
  return name.substr(0, name.find('.'));
}

}  // namespace

std::optional<std::string> replicated_note(const Model& model, std::uint64_t tp) {
  if (tp == 1) return std::nullopt;
  const std::string layers = model.family->layers;
  // The modules of a layer, and whether any of them is split, by the first parts of their names in it.
  std::map<std::string, std::set<std::string>, std::less<>> whole;
  std::set<std::string, std::less<>> split_parts;
  std::vector<std::string> others;
  for (const ModelParameter& parameter : model.parameters) {
    if (parameter.layer) {
      std::string_view name = std::string_view(parameter.module).substr(layers.size() + 1);
      name.remove_prefix(std::min(name.size(), name.find('.') + 1));
      const bool is_matrix = parameter.shape.size() > 1;
      if (parameter.split_dim)
        split_parts.emplace(first_part(name));
      else if (is_matrix && !parameter.optional)
        whole[std::string(first_part(name))].insert(with_stars(name));
    } else if (model.is_part && parameter.any_shape) {
      const std::string_view name = parameter.name;
      constexpr std::string_view kModel = "model.";
      const std::size_t from = name.starts_with(kModel) ? kModel.size() : 0;
      std::string part(name.substr(0, std::min(name.size(), name.find('.', from))));
      if (std::find(others.begin(), others.end(), part) == others.end()) others.push_back(std::move(part));
    }
  }
  std::vector<std::string> names = std::move(others);
  const std::string in_layers = layers + ".*.";
  const auto add = [&](const std::string& name) { names.emplace_back(in_layers).append(name); };
  for (const auto& [part, modules] : whole)
    if (split_parts.count(part) > 0)
      std::for_each(modules.begin(), modules.end(), add);
    else
      add(part);
  if (names.empty()) return std::nullopt;
  return "replicated on all ranks, as no plan for tensor parallelism splits them: " + list_names(names);
}

}  // namespace reshard
