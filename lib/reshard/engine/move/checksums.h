#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/crc32.h"
#include "reshard/layouts/map/target_file.h"

namespace reshard {

/// The CRC-32s of a target's tensors, of what has been written of them so far. Parts may come in any order and from
/// several threads. Empty where no file of the target has need of them.
class Checksums {
 public:
  explicit Checksums(const TensorMap* target) {
    if (target && std::any_of(target->files.begin(), target->files.end(), needs_crcs))
      crcs_ = std::vector<std::atomic<std::uint32_t>>(target->stored.size());
  }

  bool wanted() const { return !crcs_.empty(); }

  /// Tells what is written to a stored tensor from its byte `begin_bytes` on, `bytes` of them.
  /// \returns what that adds to the CRC; 0 where none is wanted.
  std::uint32_t add(const TensorMap& target, std::uint32_t stored, std::uint64_t begin_bytes, std::uint64_t bytes,
                    std::span<const std::span<const std::byte>> parts) {
    const StoredTensor& tensor = target.stored[stored];
    if (crcs_.empty() || !needs_crcs(target.files[tensor.file])) return 0;
    std::uint32_t crc = 0;
    for (const auto part : parts) crc = crc32(part, crc);
    const std::uint32_t contribution = crc32_contribution(crc, tensor.size_bytes - begin_bytes - bytes);
    crcs_[stored] ^= contribution;
    return contribution;
  }

  std::vector<std::uint32_t> values() const { return {crcs_.begin(), crcs_.end()}; }

 private:
  std::vector<std::atomic<std::uint32_t>> crcs_;
};

}  // namespace reshard
