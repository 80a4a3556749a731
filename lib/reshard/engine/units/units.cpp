#include "reshard/engine/units/units.h"

#include <algorithm>
#include <optional>

#include "reshard/engine/units/blocks.h"
#include "reshard/plan/job/interleave.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {
namespace {

/// Part that is all of a transfer's tensor.
Part whole_part(const ProgramMaps& maps, const Program& program, std::size_t transfer) {
  const Dims& shape = program.transfers[transfer].tensor(maps).shape;
  const Dims order =
      whole_rows(maps, program.transfers[transfer]) > 0 ? Dims() : program.transfers[transfer].order(maps);
  for (std::uint32_t d = 0; d < shape.size(); ++d) {
    const auto dim = static_cast<std::uint32_t>(order.empty() ? d : order[d]);
    if (shape[dim] != 1) return {transfer, 0, shape[dim], 0, dim};
  }
  return {transfer, 0, 1, 0};
}

/// Returns the cumulative cost before each transfer, followed by the total.
std::vector<std::uint64_t> costs_before(const ProgramMaps& maps, const Program& program) {
  std::vector<std::uint64_t> before;
  before.reserve(program.transfers.size() + 1);
  std::uint64_t cost = 0;
  for (const Transfer& transfer : program.transfers) {
    before.push_back(cost);
    cost += transfer.moved_bytes(maps);
  }
  before.push_back(cost);
  return before;
}

/// Returns the last row of `part`, the whole tensor, before which the cost is at most `cost` of `all`. For a sub-byte
/// dtype, a multiple of eight rows, which are whole bytes.
/// \param leaves  the dtype of leaves that must stay whole; std::nullopt if they may be divided.
/// \param piece_rows  rows that are best moved together; 0 if none.
std::uint64_t row_at(const LogicalTensor& tensor, const Part& part, std::uint64_t cost, std::uint64_t all,
                     std::optional<DType> leaves, std::uint64_t piece_rows) {
  const std::uint64_t rows = part.end_row;
  const std::uint64_t per_row = std::max<std::uint64_t>(1, all / std::max<std::uint64_t>(1, rows));
  std::uint64_t row = std::min(cost / per_row, rows);
  if (bits(tensor.dtype) % 8 != 0 && row < rows) row = row / 8 * 8;
  if (piece_rows > 0 && part.dim == 0 && row < rows) row = row / piece_rows * piece_rows;
  if (leaves && !tensor.shape.empty() && row < rows) {
    const std::uint64_t between = BlockGrid(*leaves, tensor.shape, kLeafBytes).rows_between(part.dim);
    row = row / between * between;
  }
  return row;
}

/// For each transfer index t, whether no target file spans t: each is written only before t or only from t on. Units
/// that meet at t then write to different files.
std::vector<char> file_ends(const ProgramMaps& maps, const Program& program) {
  std::vector<char> ends(program.transfers.size() + 1);
  if (maps.target == nullptr) return ends;
  constexpr std::size_t kNone = SIZE_MAX;
  std::vector<std::size_t> first(maps.target->files.size(), kNone), last(first.size(), 0);
  for (std::size_t t = 0; t < program.transfers.size(); ++t)
    for (const Piece& piece : program.transfers[t].writes(maps)) {
      const std::uint32_t file = maps.target->stored[piece.stored].file;
      if (first[file] == kNone) first[file] = t;
      last[file] = t;
    }
  std::vector<std::int64_t> across(program.transfers.size() + 2);  // changes in the number of files that span t
  for (std::size_t file = 0; file < first.size(); ++file) {
    if (first[file] == kNone) continue;
    ++across[first[file] + 1];
    --across[last[file] + 1];
  }
  std::int64_t inside = 0;
  for (std::size_t t = 0; t < ends.size(); ++t) {
    inside += across[t];
    ends[t] = inside == 0;
  }
  return ends;
}

/// Returns the transfer at a file end that is nearest to `cost`, if it is at most `most` away.
std::optional<std::size_t> near_file_end(const std::vector<std::uint64_t>& before, const std::vector<char>& ends,
                                         std::uint64_t cost, std::uint64_t most) {
  std::optional<std::size_t> nearest;
  std::uint64_t least = 0;
  const auto begin = std::lower_bound(before.begin(), before.end(), cost - std::min(cost, most));
  for (auto place = begin; place != before.end() && *place <= cost + most; ++place) {
    const std::uint64_t away = *place > cost ? *place - cost : cost - *place;
    const auto transfer = static_cast<std::size_t>(place - before.begin());
    if (!ends[transfer] || (nearest && away >= least)) continue;
    nearest = transfer;
    least = away;
  }
  return nearest;
}

/// Whether a transfer interleaves with the one after it.
bool is_followed(const ProgramMaps& maps, const Program& program, std::size_t transfer) {
  return transfer + 1 < program.transfers.size() &&
         interleave(maps, program.transfers[transfer], program.transfers[transfer + 1]);
}

/// The first of the transfers that interleave up to `transfer`. They are moved together, so units do not divide them.
std::size_t first_interleaving(const ProgramMaps& maps, const Program& program, std::size_t transfer) {
  while (transfer > 0 && is_followed(maps, program, transfer - 1)) --transfer;
  return transfer;
}

}  // namespace

