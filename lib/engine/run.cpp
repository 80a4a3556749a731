#include "reshard/engine/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/block_queue.h"
#include "reshard/engine/checksums.h"
#include "reshard/engine/file_pool.h"
#include "reshard/engine/group.h"
#include "reshard/tensor/numeric.h"
#include "reshard/tensor/runs.h"

namespace reshard {
namespace {

constexpr std::uint64_t kPlainBuffers = 4;  // the block, up to two for a file's side of it, one for a second copy
constexpr std::uint64_t kWorthASystemCall = 4096;  // shorter runs are read together with what lies between them
constexpr std::uint64_t kLargestElement = 16;
constexpr std::uint64_t kWindowBytes = std::uint64_t{256} << 10;
constexpr std::size_t kOpenFiles = 256;  // of each side; the usual limit is 1024 a process
constexpr unsigned kMaxDefaultThreads = 16;

/// What all threads share.
struct Shared {
  const Program& program;
  const std::filesystem::path& target_root;
  const RunOptions& options;
  const BlockVisitor& visitor;
  BlockQueue queue;
  Checksums checksums;
  FilePool<Source> sources{kOpenFiles};
  FilePool<Source> others{kOpenFiles};  // of Program::against
  FilePool<Sink> sinks{kOpenFiles};
  std::atomic<bool> failed{false};
  std::mutex failure_mutex{};
  std::exception_ptr failure{};
  std::set<const StoredTensor*> divergent{};
};

/// One thread's buffers and what it does with a block.
class Worker {
 public:
  explicit Worker(Shared& shared) : shared_(shared) {}

  void run() {
    BlockQueue::Item item;
    while (!shared_.failed && shared_.queue.next(item)) {
      if (shared_.options.progress && shared_.options.progress->stop)
        throw Error(ErrorKind::kInterrupted, "stopped by a signal; nothing was written under a final name");
      process(item);
    }
  }

 private:
  void process(const BlockQueue::Item& item) {
    const Transfer& transfer = shared_.program.transfers[item.transfer];
    const LogicalTensor& tensor = *transfer.tensor;
    if (transfer.source)
      read(*shared_.program.source, shared_.sources, *transfer.source, tensor, item.box, block_);
    else
      block_.assign(*num_bytes(tensor.dtype, item.box.size), std::byte{0});
    if (!transfer.more.empty()) average(transfer, item.box);
    std::uint64_t done = 0;
    if (shared_.program.target && transfer.result) {
      cast(transfer, item.box);
      for (const Group& group : groups_of(*shared_.program.target, transfer.writes, *transfer.result, item.box)) {
        store(group);
        done += group.total_bytes;
      }
    }
    if (transfer.against)
      read(*shared_.program.against, shared_.others, *transfer.against, *transfer.result, item.box, against_);
    if (shared_.visitor) {
      shared_.visitor({item.transfer, item.block, first_elem(tensor.shape, item.box), block_, against_});
      done = block_.size() + against_.size();
    }
    if (shared_.options.progress) shared_.options.progress->done_bytes += done;
  }

  /// Fills `block` and compares second copies with it.
  void read(const Layout& layout, FilePool<Source>& files, const Reading& reading, const LogicalTensor& tensor,
            const Box& box, std::vector<std::byte>& block) {
    const std::uint64_t bytes = *num_bytes(tensor.dtype, box.size);
    block.resize(bytes);
    if (layout.logical[reading.logical].zeros) std::fill(block.begin(), block.end(), std::byte{0});
    for (const Group& group : groups_of(layout, reading.reads, tensor, box)) load(layout, files, group, block);
    for (const Group& group : groups_of(layout, reading.checks, tensor, box)) {
      other_.resize(bytes);
      load(layout, files, group, other_);
      compare(layout, reading, group, tensor, box, block);
    }
  }

  /// Makes the block the mean of this tensor and others.
  void average(const Transfer& transfer, const Box& box) {
    std::vector<std::vector<std::byte>> terms{block_};
    for (const Reading& reading : transfer.more)
      read(*shared_.program.source, shared_.sources, reading, *transfer.tensor, box, terms.emplace_back());
    mean_elements(transfer.tensor->dtype, terms, block_);
  }

  /// Makes the block one of the dtype that is written.
  void cast(const Transfer& transfer, const Box& box) {
    const LogicalTensor& tensor = *transfer.tensor;
    const DType to = transfer.result->dtype;
    if (tensor.dtype == to) return;
    other_.resize(*num_bytes(to, box.size));
    const auto overflowed = cast_elements(tensor.dtype, block_, to, other_, shared_.options.overflow);
    if (overflowed)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("its element {} does not fit {}", to_string(index_in(box, *overflowed)), name(to)))
          .in(shared_.program.source->files[shared_.program.source->stored[transfer.source->reads.front().stored].file]
                  .path)
          .tensor(tensor.name)
          .hint("choose a wider dtype, or let such values become the largest of theirs (--overflow saturate)");
    block_.swap(other_);
  }

