// Reads the shards of a LoRA adapter as a checkpoint.
#include "reshard/layouts/peft/sharded_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/contents/stored_rows.h"
#include "reshard/layouts/ranks/adapter_ranks.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether an adapter still has the form that LoraFuse::kExact gave it: a lora_A with the rows in the metadata of
/// `stacked`, and a block-diagonal lora_B, whose other elements are zero until the adapter is trained. Reads the lora_B
/// of fused linears, in parts.
/// \throws Error kIo.
bool holds_stacked(Files& files, const ShardedCheckpoint& stacked) {
  SourceMap map;
  try {
    map = sharded_source_map(stacked, {});
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    return false;
  }
  OpenedFiles opened(files, map.files);
  const auto is_zero = [&](const Piece& piece) {
    const StoredTensor& stored = map.stored[piece.stored];
    if (!has_plain_rows(stored) || !is_constant(opened, map, {piece.stored, piece.stored_begin}, piece.box.size))
      return false;
    std::vector<std::byte> element(bits(stored.dtype) / 8);
    opened.at(stored.file)
        .read_at(stored.offset_bytes + stored.view().offset(piece.stored_begin) * element.size(), element);
    return element == std::vector<std::byte>(element.size());
  };
  for (std::size_t l = 0; l < map.logical.size(); ++l)
    if (map.logical[l].constant() && !std::all_of(map.pieces[l].begin(), map.pieces[l].end(), is_zero)) return false;
  return true;
}

/// Returns the adapter's name in the metadata: that of its folder, or the only one.
std::string name_in_metadata(Files& files, const AdapterFolder& adapter, AdapterMetadataReader& metadata) {
  std::set<std::string> names;
  for (const DirectoryEntry& entry : files.list(adapter.shards.path)) {
    if (!metadata_pp_rank(entry.name)) continue;
    const fs::path path = adapter.shards.path / entry.name;
    if (path.extension() != ".json")
      throw Error(ErrorKind::kUnsupported,
                  "is metadata of an older version, which does not record how adapters are fused")
          .in(path);
    const std::set<std::string>& listed = metadata.read(path).names();
    names.insert(listed.begin(), listed.end());
  }
  if (names.count(adapter.name)) return adapter.name;
  if (names.size() == 1) return *names.begin();
  if (names.empty())
    throw Error(
        ErrorKind::kBadInput,
        "has no metadata for adapters (mp_metadata_pp_rank_Y.json), so the partition of its parameters is unknown")
        .in(adapter.shards.path);
  throw Error(ErrorKind::kBadInput,
              fmt::format("the folder belongs to the adapter \"{}\", but the metadata lists {}",
                          printable(adapter.name), list_names(std::vector(names.begin(), names.end()))))
      .in(adapter.shards.path)
      .hint("rename the folder to adapter_NAME, as it was saved");
}

/// Returns how the linears of an adapter were fused when its `current` adapter_config.json was created from `unfused`;
/// std::nullopt if it was not.
std::optional<LoraFuse> fuse_between(const AdapterConfig& unfused, const AdapterConfig& current,
                                     const std::vector<FusedLayer>& layers) {
  const Json there = parse_json(current.text, current.path, JsonDialect::kPython);
  for (const LoraFuse fuse : {LoraFuse::kExact, LoraFuse::kMean}) {
    try {
      const Json fused = parse_json(fused_config_text(unfused, layers, fuse), current.path, JsonDialect::kPython);
      if (fused == there || json_text(fused) == json_text(there)) return fuse;  // NaNs are equal only as text
    } catch (const Error&) {  // these ranks cannot be fused in this way
    }
  }
  return std::nullopt;
}

