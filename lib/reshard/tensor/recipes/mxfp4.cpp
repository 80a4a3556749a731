#include "reshard/tensor/recipes/mxfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/tensor/cast/cast.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {
namespace {

constexpr std::size_t kScales = 256, kCodes = 16;

/// The bits in bfloat16 of each value under each scale.
const std::array<std::array<std::uint16_t, kCodes>, kScales>& bfloat16_values() {
  static const auto kValues = [] {
    constexpr int kBias = 127;
    std::array<std::array<std::uint16_t, kCodes>, kScales> values{};
    for (std::size_t scale = 0; scale < kScales; ++scale) {
      std::array<float, kCodes> exact{};
      for (std::size_t code = 0; code < kCodes; ++code) {
        const auto value = static_cast<float>(small_float_value(DType::kF4, static_cast<std::uint8_t>(code)));
        exact.at(code) = value * std::ldexp(1.0F, static_cast<int>(scale) - kBias);
      }
      cast_elements(DType::kF32, std::as_bytes(std::span(exact)), DType::kBF16,
                    std::as_writable_bytes(std::span(values.at(scale))), Overflow::kSaturate);
    }
    return values;
  }();
  return kValues;
}

class Mxfp4 : public Recipe {
 public:
  std::string key() const override { return "mxfp4"; }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    if (inputs.size() != 2 || output.dtype != DType::kBF16)
      throw Error(ErrorKind::kInternal, "does not follow from its inputs").tensor(std::string(output.name));
    const Operand &blocks = inputs[0], &scales = inputs[1];
    const auto shape = mxfp4_values_shape(blocks.shape);
    Dims groups = blocks.shape;
    if (!groups.empty()) groups.resize(groups.size() - 1);
    const bool is_here = blocks.dtype == DType::kU8 && shape == output.shape;
    if (is_here && scales.dtype == DType::kU8 && scales.shape == groups) return;
    const Operand& wrong = is_here ? scales : blocks;
    throw Error(ErrorKind::kBadInput, fmt::format("is {} {}, which does not fit MXFP4 {} for {} {}", name(wrong.dtype),
                                                  to_string(wrong.shape), is_here ? "scales" : "blocks", output.name,
                                                  to_string(output.shape)))
        .tensor(std::string(wrong.name));
  }

  Box input_box(std::size_t input, const Box& output) const override {
    const std::size_t in = output.size.size() - 2;
    Box box = output;
    const std::uint64_t begin = output.begin[in] / kMxfp4Values;
    const std::uint64_t end = (output.begin[in] + output.size[in] + kMxfp4Values - 1) / kMxfp4Values;
    box.begin[in] = output.begin[in + 1];
    box.size[in] = output.size[in + 1];
    box.begin[in + 1] = begin;
    box.size[in + 1] = end - begin;
    if (input != 0) return box;
    box.begin.push_back(0);
    box.size.push_back(kMxfp4Bytes);
    return box;
  }

  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings&) const override {
    if (result.empty()) return;
    const auto& values = bfloat16_values();
    const std::size_t ndim = output.size.size();
    const std::size_t ins = output.size[ndim - 2], outs = output.size[ndim - 1];
    const std::size_t groups = inputs[1].box.size.back(), skipped = output.begin[ndim - 2] % kMxfp4Values;
    // Transposed in tiles: `kTile` rows of blocks at a time, one group each.
    constexpr std::size_t kTile = 32;
    std::array<std::array<std::uint16_t, kTile>, kMxfp4Values> tile{};
    for (std::size_t matrix = 0; matrix < volume(output) / (ins * outs); ++matrix)
      for (std::size_t row = 0; row < outs; row += kTile)
        for (std::size_t group = 0; group < groups; ++group) {
          const std::size_t rows = std::min(kTile, outs - row);
          for (std::size_t r = 0; r < rows; ++r) {
            const std::size_t at = (matrix * outs + row + r) * groups + group;
            const auto& of_scale = values[static_cast<std::uint8_t>(inputs[1].bytes[at])];
            for (std::size_t b = 0; b < kMxfp4Bytes; ++b) {
              const auto byte = static_cast<std::uint8_t>(inputs[0].bytes[at * kMxfp4Bytes + b]);
              tile[2 * b][r] = of_scale[byte & 0xF];
              tile[2 * b + 1][r] = of_scale[byte >> 4];
            }
          }
          for (std::size_t v = 0; v < kMxfp4Values; ++v) {
            const std::size_t in = group * kMxfp4Values + v;
            if (in < skipped || in - skipped >= ins) continue;
            std::memcpy(result.data() + ((matrix * ins + in - skipped) * outs + row) * sizeof(std::uint16_t),
                        tile[v].data(), rows * sizeof(std::uint16_t));
          }
        }
  }
};

}  // namespace

std::optional<Dims> mxfp4_values_shape(const Dims& shape) {
  if (shape.size() < 3 || shape.back() != kMxfp4Bytes) return std::nullopt;
  const auto ins = checked_mul(shape[shape.size() - 2], kMxfp4Values);
  if (!ins) return std::nullopt;
  Dims values = shape;
  values.resize(shape.size() - 1);
  values.back() = values[values.size() - 2];
  values[values.size() - 2] = *ins;
  return values;
}

std::shared_ptr<const Recipe> mxfp4_recipe() {
  return std::make_shared<Mxfp4>();
}

}  // namespace reshard
