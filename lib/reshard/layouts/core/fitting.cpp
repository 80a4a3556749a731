#include "reshard/layouts/core/fitting.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

/// Whether the checkpoint can be one of the family at all: the modules that every layer has are in the first.
bool may_fit(const Family& family, const std::unordered_set<std::string_view>& names) {
  return std::all_of(family.modules.begin(), family.modules.end(), [&](const Family::Module& module) {
    if (module.when || module.optional || module.experts || module.items) return true;
    if (!module.variant.empty() || !module.tied_to.empty()) return true;
    const std::string name = expand_layer(module.name, 0);
    const std::string full = module.parameter.empty() ? name : name + "." + module.parameter;
    // Quantised linears have other leaves.
    return names.count(full) > 0 || std::any_of(names.begin(), names.end(),
                                                [&, start = name + "."](auto held) { return held.starts_with(start); });
  });
}

/// A name without capitals and "_": "qwen2moeforcausallm".
std::string plain(const std::string& name) {
  std::string letters;
  for (const char c : name)
    if (c != '_') letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return letters;
}

void sort_by_likelihood(std::vector<std::string>& families, const ModelConfig& config) {
  const LanguageModel found = find_language_model(config);
  const std::string words = plain(found.config.model_type) + " " + plain(found.architecture);
  std::map<std::string, std::size_t> like = families_like();
  const auto rank = [&](const std::string& name) {
    return std::tuple(words.find(plain(name)) == words.npos, -static_cast<std::ptrdiff_t>(like[name]), name);
  };
  std::sort(families.begin(), families.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

}  // namespace

std::vector<std::string> families_that_fit(const ModelConfig& config, const std::vector<Container>& files) {
  std::unordered_set<std::string_view> names;
  for (const Container& file : files)
    for (const TensorEntry& tensor : file.tensors) names.insert(tensor.name);
  std::vector<std::string> fitting;
  for (const std::string& name : known_model_types()) {
    const auto builtin = builtin_family(name);
    if (builtin->modules.empty() || is_second_name(name)) continue;
    try {
      const LanguageModel found = find_language_model(config, builtin);
      const auto family = with_prefixes_of(found.family, names);
      if (!may_fit(*family, names)) continue;
      const Model model = instantiate(found, names);
      if (find_misfits(whole_map(files), model).empty()) fitting.push_back(name);
    } catch (const Error&) {
      continue;  // config.json lacks what this family needs
    }
  }
  sort_by_likelihood(fitting, config);
  return fitting;
}

}  // namespace reshard
