#include "reshard/engine/check/stats.h"

#include "reshard/engine/ranks/read_together.h"
#include "reshard/engine/units/blocks.h"

namespace reshard {
namespace {

constexpr std::uint64_t kStatsBlockBytes = std::uint64_t{1}
                                           << 20;  // fixed, so that sums do not depend on the memory limit

}  // namespace

std::vector<ValueSummary> compute_stats(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                        const RunOptions& options) {
  Together alone;
  return compute_stats(map, wanted, options, alone);
}

std::vector<ValueSummary> compute_stats(const SourceMap& map, const std::vector<std::uint32_t>& wanted,
                                        const RunOptions& options, Together& together) {
  Program all = make_reading_program(map);
  Program program;
  std::vector<std::vector<ValueSummary>> parts;
  for (const std::uint32_t index : wanted) {
    const LogicalTensor& tensor = map.logical[index];
    program.transfers.push_back(std::move(all.transfers[index]));
    parts.emplace_back(BlockGrid(tensor.dtype, tensor.shape, kStatsBlockBytes).count());
  }
  const auto visit = [&](const VisitedBlock& block) {
    parts[block.transfer][block.block] = summarize(map.logical[wanted[block.transfer]].dtype, block.bytes);
  };
  const VisitedRange visited = read_together({&map}, program, options, visit, kStatsBlockBytes, "stats", together);
  std::vector<ValueSummary> summaries(wanted.size());
  for (std::size_t i = 0; i < parts.size(); ++i)
    for (const ValueSummary& part : parts[i]) summaries[i].append(part);
  share_findings(visited, together, summaries);
  return summaries;
}

}  // namespace reshard
