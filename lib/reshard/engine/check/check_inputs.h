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
  std::filesystem::path from;  // the file that says it, or the blob whose name it is
};

/// What is known of each file: from a SHA256SUMS beside it or in one of the two directories above; from the Hugging Face
/// cache, where it is a link to a blob that has the digest of large files as its name; from the
/// `.cache/huggingface/download` of a downloaded directory (the file's own, or one of the two above), in whose
/// NAME.metadata the second line is that digest (huggingface_hub, file_download.py and _local_folder.py).
/// \throws Error kBadInput for a SHA256SUMS that lists one of the files with two digests.
std::vector<std::optional<ExpectedDigest>> expected_digests(Files& files,
                                                            const std::vector<std::filesystem::path>& paths);

/// Reads all files of a job's source of which a digest is known, by all ranks together; RunOptions::progress counts
/// these bytes. Of tensor files without one, which torch.save wrote, reads what has a CRC-32 instead: that finds damage, but not a
/// file that was replaced.
/// \param against  a directory that says more, and before all others, of files of the same relative paths: as git-lfs
/// pointers, such as a clone without the files has them, or in a SHA256SUMS.
/// \returns the digests of these: of all files of tensors, and of some others.
/// \throws AgreedError (alone Error) kBadInput naming the first file that has another digest or a zip entry with another
/// CRC-32, or the first tensor file with neither; what Together::step throws.
std::map<std::filesystem::path, Sha256Digest> check_inputs(const Job& job, const RunOptions& options,
                                                           Together& together,
                                                           const std::filesystem::path& against = {});

}  // namespace reshard
