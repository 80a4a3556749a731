#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// How a tensor or object of the training state relates to the model.
struct TrainingState {
  // Parts of its name; all are empty if it belongs to no parameter.
  std::string prefix;      // "optimizer.state."
  std::string parameter;   // the model's name
  std::string state;       // "exp_avg", or the name of a hyperparameter
  bool left_out = false;   // its parameter is left out of the output, and so is this
  std::uint32_t path = 0;  // index into TrainingStates::paths

  /// Returns its name if its parameter is named `name`.
  std::string name_with(std::string_view name) const {
    return std::string(prefix).append(name).append(1, '.').append(state);
  }
};

/// A tensor that a distributed checkpoint stores in chunks. Each chunk is a box of the tensor with its own offset.
/// Chunks with the same box are replicas.
struct ChunkedTensor {
  struct Chunk {
    Box box;
    std::uint32_t file = 0;          // index into SourceMap::files
    std::uint64_t offset_bytes = 0;  // offset of the first element of the box
    Dims strides;                    // in elements, one per dim; empty if the elements are in C order
  };

  std::string entry;  // name in the files
  std::string name;   // name in the model, as in NamedEntry::name
  DType dtype;
  Dims shape;
  std::vector<Chunk> chunks;  // non-empty chunks inside `shape`, in any order
  TensorRole role = TensorRole::kParameter;
  TrainingState state;  // only for roles other than kParameter
};

/// Validates that the chunks of each tensor tile it, not counting replicas.
/// \throws Error kBadInput, naming the tensor and `where`, the file that lists the chunks.
/// O(n log n) in the chunks.
void validate_chunks(const std::vector<ChunkedTensor>& tensors, const std::filesystem::path& where);

/// Returns the map of tensors whose chunks are validated. `where` is used in errors.
/// \throws Error kBadInput if two tensors with the same name differ in dtype or shape.
SourceMap chunked_map(std::vector<SourceFile> files, std::vector<ChunkedTensor> tensors,
                      const std::filesystem::path& where);

}  // namespace reshard
