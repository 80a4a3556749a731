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

/// A replica that differs from the first rank's, which was taken.
struct Divergence {
  std::string tensor;  // the logical one
  std::string text;    // a whole sentence that names file, tensor and element
  bool is_drift = false;
  double max_abs = 0;        // of drift: as of ReplicaDistance
  double relative = 0;       // likewise
  std::uint32_t stored = 0;  // index of the replica's stored tensor, and of the logical one, in its map
  std::uint32_t logical = 0;

  static auto fields(auto& self) {
    return std::tie(self.tensor, self.text, self.is_drift, self.max_abs, self.relative, self.stored, self.logical);
  }
};

/// What a share of a program did, or, merged, what several did. Nothing in it depends on the order of the shares.
struct ShareReport {
  /// What the share adds to the CRC-32 of each stored tensor of the target whose file has need of it, as
  /// TensorMap::stored counts them: the exclusive or over all shares is the CRC. Empty where no file has need.
  std::vector<std::uint32_t> crcs;
  std::vector<std::uint32_t> written_files;  // indices into TargetMap::files, ascending
  std::uint64_t written_bytes = 0;           // over all shares Program::write_bytes
  std::vector<Divergence> divergent;         // each replica once
  /// Of each logical tensor of the target, as TensorMap::logical counts them, what the share has of it, but for padding;
  /// empty unless RunOptions::digests.
  std::vector<LeafDigests> digests;
  double hashing_seconds = 0;        // of all threads together
  std::vector<std::size_t> inexact;  // transfers with Findings::inexact, ascending
  /// In the staging directory, what is not in the target's files yet (page_fragments.h).
  std::vector<std::string> fragment_files;
};

/// Adds what another share of the same program reports.
/// \throws Error kInternal for a report whose checksums are of another number of tensors.
void merge(ShareReport& into, ShareReport one);

/// Puts a report into bytes for another process. What is in them is in proportion to what the share did, not to the
/// program.
std::string report_bytes(const ShareReport& report);
/// Reads report_bytes. `target` is that of the program.
/// \throws Error kBadInput if these are no such bytes, or of another target.
ShareReport read_report(std::string_view bytes, const TargetMap& target);

}  // namespace reshard
