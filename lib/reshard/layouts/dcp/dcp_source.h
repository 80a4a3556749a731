#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/unpack.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/state_names.h"

namespace reshard {

/// The model's tensors in a directory of torch.distributed.checkpoint. Invariant, validated by its readers: the chunks
/// of each tensor fill it, none over another, and lie in the files.
struct DcpSource {
  Format format = Format::kPytorch;
  std::filesystem::path where;  // what says which tensors there are
  std::vector<ChunkedTensor> tensors;
  PackedEntries packed;  // of `tensors`
  std::vector<SourceFile> files;
  std::vector<ChunkedTensor> states;  // with DcpContent::kRun: what is beside the model
  PackedEntries packed_states;        // of these
  std::vector<DcpPath> paths;         // TrainingStates::paths
  std::string prefix;                 // TrainingStates::prefix
  std::string program;                // Checkpoint::names_of
  BesideModel beside;                 // what was left out
  std::vector<std::string> notes;     // what was left out, and what is odd
};

/// What is read of a training run's checkpoint.
enum class DcpContent : std::uint8_t { kModel, kRun };

/// Reads a directory of these; `model` is the one whose tensors they are (find_state_names). With kModel, only tensors
/// of the model are read. All in `optimizer_directory`, if it is not empty, belongs to the model: it is read for kRun,
/// and counted for kModel, by its metadata alone.
/// \throws Error kBadInput if there is no metadata, or a file is missing, damaged, or newer than the `.metadata` of its
/// save; kUnsupported; kIo.
DcpSource read_dcp_source(Files& files, const std::filesystem::path& directory, const KnownModel& model,
                          DcpContent content = DcpContent::kModel,
                          const std::filesystem::path& optimizer_directory = {});

/// Whether `directory` holds the safetensors files of ranks that torch's HuggingFaceStorageWriter writes.
bool holds_dcp_shards(Files& files, const std::filesystem::path& directory);

/// Reads these. Nothing in them says how large the whole tensors are: as large as their chunks together.
/// \throws Error kBadInput, also where the files of a part of the model are missing and `model` has no family that says which
/// tensors there are; kIo.
DcpSource read_dcp_shards(Files& files, const std::filesystem::path& directory, const KnownModel& model);

}  // namespace reshard
