#include "reshard/layouts/deepspeed/zero_partitions.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMixedPartitions = "files of two checkpoints are mixed, or some are missing";

Error bad(const ZeroOptimStates& states, std::string message) {
  return Error(ErrorKind::kBadInput, std::move(message)).in(states.file.path).hint(kMixedPartitions);
}

std::uint64_t elems_of(const TensorEntry& master) {
  return master.shape[0];
}

/// Offsets of the parameters of a group in its concatenated elements (stages 1 and 2).
struct GroupPlaces {
  std::vector<std::uint64_t> begins;  // offset of each parameter
  std::uint64_t end = 0;              // end of the last parameter
  std::uint64_t padded_end = 0;       // the same, with the padding after it

  /// \param paddings  Padding after each parameter; 0 for parameters beyond its end.
  GroupPlaces(const std::vector<ZeroParameter>& group, std::span<const std::uint64_t> paddings,
              const fs::path& shapes_file) {
    const auto add = [&](std::uint64_t elems) {
      const auto sum = checked_add(padded_end, elems);
      if (!sum) throw Error(ErrorKind::kBadInput, "the elements of its group overflow 64 bits").in(shapes_file);
      padded_end = *sum;
    };
    for (std::size_t i = 0; i < group.size(); ++i) {
      begins.push_back(padded_end);
      add(num_elems(group[i].shape).value_or(0));
      end = padded_end;
      if (i < paddings.size()) add(paddings[i]);
    }
  }
};

/// Validates that every rank declares as many ranks as there are files, and the same list of partitions.
void validate_ranks_agree(const ZeroRanks& ranks, std::size_t groups) {
  const ZeroOptimStates& first = ranks.states.front();
  for (const ZeroOptimStates& states : ranks.states) {
    for (const std::uint64_t count : states.partition_count)
      if (count != ranks.states.size())
        throw bad(states, fmt::format("its \"partition_count\" is {}, but there {} {} rank file{}", count,
                                      ranks.states.size() == 1 ? "is" : "are", ranks.states.size(),
                                      ranks.states.size() == 1 ? "" : "s"));
    if (states.stage != first.stage)
      throw bad(states, fmt::format("belongs to ZeRO {}, but {} to ZeRO {}", states.stage,
                                    first.file.path.filename().string(), first.stage));
    if (states.stage < 3 && states.masters.size() != groups)
      throw bad(states, fmt::format("its \"single_partition_of_fp32_groups\" has {} groups, but \"param_shapes\" {}",
                                    states.masters.size(), groups));
    if (states.paddings != first.paddings)
      throw bad(states, fmt::format("its \"param_alignment_paddings\" differs from that of {}",
                                    first.file.path.filename().string()));
    if (states.masters.size() != first.masters.size())
      throw bad(states, fmt::format("has {} flat groups, but {} has {}", states.masters.size(),
                                    first.file.path.filename().string(), first.masters.size()));
    for (const TensorEntry& master : states.masters)
      if (master.dtype != first.masters.front().dtype)
        throw bad(states,
                  fmt::format("is {}, but others are {}", name(master.dtype), name(first.masters.front().dtype)))
            .tensor(master.name);
  }
}

/// Returns elements [begin, end) of a rank's partition as a run that starts at element `at` of a parameter.
FlatRun run_of(const ZeroRanks& ranks, std::size_t rank, std::size_t group, std::uint64_t begin, std::uint64_t end,
               std::uint64_t at) {
  const TensorEntry& master = ranks.states[rank].masters[group];
  return {ranks.first_file + static_cast<std::uint32_t>(rank), master.offset_bytes + begin * (bits(master.dtype) / 8),
          at, end - begin};
}

