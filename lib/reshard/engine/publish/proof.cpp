#include "reshard/engine/publish/proof.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "reshard/engine/units/blocks.h"
#include "reshard/engine/units/leaf_digests.h"
#include "reshard/plan/job/fingerprint.h"
#include "reshard/plan/proof/job_manifest.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {

std::vector<Manifest::File> proved_files(const Job& job) {
  std::vector<Manifest::File> files;
  const auto add = [&](const std::filesystem::path& path, std::uint64_t bytes) {
    files.push_back({path.generic_string(), bytes, std::nullopt});
  };
  for (const TargetFile& file : job.target.files) add(file.path, file.size_bytes);
  for (const CopiedFile& file : job.copied_files) add(file.path, file.size_bytes);
  for (const TextFile& file : job.text_files) add(file.path, file.text.size());
  return files;
}

namespace {

TensorDigest digest_of(DType dtype, const Dims& shape, std::span<const std::byte> bytes) {
  LeafDigests leaves(dtype, shape);
  std::uint64_t begin = 0;
  for (std::size_t leaf = 0; leaf < leaves.leaves(); ++leaf) {
    const std::uint64_t size = num_bytes(dtype, leaf_of(dtype, shape, leaf).size).value();
    leaves.set(leaf, sha256(bytes.subspan(begin, size)));
    begin += size;
  }
  return leaves.digest();
}

/// Adds the objects and numbers that the target creates without a source tensor and that readers find as states.
void add_made(const TargetMap& target, std::vector<Manifest::Tensor>& tensors) {
  for (const auto& [name, bytes] : target.made_objects) {
    const Dims shape{bytes.size()};
    tensors.push_back(
        {name, DType::kU8, shape, digest_of(DType::kU8, shape, std::as_bytes(std::span(bytes))), TensorRole::kObject});
  }
  for (const LogicalTensor& tensor : target.logical) {
    const Constant* constant = tensor.constant();
    if (tensor.role != TensorRole::kState || !constant || constant->kind() != Constant::Kind::kRequired) continue;
    std::vector<std::byte> bytes(num_bytes(tensor.dtype, tensor.shape).value());
    fill_elements(tensor.dtype, bytes, constant->element_bits());
    tensors.push_back(
        {tensor.name, tensor.dtype, tensor.shape, digest_of(tensor.dtype, tensor.shape, bytes), TensorRole::kState});
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

}  // namespace

Proof proof_of(const Job& job, std::string fingerprint, const std::vector<TensorDigest>& digests,
               std::vector<Manifest::File> files) {
  Manifest manifest = manifest_of(job, std::move(fingerprint), digests, std::move(files));
  add_made(job.target, manifest.tensors);
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
    if (tensor.constant()) continue;
    const std::uint64_t leaves = BlockGrid(tensor.dtype, tensor.shape, kLeafBytes).count();
    if (leaves > 1) digests[t].leaves.resize(leaves);
  }
  std::vector<Manifest::File> files = proved_files(job);
  for (Manifest::File& file : files) file.digest = Sha256Digest{};
  const Proof proof = proof_of(job, to_string(Fingerprint{}), digests, std::move(files));
  return proof.manifest.size() + proof.sha256sums.size();
}

}  // namespace reshard
