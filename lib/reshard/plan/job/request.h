#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/found.h"
#include "reshard/plan/job/name_rules.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Which files next to a checkpoint's weights are copied.
enum class CompanionFiles : std::uint8_t {
  kModel,  // those that belong to the model; a note names the others
  kAll,
  kNone,  // only config.json, and a trainer's files next to an optimizer
};

/// A checkpoint to be read.
struct SourceRequest {
  std::filesystem::path path;      // a checkpoint for read_checkpoint, or a directory of tags
  std::optional<std::string> tag;  // for find_checkpoint
  std::filesystem::path config;    // ConfigChoice::path
  FamilySpec family;               // null: determined by the model_type
  OptionValues options;            // ReadContext::options
  bool with_optimizer = false;     // read the training state; the target must support it
  ExtraTensors extra = ExtraTensors::kRefuse;
  SourceKind kind = SourceKind::kAny;
};

/// Role of adapters that are written next to their base model (Layout::joined_roles).
inline constexpr const char* kJoinedAdapter = "adapter";

/// A further model whose tensors are written to the same files, such as the draft of a speculation.
struct JoinedModel {
  std::string role;  // one of Layout::joined_roles
  SourceRequest source;
  std::vector<std::filesystem::path> adapters{};  // LoRA adapters for `source` to be read instead of it
  std::optional<OptionValues> options{};          // of the layout; default: those of the target
  std::optional<DType> dtype{};                   // default: that of the request
};

/// Converts one checkpoint to another, whatever their containers and layouts. Unset fields get the defaults of a
/// preset: plan_shard, plan_consolidate, plan_convert.
struct Request {
  std::string command;  // "shard"
  SourceRequest source;
  /// Default: Layout::default_output.
  std::optional<std::filesystem::path> output_directory;
  /// Ranks default to the source's. If `layout` is null: the source's, if ranks are requested, else whole_layout().
  TargetRequest target;
  std::optional<DType> dtype;  // dtype to cast floating-point tensors to
  bool cast_all = false;       // casts integers and booleans, too
  NameRules names;
  bool allow_missing = false;  // whole tensors may lack some that config.json requires; a note lists them
  /// LoRA adapters saved by PEFT. If there are any, only these are sharded, and the model's directory (or its
  /// config.json) only describes their base model.
  std::vector<std::filesystem::path> adapters;
  std::vector<JoinedModel> joined;  // the layout must have their roles
  bool check_replicas = true;
  CompanionFiles companions = CompanionFiles::kModel;
  bool force = false;
};

}  // namespace reshard