/// Validates the slices that a rank's file records, if any. Detects swapped rank files.
void validate_slices(const ZeroOptimStates& states, std::size_t group, const std::vector<ZeroSlice>& expected) {
  if (states.slices.empty()) return;
  const std::vector<ZeroSlice>& said = states.slices[group];
  for (std::size_t i = 0; i < std::max(said.size(), expected.size()); ++i) {
    if (i >= said.size())
      throw bad(states, fmt::format("its \"param_slice_mappings\" has no entry for it in group {}", group))
          .tensor(expected[i].name);
    const ZeroSlice& slice = said[i];
    if (i >= expected.size() || slice.name != expected[i].name)
      throw bad(states, fmt::format("its \"param_slice_mappings\" has it in group {}, where it does not belong", group))
          .tensor(slice.name);
    if (slice.begin != expected[i].begin || slice.count != expected[i].count)
      throw bad(states,
                fmt::format("its \"param_slice_mappings\" has elements {} to {} of partition {}, expected {} to {}",
                            slice.begin, slice.begin + slice.count, group, expected[i].begin,
                            expected[i].begin + expected[i].count))
          .tensor(slice.name);
  }
}

/// Locates the parameters of one group of stages 1 and 2.
class GroupPlacer {
 public:
  GroupPlacer(const ZeroRanks& ranks, std::size_t group, const GroupPlaces& places)
      : ranks_(ranks), group_(group), size_(elems_of(ranks.states[0].masters[group])), slices_(ranks.states.size()) {
    validate_lengths(places);
  }

  /// Returns the runs of a parameter that begins at element `begin` of the group.
  std::vector<FlatRun> place(const ZeroParameter& parameter, std::uint64_t begin) {
    const std::uint64_t elems = *num_elems(parameter.shape);
    std::vector<FlatRun> runs;
    for (std::uint64_t at = 0; at < elems;) {
      const std::uint64_t rank = (begin + at) / size_, first = (begin + at) % size_;
      const std::uint64_t last = first + std::min(elems - at, size_ - first);
      runs.push_back(run_of(ranks_, rank, group_, first, last, at));
      slices_[rank].push_back({parameter.name, first, last - first});
      at += last - first;
    }
    return runs;
  }

  void validate_said() const {
    for (std::size_t rank = 0; rank < slices_.size(); ++rank)
      validate_slices(ranks_.states[rank], group_, slices_[rank]);
  }

 private:
  /// Validates that all partitions have the same length, except for missing padding at the end of the group. Old
  /// versions omit the padding of the last partition; versions since 2025 omit it in all partitions.
  void validate_lengths(const GroupPlaces& places) const {
    const std::size_t count = ranks_.states.size();
    for (std::size_t rank = 0; rank < count; ++rank) {
      const ZeroOptimStates& states = ranks_.states[rank];
      const TensorEntry& master = states.masters[group_];
      const std::uint64_t begin = checked_mul(size_, rank).value_or(UINT64_MAX);
      const std::uint64_t needed = std::min(size_, places.end - std::min(places.end, begin));
      const std::uint64_t elems = elems_of(master);
      if (elems < needed || elems > size_)
        throw bad(states, fmt::format("has {} elements, but {} has {}", elems,
                                      ranks_.states[0].file.path.filename().string(), size_))
            .tensor(master.name);
    }
    // The group is padded to a multiple of two elements per rank.
    const std::uint64_t row = checked_mul(size_, count).value_or(UINT64_MAX);
    const std::uint64_t most = checked_add(places.padded_end, 2 * count).value_or(UINT64_MAX);
    if (row >= places.end && row < most) return;
    const ZeroOptimStates& last = ranks_.states.back();
    throw bad(last, fmt::format("the partitions of all ranks have {} elements, but the parameters of group {} in "
                                "\"param_shapes\" {}",
                                row, group_, places.end))
        .tensor(last.masters[group_].name);
  }

  const ZeroRanks& ranks_;
  std::size_t group_;
  std::uint64_t size_;  // elements of a partition
  std::vector<std::vector<ZeroSlice>> slices_;
};

void place_groups(const ZeroRanks& ranks, const std::vector<std::vector<ZeroParameter>>& groups,
                  const fs::path& shapes_file, ZeroMasters& masters) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& paddings = ranks.states.front().paddings;
    const GroupPlaces places(groups[group], paddings.empty() ? std::span<const std::uint64_t>() : paddings[group],
                             shapes_file);
    GroupPlacer placer(ranks, group, places);
    for (std::size_t i = 0; i < groups[group].size(); ++i)
      masters.runs[groups[group][i].name] = placer.place(groups[group][i], places.begins[i]);
    placer.validate_said();
  }
}

