#include "reshard/engine/move/block_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "reshard/base/error.h"
#include "reshard/engine/units/blocks.h"
#include "reshard/tensor/cast/format_element.h"

namespace reshard {
namespace {

constexpr std::uint64_t kWorthASystemCall = 4096;  // shorter runs are read together with the bytes between them
constexpr std::uint64_t kLargestElement = 16;
constexpr std::uint64_t kKeptBlockBytes = std::uint64_t{64} << 10;  // block size for reading an input that is kept
constexpr std::uint64_t kDistanceBlockBytes = std::uint64_t{64} << 10;

/// Explains why the difference of a replica is more than drift.
std::string too_far(const ReplicaDistance& distance) {
  return fmt::format("too far apart for drift in training: relative difference {:.2g}, drift is below {}",
                     distance.relative(), ReplicaDistance::kMaxRelative);
}

/// File offset that corresponds to byte 0 of the block, if a group is read into it directly.
std::optional<std::uint64_t> place_read_from(const SourceMap& map, std::span<const Group> groups) {
  for (const Group& group : groups)
    if (group.is_one_run())
      return map.stored[group.stored].offset_bytes + group.runs.front().a_begin_bytes -
             group.runs.front().b_begin_bytes;
  return std::nullopt;
}

}  // namespace

std::span<const std::byte> BlockReader::read(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                                             const LogicalTensor& tensor, const Block& at, Buffer& buffer,
                                             std::optional<std::uint64_t> written_to_bytes) {
  const std::uint64_t bytes = *num_bytes(tensor.dtype, at.box.size);
  const std::vector<Group> groups = groups_of(map, reading.reads, tensor, at);
  const auto block = buffer.make_room(bytes, {place_read_from(map, groups), written_to_bytes});
  for (const Group& group : groups) load(map, files, group, block);
  return block;
}

/// Reads the group's bytes into `block`, in as few calls as possible without reading bytes of other groups.
void BlockReader::load(const SourceMap& map, FilePool<Source>& files, const Group& group, std::span<std::byte> block) {
  const StoredTensor& stored = map.stored[group.stored];
  const auto file = shared_.open(map, files, stored.file);
  const std::uint64_t span_bytes = group.end_bytes - group.begin_bytes;
  if (group.is_one_run()) {
    const Runs& run = group.runs.front();
    file->read_at(stored.offset_bytes + run.a_begin_bytes, block.subspan(run.b_begin_bytes, run.run_bytes));
  } else if (group.dense() || (group.runs.front().run_bytes < kWorthASystemCall && span_bytes <= 2 * block.size())) {
    const std::uint64_t from = stored.offset_bytes + group.begin_bytes;
    const auto staging = buffers_.staging.make_room(span_bytes, {.read_from_bytes = from});
    file->read_at(from, staging);
    for (const Runs& runs : group.runs) copy_runs(runs, staging.data(), group.begin_bytes, block.data(), 0);
  } else {
    for (const Runs& runs : group.runs) load_apart(*file, stored.offset_bytes, runs, block);
  }
}

/// Reads runs that are far apart: each to its position, or, if the block scatters their elements, in contiguous file
/// ranges first.
void BlockReader::load_apart(const Source& file, std::uint64_t offset_bytes, const Runs& runs,
                             std::span<std::byte> block) {
  const Gather gathered = gather(runs);
  if (gathered.reads.run_bytes == runs.run_bytes && gathered.packed_bytes == runs.total_bytes()) {
    runs.for_each(
        [&](std::uint64_t a, std::uint64_t b) { file.read_at(offset_bytes + a, block.subspan(b, runs.run_bytes)); });
    return;
  }
  buffers_.staging.make_room(gathered.packed_bytes);
  read_ranges(file, offset_bytes, gathered.reads);
  copy_runs(gathered.scatter, buffers_.staging.data(), 0, block.data(), 0);
}

/// Reads ranges into the staging buffer. Single elements that are close together are read with the bytes between them.
void BlockReader::read_ranges(const Source& file, std::uint64_t offset_bytes, const Runs& reads) {
  std::vector<std::byte>& window = buffers_.window;
  window.clear();
  const std::uint64_t end_bytes = reads.a_begin_bytes + reads.a_span_bytes();
  std::uint64_t window_begin = 0;
  reads.for_each([&](std::uint64_t a, std::uint64_t b) {
    const std::span out = buffers_.staging.bytes().subspan(b, reads.run_bytes);
    if (reads.run_bytes > kLargestElement || reads.loops.empty() ||
        reads.loops.back().a_stride_bytes > 8 * kLargestElement) {
      file.read_at(offset_bytes + a, out);
      return;
    }
    if (window.empty() || a < window_begin || a + reads.run_bytes > window_begin + window.size()) {
      window_begin = a;
      window.resize(std::min(kReadAheadBytes, end_bytes - a));
      file.read_at(offset_bytes + a, window);
    }
    std::memcpy(out.data(), window.data() + (a - window_begin), reads.run_bytes);
  });
}

void BlockReader::compare(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                          const LogicalTensor& tensor, const Block& at, std::span<const std::byte> block) {
  for (const Group& group : groups_of(map, reading.checks, tensor, at)) {
    load(map, files, group, buffers_.other.make_room(block.size(), {place_read_from(map, {&group, 1}), {}}));
    std::optional<std::uint64_t> differs_at;  // the first byte of the block that does
    std::string values;                       // for a number: this value and that of the replica
    for (const Runs& runs : group.runs)
      runs.for_each([&](std::uint64_t, std::uint64_t b) {
        const std::byte* const copy = buffers_.other.data() + b;
        if (differs_at || std::memcmp(block.data() + b, copy, runs.run_bytes) == 0) return;
        std::uint64_t first = 0;
        while (first + 1 < runs.run_bytes && block[b + first] == copy[first]) ++first;
        differs_at = b + first;
        if (tensor.shape.empty())
          values = fmt::format("{} there, {} here", format_element(tensor.dtype, block, 0),
                               format_element(tensor.dtype, {copy, runs.run_bytes}, 0));
      });
    if (differs_at)
      differ(map, files, reading, group.stored, tensor, at.index_of(*differs_at * 8 / bits(tensor.dtype)), values);
  }
}

/// Decides on the whole replica, whichever block showed a difference.
void BlockReader::differ(const SourceMap& map, FilePool<Source>& files, const Reading& reading, std::uint32_t stored,
                         const LogicalTensor& tensor, const Dims& index, std::string_view values) {
  const Check& check = *std::find_if(reading.checks.begin(), reading.checks.end(),
                                     [&](const Check& one) { return one.stored == stored; });
  const Replicas replicas = shared_.options.replicas;
  const bool takes_first = replicas == Replicas::kFirst && check.may_differ;
  const bool drifts = replicas != Replicas::kExact && check.may_drift;
  const auto difference = [&](const Dims& at, std::string_view detail = {}) {
    return failed_check(map, reading.logical, reading.reads, check, at, detail);
  };
  if (!drifts && !takes_first) throw difference(index, values);
  {
    const std::lock_guard lock(shared_.failure_mutex);
    if (!shared_.divergent.emplace(&map, stored, reading.logical).second) return;
  }
  Divergence found{tensor.name, {}};
  if (drifts) {
    Dims first = index;  // in the whole tensor, not in this block
    const ReplicaDistance apart = distance(map, files, reading, stored, tensor, first);
    found = {tensor.name, difference(first).what(), apart.is_drift(), apart.max_abs(), apart.relative()};
    if (!apart.is_drift() && !takes_first) throw difference(first, too_far(apart));
  } else {
    found.text = difference(index).what();
  }
  found.stored = stored;
  found.logical = reading.logical;
  const std::lock_guard lock(shared_.failure_mutex);
  if (shared_.ledger) noted_.push_back(found);
  if (shared_.options.on_divergence) shared_.options.on_divergence(std::move(found));
}

/// Returns the distance between the boxes of the tensor in `stored` and the first rank's; independent of the run's
/// blocks.
/// \param first  set to the index of the first element that differs, if any.
ReplicaDistance BlockReader::distance(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                                      std::uint32_t stored, const LogicalTensor& tensor, Dims& first) {
  std::vector<Check> checks;
  for (const Check& check : reading.checks)
    if (check.stored == stored) checks.push_back(check);
  ReplicaDistance apart;
  std::vector<std::byte> placed, replica;
  const BlockGrid grid(tensor.dtype, tensor.shape, kDistanceBlockBytes);
  for (std::uint64_t i = 0; i < grid.count(); ++i) {
    const Block at(grid.block(i));
    placed.resize(*num_bytes(tensor.dtype, at.box.size));
    replica.resize(placed.size());
    std::optional<std::uint64_t> first_bytes;  // in the block
    const std::vector<Group> groups = groups_of(map, checks, tensor, at);
    if (groups.empty()) continue;
    for (const Group& group : groups_of(map, reading.reads, tensor, at)) load(map, files, group, placed);
    for (const Group& group : groups) {
      load(map, files, group, replica);
      for (const Runs& runs : group.runs)
        runs.for_each([&](std::uint64_t, std::uint64_t b) {
          const bool none_yet = apart.differing() == 0;
          const auto differs = apart.add(tensor.dtype, std::span(placed).subspan(b, runs.run_bytes),
                                         std::span(replica).subspan(b, runs.run_bytes));
          if (differs && none_yet) first_bytes = b + *differs * bits(tensor.dtype) / 8;
        });
    }
    if (first_bytes) first = at.index_of(*first_bytes * 8 / bits(tensor.dtype));
  }
  return apart;
}

std::span<const std::byte> Evaluator::evaluate(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                                               const LogicalTensor& tensor, const Block& at, Buffer& buffer,
                                               std::optional<std::uint64_t> written_to_bytes) {
  const auto block = tensor.computed ? compute(map, files, reading, tensor, at, buffer, written_to_bytes)
                                     : reader_.read(map, files, reading, tensor, at, buffer, written_to_bytes);
  reader_.compare(map, files, reading, tensor, at, block);
  return block;
}

std::span<const std::byte> Evaluator::compute(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                                              const LogicalTensor& tensor, const Block& at, Buffer& buffer,
                                              std::optional<std::uint64_t> written_to_bytes) {
  const Recipe& recipe = *tensor.computed->recipe;
  const std::size_t used = used_;
  std::vector<Box> boxes;
  std::vector<InputBox> inputs;
  boxes.reserve(reading.inputs.size());  // inputs refer to its elements
  for (std::size_t i = 0; i < reading.inputs.size(); ++i) {
    const Reading& input = reading.inputs[i];
    const LogicalTensor& from = map.logical[input.logical];
    const bool is_kept = recipe.access(i) == Recipe::Access::kWhole;
    boxes.push_back(is_kept ? whole(from.shape) : recipe.input_box(i, at.box));
    if (is_kept) {
      inputs.push_back({boxes.back(), from.dtype, kept(map, files, input)});
      continue;
    }
    const std::size_t own = used_++;
    if (own == buffers_.inputs.size()) buffers_.inputs.emplace_back();
    if (own >= last_.size()) last_.resize(own + 1);
    const bool is_there = last_[own].reading == &input && last_[own].box == boxes.back() && at.order.empty();
    if (!is_there) {
      last_[own].reading = nullptr;
      const auto bytes = evaluate(map, files, input, from, Block(boxes.back(), at.order), buffers_.inputs[own]);
      last_[own] = {at.order.empty() ? &input : nullptr, boxes.back(), bytes};
    }
    inputs.push_back({boxes.back(), from.dtype, last_[own].bytes});
  }
  const auto result = buffer.make_room(*num_bytes(tensor.dtype, at.box.size), {{}, written_to_bytes});
  try {
    recipe.apply(inputs, at.box, result, findings_);
  } catch (Error& error) {
    throw error.tensor(tensor.name);
  }
  used_ = used;
  return result;
}

/// Returns an input that is shared by all threads that compute the tensor.
std::span<const std::byte> Evaluator::kept(const SourceMap& map, FilePool<Source>& files, const Reading& input) {
  const auto mine = std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one.first == &input; });
  if (mine != kept_.end()) return mine->second->bytes;
  std::shared_ptr<KeptInput> one;
  {
    const std::lock_guard lock(shared_.failure_mutex);
    std::weak_ptr<KeptInput>& known = shared_.kept[&input];
    one = known.lock();
    if (!one) known = one = std::make_shared<KeptInput>();
  }
  std::call_once(one->read, [&] {
    const LogicalTensor& tensor = map.logical[input.logical];
    const BlockGrid grid(tensor.dtype, tensor.shape, kKeptBlockBytes);
    one->bytes.clear();
    one->bytes.reserve(num_bytes(tensor.dtype, tensor.shape).value_or(0));
    Buffer buffer;
    for (std::uint64_t block = 0; block < grid.count(); ++block) {
      const auto bytes = evaluate(map, files, input, tensor, Block(grid.block(block)), buffer);
      one->bytes.insert(one->bytes.end(), bytes.begin(), bytes.end());
    }
  });
  kept_.emplace_back(&input, one);
  return one->bytes;
}

std::uint64_t kept_bytes(const SourceMap& map, const Reading& reading) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < reading.inputs.size(); ++i) {
    const LogicalTensor& input = map.logical[reading.inputs[i].logical];
    if (map.logical[reading.logical].computed->recipe->access(i) == Recipe::Access::kWhole)
      bytes += num_bytes(input.dtype, input.shape).value_or(0);
    bytes += kept_bytes(map, reading.inputs[i]);
  }
  return bytes;
}

}  // namespace reshard
