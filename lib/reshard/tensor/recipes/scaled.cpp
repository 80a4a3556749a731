#include "reshard/tensor/recipes/scaled.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

constexpr std::size_t kScaledElems = 4096;  // so that the wide values fit in the cache

class Scaled : public Recipe {
 public:
  explicit Scaled(double factor) : factor_(factor) {}

  std::string key() const override { return fmt::format("times {}", factor_); }
  bool is_elementwise() const override { return true; }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    if (inputs.size() != 1 || output.dtype != inputs.front().dtype || output.shape != inputs.front().shape)
      throw Error(ErrorKind::kInternal, "is not a multiple of its input").tensor(std::string(output.name));
    const DType dtype = output.dtype;
    if (!can_cast(dtype, DType::kF64) || !can_cast(DType::kF64, dtype))
      throw Error(ErrorKind::kUnsupported, fmt::format("is {}, which cannot be multiplied", name(dtype)))
          .tensor(std::string(inputs.front().name));
  }

  void apply(std::span<const InputBox> inputs, const Box&, std::span<std::byte> result, Findings&) const override {
    if (inputs.front().dtype == DType::kF64)
      apply_as<double>(inputs.front(), DType::kF64, result);
    else
      apply_as<float>(inputs.front(), DType::kF32, result);
  }

 private:
  template <typename T>
  void apply_as(const InputBox& input, DType wide, std::span<std::byte> result) const {
    const std::size_t width = bits(input.dtype) / 8;
    const T factor = static_cast<T>(factor_);
    std::vector<T> values(kScaledElems);
    for (std::size_t begin = 0; begin < result.size(); begin += kScaledElems * width) {
      const std::size_t bytes = std::min(kScaledElems * width, result.size() - begin);
      const auto chunk = std::as_writable_bytes(std::span(values).first(bytes / width));
      cast_elements(input.dtype, input.bytes.subspan(begin, bytes), wide, chunk, Overflow::kSaturate);
      for (T& value : values) value *= factor;
      cast_elements(wide, chunk, input.dtype, result.subspan(begin, bytes), Overflow::kSaturate);
    }
  }

  double factor_;
};

class ColumnScaled : public Recipe {
 public:
  std::string key() const override { return "times factors of columns"; }
  Box input_box(std::size_t input, const Box& output) const override {
    return input == 0 ? output : Box{{output.begin.back()}, {output.size.back()}};
  }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    if (inputs.size() != 2 || output.dtype != inputs[0].dtype || output.shape != inputs[0].shape ||
        output.shape.empty() || inputs[1].shape != Dims{output.shape.back()})
      throw Error(ErrorKind::kInternal, "is not a product of its inputs").tensor(std::string(output.name));
    const DType dtype = output.dtype;
    if (inputs[1].dtype == dtype && bits(dtype) >= 16 && describe(dtype).kind == DTypeClass::kFloat) return;
    throw Error(ErrorKind::kUnsupported, fmt::format("is {}, and cannot be multiplied by {}, which is {}", name(dtype),
                                                     inputs[1].name, name(inputs[1].dtype)))
        .tensor(std::string(inputs[0].name));
  }

  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings&) const override {
    if (inputs.front().dtype == DType::kF64)
      apply_as<double>(inputs, DType::kF64, output.size.back(), result);
    else
      apply_as<float>(inputs, DType::kF32, output.size.back(), result);
  }

 private:
  template <typename T>
  static void apply_as(std::span<const InputBox> inputs, DType wide, std::size_t columns, std::span<std::byte> result) {
    const DType dtype = inputs.front().dtype;
    const std::size_t row_bytes = columns * bits(dtype) / 8;
    std::vector<T> factors(columns), values(columns);
    cast_elements(dtype, inputs[1].bytes, wide, std::as_writable_bytes(std::span(factors)), Overflow::kSaturate);
    for (std::size_t begin = 0; begin < result.size(); begin += row_bytes) {
      const auto row = std::as_writable_bytes(std::span(values));
      cast_elements(dtype, inputs[0].bytes.subspan(begin, row_bytes), wide, row, Overflow::kSaturate);
      for (std::size_t i = 0; i < columns; ++i) values[i] *= factors[i];
      cast_elements(wide, row, dtype, result.subspan(begin, row_bytes), Overflow::kSaturate);
    }
  }
};

}  // namespace

std::shared_ptr<const Recipe> column_scaled_recipe() {
  return std::make_shared<ColumnScaled>();
}

std::shared_ptr<const Recipe> scaled_recipe(double factor) {
  return std::make_shared<Scaled>(factor);
}

}  // namespace reshard
