// What the library does with a Files, on the local file system: for tests that write their inputs to disk.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/json.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/io/local_storage.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/output/companions.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/source/tags.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/specs/stages/stage_pt.h"
#include "support/notes.h"

namespace reshard {

inline Checkpoint read_checkpoint(const std::filesystem::path& path, const ReadContext& context) {
  return read_checkpoint(local_storage(), path, context);
}
inline FoundCheckpoint find_checkpoint(const std::filesystem::path& path, const std::optional<std::string>& tag,
                                       SourceKind content = SourceKind::kAny) {
  return find_checkpoint(local_storage(), path, tag, content);
}
inline std::shared_ptr<const Family> read_family(const std::filesystem::path& path) {
  return read_family(local_storage(), path);
}
inline std::unique_ptr<Job> plan_shard(const Request& request) {
  return test::with_checked_notes(plan_shard(local_storage(), request));
}
inline std::unique_ptr<Job> plan_consolidate(const Request& request) {
  return test::with_checked_notes(plan_consolidate(local_storage(), request));
}
inline std::unique_ptr<Job> plan_convert(const Request& request) {
  return test::with_checked_notes(plan_convert(local_storage(), request));
}
inline Container read_safetensors(const std::filesystem::path& path) {
  return read_safetensors(*local_storage().open(path), path);
}
inline TorchFile read_torch_file(const std::filesystem::path& path) {
  return read_torch_file(*local_storage().open(path), path);
}
inline Container read_torch(const std::filesystem::path& path) {
  return read_torch(*local_storage().open(path), path);
}
inline Container read_xser(const std::filesystem::path& path) {
  return read_xser(local_storage(), path);
}
inline bool is_xser(const std::filesystem::path& path) {
  return is_xser(local_storage(), path);
}
inline Container read_container(const std::filesystem::path& path, Format format) {
  return read_container(local_storage(), path, format);
}
inline Format format_of_file(const std::filesystem::path& path) {
  return format_of_file(local_storage(), path);
}
inline HfIndex read_hf_index(const std::filesystem::path& path) {
  return read_hf_index(local_storage(), path);
}
inline ModelConfig read_model_config(const std::filesystem::path& directory) {
  return read_model_config(local_storage(), directory);
}
inline StageMetadata read_metadata(const std::filesystem::path& path) {
  return read_metadata(local_storage(), path);
}
inline StageMetadata read_stage_pt(const std::filesystem::path& path, std::uint32_t tp,
                                   const std::function<std::optional<Dims>(const std::string& name)>& stored_shape) {
  return read_stage_pt(local_storage(), path, tp, stored_shape);
}
inline AdapterConfig read_adapter_config(const std::filesystem::path& path) {
  return read_adapter_config(local_storage(), path);
}
inline std::optional<FoundLayout> find_shards(const std::filesystem::path& path) {
  return find_shards(local_storage(), path);
}
inline std::optional<FoundLayout> find_whole(const std::filesystem::path& path) {
  return find_whole(local_storage(), path);
}
inline Checkpoint read_whole(const std::filesystem::path& directory, const ReadContext& context) {
  return read_checkpoint(local_storage(), found_at(local_storage(), directory, SourceKind::kWhole), context);
}
inline ShardedCheckpoint read_sharded_checkpoint(const FoundLayout& folder,
                                                 const std::optional<std::string>& adapter = {}) {
  return read_sharded_checkpoint(local_storage(), folder, adapter);
}
inline std::vector<Tag> list_tags(const std::filesystem::path& directory) {
  return list_tags(local_storage(), directory);
}
inline bool is_checkpoint(const std::filesystem::path& directory, SourceKind content = SourceKind::kAny) {
  return found_at(local_storage(), directory, content).is_checkpoint();
}
inline Companions companion_files(const std::filesystem::path& directory) {
  return companion_files(local_storage(), directory, CompanionFiles::kAll);
}

}  // namespace reshard
