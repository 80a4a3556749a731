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

}  // namespace

std::shared_ptr<const Recipe> scaled_recipe(double factor) {
  return std::make_shared<Scaled>(factor);
}

}  // namespace reshard
