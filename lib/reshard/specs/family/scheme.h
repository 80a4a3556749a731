#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/specs/family/expression.h"

namespace reshard {

/// The axes that make up each dim of an array: {{"head", "half", "pair"}, {"in"}} for "(head half pair) in", as einops
/// writes it. Along a dim with several axes, the index of the last changes fastest.
using DimAxes = std::vector<std::vector<std::string>>;

/// What a program calls the parameters of models in its checkpoints, and how it packs them into entries.
struct Scheme {
  /// An entry with a value that no parameter has.
  struct Constant {
    enum class Value : std::uint8_t {
      kOne,        // 1.0 in float32
      kExpertMap,  // the place of each expert on the rank
    };
    std::vector<std::string> names;  // like Entry::names
    Value value = Value::kOne;
  };

  /// An entry of a checkpoint. Stars in its names are numbers of layers or experts. Names that begin with "**" are a rule for
  /// every parameter that ends like the first of `parameters`.
  struct Entry {
    /// One for each of Scheme::versions, or a single one for all; empty for a version without the entry.
    std::vector<std::string> names;
    /// Names in the family that the entry contains; none: models have no value for it.
    std::vector<std::string> parameters;
    /// The dims of each parameter, and those of the entry; both empty if the entry is the parameter as it is. An axis of
    /// the entry that the parameters do not have is a number in their names that the entry's names lack: kNumberAxes.
    DimAxes parameter_dims, entry_dims;
    std::string joined;      // the axis along which the parameters follow each other; empty: there is one parameter
    bool is_padded = false;  // the entry may be longer than the parameters along `joined`
    std::map<std::string, Expression, std::less<>> sizes;  // of axes; keys in them are kModelNumbers
    std::vector<std::string> families;                     // model_types it is for; empty: all of the scheme's
    std::vector<Constant> constants;                       // that come with each entry of these names, behind it
    std::string where;                                     // its file and line, for errors

    bool is_plain() const { return entry_dims.empty(); }
    const std::string& name(std::size_t version) const { return name_of(names, version); }
    /// The dims of the entry that are numbers, in the order in which names of parameters have them.
    std::vector<std::size_t> numbered_dims() const;
    /// Whether star `star` of `stars` in the names of parameters is such a dim.
    bool is_numbered(std::size_t star, std::size_t stars) const;
  };

  std::string program;                // "torchtitan"
  std::vector<std::string> versions;  // labels of versions whose names differ, the newest first; may be empty
  std::vector<std::string> families;  // model_types of built-in families; of a scheme in a family's own file: empty
  std::vector<Entry> entries;
  bool is_of_ranks = false;   // its entries are in files of ranks, each with the rank's part of the parameters
  bool keeps_others = false;  // parameters without an entry have their own names
  /// The beginning of the names of an optimizer's states, if the state precedes the entry: "optimizer.state." for
  /// "optimizer.state.exp_avg.ENTRY". Empty if the entry precedes the state, as torch has it.
  std::string before_state;

  static const std::string& name_of(const std::vector<std::string>& names, std::size_t version) {
    return names.size() == 1 ? names.front() : names.at(version);
  }
};

/// The axes that are numbers in names, in the order of the stars: that of the layer, and that of the expert. A name with one
/// star has either of them.
inline constexpr std::array<std::string_view, 2> kNumberAxes = {"layer", "expert"};

/// The numbers of a model that sizes of axes may be computed from, by their keys in config.json.
inline constexpr std::array<std::string_view, 3> kModelNumbers = {"num_attention_heads", "num_key_value_heads",
                                                                  "head_dim"};

/// What `scheme` has for a family with these `parameters`, without rules. The first rule for a parameter counts.
/// \throws Error kBadInput, with the lines, if two of the entries have one name or contain one parameter.
Scheme scheme_for(const Scheme& scheme, const std::string& model_type,
                  const std::set<std::string, std::less<>>& parameters);

/// All built-in schemes, in alphabetical order.
const std::vector<std::shared_ptr<const Scheme>>& builtin_schemes();

}  // namespace reshard
