// Reads a sharded checkpoint from disk and validates that its ranks exist and agree.
#include "reshard/layouts/ranks/sharded_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/io/read_each.h"
#include "reshard/layouts/core/file_warnings.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/names/wrappers.h"
#include "reshard/layouts/ranks/master_weights.h"
#include "reshard/layouts/ranks/metadata_validation.h"
#include "reshard/layouts/ranks/other_stages.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/record_validation.h"
#include "reshard/layouts/ranks/saved_metadata.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/specs/stages/stage_pt.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// A rank's position among those of one replica: pp_rank, ep_rank, tp_rank.
using Place = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

Place place_of(RankId rank) {
  return {rank.pp_rank, rank.ep_rank, rank.tp_rank};
}

/// Contents of a shards folder, by name only.
struct Listing {
  std::map<Place, RankFile> ranks;             // the first replica of each rank
  std::vector<RankFile> copies;                // other data-parallel ranks
  std::map<std::uint32_t, fs::path> metadata;  // pp_rank → file
};

/// Returns an error about a file, or about a tensor in it.
Error expert_parallel(const fs::path& path, const char* what) {
  return Error(ErrorKind::kUnsupported, std::string(what) +
                                            " of NxD (ep_rank), without metadata about the distribution of its "
                                            "experts; such checkpoints are not supported")
      .in(path)
      .hint(kHintForExperts);
}

Listing list_folder(Files& files, const FoundLayout& folder) {
  Listing listing;
  for (const RankFile& file :
       list_rank_files(files, folder)) {  // sorted, so the lowest data-parallel rank of each place comes first
    const auto [found, is_new] = listing.ranks.emplace(place_of(file.rank), file);
    if (!is_new) listing.copies.push_back(file);
  }
  for (const DirectoryEntry& entry : files.list(folder.path))
    if (const auto pp_rank = metadata_pp_rank(entry.name))
      if (!listing.metadata.emplace(*pp_rank, folder.path / entry.name).second)
        throw Error(ErrorKind::kBadInput, fmt::format("there are two metadata files of pipeline rank {}", *pp_rank))
            .in(folder.path / entry.name)
            .hint("they belong to two checkpoints; move one of them away");
  return listing;
}

void validate_all_ranks_present(const FoundLayout& folder, const Listing& listing, const ShardedCheckpoint& mesh) {
  // The mesh is computed from file names only, so most of a large one may be missing. Names only the first few ranks.
  constexpr std::size_t kNamed = 7;
  const std::uint64_t count = std::uint64_t{mesh.tp} * mesh.pp * mesh.ep - listing.ranks.size();
  if (count == 0) return;
  std::vector<std::string> missing;
  for (std::uint32_t p = 0; p < mesh.pp && missing.size() < kNamed; ++p)
    for (std::uint32_t e = 0; e < mesh.ep && missing.size() < kNamed; ++e)
      for (std::uint32_t t = 0; t < mesh.tp && missing.size() < kNamed; ++t)
        if (!listing.ranks.count({p, e, t})) missing.push_back(ranks_of(folder).name_of({t, p, 0, e, mesh.ep > 1}));
  const std::string names = count == missing.size() ? list_names(missing) : join(missing, ", ") + ", …";
  const std::string ep = mesh.ep > 1 ? fmt::format(" × ep {}", mesh.ep) : "";
  const std::string form =
      folder.layout->traits().has_stages() ? fmt::format(" (tp {} × pp {}{})", mesh.tp, mesh.pp, ep) : "";
  throw Error(ErrorKind::kBadInput,
              fmt::format("{} of the {} ranks{} {} missing: {}", count, std::uint64_t{mesh.tp} * mesh.pp * mesh.ep,
                          form, count == 1 ? "is" : "are", names))
      .in(folder.path)
      .hint("copy the missing ranks here; a model cannot be consolidated without them");
}

bool lacks_weights(Files& files, const FoundLayout& folder, const Listing& listing) {
  const auto optimizer = ranks_of(folder).optimizer_in(folder.path);
  if (!optimizer) return false;
  std::vector<RankFile> ranks;
  for (const auto& [place, file] : listing.ranks) ranks.push_back(file);
  return has_weights_in_optimizer_alone(files, *optimizer, ranks);
}

