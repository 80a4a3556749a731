#include "reshard/specs/family/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family/builtin_files.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/family/resolve_family.h"

namespace reshard {

namespace fs = std::filesystem;

namespace {

bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::shared_ptr<const Family> builtin_family(std::string_view model_type) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Family>, std::less<>> parsed;
  const std::lock_guard lock(mutex);
  if (const auto known = parsed.find(model_type); known != parsed.end()) return known->second;
  const auto resolved = builtin_description(std::string(model_type));
  if (!resolved) return nullptr;
  const fs::path path = fs::path("built-in family") / (std::string(model_type) + ".json");
  Family family = parse_family_text(family_text(*resolved), path);
  family.schemes = builtin_schemes_for(family);
  return parsed.emplace(model_type, std::make_shared<const Family>(std::move(family))).first->second;
}

std::vector<std::shared_ptr<const Scheme>> builtin_schemes_for(const Family& family) {
  std::vector<std::shared_ptr<const Scheme>> schemes;
  for (const auto& scheme : builtin_schemes())
    if (!scheme->is_of_ranks && is_one_of(family.model_type, scheme->families))
      schemes.push_back(
          std::make_shared<const Scheme>(scheme_for(*scheme, family.model_type, parameter_names(family))));
  return schemes;
}

std::shared_ptr<const Scheme> builtin_scheme(std::string_view program, const Family& family,
                                             const Expression::Lookup& settings) {
  for (const auto& scheme : builtin_schemes())
    if (scheme->program == program && is_one_of(family.model_type, scheme->families))
      return std::make_shared<const Scheme>(scheme_for(*scheme, family.model_type, parameter_names(family), settings));
  return nullptr;
}

const Scheme& inference_scheme() {
  constexpr std::string_view kProgram = "nxd_inference";
  const auto& all = builtin_schemes();
  return **std::find_if(all.begin(), all.end(), [&](const auto& one) { return one->program == kProgram; });
}

Scheme inference_scheme(const Family& family, const Expression::Lookup& settings) {
  Scheme scheme = inference_scheme();
  scheme.entries.insert(scheme.entries.begin(), family.inference->entries.begin(), family.inference->entries.end());
  return scheme_for(scheme, family.model_type, parameter_names(family), settings);
}

std::optional<TensorParallelPlan> plan_of_word(std::string_view word) {
  for (const PlanWord& row : kPlanWords)
    if (word == row.word) return row.plan;
  return std::nullopt;
}

std::vector<std::string> plan_words() {
  std::vector<std::string> words;
  for (const PlanWord& row : kPlanWords) words.push_back(row.word);
  return words;
}

std::optional<std::uint32_t> split_dim_of(TensorParallelPlan plan, std::size_t ndim) {
  const auto last = static_cast<std::uint32_t>(ndim) - 1;
  switch (plan) {
    case TensorParallelPlan::kColwise:
    case TensorParallelPlan::kPackedColwise: return ndim == 1 ? 0 : last - 1;
    case TensorParallelPlan::kRowwise:
    case TensorParallelPlan::kPackedRowwise: return last;
    case TensorParallelPlan::kEmbeddingRowwise: return 0;
    case TensorParallelPlan::kReplicate: return std::nullopt;
  }
  return std::nullopt;
}

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const BuiltinFile& file : kBuiltinFamilies) names.push_back(fs::path(file.name).stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

/// How a built-in family refers to another one.
struct Likeness {
  std::string like;             // the family that it is derived from; empty if none
  bool is_second_name = false;  // no further differences
};

/// Keyed by model_type.
const std::map<std::string, Likeness, std::less<>>& likenesses() {
  static const std::map<std::string, Likeness, std::less<>> kOfFamilies = [] {
    std::map<std::string, Likeness, std::less<>> all;
    for (const BuiltinFile& file : kBuiltinFamilies) {
      const Json json = Json::parse(file.json);
      Likeness& likeness = all[fs::path(file.name).stem()];
      if (!json.contains("like")) continue;
      likeness = {json.at("like").get<std::string>(), json.size() == 2};
    }
    return all;
  }();
  return kOfFamilies;
}

}  // namespace

bool is_second_name(std::string_view model_type) {
  const auto known = likenesses().find(model_type);
  return known != likenesses().end() && known->second.is_second_name;
}

std::map<std::string, std::size_t> families_like() {
  std::map<std::string, std::size_t> counts;
  for (const auto& [model_type, likeness] : likenesses())
    if (!likeness.like.empty()) ++counts[likeness.like];
  return counts;
}

bool has_part(std::string_view name, const std::vector<std::string>& parts) {
  const std::string dotted = "." + std::string(name) + ".";
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return dotted.find("." + part + ".") != dotted.npos; });
}

const std::vector<std::string>& float32_parts() {
  static const std::vector<std::string> kParts = [] {
    std::set<std::string> parts;
    for (const BuiltinFile& file : kBuiltinFamilies)
      if (const Json json = Json::parse(file.json); json.contains("float32"))
        for (const Json& part : json.at("float32")) parts.insert(part.get<std::string>());
    return std::vector<std::string>(parts.begin(), parts.end());
  }();
  return kParts;
}

bool describes_model(const std::shared_ptr<const Family>& spec) {
  return spec && !spec->file.empty() && !spec->modules.empty();
}

std::string expand_layer(std::string_view pattern, std::uint64_t layer) {
  std::string name(pattern);
  if (const auto star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(layer));
  return name;
}

bool Family::Module::is_layered() const {
  return std::count(name.begin(), name.end(), '*') > (is_list() ? 1 : 0);
}

std::set<std::string, std::less<>> parameter_names(const Family& family) {
  std::set<std::string, std::less<>> names;
  for (const Family::Module& module : family.modules) {
    names.insert(module.parameter.empty() ? module.name : module.name + "." + module.parameter);
    if (module.bias) names.insert(module.name + ".bias");
  }
  return names;
}

}  // namespace reshard
