#include "reshard/layouts/fitting.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/whole_map.h"

namespace reshard {
namespace {

constexpr std::size_t kMostCandidates = 4096;

/// `name` and the one of `names` that is most like it, in the same layer where there is one.
std::string with_nearest(const std::string& name, const std::vector<std::string>& names) {
  std::vector<std::string> candidates;
  for (const std::string& other : names)
    if (candidates.size() < kMostCandidates && other.front() == name.front()) candidates.push_back(other);
  const std::string guess = nearest(name, candidates);
  return guess.empty() ? name : name + " (the nearest is " + guess + ")";
}

/// Whether the checkpoint can be one of the family at all: the modules that every layer has are in the first.
bool may_fit(const Family& family, const std::unordered_set<std::string_view>& names) {
  return std::all_of(family.modules.begin(), family.modules.end(), [&](const Family::Module& module) {
    if (module.when || module.optional || module.experts || !module.tied_to.empty()) return true;
    const std::string name = expand_layer(module.name, 0);
    const std::string full = module.parameter.empty() ? name : name + "." + module.parameter;
    // Quantised linears have other leaves.
    return names.count(full) > 0 || std::any_of(names.begin(), names.end(),
                                                [&, start = name + "."](auto held) { return held.starts_with(start); });
  });
}

}  // namespace

std::vector<std::string> misfits(const TensorMap& map, const Model& model, std::size_t most) {
  std::unordered_map<std::string_view, const ModelParameter*> expected;
  std::vector<std::string> expected_names;
  for (const ModelParameter& parameter : model.parameters) {
    expected_names.push_back(parameter.name);
    if (parameter.tied_to.empty()) expected.emplace(parameter.name, &parameter);
  }
  std::vector<std::string> lines, unexplained;
  std::set<std::string> kinds;  // a misfit of one layer is one of all
  const auto is_new = [&](const std::string& name) {
    return lines.size() < most && kinds.insert(with_stars(name)).second;
  };
  for (const LogicalTensor& tensor : map.logical) {
    if (tensor.filler) continue;
    const auto found = expected.find(tensor.name);
    if (found == expected.end()) {
      unexplained.push_back(tensor.name);
      continue;
    }
    if (found->second->shape != tensor.shape && !found->second->any_shape && is_new(tensor.name))
      lines.push_back(fmt::format("{} has the shape {}, expected {}", tensor.name, to_string(tensor.shape),
                                  to_string(found->second->shape)));
    expected.erase(found);
  }
  for (const std::string& name : unexplained)
    if (is_new(name)) lines.push_back(with_nearest(name, expected_names) + " is not named by it");
  for (const ModelParameter& parameter : model.parameters)
    if (expected.count(parameter.name) > 0 && !parameter.optional && is_new(parameter.name))
      lines.push_back(with_nearest(parameter.name, unexplained) + " is missing");
  return lines;
}

std::vector<std::string> families_that_fit(const ModelConfig& config, const std::vector<Container>& files) {
  std::unordered_set<std::string_view> names;
  for (const Container& file : files)
    for (const TensorEntry& tensor : file.tensors) names.insert(tensor.name);
  std::vector<std::string> fitting;
  for (const std::string& name : known_model_types()) {
    const auto builtin = std::shared_ptr<const Family>(std::shared_ptr<const void>(), builtin_family(name));
    if (builtin->modules.empty() || is_second_name(name)) continue;
    try {
      const LanguageModel found = find_language_model(config, builtin);
      const auto family = with_prefixes_of(found.family, names);
      if (!may_fit(*family, names)) continue;
      const Model model = instantiate(found, names);
      if (misfits(whole_map(files, tied_parameters(model)), model, 1).empty()) fitting.push_back(name);
    } catch (const Error&) {
      continue;  // config.json lacks what this family needs
    }
  }
  return fitting;
}

}  // namespace reshard
