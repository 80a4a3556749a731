#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/specs/family/axis_order.h"
#include "reshard/specs/family/expression.h"
#include "reshard/tensor/recipes/change.h"

namespace reshard {

/// An entry of a checkpoint. Stars in its names represent numbers of layers or experts. Names that begin with "**"
/// are a rule for every parameter whose name ends like the first of `parameters`.
struct SchemeEntry {
  /// An entry whose value does not come from a parameter.
  struct Constant {
    enum class Value : std::uint8_t {
      kOne,           // 1.0 in float32
      kExpertMap,     // index of each expert on the rank
      kRank,          // number of the rank
      kLocalExperts,  // numbers of the experts on the rank
      kMask,          // for each element of the preceding entry's padded dim: 0, or the lowest number for padding
      kMaskPart,      // the rank's part of kMask
    };
    std::vector<std::string> names;  // like SchemeEntry::names
    Value value = Value::kOne;
    Expression when;  // like SchemeEntry::when
  };

  /// Which heads a dim consists of.
  enum class Heads : std::uint8_t { kQuery, kKey, kValue };

  /// How the values of a tensor follow from a parameter.
  struct Change {
    std::string text;
    ValueChange values;              // a divisor of 0 is the number of parts that the parameter is shared in
    std::optional<AxisOrder> order;  // std::nullopt: that of the parameter
  };

  /// How ranks share the entry, in schemes for ranks.
  struct RankSplit {
    /// Heads that the split dim consists of, for each parameter; or several for one parameter that packs them.
    std::vector<Heads> heads;
    std::optional<std::uint32_t> dim;  // dim of the parameter that ranks split, unless it is that of its plan
    std::string share;                 // which of the layout's ways to share parameters; empty: the usual one
    std::uint64_t multiple = 1;        // value of `multiple_of`
    std::string kernel;                // choice of the layout with which the last two dims are swapped; empty: none
  };

  /// One name for each of Scheme::versions, or one for all; empty for a version without the entry.
  std::vector<std::string> names;
  /// Names in the family of the parameters in this entry; empty: models have no value for it.
  std::vector<std::string> parameters;
  /// Dims of each parameter and of the entry; both are empty if the entry equals the parameter. An axis of the entry
  /// that the parameters lack is a number in their names that the entry's names lack: kNumberAxes.
  DimAxes parameter_dims, entry_dims;
  std::string joined;  // axis along which the parameters are concatenated; empty: there is one parameter
  /// The entry may be longer than the parameters, along `joined`. In schemes for ranks, where ranks split it: the layout
  /// says by how much (RankShares).
  bool is_padded = false;
  /// Sizes of axes; their keys are kModelNumbers. Schemes for ranks need none: groups follow from the heads.
  std::map<std::string, Expression, std::less<>> sizes;
  std::vector<std::string> families;  // model_types that have this entry; empty: all of the scheme's
  std::vector<Constant> constants;    // constants that follow each entry of these names
  /// Condition for the entry to exist; absent: always. In schemes for ranks over settings of the program, in others
  /// over the model, like Family::Module::when, where `layer` is the number in the parameters' names. Entries with
  /// this or with `first_layer` may share a parameter with others: the first whose condition holds is written.
  Expression when;
  Expression first_layer;  // layer of the parameters that is layer 0 in the entry's name, over the model; absent: 0
  /// One for each parameter; empty: the values are the parameters'. In schemes of whole tensors, sums.
  std::vector<Change> changes;
  /// The padded size is a multiple of this number. In schemes for ranks, it is over settings of the program, and the dim
  /// that ranks split is padded; in others over kRanksKey, and the rows are. Absent: entries are written without padding.
  Expression multiple_of;
  RankSplit ranks;
  std::vector<SchemeEntry> copies;  // further entries with the same parameters, in schemes for ranks
  std::string where;                // file and line of the entry, for errors

  bool is_plain() const { return entry_dims.empty(); }
  const std::string& name(std::size_t version) const { return name_of(names, version); }
  static const std::string& name_of(const std::vector<std::string>& names, std::size_t version) {
    return names.size() == 1 ? names.front() : names.at(version);
  }
  /// Returns the dims of the entry that are numbers, in their order in the names of parameters.
  std::vector<std::size_t> numbered_dims() const;
  /// Whether star `star` of `stars` in the names of parameters is such a dim.
  bool is_numbered(std::size_t star, std::size_t stars) const;
};

/// Axes that are numbers in names, in the order of the stars: layer, then expert. A name with one star has either of
/// them.
inline constexpr std::array<std::string_view, 2> kNumberAxes = {"layer", "expert"};

/// Numbers of a model that sizes of axes may depend on, by their keys in config.json.
inline constexpr std::array<std::string_view, 3> kModelNumbers = {"num_attention_heads", "num_key_value_heads",
                                                                  "head_dim"};

/// Number of tensor-parallel ranks, in SchemeEntry::multiple_of.
inline constexpr std::string_view kRanksKey = "tp";

/// Prefix of names that matches any parts, the same in all names of an entry.
inline constexpr std::string_view kAnyParts = "**";

inline bool begins_with_any(const std::string& name) {
  return name.starts_with(kAnyParts);
}

/// Whether an entry is for every parameter whose name ends like its first.
bool is_rule(const SchemeEntry& entry);

/// Whether a name in a scheme, with stars and perhaps "**" in front, matches a name with stars.
bool names_match(const std::string& in_scheme, const std::string& name);

}  // namespace reshard