/// Returns the path of the adapter_config.json for the separate linears. If fusing added entries to it, this is the
/// original file, and `shards` records stacked lora_A. If training has changed stacked weights, it is the current file.
fs::path config_of(Files& files, const AdapterFolder& adapter, ShardedCheckpoint& shards,
                   const std::vector<FusedLayer>& fused, Notes& notes) {
  fs::path config = adapter.shards.directory / kAdapterConfigFile;
  fs::path before = adapter.shards.directory / kUnfusedConfigFile;
  if (!files.exists(config) || !files.exists(before)) return config;
  const AdapterConfig unfused = read_adapter_config(files, before), current = read_adapter_config(files, config);
  if (current.text == unfused.text) return config;  // fused again, without entries
  const auto fuse = fuse_between(unfused, current, fused);
  if (!fuse) {
    notes.mismatch(before.string() + " does not match the adapter_config.json next to it; ignored").in(before);
    return config;
  }
  if (*fuse == LoraFuse::kMean) return before;
  ShardedCheckpoint stacked = shards;
  for (StageMetadata& metadata : stacked.metadata) stack_ranks(metadata, unfused);
  if (!holds_stacked(files, stacked)) {
    notes.changed(
        fmt::format("adapter {} was trained after `lora-fuse` exact: its lora_B is no longer block-diagonal, so "
                    "separate linears keep the rank of the fused ones",
                    printable(adapter.name.empty() ? kDefaultAdapter : adapter.name)));
    return config;
  }
  shards = std::move(stacked);
  return before;
}

}  // namespace

Checkpoint read_sharded_adapter(Files& files, const AdapterFolder& folder, const ReadContext& context,
                                AdapterMetadataReader& metadata) {
  Checkpoint checkpoint;
  checkpoint.layout = folder.shards.layout;
  checkpoint.path = folder.shards.path;
  checkpoint.directory = folder.shards.directory;
  // The base model's config.json does not describe the shards, but is needed to convert them to other ranks.
  if (!context.config.path.empty() && !context.config.where_missing) find_config(files, checkpoint, context.config);
  if (checkpoint.config.is_given && context.use == ConfigUse::kLenient)
    checkpoint.notes
        .no_effect(checkpoint.config.path.string() + " is ignored: the metadata of an adapter defines its partition")
        .in(checkpoint.config.path);
  const std::string name = name_in_metadata(files, folder, metadata);
  ShardedCheckpoint shards = read_sharded_checkpoint(files, folder.shards, name, &metadata);
  const std::vector<FusedLayer> fused = adapted_layers(shards);
  Adapter adapter{folder.name.empty() ? name : folder.name, {}, checkpoint.path, {}, {}, {}, {}, {}};
  adapter.config.path = config_of(files, folder, shards, fused, checkpoint.notes);
  checkpoint.notes.add(shards.warnings);
  const bool trained_fused = adapter.config.path.filename() == kAdapterConfigFile;
  add_adapter(checkpoint, shards, std::move(adapter), trained_fused ? fused : std::vector<FusedLayer>());
  validate_ranks_differ(files, shards, context.use, checkpoint);
  return checkpoint;
}

void describe_peft_adapter(Checkpoint& checkpoint, const std::string& name, const fs::path& directory) {
  Adapter& adapter = checkpoint.adapters.emplace_back(Adapter{name, {}, checkpoint.path, {}, {}, {}, {}, {}});
  adapter.config.path = directory / kAdapterConfigFile;
  adapter.modules = adapted_modules(checkpoint.map, {});
}

Checkpoint join_adapters(const fs::path& path, std::vector<Checkpoint> checkpoints) {
  Checkpoint joint;
  joint.layout = checkpoints.front().layout;
  joint.format = checkpoints.front().format;
  joint.mesh = checkpoints.front().mesh;
  joint.config.path = checkpoints.front().config.path;
  joint.config.is_given = checkpoints.front().config.is_given;
  joint.path = joint.directory = path;
  std::set<std::string> names;
  for (const Checkpoint& checkpoint : checkpoints) names.insert(checkpoint.adapters.front().name);
  for (Checkpoint& checkpoint : checkpoints) {
    Adapter& adapter = joint.adapters.emplace_back(std::move(checkpoint.adapters.front()));
    if (adapter.name != kDefaultAdapter) adapter.prefix = adapter.name + "/";
    for (const LogicalTensor& tensor : checkpoint.map.logical)
      if (adapter.prefix.empty() && names.count(tensor.name.substr(0, tensor.name.find('/'))) > 0)
        throw Error(ErrorKind::kBadInput, "has a name that begins like the tensors of another adapter")
            .in(adapter.path)
            .tensor(tensor.name);
    joint.map.append(std::move(checkpoint.map), adapter.prefix);
    joint.notes.add(checkpoint.notes);
  }
  return joint;
}

}  // namespace reshard
