#include "reshard/engine/check/digests.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "reshard/engine/ranks/agreement.h"
#include "reshard/engine/ranks/read_together.h"
#include "reshard/engine/units/leaf_digests.h"
#include "reshard/io/parallel.h"
#include "reshard/plan/job/program.h"

namespace reshard {
std::vector<TensorDigest> compute_digests(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                          const RunOptions& options, bool check_all) {
  Together alone;
  return compute_digests(map, wanted, options, check_all, alone);
}

std::vector<TensorDigest> compute_digests(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                          const RunOptions& options, bool check_all, Together& together) {
  Program all = make_reading_program(map, check_all);
  Program program;
  std::vector<LeafDigests> leaves;
  for (const std::uint32_t index : wanted) {
    const LogicalTensor& tensor = map.logical[index];
    program.transfers.push_back(std::move(all.transfers[index]));
    leaves.emplace_back(tensor.dtype, tensor.shape);
  }
  for (std::uint32_t index = 0; index < map.logical.size() && check_all; ++index)
    if (map.logical[index].constant()) program.transfers.push_back(std::move(all.transfers[index]));
  const auto visit = [&](const VisitedBlock& block) {
    if (block.transfer >= leaves.size()) return;  // padding
    leaves[block.transfer].add(block.first_elem, sha256(block.bytes));
  };
  const VisitedRange visited = read_together({&map}, program, options, visit, kLeafBytes, "digest", together);
  std::vector<TensorDigest> digests(program.transfers.size());
  for (std::size_t t = visited.first; t < std::min(visited.last, leaves.size()); ++t) digests[t] = leaves[t].digest();
  share_findings(visited, together, digests);
  digests.resize(leaves.size());
  return digests;
}

std::vector<Sha256Digest> digest_files(Files& store, const std::vector<std::filesystem::path>& files,
                                       const RunOptions& options,
                                       const std::function<void(std::uint64_t bytes)>& read) {
  constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
  std::vector<Sha256Digest> digests(files.size());
  for_each_number(files.size(), thread_count(options), [&](std::size_t i) {
    const auto source = store.open(files[i]);
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

std::vector<Sha256Digest> digest_files(const std::vector<std::filesystem::path>& files, const RunOptions& options,
                                       const std::function<void(std::uint64_t bytes)>& read, Together& together) {
  if (together.size() == 1) return digest_files(options.stores.sources(), files, options, read);
  Progress own;
  Progress& progress = options.progress ? *options.progress : own;
  VisitedRange visited;
  std::vector<Sha256Digest> digests(files.size());
  std::vector<std::uint64_t> sizes;
  sizes.reserve(files.size());
  RunIdentity identity;
  identity.command = "hash files";
  together.step("look at files", progress, [&] {
    for (const auto& file : files) {
      sizes.push_back(options.stores.sources().size_bytes(file));
      identity.files.push_back({file, file.filename().generic_string(), sizes.back()});
      identity.sources += fmt::format("{} {}\n", identity.files.back().name, sizes.back());
    }
  });
  validate_same_run(identity, options, together);
  const auto work = [&] {
    std::tie(visited.first, visited.last) = part_of(sizes, together.rank(), together.size());
    const auto begin = files.begin() + static_cast<std::ptrdiff_t>(visited.first);
    const auto end = files.begin() + static_cast<std::ptrdiff_t>(visited.last);
    const std::vector<Sha256Digest> part = digest_files(options.stores.sources(), {begin, end}, options, read);
    std::copy(part.begin(), part.end(), digests.begin() + static_cast<std::ptrdiff_t>(visited.first));
  };
  together.step("hash files", progress, work);
  share_findings(visited, together, digests);
  return digests;
}

}  // namespace reshard