/// Validates that the ranks of one stage have the same parameters and, if `alike`, the same shapes.
void validate_ranks_agree(const Container& first, const Container& other, bool alike) {
  std::unordered_map<std::string, const TensorEntry*> expected;
  for (const TensorEntry& tensor : first.tensors) expected.emplace(tensor.name, &tensor);
  for (const TensorEntry& tensor : other.tensors) {
    const auto found = expected.find(tensor.name);
    if (found == expected.end())
      throw Error(ErrorKind::kBadInput, "is on this rank, but not in " + first.path.string())
          .in(other.path)
          .tensor(tensor.name)
          .hint("the ranks come from different checkpoints");
    const TensorEntry& reference = *found->second;
    if (reference.dtype != tensor.dtype || (alike && reference.shape != tensor.shape))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is {} {} on this rank, but {} {} in {}", name(tensor.dtype), to_string(tensor.shape),
                              name(reference.dtype), to_string(reference.shape), first.path.string()))
          .in(other.path)
          .tensor(tensor.name)
          .hint("the ranks come from different checkpoints");
    expected.erase(found);
  }
  if (!expected.empty()) {
    // Report the first tensor in the file's order, so that the message is deterministic.
    const auto lost = std::find_if(first.tensors.begin(), first.tensors.end(),
                                   [&](const TensorEntry& tensor) { return expected.count(tensor.name) > 0; });
    throw Error(ErrorKind::kBadInput, "is in " + first.path.string() + ", but not on this rank")
        .in(other.path)
        .tensor(lost->name)
        .hint("the ranks come from different checkpoints");
  }
}

/// Adds parameters that the metadata lists but that were not saved because they are frozen.
void note_not_saved(const StageMetadata& metadata, const ShardedCheckpoint& checkpoint,
                    const std::vector<Container>& files, std::vector<std::string>& not_saved) {
  std::unordered_set<std::string> held;
  for (std::size_t i = 0; i < files.size(); i += checkpoint.tp)  // one file per expert-parallel rank
    for (const TensorEntry& tensor : files[i].tensors) held.insert(tensor.name);
  for (const ParallelParameter& parameter : metadata.parameters)
    if (!held.count(parameter.name)) not_saved.push_back(parameter.name);
}

/// Validates that metadata, if any, distributes experts over the existing number of expert-parallel ranks.
void validate_experts(const ShardedCheckpoint& checkpoint, const Listing& listing) {
  bool said = checkpoint.metadata.empty();
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank)
    for (const ParallelParameter& parameter : checkpoint.metadata[pp_rank].parameters) {
      if (!parameter.expert_model_parallel()) continue;
      said = true;
      if (parameter.expert_rank ? *parameter.expert_rank < checkpoint.ep : parameter.expert_partitions == checkpoint.ep)
        continue;
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("its experts are on {}, but there {}",
                      parameter.expert_rank ? fmt::format("expert-parallel rank {}", *parameter.expert_rank)
                                            : fmt::format("{} expert-parallel ranks", parameter.expert_partitions),
                      checkpoint.ep == 1 ? "is one" : fmt::format("are {}", checkpoint.ep)))
          .in(listing.metadata.at(pp_rank))
          .tensor(parameter.name)
          .hint("expert-parallel ranks are missing, or belong to another checkpoint");
    }
  if (said) return;
  for (const auto& [place, file] : listing.ranks)
    if (file.rank.ep_rank != 0) throw expert_parallel(file.path, "belongs to an expert-parallel rank");
}

void refuse_adapters(const StageMetadata& metadata, const fs::path& path) {
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      if (!std::visit([](const auto& s) { return s.peft_type; }, spec).empty())
        throw Error(ErrorKind::kUnsupported, "describes shards of an adapter, but this folder is read as a model")
            .in(path)
            .hint("give the folder adapter_NAME that contains them, in a folder called adapter_shards");
}

