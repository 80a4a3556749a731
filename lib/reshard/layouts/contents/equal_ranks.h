#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/note.h"
#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Looks for two ranks of one stage with equal bytes in all tensors that are split between them:
/// one file was copied over another. Tensors that are constant or repeat themselves along a dim prove nothing, so ranks
/// that have only such tensors are not compared. Reads a few elements of each rank, of all tensors of ranks in which
/// those are equal, and whole tensors only if these are equal, too.
/// \param notes  receives a note on expert-parallel ranks with equal experts, which a model may begin its training with.
/// \throws Error kIo.
/// \returns Error kBadInput, naming both ranks; std::nullopt if all ranks differ.
std::optional<Error> find_equal_ranks(Files& files, const SourceMap& map, Notes& notes);

}  // namespace reshard
