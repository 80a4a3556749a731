// Reading a sharded checkpoint from disk: which ranks are there, whether they agree, whether the metadata is about
// them.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/xser.h"
#include "reshard/layouts/sharded_layout.h"
#include "reshard/specs/adapter_metadata.h"
#include "reshard/specs/metadata.h"
#include "reshard/specs/torch_metadata.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// What stands in a shards folder, by name alone.
struct Listing {
  std::map<std::pair<std::uint32_t, std::uint32_t>, RankFile> ranks;  // (pp_rank, tp_rank) → the first copy of it
  std::vector<RankFile> copies;                                       // other data-parallel ranks
  std::map<std::uint32_t, fs::path> metadata;                         // pp_rank → file
};

/// Of a file, or of a tensor in it.
Error expert_parallel(const fs::path& path, const char* what) {
  return Error(ErrorKind::kUnsupported, std::string(what) + ", which this version does not consolidate")
      .in(path)
      .hint("save the checkpoint without expert parallelism (one expert-parallel rank)");
}

Listing list_folder(const ShardsFolder& folder) {
  Listing listing;
  for (const RankFile& file : list_rank_files(folder)) {  // lower data-parallel ranks come later only within a tp, pp
    if (file.rank.ep_rank != 0) throw expert_parallel(file.path, "is of an expert-parallel rank");
    const auto [found, is_new] = listing.ranks.emplace(std::pair(file.rank.pp_rank, file.rank.tp_rank), file);
    if (!is_new) listing.copies.push_back(file);
  }
  for (const auto& entry : fs::directory_iterator(folder.path))
    if (const auto pp_rank = metadata_pp_rank(entry.path().filename().string()))
      if (!listing.metadata.emplace(*pp_rank, entry.path()).second)
        throw Error(ErrorKind::kBadInput, fmt::format("there are two metadata files of pipeline rank {}", *pp_rank))
            .in(entry.path())
            .hint("these are of two checkpoints; move one away");
  return listing;
}

/// The T that the metadata of a stage was written for, or nothing if nothing in it is split. All its entries must
/// agree.
std::optional<std::uint32_t> tp_of_metadata(const StageMetadata& metadata, const fs::path& path) {
  std::optional<std::uint32_t> tp;
  const auto see = [&](std::uint32_t value, const std::string& what) {
    if (tp && *tp != value)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("contradicts itself: {} is for {} ranks, others are for {}", printable(what), value, *tp))
          .in(path);
    tp = value;
  };
  for (const ParallelParameter& parameter : metadata.parameters)
    if (parameter.tensor_model_parallel) see(parameter.num_partitions, parameter.name);
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      see(std::visit([](const auto& s) { return s.tp_size; }, spec), module.module_fully_qualified_name);
  return tp;
}

[[noreturn]] void fail_missing(const fs::path& folder, const std::vector<std::string>& missing, std::uint32_t tp,
                               std::uint32_t pp) {
  throw Error(ErrorKind::kBadInput,
              fmt::format("{} of the {} ranks (tp {} × pp {}) {} missing: {}", missing.size(), std::uint64_t{tp} * pp,
                          tp, pp, missing.size() == 1 ? "is" : "are", list_names(missing)))
      .in(folder)
      .hint("copy the missing ranks here; a model cannot be put together without them");
}

void prove_all_ranks_present(const ShardsFolder& folder, const Listing& listing, std::uint32_t tp, std::uint32_t pp) {
  std::vector<std::string> missing;
  for (std::uint32_t p = 0; p < pp; ++p)
    for (std::uint32_t t = 0; t < tp; ++t)
      if (!listing.ranks.count({p, t})) missing.push_back(rank_name(folder.kind, {t, p}));
  if (!missing.empty()) fail_missing(folder.path, missing, tp, pp);
}

