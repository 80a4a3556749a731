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

#include "reshard/base/crc32.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/blocks.h"
#include "reshard/engine/file_pool.h"
#include "reshard/layouts/target_file.h"
#include "reshard/tensor/numeric.h"
#include "reshard/tensor/runs.h"

namespace reshard {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
// Of a matrix that lies in columns, a block of rows is short ranges: the more rows, the longer.
constexpr std::uint64_t kStridedBlockBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kBuffersPerThread = 4;  // the block, up to two for a file's side of it, one for a second copy
constexpr std::uint64_t kWorthASystemCall = 4096;  // shorter runs are read together with what lies between them
constexpr std::size_t kOpenFiles = 256;            // of each side; the usual limit is 1024 a process
constexpr unsigned kMaxDefaultThreads = 16;

/// The part of one stored tensor that a block needs or feeds. In `runs`, a is the stored tensor and b the block.
struct Group {
  std::uint32_t stored = 0;
  std::vector<Runs> runs;
  std::uint64_t begin_bytes = 0;  // the range of the stored tensor that holds them all
  std::uint64_t end_bytes = 0;
  std::uint64_t total_bytes = 0;

  bool dense() const { return end_bytes - begin_bytes == total_bytes; }
  bool is_one_run() const { return runs.size() == 1 && runs.front().loops.empty(); }
};

bool is_strided(const Layout* layout, const std::optional<Reading>& reading) {
  if (!layout || layout->strides.empty() || !reading) return false;
  return std::any_of(reading->reads.begin(), reading->reads.end(),
                     [&](const Piece& piece) { return layout->strides.count(piece.stored) > 0; });
}

/// Work to be had: the next block of the next tensor, in order.
class Queue {
 public:
  struct Item {
    std::size_t transfer;
    std::uint64_t block;
    Box box;
  };

  Queue(const Program& program, std::uint64_t block_bytes, std::uint64_t strided_block_bytes)
      : program_(program), block_bytes_(block_bytes), strided_block_bytes_(strided_block_bytes) {}

  bool next(Item& item) {
    const std::lock_guard lock(mutex_);
    while (!grid_ || block_ == grid_->count()) {
      if (transfer_ == program_.transfers.size()) return false;
      const Transfer& transfer = program_.transfers[transfer_++];
      const LogicalTensor& tensor = *transfer.tensor;
      const std::uint64_t block_bytes = block_bytes_of(transfer);
      grid_ = std::make_unique<BlockGrid>(tensor.dtype, tensor.shape, block_bytes);
      if (grid_->block_bytes() > std::max(block_bytes, kBlockBytes))
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("its rows are not whole bytes, and eight of them take {}, which is "
                                "too much to hold in memory at once",
                                format_bytes(grid_->block_bytes())))
            .tensor(tensor.name);
      block_ = 0;
    }
    item = {transfer_ - 1, block_, grid_->block(block_)};
    ++block_;
    return true;
  }

 private:
  std::uint64_t block_bytes_of(const Transfer& transfer) const {
    const bool strided = is_strided(program_.source, transfer.source) || is_strided(program_.against, transfer.against);
    std::uint64_t bytes = strided ? strided_block_bytes_ : block_bytes_;
    // The block after a cast, too, has to fit.
    if (transfer.result && bits(transfer.result->dtype) > bits(transfer.tensor->dtype))
      bytes = bytes * bits(transfer.tensor->dtype) / bits(transfer.result->dtype);
    return bytes;
  }

  const Program& program_;
  std::uint64_t block_bytes_;
  std::uint64_t strided_block_bytes_;
  std::mutex mutex_;
  std::size_t transfer_ = 0;  // the one after that of grid_
  std::uint64_t block_ = 0;
  std::unique_ptr<BlockGrid> grid_;
};

/// The CRCs of a target's tensors, of what has been written of them so far. Parts may come in any order.
class Checksums {
 public:
  explicit Checksums(const Layout* target) {
    if (target && std::any_of(target->files.begin(), target->files.end(), needs_crcs))
      crcs_ = std::vector<std::atomic<std::uint32_t>>(target->stored.size());
  }

  void add(const Layout& target, std::uint32_t stored, std::uint64_t begin_bytes, std::span<const std::byte> bytes) {
    const StoredTensor& tensor = target.stored[stored];
    if (crcs_.empty() || !needs_crcs(target.files[tensor.file])) return;
    crcs_[stored] ^= crc32_contribution(crc32(bytes), tensor.size_bytes - begin_bytes - bytes.size());
  }

  std::vector<std::uint32_t> values() const { return {crcs_.begin(), crcs_.end()}; }

 private:
  std::vector<std::atomic<std::uint32_t>> crcs_;
};

