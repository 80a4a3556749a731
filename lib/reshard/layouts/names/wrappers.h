#pragma once

#include <span>
#include <string>

#include "reshard/base/note.h"
#include "reshard/formats/common/container.h"
#include "reshard/layouts/names/known_model.h"

namespace reshard {

/// Removes wrappers from the tensor names in `containers`, the files of one state dict: "_orig_mod." anywhere,
/// "module." if more names then belong to a known family, and prefixes such as "state_dict." before all names. Applies
/// `model.rename` if it reveals the model. Drops `_extra_state`, which TransformerEngine modules save with their
/// weights. Adds a note on removed words and on dropped tensors to `notes`.
/// \param further  Names of tensors or modules outside of the files, such as those in metadata, which change likewise.
/// \returns the old names of renamed tensors.
/// \throws Error kBadInput, naming the tensor, if two tensors of a file would get the same name.
OldNames take_out_wrappers(std::span<Container* const> containers, const KnownModel& model, Notes& notes,
                           std::span<std::string* const> further = {});
OldNames take_out_wrappers(std::span<Container> containers, const KnownModel& model, Notes& notes);

}  // namespace reshard
