#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/unpack.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/state_names.h"

namespace reshard {

/// The model's tensors in a directory of torch.distributed.checkpoint. Invariant, validated by the readers: the chunks
/// of each tensor fill it without overlap, and all chunks are inside their files.
struct DcpSource {
  Format format = Format::kPytorch;
  std::filesystem::path where;  // the metadata file or directory that lists the tensors
  std::vector<ChunkedTensor> tensors;
  PackedEntries packed;  // among `tensors`
  std::vector<SourceFile> files;
  std::vector<ChunkedTensor> states;  // training state; only with DcpContent::kRun
  PackedEntries packed_states;        // among `states`
  std::vector<DcpPath> paths;         // TrainingStates::paths
  std::string prefix;                 // TrainingStates::prefix
  std::string program;                // Checkpoint::names_of
  OldNames old_names;                 // Checkpoint::old_names
  BesideModel beside;                 // summary of left-out entries
  Notes notes;                        // left-out entries and warnings
};

/// Parts of a training checkpoint to read: the model, or the whole run with its training state.
enum class DcpContent : std::uint8_t { kModel, kRun };

/// Reads a directory of torch.distributed.checkpoint.
/// \param model, use  As in names_in_model.
/// \param content  With kModel, reads only tensors of the model.
/// \param optimizer_directory  Directory of the model's optimizer; may be empty. Read with kRun; with kModel, its
///        entries are only counted, by their metadata.
/// \throws Error kBadInput if there is no metadata, or if a file is missing, damaged, or newer than the `.metadata` of
/// its save; kUnsupported; kIo.
DcpSource read_dcp_source(Files& files, const std::filesystem::path& directory, const KnownModel& model, ConfigUse use,
                          DcpContent content = DcpContent::kModel,
                          const std::filesystem::path& optimizer_directory = {});

/// Whether `directory` contains the safetensors rank files that torch's HuggingFaceStorageWriter writes.
bool holds_dcp_shards(Files& files, const std::filesystem::path& directory);

/// Reads the rank files of HuggingFaceStorageWriter. The files do not declare the shapes of logical tensors, which are
/// inferred from the extent of their chunks.
/// \throws Error kBadInput, also if files of a part of the model are missing and `model` has no family that declares
/// its tensors; kIo.
DcpSource read_dcp_shards(Files& files, const std::filesystem::path& directory, const KnownModel& model, ConfigUse use);

}  // namespace reshard