/// Locates parameters in the concatenated sub-groups of stage 3, which have the same lengths on all ranks.
class RowPlacer {
 public:
  explicit RowPlacer(const ZeroRanks& ranks) : ranks_(ranks) {
    const ZeroOptimStates& first = ranks.states.front();
    for (std::size_t group = 0; group < first.masters.size(); ++group) {
      const std::uint64_t elems = elems_of(first.masters[group]);
      for (const ZeroOptimStates& states : ranks.states)
        if (elems_of(states.masters[group]) != elems)
          throw bad(states, fmt::format("has {} elements, but {} has {}", elems_of(states.masters[group]),
                                        first.file.path.filename().string(), elems))
              .tensor(states.masters[group].name);
      total_ += elems;
    }
  }

  std::uint64_t total() const { return total_; }

  std::vector<FlatRun> place(const ZeroParameter& parameter) {
    const std::uint64_t elems = *num_elems(parameter.shape);
    const std::uint64_t each = elems_per_rank(elems, ranks_.states.size());
    std::vector<FlatRun> runs;
    const std::size_t group = group_;
    const std::uint64_t place = place_;
    for (std::size_t rank = 0; rank < ranks_.states.size(); ++rank) {
      group_ = group;
      place_ = place;
      const std::uint64_t begin = std::min(rank * each, elems), end = std::min(begin + each, elems);
      take(rank, each, begin, end, runs);
    }
    return runs;
  }

 private:
  /// Advances by `each` elements in a rank's sub-groups. Elements [begin, end) of the parameter become runs; the rest
  /// is padding.
  void take(std::size_t rank, std::uint64_t each, std::uint64_t begin, std::uint64_t end, std::vector<FlatRun>& runs) {
    while (each > 0) {
      const std::uint64_t size = elems_of(ranks_.states[rank].masters[group_]);
      if (place_ == size) {
        ++group_;
        place_ = 0;
        continue;
      }
      const std::uint64_t count = std::min(each, size - place_), used = std::min(count, end - begin);
      if (used > 0) runs.push_back(run_of(ranks_, rank, group_, place_, place_ + used, begin));
      begin += used;
      place_ += count;
      each -= count;
    }
  }

  const ZeroRanks& ranks_;
  std::uint64_t total_ = 0;
  std::size_t group_ = 0;    // sub-group in which the next parameter begins
  std::uint64_t place_ = 0;  // offset in it
};

void place_row(const ZeroRanks& ranks, const std::vector<std::vector<ZeroParameter>>& groups,
               const fs::path& shapes_file, ZeroMasters& masters) {
  RowPlacer placer(ranks);
  std::uint64_t needed = 0;
  for (const auto& group : groups)
    for (const ZeroParameter& parameter : group) {
      const auto sum = checked_add(needed, elems_per_rank(*num_elems(parameter.shape), ranks.states.size()));
      if (!sum) throw Error(ErrorKind::kBadInput, "the elements of its parameters overflow 64 bits").in(shapes_file);
      needed = *sum;
    }
  if (needed != placer.total())
    throw bad(ranks.states.front(), fmt::format("its \"fp32_flat_groups\" have {} elements, but the parameters in "
                                                "\"param_shapes\" take {} on each of {} ranks",
                                                placer.total(), needed, ranks.states.size()));
  for (const auto& group : groups)
    for (const ZeroParameter& parameter : group) masters.runs[parameter.name] = placer.place(parameter);
}

}  // namespace

std::uint64_t elems_per_rank(std::uint64_t elems, std::uint64_t ranks) {
  return elems / ranks + (elems % ranks != 0);
}

ZeroMasters place_masters(const ZeroRanks& ranks, const std::vector<std::vector<ZeroParameter>>& groups,
                          const fs::path& shapes_file) {
  ZeroMasters masters;
  validate_ranks_agree(ranks, groups.size());
  const ZeroOptimStates& first = ranks.states.front();
  if (!first.masters.empty()) masters.dtype = first.masters.front().dtype;
  if (first.stage == 3)
    place_row(ranks, groups, shapes_file, masters);
  else
    place_groups(ranks, groups, shapes_file, masters);
  return masters;
}

}  // namespace reshard
