// Values that are computed from those of other tensors while they are moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// A tensor that a recipe reads or computes.
struct Operand {
  std::string_view name;
  DType dtype;
  Dims shape;
};

/// The elements of a box of a tensor, in C order and little-endian. Borrowed.
struct InputBox {
  const Box& box;
  DType dtype;
  std::span<const std::byte> bytes;
};

/// What a recipe found in the values of a box.
struct Findings {
  bool inexact = false;  // the inputs are not all in the result: it cannot be undone
};

/// Computes boxes of one tensor from boxes of others. Stateless; safe from several threads. Results depend on the inputs
/// alone, not on how the tensor is cut into boxes.
class Recipe {
 public:
  enum class Access : std::uint8_t {
    kByBlock,  // the box that each box of the output needs
    kWhole,    // read once for all boxes, and kept: small tensors, such as scales
  };

  virtual ~Recipe() = default;

  /// Identifies the operation and its parameters in fingerprints.
  virtual std::string key() const = 0;
  /// Validates that the output can be computed from such inputs.
  /// \throws Error kBadInput or kUnsupported, with the name of the tensor that does not fit.
  virtual void validate(std::span<const Operand> inputs, const Operand& output) const = 0;
  virtual Access access(std::size_t) const { return Access::kByBlock; }
  /// The box of a kByBlock input that box `output` needs. Larger boxes need no smaller ones.
  virtual Box input_box(std::size_t, const Box& output) const { return output; }
  /// Whether each element depends only on those of the same index, so that boxes may be in any order of the dims.
  virtual bool is_elementwise() const { return false; }
  /// Computes box `output`, whose elements fill `result`.
  virtual void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
                     Findings& findings) const = 0;
};

}  // namespace reshard