/// Reads the metadata of every stage. Older files depend on the weights and are read after those.
void read_all_metadata(AdapterMetadataReader& of_adapters, Files& files, const Listing& listing,
                       ShardedCheckpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    const auto found = listing.metadata.find(pp_rank);
    if (found == listing.metadata.end())
      throw Error(ErrorKind::kBadInput,
                  fmt::format("{} is missing: the partition of the parameters of pipeline rank {} is unknown",
                              metadata_file_name(pp_rank), pp_rank))
          .in(checkpoint.folder.path);
    checkpoint.metadata.emplace_back();
    checkpoint.described_in.push_back(found->second);
    if (is_stage_pt(found->second)) continue;
    checkpoint.metadata.back() = checkpoint.adapter ? of_adapters.read(found->second).of(*checkpoint.adapter)
                                                    : read_metadata(files, found->second);
    if (!checkpoint.adapter) refuse_adapters(checkpoint.metadata.back(), found->second);
    checkpoint.tp = validate_metadata(checkpoint.metadata.back(), found->second, checkpoint.tp);
  }
}

/// Refuses tensors that xser metadata marks as split over expert-parallel ranks, if neither file names nor the metadata
/// of stages do.
void refuse_experts(const Container& file, RankId rank, const ShardedCheckpoint& checkpoint) {
  if (rank.has_ep || checkpoint.metadata.empty()) return;
  for (const auto& [key, tensor] : file.metadata)
    if (key == kXserExpertParallel)
      throw expert_parallel(file.path, "is split over expert-parallel ranks").tensor(tensor);
}

/// Reads a rank's file. Adds a hint to errors if the weights may be the master weights of a missing optimizer.
Container read_rank_file(Files& files, const RankFile& rank, const FoundLayout& folder) {
  try {
    // NxD writes the tensors that expert-parallel ranks share for the first of them only.
    if (rank.rank.ep_rank > 0 && rank.format == Format::kXser) return read_own_xser(files, rank.path);
    return read_container(files, rank.path, rank.format);
  } catch (Error& error) {
    const auto optimizer = ranks_of(folder).optimizer_in(folder.path);
    if (error.kind() == ErrorKind::kBadInput && optimizer && *optimizer != folder.path &&
        may_lack_optimizer(files, *optimizer, rank))
      error.hint(fmt::format(
          "if the run saved its weights only as the optimizer's master weights (avoid_saving_lower_precision_weights), "
          "they are in {}, which is missing or contains no optimizer: copy it here; otherwise {}",
          optimizer->string(), error.hint().empty() ? "copy the missing file here" : error.hint()));
    else if (error.kind() == ErrorKind::kBadInput && error.hint().empty())
      error.hint("the file is damaged, or not a rank file: copy it again");
    throw;
  }
}

/// Reads a rank's state dict, which may be in several files.
Container read_rank(Files& files, const RankFile& rank, const ShardedCheckpoint& checkpoint) {
  if (checkpoint.lacks_weights) return describe_xser(files, rank.path);
  Container all = read_rank_file(files, rank, checkpoint.folder);
  if (rank.more_parts.empty()) return all;
  std::unordered_map<std::string, fs::path> held;
  for (const TensorEntry& tensor : all.tensors) held.emplace(tensor.name, rank.path);
  for (const fs::path& path : rank.more_parts) {
    Container part = read_container(files, path, rank.format);
    validate_part_record(part, all);
    for (TensorEntry& tensor : part.tensors) {
      const auto [found, is_new] = held.emplace(tensor.name, path);
      if (!is_new)
        throw Error(ErrorKind::kBadInput, "is in this file and in " + found->second.string())
            .in(path)
            .tensor(tensor.name)
            .hint("files of two checkpoints are mixed in one folder");
      tensor.file += static_cast<std::uint32_t>(all.files.size());
      all.tensors.push_back(std::move(tensor));
    }
    all.size_bytes += part.size_bytes;
    std::move(part.files.begin(), part.files.end(), std::back_inserter(all.files));
    std::move(part.warnings.begin(), part.warnings.end(), std::back_inserter(all.warnings));
  }
  return all;
}

/// Without metadata files, takes the number of ranks from the first rank's record, so that missing last ranks are
/// detected.
/// \returns the first rank's file, for read_all_files; std::nullopt if it was not read.
std::optional<Container> take_recorded_mesh(Files& files, const Listing& listing, ShardedCheckpoint& checkpoint) {
  if (!listing.metadata.empty()) return std::nullopt;
  const RankFile& rank = listing.ranks.begin()->second;
  Container first = read_rank(files, rank, checkpoint);
  const auto record = read_record(first);
  if (!record) return first;
  checkpoint.tp = std::max(checkpoint.tp, record->tp_degree);
  checkpoint.pp = std::max(checkpoint.pp, record->pp_degree);
  checkpoint.ep = std::max(checkpoint.ep, record->ep_degree);
  return first;
}

