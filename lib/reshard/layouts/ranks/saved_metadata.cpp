#include "reshard/layouts/ranks/saved_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/layouts/ranks/metadata_validation.h"
#include "reshard/specs/stages/stage_pt.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSampleBytes = 4096;
constexpr std::size_t kMaxCandidates = 16;  // compared parameters per omitted tensor
constexpr const char* kMixedRanks = "the ranks come from different checkpoints";

using Held = std::unordered_map<std::string_view, const TensorEntry*>;

Held held_by(const Container& file) {
  Held held;
  for (const TensorEntry& tensor : file.tensors) held.emplace(tensor.name, &tensor);
  return held;
}

StageMetadata read_for(Files& files, const fs::path& path, std::uint32_t tp, const Container& rank) {
  const Held held = held_by(rank);
  return read_stage_pt(files, path, tp, [&](const std::string& name) -> std::optional<Dims> {
    const auto found = held.find(name);
    if (found == held.end()) return std::nullopt;
    return found->second->shape;
  });
}

bool describes_itself(const Container& file) {
  return std::any_of(file.metadata.begin(), file.metadata.end(),
                     [](const auto& entry) { return entry.first == kShardedMetadataKey; });
}

/// \throws Error kBadInput, naming the first parameter in which `found` differs from `expected`.
void validate_ranks_agree(const StageMetadata& expected, const fs::path& first, const StageMetadata& found,
                          const fs::path& other) {
  if (expected == found) return;
  Error error(ErrorKind::kBadInput, fmt::format("its {} contradicts that of {}", kShardedMetadataKey, first.string()));
  std::unordered_map<std::string_view, const ParallelParameter*> known;
  for (const ParallelParameter& parameter : expected.parameters) known.emplace(parameter.name, &parameter);
  for (const ParallelParameter& parameter : found.parameters) {
    const auto same = known.find(parameter.name);
    if (same != known.end() && *same->second == parameter) continue;
    error.tensor(parameter.name);
    break;
  }
  throw error.in(other).hint(kMixedRanks);
}

/// Drops other stages' parameters. Each stage lists the parameters of all stages (NxDPPModel.named_parameters), but
/// only its own entries are correct.
void drop_other_stages(ShardedCheckpoint& checkpoint) {
  std::vector<Held> held;
  for (const auto& ranks : checkpoint.files) held.push_back(held_by(ranks.front()));
  for (std::size_t stage = 0; stage < held.size(); ++stage)
    std::erase_if(checkpoint.metadata[stage].parameters, [&](const ParallelParameter& parameter) {
      return !held[stage].count(parameter.name) &&
             std::any_of(held.begin(), held.end(), [&](const Held& other) { return other.count(parameter.name) > 0; });
    });
}

/// Validates that files contain all listed parameters, as the writer saves every one.
void validate_listed_are_held(const ShardedCheckpoint& checkpoint) {
  for (std::size_t stage = 0; stage < checkpoint.metadata.size(); ++stage) {
    const Held held = held_by(checkpoint.files[stage].front());
    for (const ParallelParameter& parameter : checkpoint.metadata[stage].parameters)
      if (!held.count(parameter.name))
        throw Error(ErrorKind::kBadInput, fmt::format("{} lists it, but no rank file contains it", kShardedMetadataKey))
            .in(checkpoint.described_in[stage])
            .tensor(parameter.name)
            .hint("the last pipeline ranks are missing, or the file was changed");
  }
}

/// A tensor in the file of one rank.
struct Stored {
  const Container* file;
  const TensorEntry* tensor;
};

