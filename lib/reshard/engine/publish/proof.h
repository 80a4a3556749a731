#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/plan/job/job.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

// The two files of `--manifest` that prove what a run has written: their texts, and their sizes before it writes.

/// Every file that a job writes except these two; without digests.
std::vector<Manifest::File> proved_files(const Job& job);

/// The texts of kManifestFile and kSha256SumsFile.
struct Proof {
  std::string manifest;
  std::string sha256sums;
};
/// \param fingerprint  of the run.
/// \param digests      of each logical tensor of the target, as TensorMap::logical counts them.
/// \param files        proved_files, with digests.
Proof proof_of(const Job& job, std::string fingerprint, const std::vector<TensorDigest>& digests,
               std::vector<Manifest::File> files);

/// The bytes of both, which can be known before: they do not depend on what digests say.
std::uint64_t proof_bytes(const Job& job);

}  // namespace reshard
