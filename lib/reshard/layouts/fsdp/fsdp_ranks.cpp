// FSDP checkpoints with one torch.save file per rank, which contains the rank's DTensors, or ShardedTensors of older
// FSDP. verl writes model_world_size_N_rank_R.pt (verl/utils/checkpoint/fsdp_checkpoint_manager.py), accelerate
// pytorch_model_fsdp_I_rankR.bin (src/accelerate/utils/fsdp_utils.py). Read-only. Each tensor records its place.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/numbered_name.h"
#include "reshard/base/strings.h"
#include "reshard/io/read_each.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/file_warnings.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/fsdp/distributed_tensor.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/planned_sizes.h"
#include "reshard/tensor/values/box.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// A box of a logical tensor, and its first element in the rank's part.
struct LocalBox {
  Box box;
  Dims begin;
};

/// Limit per rank and tensor. If FSDP and tensor parallelism split the same dim, it has up to one box per pair of
/// ranks.
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

/// Appends positions [begin, begin + size) of `ranges` to `taken`. Merges adjacent ranges.
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

/// Returns shard `place` of `count` of `ranges`.
Ranges shard(const Ranges& ranges, std::uint64_t place, std::uint64_t count) {
  const std::uint64_t size = size_of(ranges);
  const std::uint64_t each = size / count + (size % count != 0);
  const std::uint64_t begin = std::min(place * each, size), end = std::min(begin + each, size);
  Ranges taken;
  take(ranges, begin, end - begin, taken);
  return taken;
}

/// Returns shard `place` of `count` of each of `split_factor` parts, concatenated.
Ranges strided_shard(const Ranges& ranges, std::uint64_t place, std::uint64_t count, std::uint64_t split_factor,
                     const std::string& name) {
  const std::uint64_t size = size_of(ranges);
  if (split_factor > kMostBoxes || size % split_factor != 0 || size / split_factor % count != 0)
    throw Error(
        ErrorKind::kUnsupported,
        fmt::format("is a strided shard of {} rows on {} ranks in {} parts, which torch versions split differently",
                    size, count, split_factor))
        .tensor(name);
  const std::uint64_t part = size / split_factor, each = part / count;
  Ranges taken;
  for (std::uint64_t i = 0; i < split_factor && each > 0; ++i) take(ranges, i * part + place * each, each, taken);
  return taken;
}

/// Returns the boxes that the placements of a DTensor assign to its rank. Each dim of the mesh shards the result of the
/// previous dims (torch/distributed/tensor/placement_types.py: _split_tensor). Empty if the rank owns no elements.
/// \throws Error kUnsupported for a strided shard that does not divide evenly, which versions of torch cut differently.
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
      throw Error(ErrorKind::kUnsupported, fmt::format("is split into more than {} boxes on one rank", kMostBoxes))
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

constexpr LayoutTraits kFsdpRanksTraits{.name = "fsdp-ranks",
                                        .reported_as = "fsdp-ranks",
                                        .meaning = "FSDP rank files, as verl and accelerate save them",
                                        .folder = "",
                                        .formats = {},
                                        .axes = {MeshAxis::kData}};
constexpr std::string_view kSettingsFiles[] = {"optim_world_size_", "extra_state_world_size_"};
constexpr const char* kFsdpConfig = "fsdp_config.json";

constexpr NumberedName kVerlName("model_world_size_{world}_rank_{rank}.pt");
constexpr NumberedName kAccelerateName("pytorch_model_fsdp[_{model}]_rank{rank}.bin");  // no model in LOCAL_STATE_DICT

/// Returns the numbers in a file name: the rank, and the number of ranks (verl) or the number of the model (accelerate,
/// when it trains several models together).
std::optional<NameNumbers> rank_name_of(std::string_view name) {
  if (auto numbers = kVerlName.parse(name)) return numbers;
  auto numbers = kAccelerateName.parse(name);
  if (numbers) numbers->emplace("model", 0);
  return numbers;
}

/// Whether the file contains other training state of the same save.
bool is_other_file(std::string_view name) {
  return std::any_of(std::begin(kSettingsFiles), std::end(kSettingsFiles),
                     [&](std::string_view start) { return name.starts_with(start) && name.ends_with(".pt"); });
}

bool is_rank_folder(Files& files, const fs::path& folder) {
  if (!files.is_directory(folder)) return false;
  const std::vector<DirectoryEntry> entries = files.list(folder);
  return std::any_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
    return entry.kind != FileKind::kDirectory && rank_name_of(entry.name).has_value();
  });
}

/// The rank files and other files of a folder.
struct RankListing {
  std::map<std::uint64_t, fs::path> ranks;
  std::size_t others = 0;
  std::uint64_t other_bytes = 0;
};