/// The ranks of one stage hold the same parameters in the same shapes.
void prove_ranks_agree(const Container& first, const Container& other) {
  std::unordered_map<std::string, const TensorEntry*> expected;
  for (const TensorEntry& tensor : first.tensors) expected.emplace(tensor.name, &tensor);
  for (const TensorEntry& tensor : other.tensors) {
    const auto found = expected.find(tensor.name);
    if (found == expected.end())
      throw Error(ErrorKind::kBadInput, "this rank holds it, but " + first.path.string() + " does not")
          .in(other.path)
          .tensor(tensor.name)
          .hint("the ranks come from different checkpoints");
    const TensorEntry& reference = *found->second;
    if (reference.dtype != tensor.dtype || reference.shape != tensor.shape)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is {} {} on this rank, but {} {} in {}", name(tensor.dtype), to_string(tensor.shape),
                              name(reference.dtype), to_string(reference.shape), first.path.string()))
          .in(other.path)
          .tensor(tensor.name)
          .hint("the ranks come from different checkpoints");
    expected.erase(found);
  }
  if (!expected.empty()) {
    // The first in the order of the file, so that the message is the same every time.
    const auto lost = std::find_if(first.tensors.begin(), first.tensors.end(),
                                   [&](const TensorEntry& tensor) { return expected.count(tensor.name) > 0; });
    throw Error(ErrorKind::kBadInput, first.path.string() + " holds it, but this rank does not")
        .in(other.path)
        .tensor(lost->name)
        .hint("the ranks come from different checkpoints");
  }
}

/// Parameters that the metadata lists and that were not saved: frozen ones.
void note_not_saved(const StageMetadata& metadata, const Container& file, std::vector<std::string>& not_saved) {
  std::unordered_set<std::string> held;
  for (const TensorEntry& tensor : file.tensors) held.insert(tensor.name);
  for (const ParallelParameter& parameter : metadata.parameters)
    if (!held.count(parameter.name)) not_saved.push_back(parameter.name);
}

/// The sizes that an attention spec states are those of the files.
void prove_spec_sizes(const StageMetadata& metadata, const fs::path& path, const Container& file) {
  std::unordered_map<std::string, const TensorEntry*> held;
  for (const TensorEntry& tensor : file.tensors) held.emplace(tensor.name, &tensor);
  const auto check = [&](const std::string& stored_name, std::uint64_t rows) {
    const auto found = held.find(stored_name);
    if (found == held.end() || found->second->shape.empty() || found->second->shape[0] == rows) return;
    throw Error(ErrorKind::kBadInput, fmt::format("has {} rows in {}, but the metadata's spec says {}",
                                                  found->second->shape[0], file.path.string(), rows))
        .in(path)
        .tensor(stored_name);
  };
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      if (const auto* gqa = std::get_if<GQAQKVColumnParallelLinearSpec>(&spec)) {
        const std::uint64_t q = gqa->q_output_size_per_partition;
        const std::uint64_t kv = gqa->kv_output_size_per_partition;
        for (const char* suffix : {".weight", ".bias", ".lora_B.weight"}) {
          const std::string joined = module.module_fully_qualified_name + "." + gqa->gqa_qkv_projection_name + suffix;
          check(joined + "_q", q);
          check(joined + "_k", kv);
          check(joined + "_v", kv);
          check(joined + "_qkv", q + 2 * kv);
        }
      }
}

/// The parameters that the specs speak of are listed, and split as the specs say.
void prove_specs_fit(const StageMetadata& metadata, const fs::path& path) {
  std::unordered_set<std::string> listed;
  for (const ParallelParameter& parameter : metadata.parameters) listed.insert(parameter.name);
  const auto require = [&](const std::string& module, const char* leaf, const char* alternative) {
    const std::string name = module + leaf;
    const auto is_listed = [&](const char* ending) {  // as the model has it, or wrapped for adapters
      return listed.count(module + ending) || listed.count(module + ".base_layer" + ending);
    };
    if (!is_listed(leaf) && !is_listed(alternative))
      throw Error(ErrorKind::kBadInput, "a transformation spec speaks of it, but it is not among the parameters")
          .in(path)
          .tensor(name);
  };
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs) {
      const std::string prefix = module.module_fully_qualified_name + ".";
      if (const auto* fused = std::get_if<FusedLinearsSpec>(&spec)) {
        require(prefix + fused->fused_linear_name, ".weight", ".weight");
      } else {
        const auto& gqa = std::get<GQAQKVColumnParallelLinearSpec>(spec);
        require(prefix + gqa.gqa_qkv_projection_name, ".weight_q", ".weight_qkv");
        require(prefix + gqa.output_projection_name, ".weight", ".weight");
      }
    }
}

