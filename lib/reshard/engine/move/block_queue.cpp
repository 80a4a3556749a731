#include "reshard/engine/move/block_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/move/buffer.h"
#include "reshard/plan/job/interleave.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {
namespace {

bool has_views(const SourceMap* map) {
  return map != nullptr && std::any_of(map->stored.begin(), map->stored.end(),
                                       [](const StoredTensor& stored) { return stored.in_file != nullptr; });
}

/// Whether some of it is read from a tensor that is not contiguous when its dims are in `order`.
bool is_strided(const SourceMap& map, const Reading& reading, const Dims& order) {
  return std::any_of(reading.reads.begin(), reading.reads.end(),
                     [&](const Piece& piece) {
                       const StoredTensor& stored = map.stored[piece.stored];
                       if (order.empty()) return !stored.is_c_order();
                       return permuted(stored.strides(), order) != c_strides(permuted(stored.shape, order));
                     }) ||
         std::any_of(reading.inputs.begin(), reading.inputs.end(),
                     [&](const Reading& input) { return is_strided(map, input, order); });
}

std::uint64_t bytes_of_blocks(const std::vector<BlockGrid>& grids) {
  std::uint64_t bytes = 0;
  for (const BlockGrid& grid : grids) bytes += grid.block_bytes();
  return bytes;
}

}  // namespace

std::uint64_t input_bytes(const SourceMap& map, const Reading& reading, const Box& box) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < reading.inputs.size(); ++i) {
    const LogicalTensor& input = map.logical[reading.inputs[i].logical];
    const Recipe& recipe = *map.logical[reading.logical].computed->recipe;
    if (recipe.access(i) == Recipe::Access::kWhole) continue;
    const Box needed = recipe.input_box(i, box);
    bytes += num_bytes(input.dtype, needed.size).value_or(0) + input_bytes(map, reading.inputs[i], needed);
  }
  return bytes;
}

std::uint64_t computing_bytes(const SourceMap& map, const Reading& reading, std::uint64_t block_bytes) {
  const LogicalTensor& tensor = map.logical[reading.logical];
  const BlockGrid grid(tensor.dtype, tensor.shape, block_bytes);
  if (grid.count() == 0) return 0;
  return kPlainBuffers * grid.block_bytes() + input_bytes(map, reading, grid.block(0));
}

BlockQueue::BlockQueue(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
                       const BlockSizes& sizes, unsigned workers, bool leaves)
    : maps_(maps),
      program_(program),
      sizes_(sizes),
      leaves_(leaves),
      has_views_(has_views(maps.source) || has_views(maps.against)),
      bytes_before_{0},
      stretches_(workers) {
  append(parts);
  const std::uint64_t bytes = bytes_before_.back();
  Place begin{0, 0};
  for (unsigned worker = 0; worker < workers; ++worker) {
    const Place end = worker + 1 == workers ? Place{parts_.size(), 0} : place_at(bytes / workers * (worker + 1));
    stretches_[worker].begin = begin;
    stretches_[worker].end = end;
    begin = end;
  }
}

void BlockQueue::append(const std::vector<Part>& parts) {
  const std::size_t before = parts_.size();
  parts_.reserve(parts_.size() + parts.size());
  bytes_before_.reserve(parts_.size() + parts.size() + 1);
  for (const Part& part : parts) {
    parts_.push_back(part);
    const std::size_t last = parts_.size() - 1;
    const DType dtype = transfer_of(last).tensor(maps_).dtype;
    bytes_before_.push_back(bytes_before_.back() + num_bytes(dtype, box_of(last).size).value_or(0));
  }
  joined_.resize(parts_.size());
  for (std::size_t first = before, end = first; first < parts_.size(); first = end) {
    for (end = first + 1; end < parts_.size() && may_join(end); ++end) continue;
    if (end > first + 1) join(first, end);
  }
}

/// Whether blocks of a part may be written together with those of the part before it.
bool BlockQueue::may_join(std::size_t part) const {
  const auto is_moved = [&](const Transfer& transfer) {
    return transfer.target && !transfer.against && (!transfer.source || transfer.source->inputs.empty());
  };
  const Transfer& before = transfer_of(part - 1);
  const Transfer& transfer = transfer_of(part);
  return parts_[part].unit == parts_[part - 1].unit && is_moved(before) && is_moved(transfer) &&
         interleave(maps_, before, transfer);
}

