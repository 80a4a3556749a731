#include "reshard/engine/move/block_writer.h"

#include <algorithm>

#include "reshard/engine/move/page_fragments.h"

namespace reshard {

std::shared_ptr<Sink> BlockWriter::sink_of(const StoredTensor& stored) {
  return shared_.sinks.get(stored.file, [&] {
    auto sink =
        shared_.options.stores.target().reopen(shared_.target_root / shared_.maps.target->files[stored.file].path);
    PageFragments* fragments = shared_.options.fragments;
    return fragments ? fragments->guard(stored.file, std::move(sink)) : std::move(sink);
  });
}

/// Records a write to a stored tensor and its contribution to the CRC.
void BlockWriter::note_written(std::uint32_t stored, std::uint32_t crc) {
  const std::uint32_t file = shared_.maps.target->stored[stored].file;
  shared_.written[file].store(true, std::memory_order_relaxed);
  if (!shared_.ledger) return;
  if (noted_.files.empty() || noted_.files.back() != file) noted_.files.push_back(file);
  if (crc != 0) noted_.crcs.push_back({stored, crc});
}

void BlockWriter::write(const Group& group, std::uint64_t begin_bytes, std::span<const std::byte> bytes) {
  gathered_.assign(1, bytes);
  write_gathered(group, begin_bytes);
}

/// Writes gathered_, one or more ranges, at `begin_bytes` of the group's stored tensor.
void BlockWriter::write_gathered(const Group& group, std::uint64_t begin_bytes) {
  const TargetMap& target = *shared_.maps.target;
  const StoredTensor& stored = target.stored[group.stored];
  std::uint64_t bytes = 0;
  for (const auto part : gathered_) bytes += part.size();
  const std::uint32_t crc = shared_.checksums.add(target, group.stored, begin_bytes, bytes, gathered_);
  note_written(group.stored, crc);
  const auto sink = sink_of(stored);
  const std::uint64_t offset_bytes = stored.offset_bytes + begin_bytes;
  if (gathered_.size() == 1)
    sink->write_at(offset_bytes, gathered_.front());
  else
    sink->write_gathered(offset_bytes, gathered_);
  if (shared_.options.sync) shared_.write_back.wrote(stored.file, sink, offset_bytes, bytes);
}

/// File offset at which the group's range of its stored tensor begins.
std::uint64_t BlockWriter::place_of(const Group& group) const {
  return shared_.maps.target->stored[group.stored].offset_bytes + group.begin_bytes;
}

/// Whether its bytes are first arranged in the file's order in memory. Applies to runs that form one range but are too
/// short to be gathered by the kernel, and to runs that form longer ones in another order than the block's.
bool BlockWriter::is_staged(const Group& group) const {
  if (group.is_one_run()) return false;
  const Runs& first = group.runs.front();
  if (!group.dense()) return gather(first).reads.run_bytes > first.run_bytes;
  const bool is_in_order =
      std::is_sorted(first.loops.begin(), first.loops.end(),
                     [](const Runs::Loop& a, const Runs::Loop& b) { return a.a_stride_bytes > b.a_stride_bytes; });
  return group.runs.size() > 1 || !is_in_order || first.run_bytes < shared_.options.tuning.least_part_bytes;
}

std::optional<std::uint64_t> BlockWriter::place_written_to(std::span<const Group> groups) const {
  for (const Group& group : groups)
    if (!is_staged(group))
      return shared_.maps.target->stored[group.stored].offset_bytes + group.runs.front().a_begin_bytes -
             group.runs.front().b_begin_bytes;
  return std::nullopt;
}

std::uint64_t BlockWriter::store(std::span<const Group> groups, std::span<const std::byte> block) {
  std::uint64_t stored_bytes = 0;
  std::vector<Group> apart;
  if (is_joining()) {
    apart = collect(groups, block);
    for (const Group& group : groups) stored_bytes += group.total_bytes;
    for (const Group& group : apart) stored_bytes -= group.total_bytes;
    groups = apart;
  }
  while (!groups.empty()) {
    // Stage a few groups at a time: staging copies for many ranks at once would take too much memory.
    std::uint64_t staged_bytes = 0;
    std::size_t count = 0;
    for (; count < groups.size(); ++count) {
      const std::uint64_t more = is_staged(groups[count]) ? groups[count].total_bytes + kLineBytes : 0;
      if (count > 0 && more > 0 && staged_bytes + more > block.size()) break;
      staged_bytes += more;
      stored_bytes += groups[count].total_bytes;
    }
    buffers_.staging.make_room(staged_bytes);
    write_together(groups.first(count), block);
    groups = groups.subspan(count);
  }
  return stored_bytes;
}

void BlockWriter::join(std::span<const std::vector<Group>> blocks, std::uint64_t max_bytes) {
  joined_.clear();
  for (const std::vector<Group>& groups : blocks)
    for (const Group& group : groups) {
      Group& range = joined_.try_emplace(group.stored, Joined{{group.stored, {}, UINT64_MAX}}).first->second.range;
      range.begin_bytes = std::min(range.begin_bytes, group.begin_bytes);
      range.end_bytes = std::max(range.end_bytes, group.end_bytes);
      range.total_bytes += group.total_bytes;
    }
  std::uint64_t bytes = 0;
  std::erase_if(joined_, [&](const auto& joined) {
    const Group& range = joined.second.range;
    const std::uint64_t more = range.total_bytes + kLineBytes;
    if (!range.dense() || bytes + more > max_bytes) return true;
    bytes += more;
    return false;
  });
  buffers_.joined.make_room(bytes);
  std::byte* next = buffers_.joined.data();
  for (auto& [stored, joined] : joined_) {
    joined.bytes = next + bytes_to_line_up(next, place_of(joined.range));
    next = joined.bytes + joined.range.total_bytes;
  }
}

/// Copies the bytes of joined ranges. \returns the other groups.
std::vector<Group> BlockWriter::collect(std::span<const Group> groups, std::span<const std::byte> block) {
  std::vector<Group> others;
  swapped_.clear();
  copies_.clear();
  for (const Group& group : groups) {
    const auto joined = joined_.find(group.stored);
    if (joined == joined_.end())
      others.push_back(group);
    else
      for (const Runs& runs : group.runs) add_copy(runs, block, joined->second.bytes, joined->second.range.begin_bytes);
  }
  copy_runs_together(copies_);
  return others;
}

void BlockWriter::write_joined() {
  for (const auto& [stored, joined] : joined_)
    write(joined.range, joined.range.begin_bytes, {joined.bytes, joined.range.total_bytes});
  joined_.clear();
}

/// Adds a copy of the runs to copies_. `to` is byte `to_origin_bytes` of the stored tensor.
void BlockWriter::add_copy(const Runs& runs, std::span<const std::byte> block, std::byte* to,
                           std::uint64_t to_origin_bytes) {
  copies_.push_back({&swapped_.emplace_back(swapped(runs)), block.data(), 0, to, to_origin_bytes});
}

/// Writes groups. The staging buffer has room for those that are staged.
void BlockWriter::write_together(std::span<const Group> groups, std::span<const std::byte> block) {
  swapped_.clear();
  copies_.clear();
  std::byte* staged = buffers_.staging.data();
  for (const Group& group : groups) {
    if (!is_staged(group)) continue;
    staged += bytes_to_line_up(staged, place_of(group));
    std::byte* to = staged;
    for (const Runs& runs : group.runs) {
      if (group.dense()) {
        add_copy(runs, block, to, group.begin_bytes);
      } else {
        add_copy(gather(runs).scatter, block, to, 0);
        to += runs.total_bytes();
      }
    }
    staged += group.total_bytes;
  }
  copy_runs_together(copies_);
  staged = buffers_.staging.data();
  for (const Group& group : groups) {
    if (is_staged(group)) {
      staged += bytes_to_line_up(staged, place_of(group));
      if (group.dense())
        write(group, group.begin_bytes, {staged, group.total_bytes});
      else
        write_apart(group, staged);
      staged += group.total_bytes;
    } else if (group.is_one_run() || !group.dense()) {
      for (const Runs& runs : group.runs)
        runs.for_each([&](std::uint64_t a, std::uint64_t b) { write(group, a, block.subspan(b, runs.run_bytes)); });
    } else {
      const Runs& runs = group.runs.front();
      gathered_.clear();
      runs.for_each([&](std::uint64_t, std::uint64_t b) { gathered_.push_back(block.subspan(b, runs.run_bytes)); });
      write_gathered(group, group.begin_bytes);
    }
  }
}

/// Writes the ranges of a staged group, one run after another.
void BlockWriter::write_apart(const Group& group, const std::byte* staged) {
  for (const Runs& runs : group.runs) {
    const Runs ranges = gather(runs).reads;
    ranges.for_each([&](std::uint64_t a, std::uint64_t b) { write(group, a, {staged + b, ranges.run_bytes}); });
    staged += runs.total_bytes();
  }
}

bool BlockWriter::copy(const Group& group, const Source& source, std::uint64_t source_offset_bytes) {
  const StoredTensor& stored = shared_.maps.target->stored[group.stored];
  const Runs& run = group.runs.front();
  const auto sink = sink_of(stored);
  const std::uint64_t from = source_offset_bytes + run.b_begin_bytes;
  const std::uint64_t to = stored.offset_bytes + run.a_begin_bytes;
  if (!sink->copy_pays(source, from, to) || !sink->copy_from(source, from, to, run.run_bytes)) return false;
  note_written(group.stored, 0);
  if (shared_.options.sync) shared_.write_back.wrote(stored.file, sink, to, run.run_bytes);
  return true;
}

}  // namespace reshard
