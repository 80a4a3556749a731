#include "reshard/layouts/names/packed_experts.h"

#include <algorithm>
#include <set>

#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr std::string_view kExpertsPart = ".experts.*.";

/// Transformers 4 saved this family packed with the last two dims swapped; Transformers 5 saves it packed.
constexpr std::string_view kStayPacked = "qwen3_vl_moe_text";
/// The files of this family have either form, under the same names.
constexpr std::string_view kMayBePacked = "qwen3_5_moe_text";

const Scheme& transformers_scheme() {
  const auto& schemes = builtin_schemes();
  return **std::find_if(schemes.begin(), schemes.end(),
                        [](const auto& scheme) { return scheme->program == "transformers"; });
}

}  // namespace

PackedExperts::PackedExperts(const Family& family) {
  const auto is_turned = [](const Family::Module& module) {
    return module.stacked && module.plan == TensorParallelPlan::kPackedRowwise;
  };
  const Scheme& transformers = transformers_scheme();
  stay_packed_ = family.model_type == kStayPacked;
  is_known_ = stay_packed_ || family.model_type == kMayBePacked ||
              std::find(transformers.families.begin(), transformers.families.end(), family.model_type) !=
                  transformers.families.end();
  // Other families that are packed as (E, H, 2 I) in files have this form in memory too.
  if (!stay_packed_ && std::any_of(family.modules.begin(), family.modules.end(), is_turned)) return;
  names_ = parameter_names(family);
  std::set<std::string, std::less<>> renamed, of_experts;  // names that may be renamed; weights of single experts
  for (const Family::Module& module : family.modules) {
    const std::string name = module.parameter.empty() ? module.name : module.name + "." + module.parameter;
    const bool is_single = module.experts && !module.stacked && module.name.find(kExpertsPart) != std::string::npos;
    if (is_single && (module.first_expert || module.parameter != "weight")) continue;
    renamed.insert(name);
    if (is_single) of_experts.insert(name);
  }
  Scheme scheme = scheme_for(transformers, family.model_type, renamed);
  for (const SchemeEntry& entry : scheme.entries)
    if (!entry.is_plain())
      for (const std::string& parameter : entry.parameters) of_experts.erase(parameter);
  if (!of_experts.empty()) return;  // the experts' linears have other names
  if (std::any_of(scheme.entries.begin(), scheme.entries.end(), [](const auto& entry) { return !entry.is_plain(); }))
    scheme_ = std::make_shared<const Scheme>(std::move(scheme));
}

std::optional<PackedNames> PackedExperts::find(std::string_view name) const {
  if (empty()) return std::nullopt;
  const std::string starred = with_stars(name);
  for (const SchemeEntry& entry : scheme_->entries)
    if (!entry.is_plain() && entry.names.front() == starred) return PackedNames(entry, numbers_in(name));
  return std::nullopt;
}

std::string PackedExperts::own_name(const std::string& packed) const {
  const std::string starred = with_stars(packed);
  if (empty() || names_.count(starred) > 0) return packed;
  for (const SchemeEntry& entry : scheme_->entries)
    if (entry.is_plain() && entry.names.front() == starred)
      return with_numbers(entry.parameters.front(), numbers_in(packed));
  return packed;
}

bool PackedExperts::is_of_expert(std::string_view parameter) {
  return with_stars(parameter).find(kExpertsPart) != std::string::npos;
}

}  // namespace reshard
