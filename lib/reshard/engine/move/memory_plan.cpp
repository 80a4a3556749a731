#include "reshard/engine/move/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/move/block_reader.h"
#include "reshard/engine/move/run_state.h"
#include "reshard/engine/units/leaf_digests.h"

namespace reshard {
namespace {

/// Returns the largest number of input bytes that correspond to one leaf of an output tensor.
std::uint64_t leaf_source_bytes(const ProgramMaps& maps, const Program& program) {
  std::uint64_t most = 0;
  for (const Transfer& transfer : program.transfers)
    if (const LogicalTensor* result = transfer.result(maps))
      most = std::max<std::uint64_t>(most, kLeafBytes * bits(transfer.tensor(maps).dtype) / bits(result->dtype));
  return most;
}

/// Memory that computed tensors take, in bytes: maxima over the transfers.
struct ComputingNeeds {
  std::uint64_t kept = 0;                  // inputs that are kept whole
  std::uint64_t inputs = 0;                // boxes of inputs for one block that is visited
  std::uint64_t computing = 0;             // the smallest blocks, together with their inputs
  const LogicalTensor* largest = nullptr;  // tensor with the largest sum of `kept` and `computing`
};

ComputingNeeds computing_needs(const ProgramMaps& maps, const Program& program, std::uint64_t visit_block_bytes) {
  ComputingNeeds needs;
  std::uint64_t most = 0;
  for (const Transfer& transfer : program.transfers) {
    if (!transfer.source || transfer.source->inputs.empty()) continue;
    const LogicalTensor& tensor = transfer.tensor(maps);
    const std::uint64_t kept = kept_bytes(*maps.source, *transfer.source);
    const std::uint64_t computing =
        visit_block_bytes > 0 ? 0 : computing_bytes(*maps.source, *transfer.source, kLeastComputedBytes);
    needs.kept = std::max(needs.kept, kept);
    needs.computing = std::max(needs.computing, computing);
    if (kept + computing >= most) needs.largest = &tensor;
    most = std::max(most, kept + computing);
    if (const BlockGrid grid(tensor.dtype, tensor.shape, visit_block_bytes); visit_block_bytes > 0 && grid.count() > 0)
      needs.inputs = std::max(needs.inputs, input_bytes(*maps.source, *transfer.source, grid.block(0)));
  }
  return needs;
}

Error too_little(const RunOptions& options, const char* what, std::uint64_t needed_bytes) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  return Error(ErrorKind::kUsage,
               fmt::format("`max-memory` {} is too little {}", format_memory(options.max_memory_bytes), what))
      .hint("give at least " + format_memory(rounded_up(needed_bytes, kMiB)));
}

}  // namespace

MemoryPlan plan_memory(const ProgramMaps& maps, const Program& program, const RunOptions& options,
                       std::uint64_t visit_block_bytes, bool is_visited) {
  const std::uint64_t limit = options.max_memory_bytes;
  if (limit < kMinMemoryBytes) throw too_little(options, "to work with", kMinMemoryBytes);
  if (options.digests) visit_block_bytes = std::max(kLeafBytes, leaf_source_bytes(maps, program));
  const std::uint64_t buffers = kPlainBuffers + (maps.against ? 1 : 0);
  const ComputingNeeds needs = computing_needs(maps, program, visit_block_bytes);
  const std::uint64_t visited =
      (options.digests ? buffers : kPlainBuffers) * visit_block_bytes + needs.inputs + needs.kept;
  if (visit_block_bytes >= kLeafBytes && visited + kReadAheadBytes > limit) {
    Error error = too_little(options, "to hash tensors", visited + kReadAheadBytes);
    throw options.digests ? error.hint(error.hint() + ", or leave out `manifest`") : error;
  }
  const std::uint64_t least = needs.kept + std::max(kMinMemoryBytes, kReadAheadBytes + needs.computing);
  if (least > limit) throw too_little(options, "for its inputs", least).tensor(needs.largest->name);
  const std::uint64_t least_per_thread =
      std::max({kMinMemoryBytes / 2 + needs.kept, needs.kept + kReadAheadBytes + needs.computing, visited});
  const auto threads = static_cast<unsigned>(
      std::min<std::uint64_t>(thread_count(options), std::max<std::uint64_t>(1, limit / least_per_thread)));
  const std::uint64_t per_thread = limit / threads - kReadAheadBytes - needs.kept;
  if (visit_block_bytes > 0)
    return {threads,
            {visit_block_bytes, visit_block_bytes, UINT64_MAX,
             is_visited ? 0 : per_thread - std::min(per_thread, needs.inputs)}};
  const std::uint64_t most = per_thread / buffers;
  return {threads, {std::min(kBlockBytes, most), std::min(kStridedBlockBytes, most), per_thread, per_thread}};
}

}  // namespace reshard
