#include "reshard/engine/move/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/sha256.h"
#include "reshard/base/strings.h"
#include "reshard/engine/move/block_reader.h"
#include "reshard/engine/move/block_writer.h"
#include "reshard/engine/move/memory_plan.h"
#include "reshard/engine/move/run_state.h"
#include "reshard/engine/units/lots.h"
#include "reshard/io/parallel.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {
namespace {

constexpr unsigned kMaxDefaultThreads = 16;

std::uint64_t first_elem(const Dims& shape, const Box& box) {
  std::uint64_t elem = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) elem = elem * shape[d] + box.begin[d];
  return elem;
}

/// Returns the first piece of a tensor, or of its inputs.
const Piece& first_read(const Reading& reading) {
  return reading.reads.empty() ? first_read(reading.inputs.front()) : reading.reads.front();
}

/// One thread of a run.
class Mover {
 public:
  Mover(RunState& shared, unsigned number)
      : shared_(shared), number_(number), evaluator_(shared, buffers_), writer_(shared, buffers_) {}

  void run() {
    std::vector<BlockQueue::Item> items;
    while (!shared_.failed) {
      if (!shared_.queue.next(number_, items)) {
        if (!shared_.add_lot(number_)) break;
        continue;
      }
      throw_if_stopped(shared_.options);
      process(items);
    }
  }

