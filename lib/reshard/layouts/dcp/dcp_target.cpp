#include "reshard/layouts/dcp/dcp_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp/dcp_plan.h"
#include "reshard/layouts/dcp/dcp_entries.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/rules/packing.h"

namespace reshard {
namespace {

/// Cuts a dim of the box to part `index` of `parts`.
void cut_dim(Box& box, std::size_t dim, std::uint32_t parts, std::uint32_t index) {
  const std::uint64_t size = box.size[dim], each = (size + parts - 1) / parts, begin = std::min(size, each * index);
  box.begin[dim] += begin;
  box.size[dim] = std::min(size, each * (index + std::uint64_t{1})) - begin;
}

/// The part of an entry that a rank writes. One list contains all chunks, which may be hundreds of thousands.
struct RankChunk {
  std::uint32_t rank;
  std::uint32_t entry;
  Box box;
};

/// Returns the one with the fewest bytes of `count` ranks from `first` on.
std::size_t least_filled(std::span<const std::uint64_t> rank_bytes, std::size_t first, std::size_t count) {
  const auto ranks = rank_bytes.subspan(first, count);
  return first + static_cast<std::size_t>(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
}

/// Cuts the entries over the mesh. Of ranks with the same chunk, the least filled one gets it.
/// \returns at most one chunk of each entry per rank, sorted by rank, then by entry.
std::vector<RankChunk> cut_entries(std::span<const DcpEntry> entries, const DcpCut& cut) {
  std::vector<std::uint64_t> rank_bytes(std::size_t{cut.fsdp} * cut.tp);
  std::vector<RankChunk> chunks;
  for (std::uint32_t e = 0; e < entries.size(); ++e) {
    const DcpEntry& entry = entries[e];
    const Box all = whole(entry.shape);
    const bool is_cut = !entry.is_object && !entry.shape.empty() && volume(all) > 0;
    const bool cuts_tp = is_cut && entry.tp_dim;
    for (std::uint32_t i = 0; i < (is_cut ? cut.fsdp : 1); ++i)
      for (std::uint32_t j = 0; j < (cuts_tp ? cut.tp : 1); ++j) {
        Box box = all;
        if (cuts_tp) cut_dim(box, *entry.tp_dim, cut.tp, j);
        if (is_cut) cut_dim(box, 0, cut.fsdp, i);
        if (is_cut && volume(box) == 0) continue;  // the rank owns no elements
        const std::size_t first = is_cut ? std::size_t{i} * cut.tp : 0;
        const std::size_t rank =
            cuts_tp ? first + j : least_filled(rank_bytes, first, is_cut ? cut.tp : rank_bytes.size());
        rank_bytes[rank] += num_bytes(entry.dtype, box.size).value_or(0);
        chunks.push_back({static_cast<std::uint32_t>(rank), e, std::move(box)});
      }
  }
  std::sort(chunks.begin(), chunks.end(), [](const RankChunk& a, const RankChunk& b) {
    return std::tie(a.rank, a.entry) < std::tie(b.rank, b.entry);
  });
  return chunks;
}

/// Returns the stored tensor for `box` of an entry, without the pieces of its padding.
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

/// Returns the padding in `box` of an entry, as a box of the stored tensor; std::nullopt if it has none.
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

/// Plans one file per rank, and the metadata.
class FilePlanner {
 public:
  explicit FilePlanner(DcpEntryList list) : list_(std::move(list)) {
    for (DcpEntry& entry : list_.entries) {
      metadata_.tensors.push_back({entry.name, {}, entry.dtype, entry.shape, {}});
      metadata_.paths.emplace_back(entry.name, std::move(entry.path));
    }
  }

  /// \param chunks  Sorted by rank.
  TargetMap run(std::vector<RankChunk> chunks) {
    add_files(std::move(chunks));
    set_objects_apart();
    for (DcpEntryList::SecondName& second : list_.second_names) {
      DcpTensor tensor = metadata_.tensors[second.entry];
      tensor.name = second.name;
      metadata_.tensors.push_back(std::move(tensor));
      metadata_.paths.emplace_back(std::move(second.name), std::move(second.path));
    }
    list_.map.text_files.push_back({kDcpMetadataFile, dcp_metadata_file(metadata_), {}, true});
    return std::move(list_.map);
  }

 private:
  void add_files(std::vector<RankChunk> chunks) {
    std::vector<std::size_t> counts(list_.entries.size());
    for (const RankChunk& chunk : chunks) ++counts[chunk.entry];
    for (std::size_t e = 0; e < counts.size(); ++e) {
      metadata_.tensors[e].chunks.reserve(counts[e]);
      const DcpEntry& entry = list_.entries[e];
      if (entry.packing.is_plain()) list_.map.pieces[entry.logical.front()].reserve(counts[e]);
    }
    list_.map.stored.reserve(chunks.size());
    for (std::size_t begin = 0; begin < chunks.size();) {
      std::size_t end = begin;
      while (end < chunks.size() && chunks[end].rank == chunks[begin].rank) ++end;
      add_file(std::span(chunks).subspan(begin, end - begin));
      begin = end;
    }
  }

  /// Adds the file of a rank.
  void add_file(std::span<RankChunk> chunks) {
    TargetContainer container;
    container.format = Format::kPytorch;
    container.as_items = true;
    container.path = fmt::format("__{}_0.distcp", chunks.front().rank);
    container.tp_rank = chunks.front().rank;
    if (metadata_.files.empty())
      for (DcpGroupObject& object : list_.objects) {
        list_.map.made_objects.emplace_back(std::move(object.own_name), object.bytes);
        container.objects.push_back(std::move(object.bytes));
      }
    std::vector<TensorEntry> items;
    items.reserve(chunks.size());
    container.tensors.reserve(chunks.size());
    for (const RankChunk& chunk : chunks) {
      container.tensors.push_back(part_of(list_.entries[chunk.entry], chunk.box));
      const StoredTensor& tensor = container.tensors.back().stored;
      items.push_back({tensor.name, tensor.dtype, tensor.file_shape()});
      items.back().is_object = tensor.is_object;
    }
    std::vector<DcpPlace> places = plan_dcp_items(std::move(items), {}, container.objects).places;
    const auto file_index = static_cast<std::uint32_t>(metadata_.files.size());
    for (DcpPlace& place : places) place.file = file_index;
    metadata_.files.push_back(container.path.string());
    for (std::size_t i = chunks.size(); i < places.size(); ++i) {  // the groups' objects, after the tensors
      DcpGroupObject& object = list_.objects[i - chunks.size()];
      group_bytes_.push_back({object.name, places[i]});
      metadata_.paths.emplace_back(std::move(object.name), std::move(object.path));
    }
    const std::vector<std::uint32_t> stored = add_target_container(list_.map, std::move(container));
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      RankChunk& chunk = chunks[i];
      if (const auto padding = padding_in(list_.entries[chunk.entry], chunk.box))
        list_.map.add_constant(stored[i], *padding, Constant::Kind::kPadding, 0);
      metadata_.tensors[chunk.entry].chunks.push_back({std::move(chunk.box), places[i]});
    }
  }

  /// Moves objects from the tensors to the separate entries of the metadata.
  void set_objects_apart() {
    std::vector<DcpTensor> tensors;
    for (std::size_t t = 0; t < metadata_.tensors.size(); ++t) {
      DcpTensor& tensor = metadata_.tensors[t];
      if (list_.entries[t].is_object)
        metadata_.bytes.push_back({std::move(tensor.name), tensor.chunks.front().place});
      else
        tensors.push_back(std::move(tensor));
    }
    metadata_.tensors = std::move(tensors);
    for (DcpBytes& object : group_bytes_) metadata_.bytes.push_back(std::move(object));
  }

  DcpEntryList list_;
  DcpMetadata metadata_;
  std::vector<DcpBytes> group_bytes_;  // places of the groups' objects
};

void note_names(const DcpEntryList& list, const std::string& prefix, Notes& notes) {
  if (list.keeps_prefix)
    notes.assumed(
        fmt::format("the model's family is unknown, so `prefix` {} cannot be distinguished from its names: reading the "
                    "checkpoint will keep it",
                    printable(prefix)));
  note_rounded(list.rounded, notes);
}

}  // namespace

TargetMap dcp_target_map(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model,
                         const DcpCut& cut, Notes* notes) {
  if (cut.tp > 1 && model == nullptr)
    throw Error(ErrorKind::kUsage, "`tp`: the dims that tensor-parallel ranks split are unknown")
        .hint(
            "give the model's config.json (`config`), with `family` or `spec` if its model_type is unknown, or leave "
            "out `tp`: torch loads the checkpoint into any mesh");
  DcpEntryList list = list_dcp_entries(logical, states, model, cut);
  if (notes != nullptr) note_names(list, cut.prefix, *notes);
  std::vector<RankChunk> chunks = cut_entries(list.entries, cut);
  return FilePlanner(std::move(list)).run(std::move(chunks));
}

}  // namespace reshard
