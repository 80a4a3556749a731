#include "reshard/engine/proof.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "reshard/engine/blocks.h"
#include "reshard/engine/leaf_digests.h"
#include "reshard/plan/fingerprint.h"
#include "reshard/plan/job_manifest.h"

namespace reshard {

std::vector<Manifest::File> proved_files(const Job& job) {
  std::vector<Manifest::File> files;
  const auto add = [&](const std::filesystem::path& path, std::uint64_t bytes) {
    files.push_back({path.generic_string(), bytes, std::nullopt});
  };
  for (const TensorFile& file : job.target.files) add(file.path, file.size_bytes);
  for (const CopiedFile& file : job.copied_files) add(file.path, file.size_bytes);
  for (const TextFile& file : job.text_files) add(file.path, file.text.size());
  return files;
}

Proof proof_of(const Job& job, std::string fingerprint, const std::vector<TensorDigest>& digests,
               std::vector<Manifest::File> files) {
  const Manifest manifest = manifest_of(job, std::move(fingerprint), digests, std::move(files));
  Proof proof;
  proof.manifest = manifest_text(manifest);
  std::vector<FileDigest> lines{{kManifestFile, sha256(std::as_bytes(std::span(proof.manifest)))}};
  for (const Manifest::File& file : manifest.files) lines.push_back({file.path, file.digest.value()});
  std::sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  proof.sha256sums = sha256sums_text(lines);
  return proof;
}

std::uint64_t proof_bytes(const Job& job) {
  std::vector<TensorDigest> digests(job.target.logical.size());
  for (std::size_t t = 0; t < digests.size(); ++t) {
    const LogicalTensor& tensor = job.target.logical[t];
    if (tensor.filler) continue;
    const std::uint64_t leaves = BlockGrid(tensor.dtype, tensor.shape, kLeafBytes).count();
    if (leaves > 1) digests[t].leaves.resize(leaves);
  }
  std::vector<Manifest::File> files = proved_files(job);
  for (Manifest::File& file : files) file.digest = Sha256Digest{};
  const Proof proof = proof_of(job, to_string(Fingerprint{}), digests, std::move(files));
  return proof.manifest.size() + proof.sha256sums.size();
}

}  // namespace reshard
