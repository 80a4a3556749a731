#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/format.h"
#include "reshard/layouts/shards.h"
#include "reshard/layouts/tensor_map.h"
#include "reshard/specs/family.h"
#include "reshard/specs/mesh.h"
#include "reshard/specs/stage_plan.h"

namespace reshard {

/// What stands on disk, whatever it is: a file of tensors, a Hugging Face directory, or a sharded one. PEFT's directory
/// of an adapter counts as its one file.
struct Checkpoint {
  enum class What { kFile, kHuggingFace, kSharded } what = What::kFile;
  ShardsKind shards_kind = ShardsKind::kRanks;
  Format format = Format::kSafetensors;  // of its first file
  std::filesystem::path path;            // the file, the model's directory, or the shards folder
  std::filesystem::path directory;       // the checkpoint's own, with its config.json, if there is one
  std::filesystem::path config;          // the config.json that was read; empty if there is none
  bool config_given = false;             // it is the one of ConfigChoice
  std::string model_type;                // empty if unknown
  std::optional<Model> model;            // of a known family, or as the plan in config.json says
  TensorMap map;
  Mesh mesh;
  std::vector<std::pair<std::string, std::string>> file_metadata;  // of a single file
  std::string index_metadata;                                      // as of HfIndex, of a Hugging Face directory
  std::vector<std::string> notes;                                  // what the user should know, whole sentences
};

/// A family from a file (read_family), or none.
using FamilySpec = std::shared_ptr<const Family>;

enum class ConfigUse {
  kLenient,  // a config.json that makes no sense is a note
  kStrict,   // it is an error, and so is a sharded checkpoint that is not the model it describes
  kNeeded,   // the same, and so is none at all, or one of an unknown family without a plan
};

/// The config.json that a user says a checkpoint has, where that is not beside the weights.
struct ConfigChoice {
  std::filesystem::path path;  // the file, or the directory that holds it; empty for none
  bool where_missing = false;  // a config.json beside the weights goes before it
};

/// Looks at `path`, reads all headers and metadata and proves them; the logical tensors come in the model's order where
/// the model is known. `spec` is the model's family where somebody describes it; else the built-in one of its
/// model_type, else what the plan in config.json says (ConfigPlan).
/// \param heads Of shards without metadata: how heads are placed, as far as shapes do not tell it (derive_metadata).
/// \param config Where config.json is not beside the weights. What is wrong with it is an error whatever `use` is.
/// \throws Error kBadInput, kUnsupported or kIo.
Checkpoint read_checkpoint(const std::filesystem::path& path, ConfigUse use, const FamilySpec& spec = {},
                           const AttentionOptions& heads = {}, const ConfigChoice& config = {});

/// The same for a path that must be a sharded checkpoint.
Checkpoint read_sharded(const std::filesystem::path& path, ConfigUse use, const FamilySpec& spec = {},
                        const AttentionOptions& heads = {}, const ConfigChoice& config = {});

/// The same for a path that must be a Hugging Face directory.
Checkpoint read_hugging_face(const std::filesystem::path& directory, ConfigUse use, const FamilySpec& spec = {});

}  // namespace reshard
