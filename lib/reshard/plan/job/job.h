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
#include "reshard/plan/job/applied.h"
#include "reshard/plan/job/program.h"
#include "reshard/plan/job/request.h"
#include "reshard/specs/parallel/mesh.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// A file taken over as it is: config.json, tokenizers, …
struct CopiedFile {
  std::filesystem::path source;
  std::filesystem::path path;  // relative to the output directory
  std::uint64_t size_bytes = 0;
};

/// Everything that a run will do, validated, before it does any of it. Made by plan; run by execute;
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
  std::vector<Applied> transforms;                               // in this order
  std::vector<std::string> notes;                                // what the user should know, whole sentences
  const Layout* layout = nullptr;                                // of the target
  OptionValues options;                                          // of `layout`, those that were given
  std::optional<Format> format;                                  // of the target's files
  std::optional<DType> dtype;                                    // floating tensors are cast to, by request

  /// What the indices of `program` mean; valid while this job stays where it is.
  ProgramMaps maps() const { return {&source, &target}; }

  /// Bytes the output takes, all files.
  std::uint64_t output_bytes() const;
};

/// The job that a request asks for. Reads headers and metadata, and writes nothing.
/// \throws Error of every kind but kInternal.
std::unique_ptr<Job> plan(Files& files, const Request& request);

// Its presets: what a request may leave open, and which checkpoints it takes.

/// Ranks, in default_rank_layout() unless another is asked for, out of whole tensors.
std::unique_ptr<Job> plan_shard(Files& files, Request request);
/// Whole tensors out of ranks.
std::unique_ptr<Job> plan_consolidate(Files& files, Request request);
/// Anything out of anything.
std::unique_ptr<Job> plan_convert(Files& files, Request request);

}  // namespace reshard
