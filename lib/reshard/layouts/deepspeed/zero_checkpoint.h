// A checkpoint of DeepSpeed's ZeRO as tensors, each with the runs of elements that its files hold. Geometry as read in
// deepspeed/utils/zero_to_fp32.py and checkpoint/ds_to_universal.py of 0.18, and seen in what it wrote.
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

/// Elements [begin, begin + count) of a tensor in C order, which lie one after another in a file.
struct FlatRun {
  std::uint32_t file = 0;          // index into ZeroCheckpoint::files
  std::uint64_t offset_bytes = 0;  // of the first
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

/// A tensor of the model. Its runs follow one another and are all of it.
struct ZeroTensor {
  std::string name;
  DType dtype;
  Dims shape;
  std::vector<FlatRun> runs;
  Dims strides;                      // of one run that is not in C order; else empty
  std::optional<DType> model_dtype;  // where the model was trained in another than its master weights
  std::string shared_with;           // the name that it shares its values with; empty if none
  std::string entry;                 // what the files call it, where `name` has become another
};

struct ZeroCheckpoint {
  unsigned stage = 0;  // 1 to 3; 0 where there are no files of the optimizer
  std::uint32_t ranks = 1;
  bool is_universal = false;
  std::vector<ContainerFile> files;
  std::vector<ZeroTensor> tensors;  // in the module's order
  TensorCount unread_masters;       // master weights that are not taken
  TensorCount state;                // of the optimizer, which is never read
};

/// Which of its weights are taken.
enum class ZeroWeights : std::uint8_t {
  kModel,   // those that the model runs with; where a file has only the masters (ZeRO 3), these, with model_dtype set
  kMaster,  // the optimizer's master weights; of what is not trained, what there is
};

/// Reads the headers of all files and validates them against each other: every rank is there, every partition has the
/// length that the parameters in it have, every parameter has a place, and all ranks agree about it.
/// \throws Error kBadInput, naming the file and the key or parameter; as list_zero_folder and the readers do.
ZeroCheckpoint read_zero_checkpoint(Files& files, const std::filesystem::path& folder, ZeroWeights weights);

}  // namespace reshard