Box Part::box(const LogicalTensor& tensor) const {
  Box box = whole(tensor.shape);
  if (tensor.shape.empty()) return box;
  box.begin[dim] = begin_row;
  box.size[dim] = end_row - begin_row;
  return box;
}

std::uint64_t bytes_of(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts) {
  std::uint64_t bytes = 0;
  for (const Part& part : parts) {
    const LogicalTensor& tensor = program.transfers[part.transfer].tensor(maps);
    bytes += num_bytes(tensor.dtype, part.box(tensor).size).value_or(0);
  }
  return bytes;
}

std::vector<Part> whole_program(const ProgramMaps& maps, const Program& program) {
  std::vector<Part> parts;
  parts.reserve(program.transfers.size());
  for (std::size_t t = 0; t < program.transfers.size(); ++t) parts.push_back(whole_part(maps, program, t));
  return parts;
}

Units::Units(const ProgramMaps& maps, const Program& program, std::uint32_t count, bool whole_leaves, double snap)
    : whole_leaves_(whole_leaves) {
  whole_.reserve(program.transfers.size());
  for (std::size_t t = 0; t < program.transfers.size(); ++t) whole_.push_back(whole_part(maps, program, t));
  const std::vector<std::uint64_t> before = costs_before(maps, program);
  const std::vector<char> ends = file_ends(maps, program);
  const auto most = static_cast<std::uint64_t>(static_cast<double>(before.back()) / count * snap);
  const auto cut_before = [&](std::uint32_t unit) -> Cut {
    // In two terms, since the full product may overflow.
    const std::uint64_t cost = before.back() / count * unit + before.back() % count * unit / count;
    if (const auto end = near_file_end(before, ends, cost, most)) return {*end, 0, before[*end], true};
    const auto after = std::upper_bound(before.begin(), before.end(), cost);
    if (after == before.end()) return {whole_.size(), 0, before.back(), true};
    const auto transfer = static_cast<std::size_t>(after - before.begin()) - 1;
    if (const std::size_t first = first_interleaving(maps, program, transfer);
        first < transfer || is_followed(maps, program, first))
      return {first, 0, before[first], static_cast<bool>(ends[first])};
    const LogicalTensor& tensor = program.transfers[transfer].tensor(maps);
    const LogicalTensor* result = program.transfers[transfer].result(maps);
    const std::uint64_t all = before[transfer + 1] - before[transfer];
    const bool is_cut = !whole_leaves || program.transfers[transfer].order(maps).empty();  // leaves are in C order
    const std::uint64_t row =
        !is_cut ? 0
                : row_at(tensor, whole_[transfer], cost - before[transfer], all,
                         whole_leaves ? std::optional((result ? result : &tensor)->dtype) : std::nullopt,
                         whole_rows(maps, program.transfers[transfer]));
    if (row >= whole_[transfer].end_row)
      return {transfer + 1, 0, before[transfer + 1], static_cast<bool>(ends[transfer + 1])};
    return {transfer, row, before[transfer] + all / whole_[transfer].end_row * row, row == 0 && ends[transfer]};
  };
  cuts_.reserve(count + std::size_t{1});
  cuts_.push_back({});
  for (std::uint32_t unit = 1; unit < count; ++unit) {
    const Cut cut = cut_before(unit);
    const Cut& last = cuts_.back();  // it may have been moved forward to the end of a file
    const bool goes_on = cut.transfer != last.transfer ? cut.transfer > last.transfer : cut.row > last.row;
    cuts_.push_back(goes_on ? cut : last);
  }
  cuts_.push_back({whole_.size(), 0, before.back(), true});
}

