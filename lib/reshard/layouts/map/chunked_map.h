#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Which place a tensor or an object has in a training run.
struct TrainingState {
  /// The part of its name that is the name of the parameter it belongs to, as the model has it; of no size: none.
  std::uint16_t parameter_begin = 0;
  std::uint16_t parameter_size = 0;
  bool left_out = false;   // its parameter was, and it is not to be written
  std::uint32_t path = 0;  // index into TrainingStates::paths
};

/// A tensor of a model that a distributed checkpoint stores in chunks, each a box of it at a place of its own. Chunks
/// of one box are replicas.
struct ChunkedTensor {
  struct Chunk {
    Box box;
    std::uint32_t file = 0;          // index into SourceMap::files
    std::uint64_t offset_bytes = 0;  // of the element at the box's begin
    Dims strides;                    // in elements, one a dim; empty where the elements lie in C order
  };

  std::string entry;  // what the files call it
  std::string name;   // what the model calls it, as in StateNames::names
  DType dtype;
  Dims shape;
  std::vector<Chunk> chunks;  // those that have elements, in any order; each lies inside the shape
  TensorRole role = TensorRole::kParameter;
  TrainingState state;  // of what is no parameter
};

/// That the chunks of each tensor fill it, none over another but for replicas.
/// \throws Error kBadInput, naming the tensor and `where`, the file that says which chunks there are.
/// O(n log n) in the chunks.
void validate_chunks(const std::vector<ChunkedTensor>& tensors, const std::filesystem::path& where);

/// The map of tensors whose chunks are validated. `where` is for errors.
/// \throws Error kBadInput if two tensors of one name differ in dtype or shape.
SourceMap chunked_map(std::vector<SourceFile> files, std::vector<ChunkedTensor> tensors,
                      const std::filesystem::path& where);

}  // namespace reshard
