#include "reshard/engine/block_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

bool is_strided(const TensorMap* map, const std::optional<Reading>& reading) {
  if (!map || map->strides.empty() || !reading) return false;
  return std::any_of(reading->reads.begin(), reading->reads.end(),
                     [&](const Piece& piece) { return map->strides.count(piece.stored) > 0; });
}

}  // namespace

BlockQueue::BlockQueue(const ProgramMaps& maps, const Program& program, std::uint64_t block_bytes,
                       std::uint64_t strided_block_bytes, unsigned workers)
    : maps_(maps),
      program_(program),
      block_bytes_(block_bytes),
      strided_block_bytes_(strided_block_bytes),
      shares_(workers) {
  std::uint64_t bytes = 0;
  for (const Transfer& transfer : program.transfers) {
    bytes_before_.push_back(bytes);
    const LogicalTensor& tensor = transfer.tensor(maps);
    bytes += num_bytes(tensor.dtype, tensor.shape).value_or(0);
  }
  bytes_before_.push_back(bytes);
  Place begin;
  for (unsigned worker = 0; worker < workers; ++worker) {
    const Place end =
        worker + 1 == workers ? Place{program.transfers.size(), 0} : place_at(bytes / workers * (worker + 1));
    shares_[worker].begin = begin;
    shares_[worker].end = end;
    begin = end;
  }
}

std::uint64_t BlockQueue::block_bytes_of(const Transfer& transfer) const {
  const bool strided = is_strided(maps_.source, transfer.source) || is_strided(maps_.against, transfer.against);
  std::uint64_t bytes = strided ? strided_block_bytes_ : block_bytes_;
  // The block after a cast, too, has to fit.
  const DType dtype = transfer.tensor(maps_).dtype;
  const LogicalTensor* result = transfer.result(maps_);
  if (result && bits(result->dtype) > bits(dtype)) bytes = bytes * bits(dtype) / bits(result->dtype);
  return bytes;
}

BlockGrid BlockQueue::grid_of(std::size_t transfer) const {
  const LogicalTensor& tensor = program_.transfers[transfer].tensor(maps_);
  return {tensor.dtype, tensor.shape, block_bytes_of(program_.transfers[transfer])};
}

/// The place before which about `bytes` of the program lie.
BlockQueue::Place BlockQueue::place_at(std::uint64_t bytes) const {
  const auto after = std::upper_bound(bytes_before_.begin(), bytes_before_.end() - 1, bytes);
  if (after == bytes_before_.begin()) return {};
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

/// Takes the second half of the largest share that is left.
bool BlockQueue::steal(Share& share) {
  Share* largest = nullptr;
  std::uint64_t most = 0;
  for (Share& other : shares_) {
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
  share.begin = middle;
  share.end = std::exchange(largest->end, middle);
  return true;
}

bool BlockQueue::next(unsigned worker, Item& item) {
  const std::lock_guard lock(mutex_);
  Share& share = shares_[worker];
  while (share.begin != share.end || steal(share)) {
    const std::size_t transfer = share.begin.transfer;
    if (share.grid_of != transfer) {
      share.grid = std::make_unique<BlockGrid>(grid_of(transfer));
      share.grid_of = transfer;
      const std::uint64_t most = std::max(block_bytes_of(program_.transfers[transfer]), kBlockBytes);
      if (share.grid->block_bytes() > most)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("its rows are not whole bytes, and eight of them take {}, which is "
                                "too much to hold in memory at once",
                                format_bytes(share.grid->block_bytes())))
            .tensor(program_.transfers[transfer].tensor(maps_).name);
    }
    const std::uint64_t block = share.begin.block;
    const bool is_last = block + 1 >= share.grid->count();
    share.begin = is_last ? Place{transfer + 1, 0} : Place{transfer, block + 1};
    if (share.grid->count() == 0) continue;  // no elements
    item = {transfer, block, share.grid->block(block)};
    return true;
  }
  return false;
}

}  // namespace reshard
