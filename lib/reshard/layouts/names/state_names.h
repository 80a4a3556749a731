#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/names/packed_names.h"
#include "reshard/specs/family/family.h"

namespace reshard {

/// Which entries of a training checkpoint are the model's, and what the model calls them. Training programs put the
/// model's state dict under a prefix ("model.", "state_dict.model.") beside the optimizer's, and wrappers of modules
/// leave parts in its names ("_orig_mod.").
struct StateNames {
  /// One per entry; empty for what is not the model's. For an entry that contains several tensors, the name of the first
  /// parameter, with stars for numbers along dims of the entry.
  std::vector<std::string> names;
  /// One per entry; null for entries that are not the model's, or contain one parameter unchanged.
  std::vector<std::shared_ptr<const PackedNames>> packed;
  bool are_replaced = false;          // the names of another program (Family::schemes), by the model's own
  std::string program;                // whose names they are; empty if they are the model's own
  std::string before_state;           // Scheme::before_state of that program
  std::string prefix;                 // of all the model's entries, behind the wrappers taken out; empty for none
  std::vector<std::string> wrappers;  // the parts that were taken out of names, sorted: "_orig_mod"
  bool fits = false;                  // some of the names are those of a known family
  OptimizerEntries optimizer;         // what is not the model's, but an optimizer's

  /// Whether an entry that is not the model's is an optimizer's.
  bool is_of_optimizer(std::string_view entry) const;
  /// What the state is called that is in such an entry: "exp_avg".
  std::string_view state_of(std::string_view entry) const;
};

/// What is known of the model whose tensors the entries are. Borrows the family.
struct KnownModel {
  const Family* family = nullptr;  // the language model's; null if it is not known
  bool is_part = false;            // the model has other tensors next to those of the family

  KnownModel(const Family* known, bool part = false) : family(known), is_part(part) {}
};

/// Finds the prefix under which most entries have the names of the model's family, its own or those of another program,
/// or of any built-in one where it is not known; then other programs' names stay. If a part of a larger model has these
/// names, only the words that training programs put in front of all names are a prefix. Where no entry has such a name,
/// the optimizer says what is the model's: what it has moments of, and all else under the same prefix. Without an
/// optimizer, that is all but training states, under their own names.
/// \param beside  names of what is no tensor, or lies elsewhere: they tell where the optimizers are.
/// \throws Error kBadInput, naming the entry, if two entries would have one name.
/// O(n log n) in the entries.
StateNames find_state_names(std::span<const std::string> entries, const KnownModel& model,
                            std::span<const std::string> beside = {});

/// `name` without the parts that wrappers of modules leave in it, as the entries of `names` were read.
std::string without_wrappers(std::string_view name, const StateNames& names);

/// Takes out of the names in `containers`, the files of one state dict, what wrappers of modules leave in them:
/// "_orig_mod." anywhere, "module." where names are a known family's without it, "state_dict." and the like in front of
/// all. Leaves out `_extra_state`, which modules of TransformerEngine save
/// with their weights. Adds a note on each to `notes`, unless `notes` has it already.
/// \throws Error kBadInput, naming the tensor, if two tensors of a file would have one name.
void take_out_wrappers(std::span<Container> containers, std::vector<std::string>& notes);

/// That names are read without a prefix and without wrappers, for people; empty where there were none.
std::string state_names_note(const StateNames& names);

}  // namespace reshard
