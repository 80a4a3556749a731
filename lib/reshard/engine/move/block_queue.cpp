#include "reshard/engine/move/block_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
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
  parts_.reserve(parts_.size() + parts.size());
  bytes_before_.reserve(parts_.size() + parts.size() + 1);
  for (const Part& part : parts) {
    parts_.push_back(part);
    const std::size_t last = parts_.size() - 1;
    const DType dtype = transfer_of(last).tensor(maps_).dtype;
    bytes_before_.push_back(bytes_before_.back() + num_bytes(dtype, box_of(last).size).value_or(0));
  }
}

void BlockQueue::add(unsigned worker, const std::vector<Part>& parts) {
  const std::lock_guard lock(mutex_);
  stretches_[worker].begin = {parts_.size(), 0};
  append(parts);
  stretches_[worker].end = {parts_.size(), 0};
}

std::uint64_t BlockQueue::block_bytes_of(const Transfer& transfer) const {
  const Dims order = order_of(transfer);
  const bool strided =
      (has_views_ || !order.empty()) && ((transfer.source && is_strided(*maps_.source, *transfer.source, order)) ||
                                         (transfer.against && is_strided(*maps_.against, *transfer.against, order)));
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

BlockGrid BlockQueue::grid_of(std::size_t part) const {
  const Transfer& transfer = transfer_of(part);
  return {transfer.tensor(maps_).dtype, permuted(box_of(part).size, order_of(transfer)), block_bytes_of(transfer)};
}

/// Returns the position before which there are about `bytes`.
BlockQueue::Place BlockQueue::place_at(std::uint64_t bytes) const {
  const auto after = std::upper_bound(bytes_before_.begin(), bytes_before_.end() - 1, bytes);
  if (after == bytes_before_.begin()) return {0, 0};
  const auto part = static_cast<std::size_t>(after - bytes_before_.begin()) - 1;
  const BlockGrid grid = grid_of(part);
  const std::uint64_t block = grid.block_bytes() == 0 ? 0 : (bytes - bytes_before_[part]) / grid.block_bytes();
  return block < grid.count() ? Place{part, block} : Place{part + 1, 0};
}

std::uint64_t BlockQueue::bytes_before(const Place& place) const {
  if (place.block == 0) return bytes_before_[place.part];
  return std::min(bytes_before_[place.part] + place.block * grid_of(place.part).block_bytes(),
                  bytes_before_[place.part + 1]);
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

bool BlockQueue::next(unsigned worker, Item& item) {
  const std::lock_guard lock(mutex_);
  Stretch& stretch = stretches_[worker];
  while (stretch.begin != stretch.end || steal(stretch)) {
    const std::size_t part = stretch.begin.part;
    const Transfer& transfer = transfer_of(part);
    if (stretch.grid_of != part) {
      stretch.grid = std::make_unique<BlockGrid>(grid_of(part));
      stretch.grid_of = part;
      stretch.grid_begin = box_of(part).begin;
      const std::uint64_t most = std::max(block_bytes_of(transfer), kBlockBytes);
      if (stretch.grid->block_bytes() > most)
        throw Error(
            ErrorKind::kUnsupported,
            fmt::format("its rows are not whole bytes, and eight rows take {}, too much to keep in memory at once",
                        format_bytes(stretch.grid->block_bytes())))
            .tensor(transfer.tensor(maps_).name);
    }
    const std::uint64_t block = stretch.begin.block;
    const bool is_last = block + 1 >= stretch.grid->count();
    stretch.begin = is_last ? Place{part + 1, 0} : Place{part, block + 1};
    if (stretch.grid->count() == 0) continue;  // no elements
    Dims order = order_of(transfer);
    Box box = stretch.grid->block(block);
    box = {unpermuted(std::move(box.begin), order), unpermuted(std::move(box.size), order)};
    for (std::size_t d = 0; d < stretch.grid_begin.size(); ++d) box.begin[d] += stretch.grid_begin[d];
    item = {parts_[part].transfer, block, Block(std::move(box), std::move(order)), parts_[part].unit};
    return true;
  }
  return false;
}

}  // namespace reshard
