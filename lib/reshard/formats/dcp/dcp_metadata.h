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

/// Where torch.distributed.checkpoint has stored one item.
struct DcpPlace {
  std::uint32_t file = 0;        // index into DcpMetadata::files
  std::uint32_t transforms = 0;  // index into DcpMetadata::transforms
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;

  friend bool operator==(const DcpPlace&, const DcpPlace&) = default;
};

/// A part of a tensor that has elements, and the item that is this part.
struct DcpChunk {
  Box box;
  DcpPlace place;
};

struct DcpTensor {
  std::string name;
  std::string torch_dtype;     // "bfloat16"
  std::optional<DType> dtype;  // nothing for what safetensors does not have
  Dims shape;
  std::vector<DcpChunk> chunks;  // in no order; each lies inside the shape
};

/// An entry that is no tensor: what torch.save makes of an object of any class.
struct DcpBytes {
  std::string name;
  DcpPlace place;
};

/// Where an entry lies in the nested state dict: names and positions, outermost first.
using DcpPath = std::vector<std::variant<std::string, std::int64_t>>;

/// What a `.metadata` says. Invariant, validated by the reader: names are unique, UTF-8 and free of control characters;
/// chunks lie inside their tensors, and every one that has elements has its place; paths of files stay inside the
/// directory. Whether chunks fill their tensor is for the reader of the checkpoint to validate, and so is all that
/// lies in the files.
struct DcpMetadata {
  std::vector<std::string> files;                    // relative to the directory of `.metadata`
  std::vector<std::vector<std::string>> transforms;  // what is to be undone, last first; [0] is empty
  std::vector<DcpTensor> tensors;                    // in the order of the file
  std::vector<DcpBytes> bytes;
  std::vector<std::pair<std::string, DcpPath>> paths;  // of flat names, each once; empty where the file has none
};

/// Whether DcpMetadata::paths are read: only what writes the rest of a training run needs them.
enum class DcpPaths : std::uint8_t { kLeave, kRead };

/// The name of such a file.
inline constexpr const char* kDcpMetadataFile = ".metadata";

/// Reads `.metadata` as torch 1.13 to 2.9 write it (torch/distributed/checkpoint/metadata.py and filesystem.py; of 1.13
/// those of torch/distributed/_shard/checkpoint). Nothing in it runs; attributes and classes that are not needed are
/// ignored.
/// \throws Error kBadInput for what is damaged, contradicts itself or runs code; kUnsupported for objects of a class
///         that is not known in the place of a tensor; kIo.
/// O(n log n) in the chunks; memory in proportion to the file's bytes, however often its strings are used.
DcpMetadata read_dcp_metadata(const Source& source, const std::filesystem::path& path,
                              DcpPaths paths = DcpPaths::kRead);

}  // namespace reshard
