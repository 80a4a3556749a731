#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/rules/placed_rules.h"
#include "reshard/specs/parallel/head_slots.h"

namespace reshard {

/// Shapes to which parameters are padded with zeros before ranks share them, by name; others keep their shape.
using PaddedShapes = std::shared_ptr<const std::unordered_map<std::string, Dims>>;

/// How ranks share a dim that is divided into equal parts.
struct RankShare {
  std::uint32_t parts = 1;
  std::vector<std::uint32_t> of_rank;  // the part of each rank; a number >= `parts` is a part of zeros
  HeadSlots slots;                     // heads over all parts, if the dim consists of heads
  PaddedShapes padded_shapes;          // null: all keep their shape
};

/// How ranks share experts: rank r has part r % parts of each expert of group r / parts.
struct ExpertShare {
  std::uint32_t parts = 1;
  std::uint32_t groups = 1;
  std::uint64_t multiple = 1;  // the size of an expert is padded with zeros to a multiple of this and of `parts`
  std::uint64_t rounding = 1;  // the size of a part is then padded with zeros to a multiple of this
  PaddedShapes padded_shapes;  // null: all keep their shape
};

/// The ways in which a layout shares parameters, by SchemeEntry::RankSplit::share.
struct RankShares {
  std::map<std::string, RankShare, std::less<>> usual;
  std::map<std::string, ExpertShare, std::less<>> experts;
  /// Returns the size that a parameter is padded to along its split dim.
  std::function<std::uint64_t(const ModelParameter& parameter, std::uint32_t parts)> padded;
  DType dtype = DType::kBF16;  // of SchemeEntry::Constant::Value::kMask
};

/// A word of RankShares::usual: how ranks share parameters outside the layers, and count themselves, if that is not the
/// usual way.
inline constexpr const char* kOutsideLayers = "outside_layers";

/// Numbers of heads.
struct HeadCounts {
  std::uint32_t query = 0;  // 0: unknown
  std::uint32_t key_value = 0;
  std::uint64_t dim = 0;
};

/// Returns the numbers of heads of a model: those that the model declares, or else those that follow from the shapes of
/// the entries with SchemeEntry::RankSplit::heads.
HeadCounts head_counts(const Model& model, const WrittenNames& names);

/// Creates the rules of a model's tensors on ranks from the entries of a scheme for ranks.
class RankRules {
 public:
  /// \param model, names, shares  borrowed. `shares` has every word of the scheme.
  RankRules(const Model& model, const WrittenNames& names, const RankShares& shares, std::uint32_t ranks);

  /// Returns the rules of the entries. An entry whose parameters are all optional needs one that `holds` has, as the
  /// parameter or as the entry. Buffers of any shape have none.
  /// \throws Error kUsage if experts cannot be shared; kBadInput like PlacedRules.
  std::vector<PartitionRule> run(const HoldsName& holds) &&;

 private:
  using Table = std::shared_ptr<const Placement>;
  using Parts = std::vector<PartitionRule::Part>;

  /// What constants that follow an entry are about.
  struct Added {
    std::uint64_t size = 0, padded = 0;  // of the split dim, without and with padding
    std::uint64_t experts = 0;           // number of experts
  };
  /// Parameters with equal keys have the same table: what it is of (a share, or an entry of the scheme), and numbers.
  using TableKey = std::pair<const void*, std::array<std::uint64_t, 5>>;

  void count_chunks(const std::string& parameter, std::uint64_t each, std::uint64_t ranks);
  bool is_held(const WrittenNames::Entry& entry, const HoldsName& holds) const;
  Added add(const WrittenNames::Entry& entry);
  void add_heads(const WrittenNames::Entry& entry);
  void add_alternating(const WrittenNames::Entry& entry);
  void add_experts(const WrittenNames::Entry& entry);
  void add_constant(const WrittenNames::Entry& entry, const Added& to);
  void finish(const WrittenNames::Entry& entry, PartitionRule& rule);
  const PaddedShapes& padded_shapes(const SchemeEntry& rule) const;
  Dims padded_shape(const ModelParameter& tensor, const PaddedShapes& shapes) const;
  std::uint64_t padded_size(const SchemeEntry& rule, const ModelParameter& tensor, std::uint32_t dim) const;
  void pad(const SchemeEntry& rule, PartitionRule& made);
  void add_mask(const WrittenNames::Entry& entry, const Added& to);
  const ModelParameter& parameter(const std::string& name) const { return *by_name_.at(name); }
  const ModelParameter& tensor(const WrittenNames::Entry& entry, std::size_t index);
  const RankShare& share_of(const WrittenNames::Entry& entry) const;
  Table heads_table(const ModelParameter& parameter, const std::vector<SchemeEntry::Heads>& roles, std::uint32_t dim,
                    const RankShare& share);
  Table even_table(const ModelParameter& parameter, std::uint32_t dim, std::uint64_t padded, const RankShare& share);
  struct ExpertPart;
  Table part_table(const ExpertPart& part, const ExpertShare& share);
  Table shared_part_table(const ExpertPart& part, const ExpertShare& share);
  Table group_table(std::uint64_t experts, const ExpertShare& share) const;
  Table packed_table(const ModelParameter& parameter, const ExpertShare& share) const;
  PartitionRule::Part part_with_experts(const ModelParameter& one, std::optional<std::uint32_t> dim,
                                        const ExpertShare& share);
  PartitionRule::Part part_of_expert(const ModelParameter& one, std::uint64_t expert, bool is_named, std::uint32_t dim,
                                     bool is_whole, const ExpertShare& share);

  const WrittenNames& names_;
  const RankShares& shares_;
  std::uint32_t ranks_;
  HeadCounts heads_;
  PlacedRules rules_;
  std::unordered_map<std::string_view, const ModelParameter*> by_name_;
  std::map<TableKey, Table> tables_;
  std::uint64_t chunks_ = 0;            // in all of them whose size depends on padding
  std::deque<ModelParameter> changed_;  // tensors that follow from parameters
  std::unordered_map<std::string, std::shared_ptr<const PartitionRule::Changed>> changes_;  // by their names
};

}  // namespace reshard
