#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "reshard/base/sha256.h"
#include "reshard/engine/move/run.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

/// Reads the tensors of `map` that `wanted` names (indices of TensorMap::logical, of no padding), each once. With
/// `check_all`, their replicas and all padding, too, which have to be what they should be.
/// \throws Error as run_program.
std::vector<TensorDigest> compute_digests(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                          const RunOptions& options, bool check_all = false);
/// The same by several ranks, each of which reads some of the tensors and knows all digests afterwards.
/// \throws as read_together.
std::vector<TensorDigest> compute_digests(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                          const RunOptions& options, bool check_all, Together& together);

/// The SHA-256 of whole files, read in order, several at a time. `read` is called with the bytes of each part that is
/// read, from several threads.
/// \throws Error kIo; kInterrupted.
std::vector<Sha256Digest> digest_files(Files& store, const std::vector<std::filesystem::path>& files,
                                       const RunOptions& options,
                                       const std::function<void(std::uint64_t bytes)>& read = {});
/// The same by several ranks, each of which reads some of the files and knows all digests afterwards.
/// \throws as Together::step.
std::vector<Sha256Digest> digest_files(const std::vector<std::filesystem::path>& files, const RunOptions& options,
                                       const std::function<void(std::uint64_t bytes)>& read, Together& together);

}  // namespace reshard
