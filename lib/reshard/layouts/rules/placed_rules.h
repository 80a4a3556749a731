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

/// Distributes `slots` evenly over `tp` ranks, in order.
std::shared_ptr<const Placement> placement_of(const std::vector<std::uint32_t>& slots, std::uint64_t units,
                                              std::uint64_t unit_elems, std::uint32_t tp);

/// Collects the rules of the tensors of `tp` ranks, each placed by a table. A size that is not divisible by the ranks
/// is padded at its end: with zeros, or with the lowest finite number for a bias along the outputs (NxD's
/// ColumnParallelLinear).
class PlacedRules {
 public:
  explicit PlacedRules(std::uint32_t tp) : tp_(tp) {}

  /// Adds a tensor with one element, the rank's number.
  void add_rank_number(std::string name);
  /// Adds a tensor that contains no logical tensor. See PartitionRule::Constant for `values`.
  void add_constant(std::string name, DType dtype, Dims shape, std::vector<std::vector<std::uint64_t>> values);
  /// \returns the rule, so that the caller can set more of its fields; valid until the next call.
  PartitionRule& add_placed(std::string name, PartitionLabel label, std::uint32_t dim,
                            std::vector<PartitionRule::Part> parts);
  /// Adds a tensor that every rank has whole.
  PartitionRule& add_whole(std::string name, const std::string& logical_name);
  /// Adds a parameter that is split evenly along `dim`, or whole if it is unset. The rule of a tied parameter has the
  /// logical name of its source.
  /// \param padded See `evenly`; 0: the next multiple of `tp`.
  /// \returns the rule, like add_placed.
  /// \throws Error kBadInput if the table would have more than kMaxChunks chunks.
  PartitionRule& add(const ModelParameter& parameter, std::string name, std::optional<std::uint32_t> dim,
                     std::uint64_t padded = 0);

  /// Distributes `padded` elements along `dim` evenly over the ranks, whose number divides `padded`. Elements beyond
  /// the parameter's own size are padding. Parameters with equal sizes share a table.
  /// \throws Error like add.
  std::shared_ptr<const Placement> evenly(const ModelParameter& parameter, std::uint32_t dim, std::uint64_t padded);

  std::vector<PartitionRule> take() && { return std::move(rules_); }

 private:
  std::uint32_t tp_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::shared_ptr<const Placement>> even_;  // by size and padded size
  std::uint64_t chunks_ = 0;  // number of chunks in all of them
  std::vector<PartitionRule> rules_;
};

}  // namespace reshard
