#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "reshard/engine/units/leaf_digests.h"
#include "reshard/plan/job/program.h"

namespace reshard {

/// A replica that differs from the first rank's, which is used instead.
struct Divergence {
  std::string tensor;  // name of the logical tensor
  std::string text;    // a whole sentence that names file, tensor and element
  bool is_drift = false;
  double max_abs = 0;        // only for drift, see ReplicaDistance
  double relative = 0;       // likewise
  std::uint32_t stored = 0;  // index of the replica's stored tensor in its map, and below, of the logical one
  std::uint32_t logical = 0;

  static auto fields(auto& self) {
    return std::tie(self.tensor, self.text, self.is_drift, self.max_abs, self.relative, self.stored, self.logical);
  }
};

/// Numbers of values that a cast could not represent.
struct Lost {
  std::uint64_t saturated = 0;  // beyond the range of the target's dtype, replaced by its largest finite value
  std::uint64_t zeroed = 0;     // not 0, but rounded to 0

  bool any() const { return saturated > 0 || zeroed > 0; }
  Lost& operator+=(const Lost& more) {
    saturated += more.saturated;
    zeroed += more.zeroed;
    return *this;
  }
};

/// Values that the cast of a transfer could not represent.
struct LostIn {
  std::size_t transfer = 0;
  Lost values;

  static auto fields(auto& self) { return std::tie(self.transfer, self.values.saturated, self.values.zeroed); }
};

/// Adds `more` to `all`. Each transfer occurs once in the result, in ascending order.
void add_lost(std::vector<LostIn>& all, const std::vector<LostIn>& more);

/// Result of a share of a program, or the merged results of several. Does not depend on the order of the shares.
struct ShareReport {
  /// The share's contribution to the CRC-32 of each stored tensor of the target whose file needs it, indexed like
  /// TensorMap::stored. The exclusive or over all shares is the CRC. Empty if no file needs CRCs.
  std::vector<std::uint32_t> crcs;
  std::vector<std::uint32_t> written_files;  // indices into TargetMap::files, ascending
  std::uint64_t written_bytes = 0;           // sums to Program::write_bytes over all shares
  std::vector<Divergence> divergent;         // each replica once
  /// The share's leaves of each logical tensor of the target, indexed like TensorMap::logical; none for padding. Empty
  /// unless RunOptions::digests.
  std::vector<LeafDigests> digests;
  double hashing_seconds = 0;        // total over all threads
  std::vector<std::size_t> inexact;  // transfers with Findings::inexact, ascending
  std::vector<LostIn> lost;          // likewise
  /// Files in the staging directory with bytes that the target's files lack so far (page_fragments.h).
  std::vector<std::string> fragment_files;
};

/// Adds the report of another share of the same program.
/// \throws Error kInternal if the reports have checksums for different numbers of tensors.
void merge(ShareReport& into, ShareReport one);

/// Serialises a report for another process. The size is proportional to the work of the share, not to the size of the
/// program.
std::string report_bytes(const ShareReport& report);
/// Parses report_bytes. `target` is that of the program.
/// \throws Error kBadInput if the bytes are not a report, or belong to another target.
ShareReport read_report(std::string_view bytes, const TargetMap& target);

}  // namespace reshard
