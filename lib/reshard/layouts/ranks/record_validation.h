#pragma once

#include <string>

#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

/// Validates the record in a rank's file against its name, the mesh and the other ranks' files. Either all files have a
/// record, or none (files that other programs wrote). The first call must be for `checkpoint.files[0][0]`, whose record
/// becomes the checkpoint's.
/// \throws Error kBadInput if files were renamed or swapped, or belong to different checkpoints.
void validate_record(const Container& file, RankId rank, ShardedCheckpoint& checkpoint);

/// Validates the record in a further file of a rank against the rank's first file: both have the same record, or none.
/// \throws Error kBadInput like validate_record.
void validate_part_record(const Container& part, const Container& first);

}  // namespace reshard
