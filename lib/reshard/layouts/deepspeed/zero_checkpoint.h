// The tensors of a DeepSpeed ZeRO checkpoint, with the runs of elements that each file contains. The geometry follows
// deepspeed/utils/zero_to_fp32.py and checkpoint/ds_to_universal.py of 0.18, and files that DeepSpeed wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/deepspeed/zero_files.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// Elements [begin, begin + count) of a tensor in C order, stored consecutively in a file.
struct FlatRun {
  std::uint32_t file = 0;          // index into ZeroCheckpoint::files
  std::uint64_t offset_bytes = 0;  // offset of the first element
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

/// A tensor of the model. Its runs are consecutive and cover all of its elements.
struct ZeroTensor {
  std::string name;
  DType dtype;
  Dims shape;
  std::vector<FlatRun> runs;
  Dims strides;                      // strides if the tensor is one run that is not in C order; else empty
  std::optional<DType> model_dtype;  // the dtype that the model runs with, if it differs from `dtype`
  std::string shared_with;           // the other name of the same values; empty if none
  std::string entry;                 // name in the files, if `name` was changed
};

struct ZeroCheckpoint {
  unsigned stage = 0;  // 1 to 3; 0 if there are no optimizer files
  std::uint32_t ranks = 1;
  std::uint32_t replica_files = 0;  // optimizer files that repeat those of the first ranks (MiCS) and are not read
  bool is_universal = false;
  std::vector<ContainerFile> files;
  std::vector<ZeroTensor> tensors;  // in the module's order
  TensorCount unread_masters;       // master weights that are left out
  TensorCount state;                // optimizer state, which is never read
};

/// The weights to read.
enum class ZeroWeights : std::uint8_t {
  kModel,   // the weights that the model runs with; in ZeRO 3, the master weights, with model_dtype set
  kMaster,  // the optimizer's master weights; for untrained parameters, the stored weights
};

/// Reads the headers of all files and validates them against each other: every rank exists, the length of every
/// partition matches its parameters, every parameter has a place, and all ranks agree on it.
/// \throws Error kBadInput, naming the file and the key or parameter; as list_zero_folder and the readers in
/// zero_files.h.
ZeroCheckpoint read_zero_checkpoint(Files& files, const std::filesystem::path& folder, ZeroWeights weights);

}  // namespace reshard
