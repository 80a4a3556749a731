#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layouts/names/known_model.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/names/packed_names.h"

namespace reshard {

/// An entry of a training checkpoint.
struct NamedEntry {
  /// Its name in the model; empty if the entry is not the model's. If the entry contains several tensors, the first
  /// parameter's name, with stars for numbers along dims of the entry.
  std::string name;
  /// Null if the entry is not the model's, or contains one parameter unchanged.
  std::shared_ptr<const PackedNames> packed{};
};

/// The model's entries in a training checkpoint, and their names in the model. Training programs put the model's state
/// dict under a prefix ("model.", "state_dict.model."), next to the optimizer's, and module wrappers add parts to its
/// names ("_orig_mod.").
struct StateNames {
  std::vector<NamedEntry> entries;
  bool are_replaced = false;  // the names of another program (Family::schemes) are replaced by the model's own
  std::string program;        // the program that the names belong to; empty if they are the model's own
  std::string before_state;   // Scheme::before_state of that program
  std::string prefix;         // prefix of all the model's entries, after removal of wrappers; may be empty
  /// Prefix of the model's body alone, which follows `prefix` and which the head lacks: "model." for model.model.layers
  /// next to lm_head. It is replaced by `body`, which is empty or the base model's own prefix.
  std::string body_prefix, body;
  std::vector<std::string> repeated;  // words of a larger model's prefix that were repeated in names
  std::vector<std::string> wrappers;  // the parts that were removed from names, sorted: "_orig_mod"
  bool fits = false;                  // some of the names belong to a known family
  OptimizerEntries optimizer;         // the optimizers' entries
  OldNames old_names;                 // of entries that KnownModel::rename renamed

  /// Whether an entry that is not the model's belongs to an optimizer.
  bool is_of_optimizer(std::string_view entry) const;
  /// Returns the name of the state in such an entry: "exp_avg".
  std::string_view state_of(std::string_view entry) const;
};

/// Finds the prefix after which most entries have names of the model's family, either its own or another program's. If
/// the family is unknown, considers all built-in families and keeps other programs' names. If the names belong to a
/// part of a larger model, the prefix consists only of words that training programs put before all names. If no entry
/// has a known name, the prefix is inferred from the optimizer's moments: the model's entries are the parameters with
/// moments and all other entries under the same prefix. Without an optimizer, all entries except training states are
/// the model's, under their own names.
/// \param beside  names of entries that are not tensors or are stored elsewhere. They help to locate the optimizers.
/// Wrappers of the body alone add a prefix that the head lacks, and other words replace the base model's prefix: the
/// body gets the names that the family has.
/// \throws Error kBadInput, naming the entry, if two entries would get the same name, or if one has the name of a
/// parameter that the model lacks, behind an unrelated prefix.
/// O(n log n) in the entries.
StateNames find_state_names(std::span<const std::string> entries, const KnownModel& model,
                            std::span<const std::string> beside = {});

/// Returns the entries' own names, except those of training states: the names for rules to change if find_state_names
/// fails.
StateNames names_as_stored(std::span<const std::string> entries, std::span<const std::string> beside = {});

/// Returns `name` without the wrapper parts that were removed from the entries of `names`.
std::string without_wrappers(std::string_view name, const StateNames& names);

/// Returns a note that names are read without a prefix or wrappers; empty if they have none.
std::string state_names_note(const StateNames& names);

}  // namespace reshard
