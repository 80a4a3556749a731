#include "reshard/layouts/dcp/dcp_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/base/error.h"

namespace reshard {
namespace {

constexpr std::uint32_t kMissing = UINT32_MAX;

}  // namespace

DcpEntry dcp_entry(const LogicalTensor& tensor, std::uint32_t index, const WrittenNames::Place& place,
                   std::uint64_t head_dim) {
  DcpEntry entry{place.entry, tensor.dtype, tensor.shape, {index}, {.is_stack = place.stacked > 0}};
  entry.is_object = tensor.role == TensorRole::kObject;
  if (entry.packing.is_stack) {
    entry.shape = {place.stacked};
    for (const std::uint64_t size : tensor.shape) entry.shape.push_back(size);
    entry.logical.assign(place.stacked, kMissing);
    add_expert(entry, tensor, index, place.index);
  }
  if (!place.interleaved) return entry;
  if (head_dim == 0 || head_dim % 2 != 0)
    throw Error(ErrorKind::kUnsupported, fmt::format("its heads have {} rows, which are no pairs", head_dim))
        .tensor(tensor.name);
  if (tensor.shape.empty() || tensor.shape[0] % head_dim != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("its shape {} is not one of whole heads of {} rows", to_string(tensor.shape), head_dim))
        .tensor(tensor.name)
        .hint("config.json belongs to another model");
  entry.packing.head_dim = head_dim;
  return entry;
}

void add_expert(DcpEntry& stack, const LogicalTensor& tensor, std::uint32_t index, std::uint64_t expert) {
  if (tensor.shape.empty() || tensor.dtype != stack.dtype || tensor.shape != stack.shape.from(1))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is {} {}, and cannot be stacked with other experts into {} {}", name(tensor.dtype),
                            to_string(tensor.shape), name(stack.dtype), to_string(stack.shape)))
        .tensor(tensor.name);
  stack.logical.at(expert) = index;
}

void validate_all_experts(const DcpEntry& stack) {
  const auto missing = std::find(stack.logical.begin(), stack.logical.end(), kMissing);
  if (missing == stack.logical.end()) return;
  throw Error(ErrorKind::kBadInput, fmt::format("stacks {} experts, of which number {} is missing",
                                                stack.logical.size(), missing - stack.logical.begin()))
      .tensor(stack.name)
      .hint("the checkpoint is incomplete, or config.json belongs to another model");
}

DcpPart part_of(const DcpEntry& entry, const Box& box) {
  DcpPart part{{entry.name, entry.dtype, box.size}, {}};
  part.stored.is_object = entry.is_object;
  if (entry.packing.is_plain()) {
    part.pieces.push_back({entry.logical.front(), {0, box, Dims(box.size.size())}});
    return part;
  }
  BoxedRegions boxed = as_boxes(box.size, entry.packing.regions_in(entry.shape, box));
  part.stored.set_view(std::move(boxed.view));
  part.pieces.reserve(boxed.regions.size());
  for (Region& region : boxed.regions)
    part.pieces.push_back({entry.logical[region.tensor], {0, std::move(region.box), std::move(region.begin)}});
  return part;
}

void reserve_pieces(TensorMap& map, const DcpEntry& entry, std::size_t parts) {
  if (entry.packing.is_plain()) map.pieces[entry.logical.front()].reserve(parts);
}

}  // namespace reshard
