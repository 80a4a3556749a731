#include "reshard/engine/digests.h"

#include <algorithm>

#include "reshard/engine/leaf_digests.h"
#include "reshard/engine/parallel.h"
#include "reshard/plan/program.h"

namespace reshard {

std::vector<TensorDigest> compute_digests(const TensorMap& map, const std::vector<std::uint32_t>& wanted,
                                          const RunOptions& options, bool check_all) {
  Program all = make_reading_program(map, check_all);
  Program program;
  std::vector<LeafDigests> leaves;
  for (const std::uint32_t index : wanted) {
    const LogicalTensor& tensor = map.logical[index];
    program.transfers.push_back(std::move(all.transfers[index]));
    leaves.emplace_back(tensor.dtype, tensor.shape);
  }
  for (std::uint32_t index = 0; index < map.logical.size() && check_all; ++index)
    if (map.logical[index].filler) program.transfers.push_back(std::move(all.transfers[index]));
  const auto visit = [&](const VisitedBlock& block) {
    if (block.transfer >= leaves.size()) return;  // padding
    leaves[block.transfer].add(block.first_elem, sha256(block.bytes));
  };
  run_program({&map}, program, {}, options, visit, kLeafBytes);
  std::vector<TensorDigest> digests;
  digests.reserve(leaves.size());
  for (const LeafDigests& one : leaves) digests.push_back(one.digest());
  return digests;
}

std::vector<Sha256Digest> digest_files(const std::vector<std::filesystem::path>& files, const RunOptions& options,
                                       const std::function<void(std::uint64_t bytes)>& read) {
  constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
  std::vector<Sha256Digest> digests(files.size());
  for_each_number(files.size(), thread_count(options), [&](std::size_t i) {
    const auto source = options.storage->open(files[i]);
    std::vector<std::byte> buffer(std::min(kReadBytes, source->size_bytes()));
    Sha256 hash;
    for (std::uint64_t at = 0; at < source->size_bytes(); at += buffer.size()) {
      throw_if_stopped(options);
      const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), source->size_bytes() - at));
      source->read_at(at, part);
      hash.update(part);
      if (read) read(part.size());
    }
    digests[i] = hash.finish();
  });
  return digests;
}

}  // namespace reshard
