#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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
  /// An entry of a checkpoint, or one for each layer or expert if its names have stars for numbers.
  struct Entry {
    std::vector<std::string> names;  // one for each of Scheme::versions, or a single one for all
    std::vector<std::string>
        parameters;  // names in the family that the entry contains; empty: the model has no such value
    /// The dims of each parameter, and those of the entry; both empty if the entry is the parameter as it is. An axis of
    /// the entry that the parameters do not have is an index: a number in their names that the entry's names lack.
    DimAxes parameter_dims, entry_dims;
    std::string joined;      // the axis along which the parameters follow each other; empty: there is one parameter
    bool is_padded = false;  // the entry may be longer than the parameters along `joined`
    std::map<std::string, Expression, std::less<>> sizes;  // of axes; keys in them are kModelNumbers
    std::vector<std::string> families;                     // model_types it is for; empty: all of the scheme's
    std::string where;                                     // its file and line, for errors

    bool is_plain() const { return entry_dims.empty(); }
    const std::string& name(std::size_t version) const { return names.size() == 1 ? names.front() : names.at(version); }
    /// The dims of the entry that are indices, in the order of the numbers in the names of parameters.
    std::vector<std::size_t> numbered_dims() const;
  };

  std::string program;                // "torchtitan"
  std::vector<std::string> versions;  // labels of versions whose names differ, the newest first; may be empty
  std::vector<std::string> families;  // model_types of built-in families; of a scheme in a family's own file: empty
  std::vector<Entry> entries;
};

/// The numbers of a model that sizes of axes may be computed from, by their keys in config.json.
inline constexpr std::array<std::string_view, 3> kModelNumbers = {"num_attention_heads", "num_key_value_heads",
                                                                  "head_dim"};

/// All built-in schemes, in alphabetical order.
const std::vector<std::shared_ptr<const Scheme>>& builtin_schemes();

}  // namespace reshard
