#include "reshard/layouts/peft/adapter_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/specs/peft/adapter_metadata.h"

namespace reshard {

namespace fs = std::filesystem;

void validate_adapter_explained(const ShardedCheckpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    const Container& file = checkpoint.files[pp_rank].front();
    std::unordered_set<std::string> held;
    for (const TensorEntry& tensor : file.tensors) held.insert(tensor.name);
    std::vector<std::string> prefixes;  // of the fused linears
    for (const ModuleSpecs& module : checkpoint.metadata[pp_rank].modules)
      for (const TransformationSpec& spec : module.specs) {
        const auto* fused = std::get_if<FusedLinearsSpec>(&spec);
        prefixes.push_back(module.module_fully_qualified_name + "." +
                           (fused ? fused->fused_linear_name
                                  : std::get<GQAQKVColumnParallelLinearSpec>(spec).gqa_qkv_projection_name) +
                           ".");
      }
    std::sort(prefixes.begin(), prefixes.end());
    for (const PartitionRule& rule : rules_of_stage(checkpoint, pp_rank)) {
      if (rule.from_spec || !held.count(rule.stored_name)) continue;
      const auto after = std::upper_bound(prefixes.begin(), prefixes.end(), rule.stored_name);
      if (after != prefixes.begin() && rule.stored_name.starts_with(*std::prev(after)))
        throw Error(ErrorKind::kUnsupported,
                    "belongs to a fused linear, and how its rows divide among the originals is not known")
            .in(file.path)
            .tensor(rule.stored_name);
    }
  }
}

void validate_adapter_sizes(const TensorMap& map, const fs::path& where) {
  const auto shape_of = [&](const std::string& name) -> const Dims* {
    const auto found = map.find_logical(name);
    return found ? &map.logical[*found].shape : nullptr;
  };
  for (const LogicalTensor& tensor : map.logical) {
    const auto name = lora_name(tensor.name);
    if (!name || tensor.filler || tensor.shape.empty()) continue;
    const Dims* b = shape_of(name->module + ".lora_B.weight");
    if (b == nullptr || b->size() != 2) continue;
    const bool per_output = name->component == "lora_magnitude_vector" || tensor.name.ends_with(".lora_B.bias");
    const bool a = tensor.name.ends_with(".lora_A.weight");
    if ((per_output && tensor.shape[0] != (*b)[0]) || (a && tensor.shape[0] != (*b)[1]))
      throw Error(ErrorKind::kBadInput, fmt::format("would be {}, which does not fit its lora_B of {}",
                                                    to_string(tensor.shape), to_string(*b)))
          .in(where)
          .tensor(tensor.name)
          .hint("the metadata may not say how it is split");
  }
}

}  // namespace reshard
