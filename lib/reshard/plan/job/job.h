#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/sha256.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/plan/job/program.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// A file taken over as it is: config.json, tokenizers, …
struct CopiedFile {
  std::filesystem::path source;
  std::filesystem::path path;  // relative to the output directory
  std::uint64_t size_bytes = 0;
};

/// Everything that a run will do, validated, before it does any of it. Made by plan_shard and its like; run by execute;
/// printed by a dry run. A value: `program` holds indices into `source` and `target`.
struct Job {
  std::string command;  // "shard", "consolidate"
  std::filesystem::path source_directory;
  std::filesystem::path model_directory;  // of the source: where config.json is, if there is one
  std::filesystem::path output_directory;
  bool force = false;
  std::string family;  // model_type; empty if unknown
  Mesh mesh;
  PartitionOptions source_partition;  // see Checkpoint::partition
  std::optional<PipelinePartition> partition;
  std::vector<std::string> cut_names;  // "model.layers.3"
  std::optional<AttentionReport> attention;

  SourceMap source;
  TargetMap target;
  Program program;
  std::vector<TextFile> text_files;
  std::vector<CopiedFile> copied_files;
  /// Folders of the output that are replaced as a whole; none inside another.
  std::vector<std::filesystem::path> whole_folders;
  /// Other runs may write other files of the same checkpoint into the output directory, also at the same time.
  bool shares_directory = false;
  bool manifest = false;  // SHA256SUMS and reshard.manifest.json are written, too
  std::map<std::filesystem::path, Sha256Digest> source_digests;  // of input files, where they are known
  std::vector<std::string> notes;                                // what the user should know, whole sentences
  std::string index_metadata;                                    // as of HfIndex, of the source
  std::filesystem::path index_metadata_file;                     // where index_metadata stands; empty if that is empty
  const Layout* layout = nullptr;                                // of the target
  OptionValues options;                                          // of `layout`, those that were given
  std::optional<Format> format;                                  // of the target's files
  std::optional<DType> dtype;                                    // floating tensors are cast to, by request

  /// What the indices of `program` mean; valid while this job stays where it is.
  ProgramMaps maps() const { return {&source, &target}; }

  /// Bytes the output takes, all files.
  std::uint64_t output_bytes() const;
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
};

/// A Hugging Face checkpoint, or adapters, to be sharded.
struct ShardRequest {
  SourceRequest source;
  std::filesystem::path output_directory;
  TargetRequest target;  // of default_rank_layout() where its `layout` is null
  /// LoRA adapters, as PEFT saves them; where there are any, they alone are sharded, and the model's directory (or its
  /// config.json) only says for which model.
  std::vector<std::filesystem::path> adapters;
  LoraFuse lora_fuse = LoraFuse::kMean;
  std::optional<DType> dtype;  // cast tensors of floating dtypes to it
  bool force = false;
};

/// Ranks out of a Hugging Face checkpoint.
/// \throws Error of every kind but kInternal; nothing has been written then.
std::unique_ptr<Job> plan_shard(Files& files, const ShardRequest& request);

/// Ranks to be consolidated.
struct ConsolidateRequest {
  SourceRequest source;
  std::optional<std::filesystem::path> output_directory;  // default: where the shards folder is
  TargetRequest target;                                   // of whole_layout(), which its `layout` may leave out
  std::optional<DType> dtype;                             // cast tensors of floating dtypes to it
  bool check_replicas = true;
  bool force = false;
};

/// A Hugging Face checkpoint out of ranks.
/// \throws as plan_shard.
std::unique_ptr<Job> plan_consolidate(Files& files, const ConsolidateRequest& request);

}  // namespace reshard
