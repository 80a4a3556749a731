#pragma once

#include <cstdint>

#include "reshard/tensor/recipes/recipe.h"

namespace reshard {

/// Gives every element one value, without inputs: what files contain in addition to the tensors of the state dict.
class Constant : public Recipe {
 public:
  /// Padding of a stored tensor, the number of the rank, or another number that the layout requires.
  enum class Kind : std::uint8_t { kPadding, kRankNumber, kRequired };

  Constant(Kind kind, DType dtype, std::uint64_t element_bits) : kind_(kind), dtype_(dtype), bits_(element_bits) {}

  Kind kind() const { return kind_; }
  std::uint64_t element_bits() const { return bits_; }

  std::string key() const override;
  bool is_elementwise() const override { return true; }
  void validate(std::span<const Operand> inputs, const Operand& output) const override;
  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings& findings) const override;

 private:
  Kind kind_;
  DType dtype_;
  std::uint64_t bits_;
};

}  // namespace reshard
