#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "reshard/base/sha256.h"
#include "reshard/engine/move/run_options.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

/// Computes the digests of the tensors `wanted` (indices into TensorMap::logical, none of padding). Reads each tensor
/// once. With `check_all`, also checks their replicas and all padding.
/// \throws Error as run_program.
std::vector<TensorDigest> compute_digests(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                          const RunOptions& options, bool check_all = false);
/// The same, distributed over ranks: each rank reads some of the tensors, and all ranks get all digests.
/// \throws as read_together.
std::vector<TensorDigest> compute_digests(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                          const RunOptions& options, bool check_all, Together& together);

/// Returns the SHA-256 of each file. Reads several files at a time, each in order. `read` is called with the size of
/// each part that was read, from several threads.
/// \throws Error kIo; kInterrupted.
std::vector<Sha256Digest> digest_files(Files& store, const std::vector<std::filesystem::path>& files,
                                       const RunOptions& options,
                                       const std::function<void(std::uint64_t bytes)>& read = {});
/// The same, distributed over ranks: each rank reads some of the files, and all ranks get all digests.
/// \throws as Together::step.
std::vector<Sha256Digest> digest_files(const std::vector<std::filesystem::path>& files, const RunOptions& options,
                                       const std::function<void(std::uint64_t bytes)>& read, Together& together);

}  // namespace reshard
