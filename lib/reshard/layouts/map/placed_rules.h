#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/layouts/map/partition.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// `slots`, an equal share of them to each of `tp` ranks in turn.
std::shared_ptr<const Placement> placement_of(const std::vector<std::uint32_t>& slots, std::uint64_t units,
                                              std::uint64_t unit_elems, std::uint32_t tp);

/// Collects the rules of the tensors that a rank of `tp` has, each placed by a table. Where a size does not divide, it
/// is padded at its end: with zeros, and a bias along the outputs with the lowest finite number (NxD's
/// ColumnParallelLinear).
class PlacedRules {
 public:
  explicit PlacedRules(std::uint32_t tp) : tp_(tp) {}

  /// A tensor of one number, that of the rank.
  void add_rank_number(std::string name);
  /// A tensor that no original is in; `values` are those of PartitionRule::Constant.
  void add_constant(std::string name, DType dtype, Dims shape, std::vector<std::vector<std::uint64_t>> values);
  /// \returns the rule, for what else there is to say of it; valid until the next is added.
  PartitionRule& add_placed(std::string name, PartitionLabel label, std::uint32_t dim,
                            std::vector<PartitionRule::Part> parts);
  /// A tensor that every rank has all of.
  void add_whole(std::string name, const std::string& logical_name);
  /// A parameter that is split evenly along `dim`, or whole.
  /// \param padded As of `evenly`; 0: the next multiple of the ranks.
  /// \throws Error kBadInput for sizes that no model has.
  void add(const ModelParameter& parameter, std::string name, std::optional<std::uint32_t> dim,
           std::uint64_t padded = 0);

  /// An equal share of `padded` elements along `dim` for each rank, which divide them; what is past the parameter's own
  /// size is padding. Parameters that are partitioned alike share a table.
  /// \throws as add.
  std::shared_ptr<const Placement> evenly(const ModelParameter& parameter, std::uint32_t dim, std::uint64_t padded);

  std::vector<PartitionRule> take() && { return std::move(rules_); }

 private:
  std::uint32_t tp_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::shared_ptr<const Placement>> even_;  // by both sizes
  std::uint64_t chunks_ = 0;                                                                  // of all those
  std::vector<PartitionRule> rules_;
};

}  // namespace reshard
