#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/plan/job/name_rules.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Which checkpoints a request takes.
enum class SourceKind : std::uint8_t {
  kAny,
  kShards,  // only shards of a model or of adapters, or a file with a whole model
  kWhole,   // only whole tensors, with the config.json of a model, or shards that are read as such
};

/// A checkpoint to be read.
struct SourceRequest {
  std::filesystem::path path;      // what read_checkpoint takes, or a directory of tags
  std::optional<std::string> tag;  // as of find_checkpoint
  std::filesystem::path config;    // as of ConfigChoice
  FamilySpec family;               // of a model that somebody describes; else its model_type says it
  OptionValues options;            // that say how it was made, as of ReadContext
  bool with_optimizer = false;     // as of ReadContext; the target must have a place for it
  ExtraTensors extra = ExtraTensors::kRefuse;
  SourceKind kind = SourceKind::kAny;
};

/// One checkpoint into another, whatever their containers and layouts. What a request leaves open, a preset decides:
/// plan_shard, plan_consolidate, plan_convert.
struct Request {
  std::string command;  // "shard"
  SourceRequest source;
  /// Default: the folder beside which the layout has its shards.
  std::optional<std::filesystem::path> output_directory;
  /// Ranks default to the source's. Where `layout` is null: the source's, if ranks are asked for, else whole_layout().
  TargetRequest target;
  std::optional<DType> dtype;  // cast tensors of floating dtypes to it
  bool cast_all = false;       // integers and booleans too
  NameRules names;
  bool allow_missing = false;  // whole tensors may lack some that config.json asks for, which a note lists
  /// LoRA adapters, as PEFT saves them; where there are any, they alone are sharded, and the model's directory (or its
  /// config.json) only says for which model.
  std::vector<std::filesystem::path> adapters;
  bool check_replicas = true;
  bool force = false;
};

}  // namespace reshard
