#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "reshard/plan/job/job.h"

namespace reshard {

/// Identifies a run: 128 bits of XXH3, the same on every machine.
struct Fingerprint {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// 32 hexadecimal digits.
std::string to_string(const Fingerprint& fingerprint);

/// Fingerprint of the output of `job`, as written by this version of the library. Jobs with the same fingerprint write
/// the same bytes from the same tensor data to files with the same relative paths. Jobs that differ in anything that
/// changes a byte, in the files, tensors or pieces of either side, have different fingerprints. Independent of
/// directories, of whether existing outputs may be replaced, and of what is only reported to the user. Does not read
/// tensor data: sources are identified by their files' names and sizes and by their headers.
/// \param options  the run's options that influence the bytes, in a fixed order.
/// Takes time proportional to the pieces of both maps, about a second for ten million.
Fingerprint fingerprint_of(const Job& job, std::span<const std::uint64_t> options = {});

/// Fingerprint of a source: the names and sizes of its files, and the tensors in their headers.
Fingerprint fingerprint_of(const SourceMap& source);

}  // namespace reshard