/// What all threads share.
struct Shared {
  const Program& program;
  const std::filesystem::path& target_root;
  const RunOptions& options;
  const BlockVisitor& visitor;
  Queue queue;
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
    Queue::Item item;
    while (!shared_.failed && shared_.queue.next(item)) {
      if (shared_.options.progress && shared_.options.progress->stop)
        throw Error(ErrorKind::kInterrupted, "stopped by a signal; nothing was written under a final name");
      process(item);
    }
  }

 private:
  void process(const Queue::Item& item) {
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
      for_each_group(*shared_.program.target, transfer.writes, *transfer.result, item.box, [&](const Group& group) {
        store(group);
        done += group.total_bytes;
      });
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
    for_each_group(layout, reading.reads, tensor, box, [&](const Group& group) { load(layout, files, group, block); });
    for_each_group(layout, reading.checks, tensor, box, [&](const Group& group) {
      other_.resize(bytes);
      load(layout, files, group, other_);
      compare(layout, group, tensor, box, block);
    });
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

  /// Calls `use` with what each stored tensor has to do with the block. `pieces` are grouped by stored tensor.
  template <typename Use>
  void for_each_group(const Layout& layout, std::span<const Piece> pieces, const LogicalTensor& tensor,
                      const Box& block, Use&& use) {
    for (std::size_t first = 0; first < pieces.size();) {
      Group group;
      group.stored = pieces[first].stored;
      std::size_t i = first;
      for (; i < pieces.size() && pieces[i].stored == group.stored; ++i)
        add_to_group(group, layout, pieces[i], tensor, block);
      first = i;
      if (!group.runs.empty()) use(group);
    }
  }

  static void add_to_group(Group& group, const Layout& layout, const Piece& piece, const LogicalTensor& tensor,
                           const Box& block) {
    const auto shared = intersect(piece.box, block);
    if (!shared) return;
    Dims stored_begin = piece.stored_begin;
    Dims block_begin = shared->begin;
    for (std::size_t d = 0; d < stored_begin.size(); ++d) {
      stored_begin[d] += shared->begin[d] - piece.box.begin[d];
      block_begin[d] -= block.begin[d];
    }
    const auto strided = layout.strides.find(piece.stored);
    auto runs = make_strided_runs(
        tensor.dtype, shared->size,
        strided == layout.strides.end() ? c_strides(layout.stored[piece.stored].shape) : strided->second, stored_begin,
        c_strides(block.size), block_begin);
    if (!runs) throw Error(ErrorKind::kInternal, "a block cuts a packed byte").tensor(tensor.name);
    const std::uint64_t end = runs->a_begin_bytes + runs->a_span_bytes();
    group.begin_bytes = group.runs.empty() ? runs->a_begin_bytes : std::min(group.begin_bytes, runs->a_begin_bytes);
    group.end_bytes = std::max(group.end_bytes, end);
    group.total_bytes += runs->total_bytes();
    group.runs.push_back(std::move(*runs));
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
    gathered.reads.for_each([&](std::uint64_t a, std::uint64_t b) {
      file.read_at(offset_bytes + a, std::span(staging_).subspan(b, gathered.reads.run_bytes));
    });
    copy_runs(gathered.scatter, staging_.data(), 0, block.data(), 0);
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
  void compare(const Layout& layout, const Group& group, const LogicalTensor& tensor, const Box& box,
               const std::vector<std::byte>& block) {
    for (const Runs& runs : group.runs)
      runs.for_each([&](std::uint64_t, std::uint64_t b) {
        if (std::memcmp(block.data() + b, other_.data() + b, runs.run_bytes) == 0) return;
        std::uint64_t at = b;
        while (block[at] == other_[at]) ++at;
        differ(layout, group.stored, tensor, index_in(box, at * 8 / bits(tensor.dtype)));
      });
  }

  void differ(const Layout& layout, std::uint32_t stored, const LogicalTensor& tensor, const Dims& index) {
    const StoredTensor& copy = layout.stored[stored];
    Error error(ErrorKind::kBadInput,
                tensor.zeros
                    ? fmt::format("holds numbers where it is filled up with zeros, first at {}", to_string(index))
                    : fmt::format("is said to be a copy of {}, but differs from it, first at element {}", tensor.name,
                                  to_string(index)));
    error.in(layout.files[copy.file].path).tensor(copy.name);
    const bool tied = copy.kind == CutKind::kTied;
    if (tied)
      error.hint("if the two are meant to differ, config.json must say \"tie_word_embeddings\": false");
    else if (!tensor.zeros)
      error.hint(
          "the ranks are mixed up, or come from different checkpoints; --allow-divergent-replicas takes the first");
    if (tied || tensor.zeros || !shared_.options.allow_divergent_replicas) throw error;
    const std::lock_guard lock(shared_.failure_mutex);
    if (shared_.divergent.insert(&copy).second && shared_.options.on_divergence) shared_.options.on_divergence(error);
  }

  Shared& shared_;
  std::vector<std::byte> block_;
  std::vector<std::byte> staging_;
  std::vector<std::byte> other_;
  std::vector<std::byte> against_;
};

/// The number of threads that options ask for.
unsigned thread_count(const RunOptions& options) {
  if (options.threads != 0) return options.threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxDefaultThreads);
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
  const std::uint64_t most = options.max_memory_bytes / threads / kBuffersPerThread;
  const std::uint64_t block_bytes = visit_block_bytes ? visit_block_bytes : std::min(kBlockBytes, most);
  const std::uint64_t strided_bytes = visit_block_bytes ? visit_block_bytes : std::min(kStridedBlockBytes, most);
  Shared shared{
      program, target_root, options, visitor, Queue(program, block_bytes, strided_bytes), Checksums(program.target)};
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
