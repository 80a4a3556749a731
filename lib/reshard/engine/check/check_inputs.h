#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/sha256.h"
#include "reshard/engine/move/run.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// The SHA-256 that a file should have.
struct ExpectedDigest {
  Sha256Digest digest{};
  std::filesystem::path from;  // the file that records the digest, or the blob that is named after it
};

/// Returns the recorded SHA-256 of each file, or std::nullopt if none is found. Sources, in this order: a SHA256SUMS
/// next to the file or up to two directories above; the name of the blob in the Hugging Face cache that the file links
/// to; the second line of NAME.metadata in the `.cache/huggingface/download` of a downloaded directory (the file's
/// directory or up to two above). See file_download.py and _local_folder.py of huggingface_hub.
/// \throws Error kBadInput for a SHA256SUMS that lists one of the files with two digests.
std::vector<std::optional<ExpectedDigest>> expected_digests(Files& files,
                                                            const std::vector<std::filesystem::path>& paths);

/// Reads the files of a job's source that have a recorded SHA-256, distributed over all ranks; RunOptions::progress
/// counts these bytes. For tensor files without one that torch.save wrote, checks the CRC-32s of their zip entries
/// instead. This detects damage, but not a replaced file.
/// \param against  a directory whose digests take precedence: git-lfs pointers at the same relative paths, as in a
/// clone without the large files, or SHA256SUMS.
/// \returns the digests of the files that have a SHA-256.
/// \throws AgreedError (in a single process, Error) kBadInput naming the first file with another digest, the first with
/// a zip entry of another CRC-32, or the first tensor file with neither; what Together::step throws.
std::map<std::filesystem::path, Sha256Digest> check_inputs(const Job& job, const RunOptions& options,
                                                           Together& together,
                                                           const std::filesystem::path& against = {});

}  // namespace reshard
