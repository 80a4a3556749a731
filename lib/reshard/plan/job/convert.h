#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "reshard/plan/job/job.h"
#include "reshard/plan/job/name_rules.h"

namespace reshard {

/// One checkpoint into another, whatever their containers and layouts.
struct ConvertRequest {
  SourceRequest source;
  std::filesystem::path output_directory;
  /// Ranks default to the source's. Where `layout` is null: the source's, if ranks are asked for, else whole_layout().
  TargetRequest target;
  std::optional<DType> dtype;  // cast tensors of floating dtypes to it
  bool cast_all = false;       // integers and booleans too
  NameRules names;
  /// What becomes of the lora_A of fused linears where an adapter is sharded for the model of a config.json; the
  /// default is the mean.
  std::optional<LoraFuse> lora_fuse;
  bool allow_missing = false;  // whole tensors may lack some that config.json asks for, which a note lists
  bool check_replicas = true;
  bool force = false;
};

/// \throws as plan_shard.
std::unique_ptr<Job> plan_convert(Files& files, const ConvertRequest& request);

}  // namespace reshard
