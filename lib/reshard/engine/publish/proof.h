#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/plan/job/job.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

// The two files that `--manifest` adds as proof of what a run wrote, and their sizes before it writes.

/// Returns every file that a job writes except these two, without digests.
std::vector<Manifest::File> proved_files(const Job& job);

/// The texts of kManifestFile and kSha256SumsFile.
struct Proof {
  std::string manifest;
  std::string sha256sums;
};
/// \param fingerprint  of the run.
/// \param digests      of each logical tensor of the target, in the order of TensorMap::logical.
/// \param files        as returned by proved_files, with digests.
Proof proof_of(const Job& job, std::string fingerprint, const std::vector<TensorDigest>& digests,
               std::vector<Manifest::File> files);

/// Size of both texts. Known before the run, since it does not depend on the digests.
std::uint64_t proof_bytes(const Job& job);

}  // namespace reshard
