// Optimizers as their files contain them: parameters by number or name, and each rank's rows of their states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/pickle/plain_value.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {

/// One rank's rows of a parameter's state, or the whole of a state without dims.
struct StateShard {
  TensorEntry tensor;           // its name is the state's: "exp_avg", or kMasterState
  std::uint32_t entry = 0;      // index into OptimizerStage::entries
  std::uint32_t rank = 0;       // rank in the stage
  std::uint64_t begin_row = 0;  // in the local tensor

  const std::string& state() const { return tensor.name; }
  bool is_master() const { return tensor.name == kMasterState; }
  bool has_rows() const { return !tensor.shape.empty(); }
};

/// A parameter. One that has not been trained yet has neither shards nor numbers.
struct OptimizerEntry {
  std::vector<std::pair<std::string, PlainValue>> numbers;  // "step" of an optimizer that counts in Python
  std::optional<Dims>
      shape;         // shape of the local tensor, before data-parallel ranks shared it; std::nullopt if unknown
  std::string name;  // empty in files that number parameters
};

/// Parameters are numbered through all groups: group g has the `count` parameters after those of earlier groups.
struct OptimizerFileGroup {
  PlainValue::Dict values;  // in the file's order, without "params"
  std::uint32_t count = 0;
  std::uint32_t first = 0;  // its first entry: the sum of earlier counts
};

/// The optimizer of one pipeline stage, or of one of its ranks.
/// Invariant: the groups' counts add up to the entries; shards are sorted by rank, then by entry, and those of one rank
/// and entry have different states.
struct OptimizerStage {
  enum class Form : std::uint8_t {
    kZero1,  // base_state, shape_info: data-parallel ranks may share the states
    kWhole,  // state: every data-parallel rank has all states
  };

  std::filesystem::path path;  // file of the first rank
  Form form = Form::kZero1;
  std::vector<OptimizerFileGroup> groups;
  std::vector<OptimizerEntry> entries;
  std::vector<StateShard> shards;
  std::uint32_t first_expert_group = 0;  // this group and later ones belong to experts that are distributed over
                                         // ranks; the number of groups without experts

  /// Whether an entry belongs to an expert.
  bool is_expert(std::size_t entry) const { return entry >= num_dense(); }
  /// The number of entries that do not belong to experts. These come first.
  std::size_t num_dense() const {
    return first_expert_group < groups.size() ? groups[first_expert_group].first : entries.size();
  }
  /// Returns the shards of a rank.
  std::span<const StateShard> of_rank(std::uint32_t rank) const;
  /// Sorts shards that were added in another order. Inline, so that fuzzers of files need no source of this room.
  void sort_shards() {
    std::stable_sort(shards.begin(), shards.end(), [](const StateShard& a, const StateShard& b) {
      return std::pair(a.rank, a.entry) < std::pair(b.rank, b.entry);
    });
  }
  /// Name of an entry in errors: its parameter's name, or "id 3", "id 0 of the experts".
  std::string name_of(std::uint32_t entry) const;
  /// Returns the first entry that has states, but no master weights; std::nullopt if all have some.
  std::optional<std::uint32_t> first_without_master() const;
};

/// Name of `path` in an error about `other`: the file's name, with its folder if `other` has the same name.
std::string short_name(const std::filesystem::path& path, const std::filesystem::path& other);

/// Validates that a rank's optimizer has the form, groups and hyperparameters of `first`, and, if they belong to one
/// stage, the parameters, states, dtypes, numbers and shapes of its first rank.
/// \throws Error kBadInput, naming both files and the difference.
void validate_agreement(const OptimizerStage& rank, const OptimizerStage& first, bool same_stage);

}  // namespace reshard
