#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "reshard/plan/job.h"
#include "reshard/plan/name_rules.h"

namespace reshard {

/// One checkpoint into another, whatever their containers and layouts.
struct ConvertRequest {
  std::filesystem::path source;
  std::optional<std::string> tag;      // of SRC, as of find_checkpoint
  std::filesystem::path config;        // of SRC, as of ConfigChoice
  std::shared_ptr<const Family> spec;  // as of ShardRequest
  AttentionOptions heads;              // of the source, as of read_checkpoint
  std::filesystem::path output_directory;
  std::optional<ShardsKind> to;  // shards of this kind; else a Hugging Face directory
  std::optional<Format> format;  // default: safetensors, or pytorch where the layout has no safetensors
  ShardingRequest sharding;      // its `form` does not count; tp and pp default to the source's
  std::optional<std::uint32_t> tp;
  std::uint64_t max_shard_bytes = kMaxShardBytes;
  std::optional<DType> dtype;  // cast tensors of floating dtypes to it
  bool cast_all = false;       // integers and booleans too
  NameRules names;
  bool check_replicas = true;
  bool force = false;
};

/// \throws as plan_shard.
std::unique_ptr<Job> plan_convert(const ConvertRequest& request);

}  // namespace reshard