/// Returns some bytes from the middle of a tensor; std::nullopt if its elements are not in C order.
std::optional<std::string> sample(Files& files, const Stored& stored) {
  const TensorEntry& tensor = *stored.tensor;
  if (!tensor.strides.empty()) return std::nullopt;
  std::string bytes(std::min(tensor.size_bytes, kSampleBytes), '\0');
  const std::uint64_t skipped = (tensor.size_bytes - bytes.size()) / 2;
  files.open(stored.file->files[tensor.file].path)
      ->read_at(tensor.offset_bytes + skipped, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// The parameters that are split, with their pipeline ranks.
class SplitParameters {
 public:
  explicit SplitParameters(const ShardedCheckpoint& checkpoint) : checkpoint_(checkpoint) {
    for (std::uint32_t stage = 0; stage < checkpoint.metadata.size(); ++stage) {
      const Held held = held_by(checkpoint.files[stage].front());
      for (const ParallelParameter& parameter : checkpoint.metadata[stage].parameters)
        if (const auto found = held.find(parameter.name); found != held.end() && parameter.tensor_model_parallel)
          split_.emplace(found->second->shape, std::pair(stage, found->second));
    }
  }

  /// Returns the parameter that has the shape of `tensor`, of pipeline rank `stage`, and the same bytes on all ranks;
  /// empty if no parameter matches.
  std::string same_as(Files& files, std::uint32_t stage, const TensorEntry& tensor) const {
    const auto [begin, end] = split_.equal_range(tensor.shape);
    std::size_t tried = 0;
    for (auto it = begin; it != end && tried < kMaxCandidates; ++it, ++tried)
      if (is_same(files, {stage, &tensor}, it->second)) return it->second.second->name;
    return {};
  }

 private:
  using InStage = std::pair<std::uint32_t, const TensorEntry*>;

  Stored on_rank(const InStage& tensor, std::uint32_t tp_rank) const {
    const Container& file = checkpoint_.files[tensor.first][tp_rank];
    Held& held = held_[{tensor.first, tp_rank}];
    if (held.empty()) held = held_by(file);
    return {&file, held.at(tensor.second->name)};  // all ranks of a stage contain the same names
  }

  bool is_same(Files& files, const InStage& a, const InStage& b) const {
    if (a.second->dtype != b.second->dtype) return false;
    for (std::uint32_t tp_rank = 0; tp_rank < checkpoint_.tp; ++tp_rank) {
      const auto bytes = sample(files, on_rank(a, tp_rank));
      if (!bytes || bytes != sample(files, on_rank(b, tp_rank))) return false;
    }
    return true;
  }

  const ShardedCheckpoint& checkpoint_;
  std::multimap<Dims, InStage> split_;
  mutable std::map<std::pair<std::uint32_t, std::uint32_t>, Held> held_;  // by pipeline and tensor-parallel rank
};

}  // namespace

void read_metadata_of_ranks(Files& files, ShardedCheckpoint& checkpoint) {
  const auto stage_is_described = [](const auto& ranks) {
    return std::any_of(ranks.begin(), ranks.end(), describes_itself);
  };
  if (std::none_of(checkpoint.files.begin(), checkpoint.files.end(), stage_is_described)) return;
  checkpoint.has_old_metadata = true;
  for (const auto& ranks : checkpoint.files) {
    const fs::path& first = checkpoint.described_in.emplace_back(ranks.front().path);
    for (const Container& rank : ranks) {
      if (!describes_itself(rank))
        throw Error(ErrorKind::kBadInput,
                    fmt::format("contains no {}, which other rank files contain", kShardedMetadataKey))
            .in(rank.path)
            .hint(kMixedRanks);
      StageMetadata metadata = read_for(files, rank.path, checkpoint.tp, rank);
      if (&rank == &ranks.front())
        checkpoint.metadata.push_back(std::move(metadata));
      else
        validate_ranks_agree(checkpoint.metadata.back(), first, metadata, rank.path);
    }
  }
  drop_other_stages(checkpoint);
  validate_listed_are_held(checkpoint);
  for (std::size_t stage = 0; stage < checkpoint.metadata.size(); ++stage)
    validate_metadata(checkpoint.metadata[stage], checkpoint.described_in[stage], checkpoint.tp);
}

void read_old_metadata(Files& files, ShardedCheckpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank) {
    const fs::path& path = checkpoint.described_in[pp_rank];
    if (!is_stage_pt(path)) continue;
    checkpoint.has_old_metadata = true;
    checkpoint.metadata[pp_rank] = read_for(files, path, checkpoint.tp, checkpoint.files[pp_rank].front());
  }
  if (!checkpoint.has_old_metadata) return;
  drop_other_stages(checkpoint);
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank)
    checkpoint.tp = validate_metadata(checkpoint.metadata[pp_rank], checkpoint.described_in[pp_rank], checkpoint.tp);
}

std::vector<TiedParameter> list_omitted_tensors(Files& files, ShardedCheckpoint& checkpoint,
                                                const std::vector<TiedParameter>& tied) {
  std::vector<TiedParameter> second_names;
  if (!checkpoint.has_old_metadata || checkpoint.ep > 1) return second_names;
  std::unordered_set<std::string_view> known;
  for (const StageMetadata& metadata : checkpoint.metadata)
    for (const ParallelParameter& parameter : metadata.parameters) known.insert(parameter.name);
  for (const TiedParameter& parameter : tied) known.insert(parameter.name);
  const SplitParameters split(checkpoint);
  std::vector<std::pair<std::uint32_t, std::string>> replicated;
  for (std::uint32_t stage = 0; stage < checkpoint.metadata.size(); ++stage)
    for (const TensorEntry& tensor : checkpoint.files[stage].front().tensors) {
      if (known.count(tensor.name)) continue;
      std::string source = split.same_as(files, stage, tensor);
      if (source.empty())
        replicated.emplace_back(stage, tensor.name);
      else
        second_names.push_back({tensor.name, std::move(source)});
    }
  for (auto& [stage, name] : replicated) checkpoint.metadata[stage].parameters.push_back({std::move(name)});
  return second_names;
}

void validate_stated_sizes(const SourceMap& map, const ModelConfig& config, const fs::path& folder) {
  constexpr const char* kOuterKeys[] = {"vocab_size", "hidden_size", "d_model", "n_embd"};
  constexpr const char* kInnerKeys[] = {"intermediate_size", "d_ff", "ffn_dim"};
  const auto stated = [&](const char* key) -> std::uint64_t {
    const auto found = config.json->find(key);
    return found != config.json->end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  std::set<std::uint64_t> outer;
  for (const char* key : kOuterKeys) outer.insert(stated(key));
  const auto validate = [&](const char* key, const auto& is_it) {
    if (stated(key) == 0) return;
    const auto has_size = [&](const LogicalTensor& tensor) {
      return std::any_of(tensor.shape.begin(), tensor.shape.end(), is_it);
    };
    if (std::any_of(map.logical.begin(), map.logical.end(), has_size)) return;
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} has \"{}\": {}, but no tensor of these ranks together has a dimension of that size",
                            config.path.string(), key, stated(key)))
        .in(folder)
        .hint("the last ranks are missing: copy all of them here; or config.json belongs to another model");
  };
  for (const char* key : kOuterKeys)  // fused matrices have a multiple of it, and vocabularies may be padded
    validate(key, [size = stated(key)](std::uint64_t dim) {
      return dim != 0 && (dim % size == 0 || (dim > size && dim - size < 1024));
    });
  for (const char* key : kInnerKeys)  // gate and up may be one matrix
    validate(key, [&outer, size = stated(key)](std::uint64_t dim) {
      return dim == size || (dim == 2 * size && outer.count(dim) == 0);
    });
}

}  // namespace reshard