/// A parameter that a spec explains is split as the spec says.
void prove_entries_fit(const StageMetadata& metadata, const fs::path& path) {
  for (const CutRule& rule : cut_rules(metadata)) {
    if (rule.role == CutRule::Role::kPlain || rule.role == CutRule::Role::kQkv) continue;
    if (rule.role == CutRule::Role::kShared || rule.role == CutRule::Role::kStacked) {
      if (rule.parameter->tensor_model_parallel)
        throw Error(ErrorKind::kBadInput, "is shared by the layers that are joined, but its entry says it is split")
            .in(path)
            .tensor(rule.parameter->name);
      continue;
    }
    const std::uint32_t dim = rule.role == CutRule::Role::kOutput ? 1
                              : rule.fused != nullptr             ? rule.fused->fuse_axis
                                                                  : 0;
    const std::size_t stride = rule.fused != nullptr ? rule.fused->linear_names.size() : 1;
    const ParallelParameter& parameter = *rule.parameter;
    if (!parameter.tensor_model_parallel || parameter.partition_dim != dim || parameter.partition_stride != stride)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("its entry contradicts its transformation spec, which splits dim {} with a stride of {}",
                              dim, stride))
          .in(path)
          .tensor(parameter.name);
  }
}

/// A module that some rank's metadata knows of, but no rank has parameters of, lay on a stage that is gone.
void prove_all_stages_present(const ShardedCheckpoint& checkpoint) {
  std::set<std::string> held;  // every prefix of a parameter's name that ends before a dot
  for (const StageMetadata& metadata : checkpoint.metadata)
    for (const ParallelParameter& parameter : metadata.parameters)
      for (std::size_t dot = parameter.name.find('.'); dot != std::string::npos;
           dot = parameter.name.find('.', dot + 1))
        held.insert(parameter.name.substr(0, dot));
  std::vector<std::string> lost;
  std::set<std::string> seen;
  for (const StageMetadata& metadata : checkpoint.metadata)
    for (const ModuleSpecs& module : metadata.modules)
      if (!held.count(module.module_fully_qualified_name) && seen.insert(module.module_fully_qualified_name).second)
        lost.push_back(module.module_fully_qualified_name);
  if (!lost.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("no rank holds parameters of {}, which the metadata knows of: the ranks of "
                            "a pipeline stage are missing (there are {})",
                            list_names(lost), checkpoint.pp))
        .in(checkpoint.folder.path)
        .hint("copy the missing pipeline ranks here");
}

void refuse_adapters(const StageMetadata& metadata, const fs::path& path) {
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      if (!std::visit([](const auto& s) { return s.peft_type; }, spec).empty())
        throw Error(ErrorKind::kUnsupported, "describes shards of adapters, which only consolidate reads")
            .in(path)
            .hint("reshard consolidate puts them together; then look at adapter_model.safetensors");
}

/// Proves that the metadata of one stage agrees with itself and with the number of ranks that the folder holds.
void prove_metadata(const StageMetadata& metadata, const fs::path& path, ShardedCheckpoint& checkpoint) {
  prove_specs_fit(metadata, path);
  prove_entries_fit(metadata, path);
  const auto tp = tp_of_metadata(metadata, path);
  if (tp && *tp < checkpoint.tp)
    throw Error(ErrorKind::kBadInput,
                fmt::format("is for {} tensor-parallel ranks, but the folder holds {}", *tp, checkpoint.tp))
        .in(path)
        .hint("ranks of two checkpoints are mixed in one folder");
  checkpoint.tp = std::max(checkpoint.tp, tp.value_or(1));
}

bool is_old(const fs::path& metadata) {
  return metadata.extension() == ".pt";
}

/// The metadata of every stage; older files leave much to the weights, and are read after those.
void read_all_metadata(const Listing& listing, ShardedCheckpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    const auto found = listing.metadata.find(pp_rank);
    if (found == listing.metadata.end())
      throw Error(ErrorKind::kBadInput,
                  fmt::format("{} is missing: nothing says how the parameters of pipeline rank {} are laid out",
                              metadata_file_name(pp_rank), pp_rank))
          .in(checkpoint.folder.path);
    checkpoint.metadata.emplace_back();
    if (is_old(found->second)) continue;
    checkpoint.metadata.back() = read_metadata(found->second);
    if (checkpoint.adapter)
      checkpoint.metadata.back() = adapter_metadata(checkpoint.metadata.back(), *checkpoint.adapter);
    else
      refuse_adapters(checkpoint.metadata.back(), found->second);
    prove_metadata(checkpoint.metadata.back(), found->second, checkpoint);
  }
}

