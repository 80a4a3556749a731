#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Location of an item.
struct DcpPlace {
  std::uint32_t file = 0;        // index into DcpMetadata::files
  std::uint32_t transforms = 0;  // index into DcpMetadata::transforms
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;

  friend bool operator==(const DcpPlace&, const DcpPlace&) = default;
};

/// A non-empty chunk of a tensor, and the location of its item.
struct DcpChunk {
  Box box;
  DcpPlace place;
};

struct DcpTensor {
  std::string name;
  std::string torch_dtype;     // "bfloat16"
  std::optional<DType> dtype;  // std::nullopt if safetensors has no such dtype
  Dims shape;
  std::vector<DcpChunk> chunks;  // in any order; each is inside the shape
};

/// An entry that is not a tensor: an object of any class, as torch.save wrote it.
struct DcpBytes {
  std::string name;
  DcpPlace place;
};

/// Path of an entry in the nested state dict: names and indices, outermost first.
using DcpPath = std::vector<std::variant<std::string, std::int64_t>>;

/// Contents of `.metadata`. Invariant, validated by the reader: names are unique, UTF-8 and free of control characters;
/// chunks are inside their tensors, and every non-empty chunk has a place; file paths stay inside the directory. The
/// reader of the checkpoint validates that chunks fill their tensors, and the contents of the files.
struct DcpMetadata {
  std::vector<std::string> files;                    // relative to the directory of `.metadata`
  std::vector<std::vector<std::string>> transforms;  // transforms to undo, last one first; [0] is empty
  std::vector<DcpTensor> tensors;                    // in the order of the file
  std::vector<DcpBytes> bytes;
  std::vector<std::pair<std::string, DcpPath>> paths;  // paths of flat names, each once; empty if the file has no paths
};

/// Whether to read DcpMetadata::paths. Needed only for writing the training state.
enum class DcpPaths : std::uint8_t { kLeave, kRead };

inline constexpr const char* kDcpMetadataFile = ".metadata";

/// Reads `.metadata` as written by torch 1.13 to 2.9 (torch/distributed/checkpoint/metadata.py and filesystem.py; in
/// 1.13, torch/distributed/_shard/checkpoint). Executes nothing. Ignores attributes and classes that are not needed.
/// \throws Error kBadInput if the file is damaged, inconsistent, or runs code; kUnsupported if a tensor is an object of
///         an unknown class; kIo.
/// Takes O(n log n) time in the number of chunks, and memory linear in the file size, however often its strings are
/// used.
DcpMetadata read_dcp_metadata(const Source& source, const std::filesystem::path& path,
                              DcpPaths paths = DcpPaths::kRead);

}  // namespace reshard
