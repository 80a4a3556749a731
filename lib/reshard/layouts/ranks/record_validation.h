#pragma once

#include <string>

#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

/// Holds what a rank's file says of itself against its name, the mesh and the other ranks' files: all say it, or none,
/// as files that other programs wrote. The first file is `checkpoint.files[0][0]`, which comes first; its record
/// becomes the checkpoint's.
/// \throws Error kBadInput for files that were renamed or swapped, or are of different checkpoints.
void validate_record(const Container& file, RankId rank, ShardedCheckpoint& checkpoint);

/// Holds what a further file of a rank says of itself against the rank's first file: both say the same, or nothing.
/// \throws Error kBadInput as validate_record.
void validate_part_record(const Container& part, const Container& first);

}  // namespace reshard
