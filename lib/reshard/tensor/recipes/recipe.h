// Recipes compute values from those of other tensors while they are moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "reshard/tensor/values/box.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// A tensor that a recipe reads or writes.
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

/// Observations of a recipe about the values of a box.
struct Findings {
  bool inexact = false;         // the inputs cannot be recovered from the result; reported for means
  std::uint64_t overflows = 0;  // finite values beyond the largest one of the result's dtype, which were saturated
};

/// Computes boxes of one tensor from boxes of others. Stateless and thread-safe. Results depend only on the inputs, not
/// on how the tensor is split into boxes.
class Recipe {
 public:
  enum class Access : std::uint8_t {
    kByBlock,  // only the box that each output box needs
    kWhole,    // read once for all boxes and kept; for small tensors, such as scales
  };

  virtual ~Recipe() = default;

  /// Identifies the operation and its parameters in fingerprints.
  virtual std::string key() const = 0;
  /// Validates that the output can be computed from `inputs`.
  /// \throws Error kBadInput or kUnsupported, naming the mismatched tensor.
  virtual void validate(std::span<const Operand> inputs, const Operand& output) const = 0;
  virtual Access access(std::size_t) const { return Access::kByBlock; }
  /// Returns the box of a kByBlock input that box `output` needs. Must be monotonic: larger boxes need at least as
  /// much.
  virtual Box input_box(std::size_t, const Box& output) const { return output; }
  /// Whether each element depends only on the elements of the same index, so that boxes may have their dims in any
  /// order.
  virtual bool is_elementwise() const { return false; }
  /// Computes box `output` into `result`.
  virtual void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
                     Findings& findings) const = 0;
};

}  // namespace reshard