/// \param first  the first rank's file if it has been read, as xser would open it tensor by tensor again.
void read_all_files(Files& files, const Listing& listing, std::optional<Container> first,
                    ShardedCheckpoint& checkpoint) {
  const bool alike = ranks_of(checkpoint.folder).ranks_are_alike;
  std::vector<const RankFile*> ranks;  // in the order of processing
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    for (std::uint32_t i = 0; i < checkpoint.ep * checkpoint.tp; ++i)
      ranks.push_back(&listing.ranks.at({pp_rank, i / checkpoint.tp, i % checkpoint.tp}));
  for (const RankFile& copy : listing.copies) ranks.push_back(&copy);
  auto reads = read_each(ranks.size(), [&](std::size_t i) {
    return i == 0 && first ? std::move(*first) : read_rank(files, *ranks[i], checkpoint);
  });
  auto next = reads.begin();
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    auto& of_stage = checkpoint.files.emplace_back();
    for (std::uint32_t i = 0; i < checkpoint.ep * checkpoint.tp; ++i) {
      const RankId rank = ranks[static_cast<std::size_t>(next - reads.begin())]->rank;
      of_stage.push_back((next++)->get());
      refuse_experts(of_stage.back(), rank, checkpoint);
      validate_record(of_stage.back(), rank, checkpoint);
      if (i % checkpoint.tp > 0)
        validate_ranks_agree(of_stage[std::size_t{i} / checkpoint.tp * checkpoint.tp], of_stage.back(), alike);
    }
  }
  FileWarnings warnings;
  for (const auto& stage : checkpoint.files)
    for (const Container& file : stage)
      warnings.add((file.path.parent_path().filename() / file.path.filename()).string(), file.warnings);
  warnings.note(checkpoint.warnings);
  for (const RankFile& copy : listing.copies) {
    checkpoint.copies.push_back({copy.rank, (next++)->get()});
    validate_record(checkpoint.copies.back().file, copy.rank, checkpoint);
    validate_ranks_agree(checkpoint.files[copy.rank.pp_rank][std::size_t{copy.rank.ep_rank} * checkpoint.tp],
                         checkpoint.copies.back().file, alike);
  }
}

/// Whether renamed parameters stay in the modules that specs refer to.
bool keeps_modules(const std::vector<StageMetadata>& stages, const Rename& rename) {
  for (const StageMetadata& stage : stages)
    for (const ModuleSpecs& module : stage.modules) {
      const std::string& name = module.module_fully_qualified_name;
      for (const ParallelParameter& parameter : stage.parameters)
        if (parameter.name.starts_with(name + ".") &&
            rename(parameter.name) != rename(name) + parameter.name.substr(name.size()))
          return false;
    }
  return true;
}

/// Removes wrappers from the names in files and metadata. Files with a record have the names that reshard wrote; shards
/// of adapters keep PEFT's prefix.
void take_out_wrappers(KnownModel model, ShardedCheckpoint& checkpoint) {
  if (checkpoint.record || checkpoint.adapter) return;
  std::vector<Container*> files;
  for (std::vector<Container>& stage : checkpoint.files)
    for (Container& file : stage) files.push_back(&file);
  for (ShardedCheckpoint::Copy& copy : checkpoint.copies) files.push_back(&copy.file);
  std::vector<std::string*> names;
  for (StageMetadata& stage : checkpoint.metadata) {
    for (ParallelParameter& parameter : stage.parameters) names.push_back(&parameter.name);
    for (ModuleSpecs& module : stage.modules) names.push_back(&module.module_fully_qualified_name);
  }
  if (model.rename != nullptr && !keeps_modules(checkpoint.metadata, model.rename)) model.rename = nullptr;
  checkpoint.old_names = reshard::take_out_wrappers(files, model, checkpoint.warnings, names);
}

}  // namespace

