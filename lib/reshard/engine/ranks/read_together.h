#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/wire.h"
#include "reshard/engine/move/run.h"
#include "reshard/engine/ranks/together.h"

namespace reshard {

/// Transfers [first, last) of a program that one rank has visited.
struct VisitedRange {
  std::size_t first = 0;
  std::size_t last = 0;
};

/// Runs a program that writes nothing on all ranks, as run_program does: each rank visits whole tensors, with about the
/// same number of bytes. RunOptions::on_divergence of each rank is called with the divergences of all ranks.
/// \param what  the command and the options that it depends on, which must be equal on all ranks.
/// \throws as run_program and Together::step; AgreedError if the ranks do not read the same.
VisitedRange read_together(const ProgramMaps& maps, const Program& program, const RunOptions& options,
                           const BlockVisitor& visitor, std::uint64_t visit_block_bytes, std::string_view what,
                           Together& together);

/// Sends each rank's findings to all ranks.
/// \param findings  one per transfer; set for the visited ones, and afterwards for all.
template <typename Finding>
void share_findings(const VisitedRange& visited, Together& together, std::vector<Finding>& findings) {
  if (together.size() == 1) return;
  WireWriter wire;
  wire.add(visited.first);
  wire.add(visited.last);
  for (std::size_t t = visited.first; t < visited.last; ++t) wire.add(findings[t]);
  for (const std::string& bytes : together.gather("merge", std::move(wire.bytes()))) {
    WireReader reader(bytes);
    const auto first = reader.read<std::size_t>(), last = reader.read<std::size_t>();
    for (std::size_t t = first; t < last; ++t) reader.read(findings.at(t));
  }
}

}  // namespace reshard
