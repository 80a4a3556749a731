#include "reshard/engine/ranks/read_together.h"

#include <fmt/format.h>

#include <vector>

#include "reshard/engine/ranks/agreement.h"

namespace reshard {
namespace {

/// Shares the findings of all ranks with each of them.
void share_divergences(std::vector<Divergence> own, const RunOptions& options, Together& together) {
  ShareReport found;
  found.divergent = std::move(own);
  ShareReport all;
  for (const std::string& bytes : together.gather("merge replicas", report_bytes(found)))
    merge(all, read_report(bytes, {}));
  for (Divergence& one : all.divergent)
    if (options.on_divergence) options.on_divergence(std::move(one));
}

}  // namespace

VisitedRange read_together(const ProgramMaps& maps, const Program& program, const RunOptions& options,
                           const BlockVisitor& visitor, std::uint64_t visit_block_bytes, std::string_view what,
                           Together& together) {
  const VisitedRange all{0, program.transfers.size()};
  if (together.size() == 1) {
    run_program(maps, program, {}, options, visitor, visit_block_bytes);
    return all;
  }
  std::vector<const SourceMap*> read{maps.source};
  if (maps.against) read.push_back(maps.against);
  validate_same_run(run_identity(read, fmt::format("{} {}", what, all.last)), options, together);
  std::vector<std::uint64_t> costs;
  costs.reserve(all.last);
  for (const Transfer& transfer : program.transfers) costs.push_back(transfer.moved_bytes(maps));
  const auto [first, last] = part_of(costs, together.rank(), together.size());
  Program part;
  part.transfers.assign(program.transfers.begin() + static_cast<std::ptrdiff_t>(first),
                        program.transfers.begin() + static_cast<std::ptrdiff_t>(last));
  Progress own;
  RunOptions part_options = options;
  if (options.progress == nullptr) part_options.progress = &own;
  if (options.threads == 0) part_options.threads = default_threads(together);
  std::vector<Divergence> divergent;
  part_options.on_divergence = [&](Divergence one) { divergent.push_back(std::move(one)); };
  const BlockVisitor visit = [&, first = first](const VisitedBlock& block) {
    VisitedBlock moved = block;
    moved.transfer += first;
    visitor(moved);
  };
  together.step("read", *part_options.progress,
                [&] { run_program(maps, part, {}, part_options, visit, visit_block_bytes); });
  share_divergences(std::move(divergent), options, together);
  return {first, last};
}

}  // namespace reshard
