#pragma once

// Recipes that the library does not have: it needs no change for them.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard::test {

inline std::vector<float> values_of(const InputBox& input) {
  std::vector<float> values(input.bytes.size() * 8 / bits(input.dtype));
  cast_elements(input.dtype, input.bytes, DType::kF32, std::as_writable_bytes(std::span(values)), Overflow::kSaturate);
  return values;
}

inline void refuse_operand(const Operand& operand, const std::string& expected) {
  throw Error(ErrorKind::kBadInput,
              "is " + std::string(name(operand.dtype)) + " " + to_string(operand.shape) + ", but should be " + expected)
      .tensor(std::string(operand.name));
}

/// A matrix times the scale of its blocks of 128 by 128 elements.
class ScaleBlocks : public Recipe {
 public:
  static constexpr std::uint64_t kBlock = 128;

  std::string key() const override { return "scale-blocks 128"; }
  Access access(std::size_t input) const override { return input == 1 ? Access::kWhole : Access::kByBlock; }
  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    if (inputs[0].shape != output.shape) refuse_operand(inputs[0], to_string(output.shape));
    const Dims blocks{(output.shape[0] + kBlock - 1) / kBlock, (output.shape[1] + kBlock - 1) / kBlock};
    if (inputs[1].shape != blocks || inputs[1].dtype != DType::kF32)
      refuse_operand(inputs[1], "F32 " + to_string(blocks));
  }
  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings&) const override {
    std::vector<float> values = values_of(inputs[0]);
    const std::vector<float> scale = values_of(inputs[1]);
    std::size_t at = 0;
    for (std::uint64_t r = output.begin[0]; r < output.begin[0] + output.size[0]; ++r)
      for (std::uint64_t c = output.begin[1]; c < output.begin[1] + output.size[1]; ++c)
        values[at++] *= scale[r / kBlock * inputs[1].box.size[1] + c / kBlock];
    cast_elements(DType::kF32, std::as_bytes(std::span(values)), DType::kBF16, result, Overflow::kSaturate);
  }
};

/// A matrix plus a factor times the product of B, which is read by rows, and A, which is read whole.
class AddLowRank : public Recipe {
 public:
  AddLowRank(std::uint64_t rank, float factor) : rank_(rank), factor_(factor) {}

  std::string key() const override { return "add-low-rank " + std::to_string(factor_); }
  Access access(std::size_t input) const override { return input == 1 ? Access::kWhole : Access::kByBlock; }
  Box input_box(std::size_t input, const Box& output) const override {
    return input == 0 ? output : Box{{output.begin[0], 0}, {output.size[0], rank_}};
  }
  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    const Dims& shape = output.shape;
    if (inputs[0].shape != shape) refuse_operand(inputs[0], to_string(shape));
    if (inputs[1].shape != Dims{rank_, shape[1]}) refuse_operand(inputs[1], to_string(Dims{rank_, shape[1]}));
    if (inputs[2].shape != Dims{shape[0], rank_}) refuse_operand(inputs[2], to_string(Dims{shape[0], rank_}));
  }
  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings&) const override {
    std::vector<float> values = values_of(inputs[0]);
    const std::vector<float> a = values_of(inputs[1]), b = values_of(inputs[2]);
    const std::uint64_t columns = inputs[1].box.size[1];
    std::size_t at = 0;
    for (std::uint64_t r = 0; r < output.size[0]; ++r)
      for (std::uint64_t c = output.begin[1]; c < output.begin[1] + output.size[1]; ++c) {
        float sum = 0;
        for (std::uint64_t k = 0; k < rank_; ++k) sum += b[r * rank_ + k] * a[k * columns + c];
        values[at++] += factor_ * sum;
      }
    cast_elements(DType::kF32, std::as_bytes(std::span(values)), DType::kBF16, result, Overflow::kSaturate);
  }

 private:
  std::uint64_t rank_;
  float factor_;
};

/// A transform: `name` becomes what `recipe` makes of its stored values and of `others`.
inline SourceMap compute(SourceMap source, const std::string& name, std::shared_ptr<const Recipe> recipe,
                         const std::vector<std::string>& others) {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : source.logical)
    names.push_back(tensor.name == name ? name + " (stored)" : tensor.name);
  source.rename_logical(names);
  const LogicalTensor& stored = source.logical[*source.find_logical(name + " (stored)")];
  Computed computed{std::move(recipe), {name + " (stored)"}};
  computed.inputs.insert(computed.inputs.end(), others.begin(), others.end());
  source.add_logical({name, DType::kBF16, Dims(stored.shape), std::make_shared<const Computed>(std::move(computed))},
                     {});
  return source;
}

}  // namespace reshard::test