 private:
  void process(const std::vector<BlockQueue::Item>& items) {
    std::vector<std::vector<Group>> targets;
    for (const BlockQueue::Item& item : items) targets.push_back(targets_of(item));
    if (items.size() > 1) writer_.join(targets, joined_bytes_of(items));
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::uint64_t done = process(items[i], targets[i]);
      if (i + 1 == items.size()) writer_.write_joined();
      note(items[i], done);
    }
  }

  /// Memory that is left for what joined blocks write.
  std::uint64_t joined_bytes_of(const std::vector<BlockQueue::Item>& items) const {
    std::uint64_t largest = 0;
    for (const BlockQueue::Item& item : items) {
      const Transfer& transfer = shared_.program.transfers[item.transfer];
      for (const DType dtype : {transfer.tensor(shared_.maps).dtype, transfer.result(shared_.maps)->dtype})
        largest = std::max(largest, num_bytes(dtype, item.at.box.size).value_or(0));
    }
    return shared_.joined_bytes - std::min(shared_.joined_bytes, kPlainBuffers * largest);
  }

  std::vector<Group> targets_of(const BlockQueue::Item& item) const {
    const Transfer& transfer = shared_.program.transfers[item.transfer];
    const ProgramMaps& maps = shared_.maps;
    if (!transfer.target) return {};
    return groups_of(*maps.target, transfer.writes(maps), maps.target->logical[*transfer.target], item.at);
  }

  /// \returns the bytes written, or visited.
  std::uint64_t process(const BlockQueue::Item& item, std::span<const Group> targets) {
    const Transfer& transfer = shared_.program.transfers[item.transfer];
    const ProgramMaps& maps = shared_.maps;
    if (std::exchange(transfer_, &transfer) != &transfer) evaluator_.begin_tensor();
    std::uint64_t done = 0;
    if (targets.empty() && transfer.target && !shared_.visitor) {
      // The block belongs only to ranks that are not written.
    } else if (!writer_.is_joining() && move(item, targets)) {
      for (const Group& target : targets) done += target.total_bytes;
    } else {
      const auto written_to_bytes = writer_.place_written_to(targets);
      static const Reading kNone;  // for a constant that only the target has
      std::span<const std::byte> block =
          evaluator_.evaluate(*maps.source, shared_.sources, transfer.source ? *transfer.source : kNone,
                              transfer.tensor(maps), item.at, buffers_.block, written_to_bytes);
      if (evaluator_.findings().overflows > 0 && shared_.options.overflow == Overflow::kError)
        fail_overflow(transfer, "has an element that", transfer.tensor(maps).dtype);
      if (transfer.target) {
        block = cast(transfer, item.at, block, written_to_bytes);
        hash(item, block);
        done = writer_.store(targets, block);
      }
      std::span<const std::byte> against;
      if (transfer.against)
        against = evaluator_.evaluate(*maps.against, shared_.others, *transfer.against, *transfer.result(maps), item.at,
                                      buffers_.against);
      if (shared_.visitor) {
        shared_.visitor(
            {item.transfer, item.block, first_elem(transfer.tensor(maps).shape, item.at.box), block, against});
        done = block.size() + against.size();
      }
    }
    return done;
  }

  /// Counts and reports a block.
  void note(const BlockQueue::Item& item, std::uint64_t done) {
    shared_.done_bytes += done;
    if (shared_.options.progress) shared_.options.progress->done_bytes += done;
    const LogicalTensor& tensor = shared_.program.transfers[item.transfer].tensor(shared_.maps);
    const std::uint64_t block_bytes = num_bytes(tensor.dtype, item.at.box.size).value_or(0);
    const Findings findings = evaluator_.take_findings();
    Lost lost = std::exchange(lost_, {});
    lost.saturated += findings.overflows;
    if (findings.inexact || lost.any()) {
      const std::lock_guard lock(shared_.failure_mutex);
      if (findings.inexact) shared_.inexact.insert(item.transfer);
      if (lost.any()) shared_.lost[item.transfer] += lost;
    }
    if (shared_.ledger) note_block(item, block_bytes, done, findings.inexact, lost);
    if (shared_.options.lots) shared_.options.lots->did(block_bytes);
  }

  /// Reports a block to the ledger.
  /// \param block_bytes  size in the tensor's input dtype.
  void note_block(const BlockQueue::Item& item, std::uint64_t block_bytes, std::uint64_t written_bytes, bool is_inexact,
                  const Lost& lost) {
    UnitReport block = writer_.take_noted();
    block.unit = item.unit;
    block.written_bytes = written_bytes;
    block.divergent = evaluator_.take_noted();
    if (leaf_) block.leaves.push_back(*std::exchange(leaf_, std::nullopt));
    if (is_inexact && written_bytes > 0) block.inexact.push_back(item.transfer);
    if (lost.any()) block.lost.push_back({item.transfer, lost});
    shared_.ledger->add(block, block_bytes);
  }

  /// Lets the file system copy a block whose values are not needed. \returns false if this is impossible or slower.
  bool move(const BlockQueue::Item& item, std::span<const Group> targets) {
    const Transfer& transfer = shared_.program.transfers[item.transfer];
    const ProgramMaps& maps = shared_.maps;
    if (!transfer.target || !transfer.source || shared_.visitor || transfer.against ||
        !transfer.source->checks.empty() || !shared_.digests.empty())
      return false;
    const LogicalTensor& tensor = transfer.tensor(maps);
    if (tensor.computed || tensor.dtype != maps.target->logical[*transfer.target].dtype) return false;
    for (const Group& target : targets)
      if (!target.is_one_run()) return false;
    const std::vector<Group> sources = groups_of(*maps.source, transfer.source->reads, tensor, item.at);
    return sources.size() == 1 && sources.front().is_one_run() && copy_in_kernel(sources.front(), targets);
  }

  /// Hashes a block in its output dtype.
  void hash(const BlockQueue::Item& item, std::span<const std::byte> block) {
    if (shared_.digests.empty()) return;
    const std::uint32_t target = *shared_.program.transfers[item.transfer].target;
    const LogicalTensor& tensor = shared_.maps.target->logical[target];
    if (tensor.constant()) return;
    const auto begin = std::chrono::steady_clock::now();
    hash_.update(block);
    const UnitReport::Leaf leaf{target, first_elem(tensor.shape, item.at.box), hash_.finish()};
    shared_.digests[target].add(leaf.first_elem, leaf.digest);
    if (shared_.ledger) leaf_ = leaf;
    shared_.hashing_ns += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
  }

  /// Lets the file system copy the block if that is faster, no checksums are needed, and each byte has one destination.
  bool copy_in_kernel(const Group& source, std::span<const Group> targets) {
    std::uint64_t bytes = 0;
    for (const Group& target : targets) bytes += target.total_bytes;
    if (shared_.checksums.wanted() || bytes > source.total_bytes) return false;
    const SourceMap& map = *shared_.maps.source;
    const StoredTensor& stored = map.stored[source.stored];
    const auto file = shared_.open(map, shared_.sources, stored.file);
    return std::all_of(targets.begin(), targets.end(), [&](const Group& target) {
      return writer_.copy(target, *file, stored.offset_bytes + source.runs.front().a_begin_bytes);
    });
  }

  /// Returns the block in the output dtype.
  std::span<const std::byte> cast(const Transfer& transfer, const Block& at, std::span<const std::byte> block,
                                  std::optional<std::uint64_t> written_to_bytes) {
    const LogicalTensor& tensor = transfer.tensor(shared_.maps);
    const DType to = shared_.maps.target->logical[*transfer.target].dtype;
    if (tensor.dtype == to) return block;
    const auto result = buffers_.other.make_room(*num_bytes(to, at.box.size), {{}, written_to_bytes});
    const auto overflowed = cast_elements(tensor.dtype, block, to, result, Overflow::kError);
    if (overflowed && shared_.options.overflow == Overflow::kError)
      fail_overflow(transfer, "its element " + to_string(at.index_of(overflowed->first)), to);
    if (overflowed) lost_.saturated += overflowed->count;
    if (const std::uint64_t zeros = rounds_to_zero(tensor.dtype, to) ? count_zeros(to, result) : 0; zeros > 0)
      lost_.zeroed += zeros - count_zeros(tensor.dtype, block);
    return result;
  }

  [[noreturn]] void fail_overflow(const Transfer& transfer, const std::string& what, DType to) {
    const SourceMap& source = *shared_.maps.source;
    throw Error(ErrorKind::kBadInput, fmt::format("{} does not fit {}", what, name(to)))
        .in(source.files[source.stored[first_read(*transfer.source).stored].file].path)
        .tensor(transfer.tensor(shared_.maps).name)
        .hint("choose a wider dtype, or saturate out-of-range values (`overflow` saturate)");
  }

  RunState& shared_;
  unsigned number_;
  Buffers buffers_;
  Evaluator evaluator_;
  BlockWriter writer_;
  Sha256 hash_;
  std::optional<UnitReport::Leaf> leaf_;  // leaf of the current block
  Lost lost_;                             // values of the current block
  const Transfer* transfer_ = nullptr;    // transfer of the last block
};