void Units::add_parts(std::uint32_t unit, std::vector<Part>& parts) const {
  const Cut& begin = cuts_[unit];
  const Cut& end = cuts_[unit + 1];
  for (std::size_t t = begin.transfer; t < whole_.size() && (t < end.transfer || (t == end.transfer && end.row > 0));
       ++t)
    parts.push_back(
        {t, t == begin.transfer ? begin.row : 0, t == end.transfer ? end.row : whole_[t].end_row, unit, whole_[t].dim});
}

std::vector<std::size_t> Units::deal(const std::vector<std::uint32_t>& units, std::uint32_t count) const {
  constexpr double kSnap = 0.02;  // fraction of a share's cost
  std::vector<std::uint64_t> before{0};
  for (const std::uint32_t unit : units) before.push_back(before.back() + cost(unit));
  const std::uint64_t all = before.back();
  const auto most = static_cast<std::uint64_t>(static_cast<double>(all) / count * kSnap);
  const auto away = [](std::uint64_t a, std::uint64_t b) { return a > b ? a - b : b - a; };
  const auto first_from = [&](std::uint64_t cost) {
    return static_cast<std::size_t>(std::lower_bound(before.begin(), before.end(), cost) - before.begin());
  };
  std::vector<std::size_t> firsts{0};
  for (std::uint32_t share = 1; share < count; ++share) {
    const std::uint64_t wanted = all / count * share + all % count * share / count;
    std::size_t nearest = first_from(wanted);
    if (nearest > 0 && away(before[nearest - 1], wanted) <= away(before[nearest], wanted))
      nearest = first_from(before[nearest - 1]);
    std::optional<std::size_t> nearest_end;
    for (std::size_t i = first_from(wanted - std::min(wanted, most)); i < units.size() && before[i] <= wanted + most;
         ++i)
      if (cuts_[units[i]].at_file_end && (!nearest_end || away(before[i], wanted) < away(before[*nearest_end], wanted)))
        nearest_end = i;
    firsts.push_back(std::max(firsts.back(), nearest_end.value_or(nearest)));
  }
  firsts.push_back(units.size());
  return firsts;
}

std::pair<std::size_t, std::size_t> part_of(const std::vector<std::uint64_t>& costs, std::uint32_t rank,
                                            std::uint32_t size) {
  std::uint64_t all = 0;
  for (const std::uint64_t cost : costs) all += cost;
  const auto first_of = [&](std::uint32_t of_rank) {
    if (of_rank == size) return costs.size();
    const std::uint64_t before = all / size * of_rank + all % size * of_rank / size;
    std::uint64_t cost = 0;
    std::size_t item = 0;
    // An item belongs to the rank whose range contains its middle.
    while (item < costs.size() && cost + costs[item] / 2 < before) cost += costs[item++];
    return item;
  };
  return {first_of(rank), first_of(rank + 1)};
}

}  // namespace reshard
