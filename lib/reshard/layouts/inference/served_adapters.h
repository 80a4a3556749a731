#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/ranks/sharded_map.h"

namespace reshard {

inline constexpr LayoutOption kLoraConfig{"lora-config", LayoutOption::Type::kText,
                                          "Adapters that the model serves, as JSON: the contents of "
                                          "neuron_config.json, or of its lora_config, with at least target_modules, "
                                          "max_loras and max_lora_rank"};

/// End of the names of files of adapters that the host holds; before it are the adapter's name and the rank.
inline constexpr const char* kHostFileEnding = "_sharded_lora_cpu_checkpoint.safetensors";

/// How NxD Inference stores the adapters that it serves next to their base: stacked, with one slot per adapter.
struct ServedAdapters {
  std::set<std::string> modules;  // last parts of the names of linears that are wrapped
  std::uint32_t slots = 0;
  std::uint32_t first_slot = 0;  // slots before it are empty
  std::uint32_t rank = 0;        // ranks of adapters are padded with zeros to this one
  std::uint32_t batch = 1;
  bool transposes = true;      // a slot has the columns of lora_A and lora_B as rows
  bool splits_unsplit = true;  // ranks also share the dims that they do not share in the base
  /// Adapters in the slots, in their order, which neuron_config.json sorts; empty if unknown.
  std::vector<std::string> names;
  /// With dynamic_multi_lora: adapters that also have files of their own, each with the stacks of all of them.
  std::vector<std::string> on_host;
  std::uint32_t host_slots = 0;

  bool operator==(const ServedAdapters&) const = default;
};

/// Returns the value of kLoraConfig for the lora_config of a neuron_config.json.
std::string lora_config_text(const Json& lora_config);

/// Returns the adapters that the options describe; std::nullopt without kLoraConfig.
/// \throws Error kUsage if the value is not valid.
std::optional<ServedAdapters> served_adapters(const OptionValues& values);

/// Whether both describe the same adapters, or none. Names count only if both have them.
/// \throws Error as served_adapters.
bool has_same_adapters(const OptionValues& a, const OptionValues& b);

/// Renames the tensors of wrapped linears. `wrapper` is added to their module.
void wrap_rules(std::vector<PartitionRule>& rules, const ServedAdapters& served, const std::string& wrapper);

/// Plans the stacks of the adapters of `context`.
/// \param base  rules of the base model, with the names that it has without adapters.
/// \throws Error kBadInput or kUnsupported if the adapters do not fit the model or `served`.
void plan_served_adapters(TargetPlan& plan, const RankTarget& target, const ServedAdapters& served,
                          const std::vector<PartitionRule>& base, const TargetContext& context);

}  // namespace reshard
