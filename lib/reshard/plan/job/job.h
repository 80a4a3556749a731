#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/note.h"
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

/// A file that is copied unchanged: config.json, tokenizers, …
struct CopiedFile {
  std::filesystem::path source;
  std::filesystem::path path;  // relative to the output directory
  std::uint64_t size_bytes = 0;
};

/// All actions of a run, validated before it starts. Created by plan; run by execute; printed by a dry run. A value:
/// `program` contains indices into `source` and `target`.
struct Job {
  std::string command;  // "shard", "consolidate"
  std::filesystem::path source_directory;
  std::filesystem::path model_directory;  // the source's directory of config.json, if any
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
  /// Folders of the output that are replaced as a whole, not nested.
  std::vector<std::filesystem::path> whole_folders;
  /// Other runs may write other files of the same checkpoint to the output directory, even at the same time.
  bool shares_directory = false;
  bool manifest = false;                                         // also write SHA256SUMS and reshard.manifest.json
  std::map<std::filesystem::path, Sha256Digest> source_digests;  // of input files, if known
  std::vector<Applied> transforms;                               // in order of application
  Notes notes;
  const Layout* layout = nullptr;  // the target's layout
  OptionValues options;            // of `layout`, as given
  std::optional<Format> format;    // format of the target's files
  std::optional<DType> dtype;      // requested dtype of floating-point tensors

  /// The maps that `program` has indices into. Valid until this job is moved or destroyed.
  ProgramMaps maps() const { return {&source, &target}; }

  /// Total size of all output files.
  std::uint64_t output_bytes() const;
};

}  // namespace reshard