void run_worker(RunState& shared, unsigned number) {
  try {
    Mover(shared, number).run();
  } catch (...) {
    shared.fail(std::current_exception());
  }
}

/// Runs parts of the program, or all of it if there is a visitor.
ShareReport run_blocks(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
                       const std::filesystem::path& target_root, const RunOptions& options, const BlockVisitor& visitor,
                       std::uint64_t visit_block_bytes) {
  const MemoryPlan memory = plan_memory(maps, program, options, visit_block_bytes, visitor != nullptr);
  RunState shared(maps, program, parts, target_root, options, visitor, memory.threads, memory.blocks);
  // If fewer threads are available, one runs several workers in turn; the later ones find their work done.
  for_each_number(memory.threads, memory.threads, [&](std::size_t i) { run_worker(shared, static_cast<unsigned>(i)); });
  shared.write_back.clear();
  shared.sinks.clear();  // may report a failure
  if (shared.failure) std::rethrow_exception(shared.failure);
  for (const SourceMap* map : {maps.source, maps.against}) {
    if (map == nullptr) continue;
    for (const SourceFile& file : map->files) validate_unchanged(options.stores.sources(), file);
  }
  ShareReport report;
  report.crcs = shared.checksums.values();
  report.digests = std::move(shared.digests);
  report.hashing_seconds = static_cast<double>(shared.hashing_ns) / 1e9;
  report.written_bytes = shared.done_bytes;
  for (std::uint32_t file = 0; file < shared.written.size(); ++file)
    if (shared.written[file]) report.written_files.push_back(file);
  report.inexact.assign(shared.inexact.begin(), shared.inexact.end());
  for (const auto& [transfer, values] : shared.lost) report.lost.push_back({transfer, values});
  return report;
}

}  // namespace

unsigned thread_count(const RunOptions& options) {
  if (options.threads != 0) return options.threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxDefaultThreads);
}

void throw_if_stopped(const RunOptions& options) {
  if (options.progress && options.progress->stop) throw Error(ErrorKind::kInterrupted, kStoppedMessage);
}

std::vector<std::uint32_t> run_program(const ProgramMaps& maps, const Program& program,
                                       const std::filesystem::path& target_root, const RunOptions& options,
                                       const BlockVisitor& visitor, std::uint64_t visit_block_bytes) {
  return run_blocks(maps, program, whole_program(maps, program), target_root, options, visitor, visit_block_bytes).crcs;
}

ShareReport run_parts(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
                      const std::filesystem::path& target_root, RunOptions options) {
  std::vector<Divergence> divergent;
  options.on_divergence = [&](Divergence one) { divergent.push_back(std::move(one)); };
  ShareReport report = run_blocks(maps, program, parts, target_root, options, {}, 0);
  report.divergent = std::move(divergent);
  return report;
}

ShareReport run_share(const ProgramMaps& maps, const Program& program, const Share& share,
                      const std::filesystem::path& target_root, RunOptions options) {
  if (share.index >= share.count)
    throw Error(ErrorKind::kUsage, fmt::format("share {} of {} does not exist", share.index, share.count));
  std::vector<Part> parts;
  if (share.count == 1)
    parts = whole_program(maps, program);
  else
    Units(maps, program, share.count, options.digests).add_parts(share.index, parts);
  return run_parts(maps, program, parts, target_root, std::move(options));
}

}  // namespace reshard