fs::path metadata_path(const ShardedCheckpoint& checkpoint, std::uint32_t pp_rank) {
  return pp_rank < checkpoint.described_in.size() ? checkpoint.described_in[pp_rank]
                                                  : checkpoint.folder.path / metadata_file_name(pp_rank);
}

ShardedCheckpoint read_sharded_checkpoint(Files& files, const FoundLayout& folder,
                                          const std::optional<std::string>& adapter, AdapterMetadataReader* metadata,
                                          KnownModel model) {
  const Listing listing = list_folder(files, folder);
  ShardedCheckpoint checkpoint;
  checkpoint.folder = folder;
  checkpoint.adapter = adapter;
  checkpoint.format = listing.ranks.begin()->second.format;
  for (const auto& [place, file] : listing.ranks) {
    checkpoint.pp = std::max(checkpoint.pp, file.rank.pp_rank + 1);
    checkpoint.tp = std::max(checkpoint.tp, file.rank.tp_rank + 1);
    checkpoint.ep = std::max(checkpoint.ep, file.rank.ep_rank + 1);
  }
  for (const auto& [pp_rank, path] : listing.metadata) checkpoint.pp = std::max(checkpoint.pp, pp_rank + 1);
  checkpoint.lacks_weights = lacks_weights(files, folder, listing);
  if (checkpoint.lacks_weights) checkpoint.format = Format::kXser;
  std::optional<Container> first_file = take_recorded_mesh(files, listing, checkpoint);
  AdapterMetadataReader own_metadata(files);
  if (!listing.metadata.empty())
    read_all_metadata(metadata != nullptr ? *metadata : own_metadata, files, listing, checkpoint);
  validate_experts(checkpoint, listing);
  validate_all_ranks_present(folder, listing, checkpoint);
  read_all_files(files, listing, std::move(first_file), checkpoint);
  read_old_metadata(files, checkpoint);
  if (checkpoint.metadata.empty()) read_metadata_of_ranks(files, checkpoint);
  take_out_wrappers(std::move(model), checkpoint);
  checkpoint.other_stages = remove_other_stages(checkpoint);
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank) {
    const Container& of_stage = checkpoint.files[pp_rank].front();
    note_not_saved(checkpoint.metadata[pp_rank], checkpoint, checkpoint.files[pp_rank], checkpoint.not_saved);
    validate_spec_sizes(checkpoint.metadata[pp_rank], checkpoint.described_in[pp_rank], of_stage);
  }
  if (!checkpoint.metadata.empty()) validate_all_stages_present(checkpoint);
  if (files.exists(folder.path / kCheckpointMarker) && !files.exists(folder.path / kDoneMarker))
    checkpoint.warnings
        .mismatch(folder.path.string() +
                  " has no file \"done\": the save that wrote these shards may have been interrupted")
        .in(folder.path);
  return checkpoint;
}

std::uint64_t cut_padding(ShardedCheckpoint& shards, PartitionRule& rule) {
  if (rule.parts.size() != 1 || rule.parts.front().placed.empty() || rule.parts.front().placed.front().dim != 0)
    return 0;
  PartitionRule::PlacedDim& rows = rule.parts.front().placed.front();
  auto cut = std::make_shared<Placement>(*rows.placement);
  std::uint64_t chunks = 0;
  for (std::vector<std::uint32_t>& taken : cut->taken)
    chunks += std::erase_if(taken, [&](std::uint32_t chunk) { return chunk >= cut->units; });
  if (chunks == 0) return 0;
  const auto cut_file = [&](Container& file, std::uint32_t rank) {
    for (TensorEntry& tensor : file.tensors)
      if (tensor.name == rule.stored_name && !tensor.shape.empty()) {
        shards.uncut.emplace(tensor.name, tensor.shape);
        tensor.shape[0] = std::min(tensor.shape[0], cut->of(rank).size() * cut->unit_elems.value_or(1));
      }
  };
  for (std::vector<Container>& stage : shards.files)
    for (std::uint32_t rank = 0; rank < stage.size(); ++rank) cut_file(stage[rank], rank);
  for (ShardedCheckpoint::Copy& copy : shards.copies)
    cut_file(copy.file, copy.rank.ep_rank * shards.tp + copy.rank.tp_rank);
  rows.placement = std::move(cut);
  return chunks * rows.placement->unit_elems.value_or(1);
}

}  // namespace reshard
