#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/layouts/map/partition.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// Of the tables of all parameters, over all ranks: more than any model has.
inline constexpr std::uint64_t kMaxChunks = 1 << 24;

/// The rule of every parameter in a stage's metadata, in its order: fused linears, grouped-query heads, stride, packed
/// matrices and experts become tables. `tp` and `ep` are those of the mesh; `metadata` is validated to be for them.
/// \throws Error kBadInput if the tables would have more chunks than any model's.
std::vector<PartitionRule> partition_rules(const StageMetadata& metadata, std::uint32_t tp, std::uint32_t ep = 1);

/// The rule of one parameter that no transformation spec explains.
PartitionRule partition_rule(const ParallelParameter& parameter, std::uint32_t tp, std::uint32_t ep = 1);

/// What a transformation spec expects of a parameter's own entry in the metadata.
struct SpecEntry {
  std::string name;
  bool is_split = true;  // else it is whole on every rank
  std::uint32_t dim = 0;
  std::uint32_t stride = 1;
};

/// Those that the specs of a stage speak of, but for fused query, key and value projections, whose entries say nothing
/// in the reference either (GQAQKVColumnParallelLinear with fuse_qkv).
std::vector<SpecEntry> spec_entries(const StageMetadata& metadata);

}  // namespace reshard