/// Joins parts, if they fit: in blocks of as many pieces of whole rows as fit together, if all have the same number of
/// pieces, or else whole. Leaves are joined if each part is one.
void BlockQueue::join(std::size_t first, std::size_t end) {
  const auto pieces_of = [&](std::size_t part) -> std::uint64_t {
    const std::uint64_t rows = whole_rows(maps_, transfer_of(part));
    return rows == 0 || box_of(part).size.front() % rows != 0 ? 1 : box_of(part).size.front() / rows;
  };
  std::uint64_t pieces = pieces_of(first);
  for (std::size_t part = first; part < end; ++part)
    if (pieces_of(part) != pieces) pieces = 1;
  std::uint64_t together = pieces;
  while (together > 0 && !fit_together(first, end, pieces, together)) together = leaves_ ? 0 : together / 2;
  if (together == 0) return;
  for (std::size_t part = first; part < end; ++part)
    joined_[part] = {part > first, (bytes_before_[part + 1] - bytes_before_[part]) / pieces * together};
}

/// Whether blocks of `together` of the `pieces` pieces of each part fit in memory.
bool BlockQueue::fit_together(std::size_t first, std::size_t end, std::uint64_t pieces, std::uint64_t together) const {
  std::uint64_t largest = 0, read = 0, written = 0;
  for (std::size_t part = first; part < end; ++part) {
    const Transfer& transfer = transfer_of(part);
    const std::uint64_t bytes = bytes_before_[part + 1] - bytes_before_[part];
    if (leaves_ && bytes > block_bytes_of(part)) return false;
    const std::uint64_t block = bytes / pieces * together;
    const std::uint64_t from = bits(transfer.tensor(maps_).dtype), to = bits(transfer.result(maps_)->dtype);
    largest = std::max(largest, to > from ? block * to / from : block);
    read += block;
    written += written_bytes(maps_, transfer) / pieces * together + kLineBytes * transfer.writes(maps_).size();
  }
  return read <= kStridedBlockBytes && kPlainBuffers * largest + written <= sizes_.joined_bytes;
}

/// Returns the part after `part` and those joined to it.
std::size_t BlockQueue::end_of(std::size_t part) const {
  do ++part;
  while (part < parts_.size() && joined_[part].follows);
  return part;
}

void BlockQueue::add(unsigned worker, const std::vector<Part>& parts) {
  const std::lock_guard lock(mutex_);
  stretches_[worker].begin = {parts_.size(), 0};
  append(parts);
  stretches_[worker].end = {parts_.size(), 0};
}

/// Returns the order of a part's blocks: that of the file, or C order if a block has room for a piece of whole rows.
Dims BlockQueue::order_of(std::size_t part) const {
  const Transfer& transfer = transfer_of(part);
  if (leaves_ || joined_[part].block_bytes > 0) return {};
  const std::uint64_t rows = whole_rows(maps_, transfer);
  if (rows == 0) return transfer.order(maps_);
  const Dims& shape = transfer.tensor(maps_).shape;
  const std::uint64_t row_bits = volume(whole(shape)) / shape.front() *
                                 std::max(bits(transfer.tensor(maps_).dtype), bits(transfer.result(maps_)->dtype));
  return rows * row_bits / 8 <= sizes_.strided_bytes ? Dims() : transfer.order(maps_);
}

std::uint64_t BlockQueue::block_bytes_of(std::size_t part) const {
  const Transfer& transfer = transfer_of(part);
  const Dims order = order_of(part);
  const bool is_read_strided =
      (has_views_ || !order.empty()) && ((transfer.source && is_strided(*maps_.source, *transfer.source, order)) ||
                                         (transfer.against && is_strided(*maps_.against, *transfer.against, order)));
  const bool strided = is_read_strided || whole_rows(maps_, transfer) > 0;
  std::uint64_t bytes = strided ? sizes_.strided_bytes : sizes_.bytes;
  // The block must also fit after a cast.
  const DType dtype = transfer.tensor(maps_).dtype;
  const LogicalTensor* result = transfer.result(maps_);
  if (leaves_) return result ? kLeafBytes * bits(dtype) / bits(result->dtype) : kLeafBytes;
  if (result && bits(result->dtype) > bits(dtype)) bytes = bytes * bits(dtype) / bits(result->dtype);
  if (!transfer.source || transfer.source->inputs.empty()) return bytes;
  while (bytes > kLeastComputedBytes && computing_bytes(*maps_.source, *transfer.source, bytes) > sizes_.computed_bytes)
    bytes /= 2;
  return bytes;
}

Box BlockQueue::box_of(std::size_t part) const {
  return parts_[part].box(transfer_of(part).tensor(maps_));
}

