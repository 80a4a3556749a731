#include "reshard/layouts/dcp/dcp_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/rules/packing.h"

namespace reshard {
namespace {

constexpr std::uint32_t kMissing = UINT32_MAX;

/// Enlarges the rows of an entry to the scheme's multiple.
/// \throws Error kUnsupported if the entry contains several tensors.
void pad(DcpEntry& entry, const SchemeEntry& rule, std::uint32_t tp) {
  if (!entry.packing.is_plain())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("has padding of several tensors ({}), which can be read but not written", rule.where))
        .hint("keep the model's own names");
  const Expression::Lookup ranks = [&](const std::string&) { return ConfigValue(std::uint64_t{tp}); };
  const std::uint64_t multiple = rule.multiple_of.size(ranks);
  const auto dim = std::find(rule.entry_dims.begin(), rule.entry_dims.end(), std::vector<std::string>{rule.joined});
  std::uint64_t& rows = entry.shape[static_cast<std::size_t>(dim - rule.entry_dims.begin())];
  rows += (multiple - rows % multiple) % multiple;
}

}  // namespace

DcpEntry dcp_entry(const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place, const Model* model,
                   std::uint32_t tp) {
  DcpEntry entry{
      place.name, tensor.dtype, tensor.shape, tensor.shape, {index}, index, {}, {}, tensor.role == TensorRole::kObject};
  if (place.packed.entry == nullptr) return entry;
  try {
    const WrittenNames::Entry& packed = *place.packed.entry;
    entry.packed = &packed;
    PackedArray array = pack(*packed.rule, packed.parts, packed.numbers, *model);
    if (!array.packing.has_boxes())
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("is stored permuted in {} ({}); this order can be read but not written",
                              printable(place.name), packed.rule->where))
          .hint("keep the model's own names");
    entry.shape = entry.unpadded = std::move(array.shape);
    if (!array.packing.is_identity()) entry.packing = std::move(array.packing);
    if (packed.rule->multiple_of) pad(entry, *packed.rule, tp);
    entry.logical.assign(packed.tensors.size(), kMissing);
  } catch (Error& error) {
    throw error.tensor(tensor.name);
  }
  add_to_entry(entry, tensor, index, place, tensor);
  return entry;
}

void add_to_entry(DcpEntry& entry, const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place,
                  const LogicalTensor& first) {
  const WrittenNames::Entry& packed = *place.packed.entry;
  const Dims& shape = packed.parts[place.packed.tensor % packed.parts.size()];
  if (tensor.shape != shape)
    throw Error(ErrorKind::kUnsupported, fmt::format("has the shape {}, expected {} in {}", to_string(tensor.shape),
                                                     to_string(shape), printable(entry.name)))
        .tensor(tensor.name)
        .hint("config.json belongs to another model");
  if (tensor.dtype != entry.dtype)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is {}, but {}, which is in the same entry {}, is {}", name(tensor.dtype),
                            printable(first.name), printable(entry.name), name(entry.dtype)))
        .tensor(tensor.name)
        .hint("convert all of them to one dtype");
  entry.logical.at(place.packed.tensor) = index;
}

void validate_complete(const DcpEntry& entry) {
  const auto missing = std::find(entry.logical.begin(), entry.logical.end(), kMissing);
  if (missing == entry.logical.end()) return;
  const std::string& tensor = entry.packed->tensors[static_cast<std::size_t>(missing - entry.logical.begin())];
  throw Error(ErrorKind::kBadInput,
              fmt::format("contains {} tensors, but {} is missing", entry.logical.size(), printable(tensor)))
      .tensor(entry.name)
      .hint("the checkpoint is incomplete, or config.json belongs to another model");
}

PlacedTensor part_of(const DcpEntry& entry, const Box& box) {
  PlacedTensor part{{entry.name, entry.dtype, box.size}, {}};
  part.stored.is_object = entry.is_object;
  if (entry.packing.is_plain()) {
    if (const auto own = intersect(box, whole(entry.unpadded)); own || entry.unpadded == entry.shape)
      part.parts.push_back(
          {entry.logical.front(), own.value_or(box), Dims(box.size.size())});  // or all of an empty one
    return part;
  }
  BoxedRegions boxed = as_boxes(box.size, entry.packing.regions_in(box));
  part.stored.set_view(std::move(boxed.view));
  part.parts.reserve(boxed.regions.size());
  for (Region& region : boxed.regions)
    part.parts.push_back({entry.logical[region.tensor], std::move(region.box), std::move(region.begin)});
  return part;
}

std::optional<Box> padding_in(const DcpEntry& entry, const Box& box) {
  for (std::size_t d = 0; d < box.size.size(); ++d) {
    if (box.begin[d] + box.size[d] <= entry.unpadded[d]) continue;
    Box padding = whole(box.size);
    padding.begin[d] = entry.unpadded[d] - std::min(box.begin[d], entry.unpadded[d]);
    padding.size[d] -= padding.begin[d];
    return padding;
  }
  return std::nullopt;
}

void reserve_pieces(TargetMap& map, const DcpEntry& entry, std::size_t parts) {
  if (entry.packing.is_plain()) map.pieces[entry.logical.front()].reserve(parts);
}

}  // namespace reshard
