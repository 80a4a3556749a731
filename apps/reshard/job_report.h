#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/engine/execute.h"
#include "reshard/engine/publish/output.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard::cli {

/// What a job writes or has written, as --dry-run and --json report it.
struct JobReport {
  struct Stage {
    std::uint32_t stage;
    std::uint32_t pp_rank;
    std::uint64_t first_layer;
    std::uint64_t last_layer;
  };
  struct File {
    enum class Kind { kWeights, kMetadata, kCopied };
    std::string path;
    std::uint64_t size_bytes;
    Kind kind;
    std::uint64_t tensors = 0;
    std::optional<std::uint32_t> tp_rank = {};  // of weights of a layout with ranks
    bool is_one_tensor = false;                 // one of the many files in an xser folder
  };

  std::string command;
  std::string source;
  std::string output;
  std::string family;  // empty if unknown
  std::string layout;
  bool has_ranks = false;
  std::vector<std::pair<std::string, Manifest::OptionValue>> options;  // layout options, as given
  Mesh mesh;                                                           // the source's if the target has no ranks
  std::vector<Stage> stages;                                           // empty if no layers are divided
  std::vector<std::vector<std::string>> outside_layers;                // [pp_rank] tensors that belong to no layer
  std::vector<std::string> cut_names;
  std::optional<AttentionReport> attention;
  std::uint64_t tensors = 0;  // this and the next four count the source
  std::uint64_t parameters = 0;
  std::uint64_t source_states = 0;  // entries of training state
  std::uint64_t source_files = 0;
  std::uint64_t source_bytes = 0;
  std::vector<Applied> transforms;
  std::uint64_t states = 0;  // entries of training state that are written
  std::uint64_t state_bytes = 0;
  std::vector<File> files;          // without the manifest
  std::uint64_t written_files = 0;  // with it
  bool manifest = false;
  std::string fingerprint;  // set for the document of a dry run alone
  std::uint64_t read_bytes = 0;
  std::uint64_t check_bytes = 0;
  std::uint64_t skipped_bytes = 0;
  std::uint64_t dropped_bytes = 0;
  std::uint64_t written_bytes = 0;
  OutputSpace space;
  Notes notes;
  const RunResult* result = nullptr;  // null for a dry run
};

/// \param result  null if the job has not run; borrowed by the report.
JobReport report_on(const Job& job, const OutputSpace& space, const RunResult* result);

/// Rate of bytes that this run itself wrote; 0 if it took no time.
double bytes_per_second(const RunResult& result);

/// Returns the notes that the job itself does not have: on fused linears that get the mean of their lora_A (all of them
/// if `result` is null, otherwise those whose lora_A differed), and on what the run found.
Notes run_notes(const Job& job, const RunResult* result);

/// Returns notes on replicas that differ: one sentence for all that drifted, and the first of the others.
Notes divergent_notes(const std::vector<Divergence>& divergent);

}  // namespace reshard::cli