  static Dims index_in(const Box& box, std::uint64_t elem) {
    Dims index(box.begin.size());
    for (std::size_t d = index.size(); d-- > 0;) {
      index[d] = box.begin[d] + elem % box.size[d];
      elem /= box.size[d];
    }
    return index;
  }

  static std::uint64_t first_elem(const Dims& shape, const Box& box) {
    std::uint64_t elem = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) elem = elem * shape[d] + box.begin[d];
    return elem;
  }

  /// Reads the group's bytes into `block`, from the file in as few calls as do not read what others need.
  void load(const Layout& layout, FilePool<Source>& files, const Group& group, std::vector<std::byte>& block) {
    const StoredTensor& stored = layout.stored[group.stored];
    const auto file =
        files.get(stored.file, [&] { return shared_.options.storage->open(layout.files[stored.file].path); });
    const std::uint64_t span_bytes = group.end_bytes - group.begin_bytes;
    if (group.is_one_run()) {
      const Runs& run = group.runs.front();
      file->read_at(stored.offset_bytes + run.a_begin_bytes,
                    std::span(block).subspan(run.b_begin_bytes, run.run_bytes));
    } else if (group.dense() || (group.runs.front().run_bytes < kWorthASystemCall && span_bytes <= 2 * block.size())) {
      staging_.resize(span_bytes);
      file->read_at(stored.offset_bytes + group.begin_bytes, staging_);
      for (const Runs& runs : group.runs) copy_runs(runs, staging_.data(), group.begin_bytes, block.data(), 0);
    } else {
      for (const Runs& runs : group.runs) load_apart(*file, stored.offset_bytes, runs, block);
    }
  }

  /// Reads runs that lie far from each other: each where it goes, or, where others lie between its elements in the
  /// block, first what lies together in the file.
  void load_apart(const Source& file, std::uint64_t offset_bytes, const Runs& runs, std::vector<std::byte>& block) {
    const Gather gathered = gather(runs);
    if (gathered.reads.run_bytes == runs.run_bytes && gathered.packed_bytes == runs.total_bytes()) {
      runs.for_each([&](std::uint64_t a, std::uint64_t b) {
        file.read_at(offset_bytes + a, std::span(block).subspan(b, runs.run_bytes));
      });
      return;
    }
    staging_.resize(gathered.packed_bytes);
    read_ranges(file, offset_bytes, gathered.reads);
    copy_runs(gathered.scatter, staging_.data(), 0, block.data(), 0);
  }

  /// Reads ranges into staging_; single elements that lie near each other with what lies between them.
  void read_ranges(const Source& file, std::uint64_t offset_bytes, const Runs& reads) {
    const std::uint64_t end_bytes = reads.a_begin_bytes + reads.a_span_bytes();
    std::uint64_t window_begin = 0;
    reads.for_each([&](std::uint64_t a, std::uint64_t b) {
      const std::span out = std::span(staging_).subspan(b, reads.run_bytes);
      if (reads.run_bytes > kLargestElement || reads.loops.empty() ||
          reads.loops.back().a_stride_bytes > 8 * kLargestElement) {
        file.read_at(offset_bytes + a, out);
        return;
      }
      if (window_.empty() || a < window_begin || a + reads.run_bytes > window_begin + window_.size()) {
        window_begin = a;
        window_.resize(std::min(kWindowBytes, end_bytes - a));
        file.read_at(offset_bytes + a, window_);
      }
      std::memcpy(out.data(), window_.data() + (a - window_begin), reads.run_bytes);
    });
    window_.clear();
  }

  /// Writes the group's bytes from the block: in one call where they make one range of the file.
  void store(const Group& group) {
    const Layout& target = *shared_.program.target;
    const StoredTensor& stored = target.stored[group.stored];
    const auto file = shared_.sinks.get(stored.file, [&] {
      return shared_.options.storage->reopen(shared_.target_root / target.files[stored.file].path);
    });
    const auto write = [&](std::uint64_t begin_bytes, std::span<const std::byte> bytes) {
      shared_.checksums.add(target, group.stored, begin_bytes, bytes);
      file->write_at(stored.offset_bytes + begin_bytes, bytes);
    };
    if (group.is_one_run() || !group.dense()) {
      for (const Runs& runs : group.runs)
        runs.for_each(
            [&](std::uint64_t a, std::uint64_t b) { write(a, std::span(block_).subspan(b, runs.run_bytes)); });
      return;
    }
    staging_.resize(group.total_bytes);
    for (const Runs& runs : group.runs)
      runs.for_each([&](std::uint64_t a, std::uint64_t b) {
        std::memcpy(staging_.data() + (a - group.begin_bytes), block_.data() + b, runs.run_bytes);
      });
    write(group.begin_bytes, staging_);
  }