RankListing list_ranks(Files& files, const fs::path& folder) {
  RankListing listing;
  std::optional<NameNumbers> first;  // without the rank
  for (const DirectoryEntry& entry : files.list(folder)) {
    if (entry.kind == FileKind::kDirectory) continue;
    if (is_other_file(entry.name) && entry.kind == FileKind::kFile) {
      ++listing.others;
      listing.other_bytes += files.size_bytes(folder / entry.name);
    }
    auto name = rank_name_of(entry.name);
    if (!name) continue;
    const std::uint64_t rank = name->at("rank");
    name->erase("rank");
    if (!first) first = name;
    if (name != first)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("contains files of two models or of two different rank counts: {} and {}",
                              listing.ranks.begin()->second.filename().string(), printable(entry.name)))
          .in(folder)
          .hint("copy the files of one of them into a separate folder");
    const auto [other, is_new] = listing.ranks.emplace(rank, folder / entry.name);
    if (!is_new)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("belongs to rank {}, as does {}", rank, other->second.filename().string()))
          .in(folder / entry.name)
          .hint("files of two saves are mixed in one folder; move one away");
  }
  if (listing.ranks.empty())
    throw Error(ErrorKind::kBadInput, "contains no rank file").in(folder).hint("copy the files of all ranks here");
  const std::uint64_t count = first->count("world") > 0 ? first->at("world") : listing.ranks.rbegin()->first + 1;
  for (std::uint64_t rank = 0; rank < count; ++rank)
    if (!listing.ranks.count(rank))
      throw Error(ErrorKind::kBadInput, fmt::format("the file of rank {} of {} is missing", rank, count))
          .in(folder)
          .hint("copy the files of all ranks here");
  if (listing.ranks.size() != count)
    throw Error(ErrorKind::kBadInput, fmt::format("belongs to rank {}, of {}", listing.ranks.rbegin()->first, count))
        .in(listing.ranks.rbegin()->second);
  return listing;
}

/// Hint for plain tensors whose shapes no family defines.
constexpr std::string_view kPlainHint =
    "a plain tensor does not record its position in the logical tensor, and nothing else confirms that each rank has "
    "the whole tensor (`replicas` first has no effect): describe the model with `family` or `spec`, or use the ranks "
    "of one save";

/// Returns the boxes of a DTensor's local part, which has as many elements as the boxes.
std::vector<LocalBox> boxes_in(const DistributedTensor& tensor) {
  std::vector<LocalBox> boxes = boxes_of_placements(tensor);
  Dims expected(tensor.shape.size());
  for (const LocalBox& box : boxes)
    for (std::size_t d = 0; d < expected.size(); ++d)
      expected[d] = std::max(expected[d], box.begin[d] + box.box.size[d]);
  const Dims& shape = tensor.local[0].shape;
  const bool fits = boxes.empty() ? num_elems(shape) == 0u : shape == expected;
  if (fits) return boxes;
  throw Error(ErrorKind::kBadInput,
              fmt::format("has the shape {} here, but its placements assign {} of {} to the rank at {} of {}",
                          to_string(shape), boxes.empty() ? "nothing" : to_string(expected), to_string(tensor.shape),
                          to_string(tensor.coordinate), to_string(tensor.mesh)))
      .tensor(tensor.name);
}

/// Returns the boxes of part `number` of a rank's tensor.
std::vector<LocalBox> boxes_of(const DistributedTensor& tensor, std::size_t number) {
  const Dims zeros(tensor.shape.size());
  switch (tensor.kind) {
    case DistributedTensor::Kind::kWhole: return {{whole(tensor.shape), zeros}};
    case DistributedTensor::Kind::kSharded: return {{{tensor.begins[number], tensor.local[number].shape}, zeros}};
    case DistributedTensor::Kind::kDTensor: return boxes_in(tensor);
  }
  return {};
}

/// The map of tensors that `names` has names for. Parts that several ranks have are replicas, which are compared.
/// \param model  if its family says which shapes whole tensors have, plain tensors need no confirmation.
SourceMap map_of(const std::vector<RankTensors>& ranks, const std::unordered_map<std::string, std::string>& names,
                 const std::optional<Model>& model) {
  const bool knows_shapes = model && !model->by_config_plan;
  SourceMap map;
  for (const RankTensors& rank : ranks) map.add_file(rank.file);
  map.reserve_logical(names.size());
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
    for (const DistributedTensor& tensor : ranks[rank].tensors) {
      const auto name = names.find(tensor.name);
      if (name == names.end()) continue;
      const fs::path& path = ranks[rank].file.path;
      const std::uint32_t logical = map.add_logical({name->second, tensor.dtype, tensor.shape, {}}, path);
      if (tensor.kind == DistributedTensor::Kind::kWhole && !knows_shapes)
        map.logical[logical].unconfirmed_hint = kPlainHint;
      for (std::size_t i = 0; i < tensor.local.size(); ++i) {
        std::vector<LocalBox> boxes;
        try {
          boxes = boxes_of(tensor, i);
        } catch (Error& error) {
          throw error.in(path);
        }
        const TensorEntry& entry = tensor.local[i];
        if (entry.size_bytes == 0 && num_elems(tensor.shape) != 0u) continue;  // the rank owns no elements
        const std::uint32_t stored = map.add_stored(entry, rank);
        for (LocalBox& box : boxes) map.pieces[logical].push_back({stored, std::move(box.box), std::move(box.begin)});
      }
    }
  return map;
}

