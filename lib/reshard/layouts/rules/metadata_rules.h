#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/layouts/map/partition.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// Limit for the tables of all parameters over all ranks: more chunks than any model has.
inline constexpr std::uint64_t kMaxChunks = 1 << 24;

/// Returns the rule of every parameter in a stage's metadata, in its order. Fused linears, grouped-query heads,
/// strides, packed matrices and experts become tables. `tp` and `ep` are the degrees of the mesh, for which `metadata`
/// must have been validated.
/// \throws Error kBadInput if the tables would have more than kMaxChunks chunks.
std::vector<PartitionRule> partition_rules(const StageMetadata& metadata, std::uint32_t tp, std::uint32_t ep = 1);

/// Returns the rule of one parameter that has no transformation spec.
PartitionRule partition_rule(const ParallelParameter& parameter, std::uint32_t tp, std::uint32_t ep = 1);

/// What a transformation spec requires of a parameter's own entry in the metadata.
struct RequiredSplit {
  std::string name;
  bool is_split = true;  // otherwise every rank has the whole parameter
  std::uint32_t dim = 0;
  std::uint32_t stride = 1;
};

/// Returns the entries that the specs of a stage define. Excludes fused query, key and value projections, whose entries
/// are not partitioned in the reference either (GQAQKVColumnParallelLinear with fuse_qkv).
std::vector<RequiredSplit> required_splits(const StageMetadata& metadata);

}  // namespace reshard
