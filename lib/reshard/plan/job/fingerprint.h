#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "reshard/plan/job/job.h"

namespace reshard {

/// Tells one run from another: 128 bits of XXH3, the same on every machine.
struct Fingerprint {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// 32 hexadecimal digits.
std::string to_string(const Fingerprint& fingerprint);

/// The fingerprint of what a run of `job` writes, by this version of the library. Jobs with one fingerprint write the
/// same bytes from the same tensor data into files of the same relative paths; a job that differs in anything that
/// changes a byte, in the files, tensors or pieces of either side, has another one. Directories do not count, nor
/// whether existing outputs may be replaced, nor what is only reported to the user. Tensor data is not read: sources
/// are known by their files' names and sizes and by their headers.
/// \param options  what options of the run influence the bytes, in a fixed order.
/// Takes time in proportion to the pieces of both maps, about a second for ten million.
Fingerprint fingerprint_of(const Job& job, std::span<const std::uint64_t> options = {});

/// The fingerprint of what is read: files by their names and sizes, and the tensors that their headers say.
Fingerprint fingerprint_of(const SourceMap& source);

}  // namespace reshard
