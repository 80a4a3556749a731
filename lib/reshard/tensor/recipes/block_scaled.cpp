#include "reshard/tensor/recipes/block_scaled.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

constexpr std::size_t kProducts = 2048;  // so that they fit in the first-level cache

class BlockScaled : public Recipe {
 public:
  BlockScaled(std::uint64_t rows, std::uint64_t columns) : rows_(rows), columns_(columns) {}

  std::string key() const override { return fmt::format("times scales of {} x {}", rows_, columns_); }
  Access access(std::size_t input) const override {
    return input == 1 && rows_ == 0 ? Access::kWhole : Access::kByBlock;
  }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    if (inputs.size() != 2 || output.dtype != DType::kF32 || inputs[0].shape != output.shape || output.shape.size() < 2)
      throw Error(ErrorKind::kInternal, "does not follow from its inputs").tensor(std::string(output.name));
    const Operand &weight = inputs[0], &scales = inputs[1];
    const auto fail = [](const Operand& wrong, const std::string& expected) {
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is {} {}, expected {}", name(wrong.dtype), to_string(wrong.shape), expected))
          .tensor(std::string(wrong.name));
    };
    if (bits(weight.dtype) != 8 || !can_cast(weight.dtype, DType::kF32))
      fail(weight, fmt::format("floats of 8 bits, as {} scales them", scales.name));
    if (!can_cast(scales.dtype, DType::kF32)) fail(scales, "floats");
    if (rows_ == 0 && num_elems(scales.shape) != 1u) fail(scales, "one scale for the whole weight");
    if (rows_ != 0 && scales.shape != blocks_of(whole(weight.shape)).size)
      fail(scales, fmt::format("one scale per block of {} x {} of {}: {}", rows_, columns_, weight.name,
                               to_string(blocks_of(whole(weight.shape)).size)));
  }

  Box input_box(std::size_t input, const Box& output) const override { return input == 0 ? output : blocks_of(output); }

  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings&) const override {
    if (result.empty()) return;
    const InputBox &weight = inputs[0], &scaling = inputs[1];
    std::vector<float> scales(scaling.bytes.size() / (bits(scaling.dtype) / 8));
    cast_elements(scaling.dtype, scaling.bytes, DType::kF32, std::as_writable_bytes(std::span(scales)),
                  Overflow::kSaturate);
    const std::size_t ndim = output.size.size(), rows = output.size[ndim - 2], columns = output.size[ndim - 1];
    const std::size_t first_row = output.begin[ndim - 2], first_column = output.begin[ndim - 1];
    const std::size_t scale_rows = rows_ == 0 ? 0 : scaling.box.size[ndim - 2];
    const std::size_t scale_columns = rows_ == 0 ? 0 : scaling.box.size[ndim - 1];
    std::array<float, kProducts> products;  // NOLINT(*-member-init): written before it is read
    for (std::size_t row = 0; row < volume(output) / columns; ++row) {
      const std::size_t matrix = row / rows, block_row = block(first_row + row % rows, rows_) - block(first_row, rows_);
      const float* const of_row = scales.data() + (matrix * scale_rows + block_row) * scale_columns;
      for (std::size_t begin = 0; begin < columns; begin += kProducts) {
        const std::size_t count = std::min(kProducts, columns - begin);
        const auto floats = std::span(products).first(count);
        cast_elements(weight.dtype, weight.bytes.subspan(row * columns + begin, count), DType::kF32,
                      std::as_writable_bytes(floats), Overflow::kSaturate);
        for (std::size_t at = 0; at < count;) {
          const std::size_t column = first_column + begin + at;
          const std::size_t left = columns_ == 0 ? count : columns_ - column % columns_;
          const float scale = of_row[block(column, columns_) - block(first_column, columns_)];
          for (float& value : floats.subspan(at, std::min(left, count - at))) value *= scale;
          at += std::min(left, count - at);
        }
        std::memcpy(result.data() + (row * columns + begin) * sizeof(float), products.data(), count * sizeof(float));
      }
    }
  }

 private:
  static std::uint64_t block(std::uint64_t index, std::uint64_t size) { return size == 0 ? 0 : index / size; }

  /// Returns the blocks that `box` touches.
  Box blocks_of(const Box& box) const {
    Box blocks = box;
    const std::size_t ndim = box.size.size();
    for (const auto& [dim, size] : {std::pair(ndim - 2, rows_), std::pair(ndim - 1, columns_)}) {
      blocks.begin[dim] = box.begin[dim] / size;
      blocks.size[dim] = box.size[dim] == 0 ? 0 : (box.begin[dim] + box.size[dim] - 1) / size + 1 - blocks.begin[dim];
    }
    return blocks;
  }

  std::uint64_t rows_, columns_;
};

}  // namespace

std::shared_ptr<const Recipe> block_scaled_recipe(std::uint64_t rows, std::uint64_t columns) {
  return std::make_shared<BlockScaled>(rows, columns);
}

}  // namespace reshard