void read_old_metadata(const Listing& listing, ShardedCheckpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank) {
    const fs::path& path = listing.metadata.at(pp_rank);
    if (!is_old(path)) continue;
    checkpoint.has_old_metadata = true;
    std::unordered_map<std::string, const TensorEntry*> held;
    for (const TensorEntry& tensor : checkpoint.files[pp_rank].front().tensors) held.emplace(tensor.name, &tensor);
    const auto shape = [&](const std::string& tensor_name) -> std::optional<Dims> {
      const auto found = held.find(tensor_name);
      if (found == held.end()) return std::nullopt;
      return found->second->shape;
    };
    checkpoint.metadata[pp_rank] = read_torch_metadata(path, checkpoint.tp, shape);
    prove_metadata(checkpoint.metadata[pp_rank], path, checkpoint);
  }
}

void note_warnings(const Container& file, std::vector<std::string>& warnings) {
  for (const std::string& warning : file.warnings)
    warnings.push_back(file.path.parent_path().filename().string() + "/" + file.path.filename().string() + ": " +
                       warning);
}

/// xser says which tensors are split over expert-parallel ranks, even where the names of the files do not.
void refuse_experts(const Container& file) {
  for (const auto& [key, tensor] : file.metadata)
    if (key == kXserExpertParallel)
      throw expert_parallel(file.path, "is split over expert-parallel ranks").tensor(tensor);
}

void read_all_files(const Listing& listing, ShardedCheckpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    auto& files = checkpoint.files.emplace_back();
    for (std::uint32_t tp_rank = 0; tp_rank < checkpoint.tp; ++tp_rank) {
      const RankFile& rank = listing.ranks.at({pp_rank, tp_rank});
      files.push_back(read_container(rank.path, rank.format));
      refuse_experts(files.back());
      if (tp_rank > 0) prove_ranks_agree(files.front(), files.back());
      note_warnings(files.back(), checkpoint.warnings);
    }
  }
  for (const RankFile& copy : listing.copies) {
    checkpoint.copies.push_back({copy.rank, read_container(copy.path, copy.format)});
    prove_ranks_agree(checkpoint.files[copy.rank.pp_rank].front(), checkpoint.copies.back().file);
  }
}

}  // namespace

ShardedCheckpoint read_sharded_checkpoint(const ShardsFolder& folder, const std::optional<std::string>& adapter) {
  const Listing listing = list_folder(folder);
  ShardedCheckpoint checkpoint;
  checkpoint.folder = folder;
  checkpoint.adapter = adapter;
  checkpoint.format = listing.ranks.begin()->second.format;
  for (const auto& [rank, path] : listing.ranks) {
    checkpoint.pp = std::max(checkpoint.pp, rank.first + 1);
    checkpoint.tp = std::max(checkpoint.tp, rank.second + 1);
  }
  for (const auto& [pp_rank, path] : listing.metadata) checkpoint.pp = std::max(checkpoint.pp, pp_rank + 1);
  if (!listing.metadata.empty()) read_all_metadata(listing, checkpoint);
  prove_all_ranks_present(folder, listing, checkpoint.tp, checkpoint.pp);
  read_all_files(listing, checkpoint);
  read_old_metadata(listing, checkpoint);
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank) {
    const Container& first = checkpoint.files[pp_rank].front();
    note_not_saved(checkpoint.metadata[pp_rank], first, checkpoint.not_saved);
    prove_spec_sizes(checkpoint.metadata[pp_rank], listing.metadata.at(pp_rank), first);
  }
  if (!checkpoint.metadata.empty()) prove_all_stages_present(checkpoint);
  if (path_exists(folder.path / kCheckpointMarker) && !path_exists(folder.path / kDoneMarker))
    checkpoint.warnings.push_back(folder.path.string() +
                                  " has no file \"done\": the save that made these shards may have been cut off");
  return checkpoint;
}

}  // namespace reshard
