#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"

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
    std::uint32_t file = 0;          // index into TensorMap::files
    std::uint64_t offset_bytes = 0;  // of the element at the box's begin
    Dims strides;                    // in elements, one a dim; empty where the elements lie in C order
  };

  std::string entry;  // what the files call it
  std::string name;   // what the model calls it; with a star for an expert's number where `stacked`
  DType dtype;
  Dims shape;
  std::vector<Chunk> chunks;  // those that have elements, in any order; each lies inside the shape
  bool stacked = false;       // it is as many tensors of the model as dim 0 has elements
  bool interleaved = false;   // the rows of each head are in another order than the model's (Family::OtherName)
  std::uint64_t copies = 0;   // it belongs to a stack of so many tensors of the model, each of which gets all of it
  TensorRole role = TensorRole::kParameter;
  TrainingState state;  // of what is no parameter
};

/// That the chunks of each tensor fill it, none over another but for replicas.
/// \throws Error kBadInput, naming the tensor and `where`, the file that says which chunks there are.
/// O(n log n) in the chunks.
void validate_chunks(const std::vector<ChunkedTensor>& tensors, const std::filesystem::path& where);

/// Experts of a stack as tensors of their own, each from where it lies; the star in the name of a state is in that of its
/// parameter.
/// \throws Error kBadInput, naming `where`, for a stack without experts; kUnsupported for more experts, copies of a
///         state, or chunks of experts than any model has.
std::vector<ChunkedTensor> unstacked(std::vector<ChunkedTensor> tensors, const std::filesystem::path& where);

/// That interleaved parameters have the shapes of `model`: as many chunks are made of them as they have heads.
/// \throws Error kBadInput, naming `where`.
void validate_interleaved(const std::vector<ChunkedTensor>& tensors, const Model& model,
                          const std::filesystem::path& where);

/// Puts interleaved rows into the model's order, without moving them; each head has `head_dim`.
/// \throws Error kBadInput, naming `where`, if the rows are no whole heads; kUnsupported if head_dim is 0, or odd.
void deinterleave(std::vector<ChunkedTensor>& tensors, std::uint64_t head_dim, const std::filesystem::path& where);

/// The map of tensors whose chunks are validated. `where` is for errors.
/// \throws Error kBadInput if two tensors of one name differ in dtype or shape.
TensorMap chunked_map(std::vector<TensorFile> files, std::vector<ChunkedTensor> tensors,
                      const std::filesystem::path& where);

}  // namespace reshard
