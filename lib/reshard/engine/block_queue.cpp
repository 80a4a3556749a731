#include "reshard/engine/block_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/manifest.h"

namespace reshard {
namespace {

bool is_strided(const TensorMap* map, const std::optional<Reading>& reading) {
  if (!map || map->strides.empty() || !reading) return false;
  return std::any_of(reading->reads.begin(), reading->reads.end(),
                     [&](const Piece& piece) { return map->strides.count(piece.stored) > 0; });
}

}  // namespace

BlockQueue::BlockQueue(const ProgramMaps& maps, const Program& program, std::uint64_t block_bytes,
                       std::uint64_t strided_block_bytes, unsigned workers, const Share& share)
    : maps_(maps),
      program_(program),
      block_bytes_(block_bytes),
      strided_block_bytes_(strided_block_bytes),
      whole_leaves_(share.whole_leaves),
      boxes_(maps, program, share),
      stretches_(workers) {
  std::uint64_t bytes = 0;
  bytes_before_.reserve(program.transfers.size() + 1);
  for (std::size_t t = 0; t < program.transfers.size(); ++t) {
    bytes_before_.push_back(bytes);
    if (t >= boxes_.begin_transfer() && t < boxes_.end_transfer())
      bytes += num_bytes(program.transfers[t].tensor(maps).dtype, box_of(t).size).value_or(0);
  }
  bytes_before_.push_back(bytes);
  Place begin{boxes_.begin_transfer(), 0};
  for (unsigned worker = 0; worker < workers; ++worker) {
    const Place end =
        worker + 1 == workers ? Place{boxes_.end_transfer(), 0} : place_at(bytes / workers * (worker + 1));
    stretches_[worker].begin = begin;
    stretches_[worker].end = end;
    begin = end;
  }
}

std::uint64_t BlockQueue::block_bytes_of(const Transfer& transfer) const {
  const bool strided = is_strided(maps_.source, transfer.source) || is_strided(maps_.against, transfer.against);
  std::uint64_t bytes = strided ? strided_block_bytes_ : block_bytes_;
  // The block after a cast, too, has to fit.
  const DType dtype = transfer.tensor(maps_).dtype;
  const LogicalTensor* result = transfer.result(maps_);
  if (whole_leaves_) return result ? kLeafBytes * bits(dtype) / bits(result->dtype) : kLeafBytes;
  if (result && bits(result->dtype) > bits(dtype)) bytes = bytes * bits(dtype) / bits(result->dtype);
  return bytes;
}

/// What of the transfer's tensor is in the share.
Box BlockQueue::box_of(std::size_t transfer) const {
  return boxes_.box(transfer, program_.transfers[transfer].tensor(maps_));
}

BlockGrid BlockQueue::grid_of(std::size_t transfer) const {
  const DType dtype = program_.transfers[transfer].tensor(maps_).dtype;
  return {dtype, box_of(transfer).size, block_bytes_of(program_.transfers[transfer])};
}

/// The place before which about `bytes` of the share lie.
BlockQueue::Place BlockQueue::place_at(std::uint64_t bytes) const {
  const auto begin = bytes_before_.begin() + static_cast<std::ptrdiff_t>(boxes_.begin_transfer());
  const auto end = bytes_before_.begin() + static_cast<std::ptrdiff_t>(boxes_.end_transfer());
  const auto after = std::upper_bound(begin, end, bytes);
  if (after == begin) return {boxes_.begin_transfer(), 0};
  const auto transfer = static_cast<std::size_t>(after - bytes_before_.begin()) - 1;
  const BlockGrid grid = grid_of(transfer);
  const std::uint64_t block = grid.block_bytes() == 0 ? 0 : (bytes - bytes_before_[transfer]) / grid.block_bytes();
  return block < grid.count() ? Place{transfer, block} : Place{transfer + 1, 0};
}

std::uint64_t BlockQueue::bytes_before(const Place& place) const {
  if (place.block == 0) return bytes_before_[place.transfer];
  return std::min(bytes_before_[place.transfer] + place.block * grid_of(place.transfer).block_bytes(),
                  bytes_before_[place.transfer + 1]);
}

/// Takes the second half of the largest stretch that is left.
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
    return a.transfer != b.transfer ? a.transfer < b.transfer : a.block < b.block;
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
    const std::size_t transfer = stretch.begin.transfer;
    if (stretch.grid_of != transfer) {
      stretch.grid = std::make_unique<BlockGrid>(grid_of(transfer));
      stretch.grid_of = transfer;
      stretch.grid_begin = box_of(transfer).begin;
      const std::uint64_t most = std::max(block_bytes_of(program_.transfers[transfer]), kBlockBytes);
      if (stretch.grid->block_bytes() > most)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("its rows are not whole bytes, and eight of them take {}, which is "
                                "too much to hold in memory at once",
                                format_bytes(stretch.grid->block_bytes())))
            .tensor(program_.transfers[transfer].tensor(maps_).name);
    }
    const std::uint64_t block = stretch.begin.block;
    const bool is_last = block + 1 >= stretch.grid->count();
    stretch.begin = is_last ? Place{transfer + 1, 0} : Place{transfer, block + 1};
    if (stretch.grid->count() == 0) continue;  // no elements
    item = {transfer, block, stretch.grid->block(block)};
    for (std::size_t d = 0; d < stretch.grid_begin.size(); ++d) item.box.begin[d] += stretch.grid_begin[d];
    return true;
  }
  return false;
}

}  // namespace reshard