/// Returns the grids of one part, or of several that are joined.
std::vector<BlockGrid> BlockQueue::grids_of(std::size_t first, std::size_t end) const {
  std::vector<BlockGrid> grids;
  for (std::size_t part = first; part < end; ++part) {
    const Transfer& transfer = transfer_of(part);
    const std::uint64_t joined_bytes = joined_[part].block_bytes;
    const bool in_pieces = joined_bytes == 0 && !leaves_ && order_of(part).empty();
    grids.emplace_back(transfer.tensor(maps_).dtype, permuted(box_of(part).size, order_of(part)),
                       joined_bytes > 0 ? joined_bytes : block_bytes_of(part),
                       in_pieces ? whole_rows(maps_, transfer) : 0);
    if (grids.back().count() != grids.front().count())
      throw Error(ErrorKind::kInternal, "has not as many blocks as the tensor that it is written with")
          .tensor(transfer.tensor(maps_).name);
  }
  return grids;
}

/// Returns the position before which there are about `bytes`.
BlockQueue::Place BlockQueue::place_at(std::uint64_t bytes) const {
  const auto after = std::upper_bound(bytes_before_.begin(), bytes_before_.end() - 1, bytes);
  if (after == bytes_before_.begin()) return {0, 0};
  auto part = static_cast<std::size_t>(after - bytes_before_.begin()) - 1;
  while (joined_[part].follows) --part;
  const std::size_t end = end_of(part);
  const std::vector<BlockGrid> grids = grids_of(part, end);
  const std::uint64_t of_blocks = bytes_of_blocks(grids);
  const std::uint64_t block = of_blocks == 0 ? 0 : (bytes - bytes_before_[part]) / of_blocks;
  return block < grids.front().count() ? Place{part, block} : Place{end, 0};
}

std::uint64_t BlockQueue::bytes_before(const Place& place) const {
  if (place.block == 0) return bytes_before_[place.part];
  const std::size_t end = end_of(place.part);
  return std::min(bytes_before_[place.part] + place.block * bytes_of_blocks(grids_of(place.part, end)),
                  bytes_before_[end]);
}

/// Takes the second half of the largest remaining stretch.
bool BlockQueue::steal(Stretch& stretch) {
  Stretch* largest = nullptr;
  std::uint64_t most = 0;
  for (Stretch& other : stretches_) {
    if (other.begin == other.end) continue;
    const std::uint64_t left = bytes_before(other.end) - bytes_before(other.begin);
    if (largest && left <= most) continue;
    largest = &other;
    most = left;
  }
  if (!largest) return false;
  Place middle = place_at(bytes_before(largest->begin) + most / 2);
  const auto before = [](const Place& a, const Place& b) {
    return a.part != b.part ? a.part < b.part : a.block < b.block;
  };
  if (before(middle, largest->begin)) middle = largest->begin;  // tensors without bytes have no middle
  if (!before(middle, largest->end)) middle = largest->begin;
  stretch.begin = middle;
  stretch.end = std::exchange(largest->end, middle);
  return true;
}

void BlockQueue::validate_size(std::size_t part, const BlockGrid& grid) const {
  const Transfer& transfer = transfer_of(part);
  if (grid.block_bytes() <= std::max(block_bytes_of(part), kBlockBytes)) return;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("its rows are not whole bytes, and eight rows take {}, too much to keep in memory at once",
                          format_bytes(grid.block_bytes())))
      .tensor(transfer.tensor(maps_).name);
}

bool BlockQueue::next(unsigned worker, std::vector<Item>& items) {
  const std::lock_guard lock(mutex_);
  Stretch& stretch = stretches_[worker];
  items.clear();
  while (stretch.begin != stretch.end || steal(stretch)) {
    const std::size_t first = stretch.begin.part;
    const std::size_t end = end_of(first);
    if (stretch.grids_of != first) {
      stretch.grids = grids_of(first, end);
      stretch.grids_of = first;
      validate_size(first, stretch.grids.front());
    }
    const std::uint64_t block = stretch.begin.block;
    const std::uint64_t count = stretch.grids.front().count();
    stretch.begin = block + 1 >= count ? Place{end, 0} : Place{first, block + 1};
    if (count == 0) continue;  // no elements
    for (std::size_t part = first; part < end; ++part) {
      Dims order = order_of(part);
      Box box = stretch.grids[part - first].block(block);
      box = {unpermuted(std::move(box.begin), order), unpermuted(std::move(box.size), order)};
      const Dims begin = box_of(part).begin;
      for (std::size_t d = 0; d < begin.size(); ++d) box.begin[d] += begin[d];
      items.push_back({parts_[part].transfer, block, Block(std::move(box), std::move(order)), parts_[part].unit});
    }
    return true;
  }
  return false;
}

}  // namespace reshard