  /// The bytes of a second copy are those of the first.
  /// \throws Error with the first element that differs.
  void compare(const Layout& layout, const Reading& reading, const Group& group, const LogicalTensor& tensor,
               const Box& box, const std::vector<std::byte>& block) {
    for (const Runs& runs : group.runs)
      runs.for_each([&](std::uint64_t, std::uint64_t b) {
        if (std::memcmp(block.data() + b, other_.data() + b, runs.run_bytes) == 0) return;
        std::uint64_t at = b;
        while (block[at] == other_[at]) ++at;
        differ(layout, reading, group.stored, tensor, index_in(box, at * 8 / bits(tensor.dtype)));
      });
  }

  void differ(const Layout& layout, const Reading& reading, std::uint32_t stored, const LogicalTensor& tensor,
              const Dims& index) {
    const StoredTensor& copy = layout.stored[stored];
    Error error(ErrorKind::kBadInput,
                tensor.zeros
                    ? fmt::format("holds numbers where it is filled up with zeros, first at {}", to_string(index))
                    : fmt::format("is said to be a copy of {}{}, but differs from it, first at element {}", tensor.name,
                                  first_file(layout, reading, index), to_string(index)));
    error.in(layout.files[copy.file].path).tensor(copy.name);
    const bool tied = copy.kind == CutKind::kTied;
    if (tied)
      error.hint("if the two are meant to differ, config.json must say \"tie_word_embeddings\": false");
    else if (!tensor.zeros)
      error.hint(
          "the ranks are mixed up, or come from different checkpoints; --allow-divergent-replicas takes the first");
    if (shared_.program.replicas_prove_layout && !tied)
      error.hint(
          "there is no metadata, and the ranks are not laid out as NxD does it on trn1: another order of heads?");
    if (tied || tensor.zeros || shared_.program.replicas_prove_layout || !shared_.options.allow_divergent_replicas)
      throw error;
    const std::lock_guard lock(shared_.failure_mutex);
    if (shared_.divergent.insert(&copy).second && shared_.options.on_divergence) shared_.options.on_divergence(error);
  }

  /// " in FILE": where the element was read that copies are held against.
  static std::string first_file(const Layout& layout, const Reading& reading, const Dims& index) {
    const Box element{index, Dims(index.size(), 1)};
    for (const Piece& piece : reading.reads)
      if (intersect(piece.box, element)) return " in " + layout.files[layout.stored[piece.stored].file].path.string();
    return {};
  }

  Shared& shared_;
  std::vector<std::byte> block_;
  std::vector<std::byte> staging_;
  std::vector<std::byte> other_;
  std::vector<std::byte> against_;
  std::vector<std::byte> window_;
};

/// The number of threads that options ask for.
unsigned thread_count(const RunOptions& options) {
  if (options.threads != 0) return options.threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxDefaultThreads);
}

/// Blocks that one thread holds at once.
std::uint64_t buffers_per_thread(const Program& program) {
  std::uint64_t terms = 0;
  for (const Transfer& transfer : program.transfers) terms = std::max<std::uint64_t>(terms, transfer.more.size() + 1);
  return kPlainBuffers + (program.against ? 1 : 0) + (terms > 1 ? terms : 0);
}

void run_worker(Shared& shared) {
  try {
    Worker(shared).run();
  } catch (...) {
    const std::lock_guard lock(shared.failure_mutex);
    if (!shared.failure) shared.failure = std::current_exception();
    shared.failed = true;
  }
}

}  // namespace

std::vector<std::uint32_t> run_program(const Program& program, const std::filesystem::path& target_root,
                                       const RunOptions& options, const BlockVisitor& visitor,
                                       std::uint64_t visit_block_bytes) {
  if (options.max_memory_bytes < kMinMemoryBytes)
    throw Error(ErrorKind::kUsage,
                "--max-memory " + format_memory(options.max_memory_bytes) + " is too little to work in")
        .hint("give at least " + format_memory(kMinMemoryBytes));
  // Memory comes first: with little of it, fewer threads work, each in blocks that are still worth a system call.
  constexpr std::uint64_t kLeastPerThread = kMinMemoryBytes / 2;
  const unsigned threads = static_cast<unsigned>(std::min<std::uint64_t>(
      thread_count(options), std::max<std::uint64_t>(1, options.max_memory_bytes / kLeastPerThread)));
  const std::uint64_t most = options.max_memory_bytes / threads / buffers_per_thread(program);
  const std::uint64_t block_bytes = visit_block_bytes ? visit_block_bytes : std::min(kBlockBytes, most);
  const std::uint64_t strided_bytes = visit_block_bytes ? visit_block_bytes : std::min(kStridedBlockBytes, most);
  Shared shared{program,
                target_root,
                options,
                visitor,
                BlockQueue(program, block_bytes, strided_bytes),
                Checksums(program.target)};
  std::vector<std::thread> others;
  try {
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(run_worker, std::ref(shared));
  } catch (const std::exception&) {
    // No more threads (or memory for their stacks) to be had: those that run do the work of all.
  }
  run_worker(shared);
  for (std::thread& thread : others) thread.join();
  if (shared.failure) std::rethrow_exception(shared.failure);
  return shared.checksums.values();
}

}  // namespace reshard