/// Refuses FSDP's flat parameters, which do not record the tensors that they contain.
void refuse_flat_parameters(const RankTensors& rank) {
  for (const DistributedTensor& tensor : rank.tensors)
    if (tensor.name.ends_with("_flat_param") || tensor.name.ends_with(".flat_param"))
      throw Error(ErrorKind::kUnsupported,
                  "is a flat FSDP parameter, as saved with LOCAL_STATE_DICT: the tensors in it are unknown")
          .in(rank.file.path)
          .tensor(tensor.name)
          .hint("load the checkpoint in the training code and save it with SHARDED_STATE_DICT");
}

class FsdpRanksLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kFsdpRanksTraits; }

  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    if (!is_rank_folder(files, path)) return {};
    return {{this, path, trained_directory(files, path)}};
  }

  std::optional<Error> explain_missing(Files& files, const fs::path& path) const override {
    if (!is_other_file(path.filename().string()) || !files.is_file(path)) return std::nullopt;
    return Error(ErrorKind::kBadInput, "is one rank's state of the optimizer or the trainer, not a model")
        .in(path)
        .hint("give the directory that contains the files of all ranks: " + directory_above(files, path).string());
  }

  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override;

  bool owns(Files&, const fs::path&, const std::string& name) const override {
    return name == kFsdpConfig || rank_name_of(name).has_value() || is_other_file(name);
  }
};

Checkpoint FsdpRanksLayout::read(Files& files, const FoundLayout& found, const ReadContext& context) const {
  Checkpoint checkpoint;
  checkpoint.layout = this;
  checkpoint.format = Format::kPytorch;
  checkpoint.path = found.path;
  checkpoint.directory = found.directory;
  find_config(files, checkpoint, context.config);
  const RankListing listing = list_ranks(files, found.path);
  std::vector<RankTensors> ranks;
  std::vector<TrainedTensor> entries;  // each tensor once, whole
  FileWarnings warnings;
  std::unordered_set<std::string> seen;
  const std::vector<std::pair<std::uint64_t, fs::path>> paths(listing.ranks.begin(), listing.ranks.end());
  auto reads =
      read_each(paths.size(), [&](std::size_t i) { return read_rank_tensors(files, paths[i].second, paths[i].first); });
  for (const auto& [rank, path] : paths) {
    ranks.push_back(reads[ranks.size()].get());
    refuse_flat_parameters(ranks.back());
    warnings.add(path.filename().string(), ranks.back().warnings);
    for (const DistributedTensor& tensor : ranks.back().tensors)
      if (seen.insert(tensor.name).second) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  warnings.note(checkpoint.notes);
  LanguageModel described;
  const KnownModel known = known_model(files, checkpoint, context, described);
  const StateNames in_model = trained_names(entries, known, context.use, checkpoint);
  std::vector<TrainedTensor> tensors;
  std::unordered_map<std::string, std::string> names;
  const PackedEntries packed = packed_entries(entries, in_model, found.path);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string& name = in_model.entries[i].name;
    if (name.empty()) continue;
    names.emplace(entries[i].name, name);
    tensors.push_back({name, entries[i].dtype, entries[i].shape});
  }
  read_trained_model(files, checkpoint, context, tensors, packed);
  checkpoint.map = map_of(ranks, names, checkpoint.model);
  finish_trained_map(files, checkpoint, context, packed);
  if (checkpoint.model && checkpoint.model->by_config_plan)
    validate_planned_sizes(*checkpoint.model, checkpoint.language_model.config, read_config(files, checkpoint), 1,
                           found.path);
  BesideModel& beside = *checkpoint.beside_model;
  beside.files = listing.others;
  beside.file_bytes = listing.other_bytes;
  if (beside.files > 0) checkpoint.notes.left_out(left_files_text(beside, "the optimizer and the trainer"));
  return checkpoint;
}

}  // namespace

const Layout& fsdp_ranks_layout() {
  static const FsdpRanksLayout kLayout;
  return kLayout;
}

}  // namespace reshard
