#include "reshard/layouts/fsdp/mesh_boxes.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// Of one rank's part of a tensor; tensor-parallel ranks times ranks, where both cut one dim, at most.
constexpr std::size_t kMostBoxes = 4096;

/// A run of indices of one dim.
struct Range {
  std::uint64_t begin;
  std::uint64_t size;
};
using Ranges = std::vector<Range>;

std::uint64_t size_of(const Ranges& ranges) {
  std::uint64_t size = 0;
  for (const Range& range : ranges) size += range.size;
  return size;
}

/// Adds positions [begin, begin + size) of `ranges` to `taken`; neighbours become one.
void take(const Ranges& ranges, std::uint64_t begin, std::uint64_t size, Ranges& taken) {
  for (const Range& range : ranges) {
    if (size == 0) return;
    if (begin >= range.size) {
      begin -= range.size;
      continue;
    }
    const std::uint64_t count = std::min(size, range.size - begin);
    if (!taken.empty() && taken.back().begin + taken.back().size == range.begin + begin)
      taken.back().size += count;
    else
      taken.push_back({range.begin + begin, count});
    size -= count;
    begin = 0;
  }
}

/// The share of `ranges` at `place` of `count`.
Ranges shard(const Ranges& ranges, std::uint64_t place, std::uint64_t count) {
  const std::uint64_t size = size_of(ranges);
  const std::uint64_t each = size / count + (size % count != 0);
  const std::uint64_t begin = std::min(place * each, size), end = std::min(begin + each, size);
  Ranges taken;
  take(ranges, begin, end - begin, taken);
  return taken;
}

/// The same of each of `split_factor` parts, one after another.
Ranges strided_shard(const Ranges& ranges, std::uint64_t place, std::uint64_t count, std::uint64_t split_factor,
                     const std::string& name) {
  const std::uint64_t size = size_of(ranges);
  if (split_factor > kMostBoxes || size % split_factor != 0 || size / split_factor % count != 0)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is a strided shard of {} rows on {} ranks in {} parts, which versions of torch cut in "
                            "different ways",
                            size, count, split_factor))
        .tensor(name);
  const std::uint64_t part = size / split_factor, each = part / count;
  Ranges taken;
  for (std::uint64_t i = 0; i < split_factor && each > 0; ++i) take(ranges, i * part + place * each, each, taken);
  return taken;
}

}  // namespace

std::vector<LocalBox> boxes_of_placements(const DistributedTensor& tensor) {
  std::vector<Ranges> dims;
  for (const std::uint64_t size : tensor.shape) dims.push_back({{0, size}});
  for (std::size_t m = 0; m < tensor.placements.size(); ++m) {
    const MeshPlacement& placement = tensor.placements[m];
    if (placement.kind == MeshPlacement::Kind::kReplicate) continue;
    Ranges& ranges = dims[placement.dim];
    ranges = placement.kind == MeshPlacement::Kind::kShard
                 ? shard(ranges, tensor.coordinate[m], tensor.mesh[m])
                 : strided_shard(ranges, tensor.coordinate[m], tensor.mesh[m], placement.split_factor, tensor.name);
  }
  std::vector<LocalBox> boxes{{{Dims(), Dims()}, Dims()}};
  for (const Ranges& ranges : dims) {
    std::vector<LocalBox> longer;
    if (boxes.size() * ranges.size() > kMostBoxes)
      throw Error(ErrorKind::kUnsupported, fmt::format("is cut into more than {} boxes on a rank", kMostBoxes))
          .tensor(tensor.name);
    for (const LocalBox& box : boxes) {
      std::uint64_t begin = 0;
      for (const Range& range : ranges) {
        longer.push_back(box);
        longer.back().box.begin.push_back(range.begin);
        longer.back().box.size.push_back(range.size);
        longer.back().begin.push_back(begin);
        begin += range.size;
      }
    }
    boxes = std::move(longer);
  }
  std::erase_if(boxes, [](const LocalBox& box) { return volume(box.box) == 0; });
  return boxes;
}

}  // namespace reshard
