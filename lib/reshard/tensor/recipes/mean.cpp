#include "reshard/tensor/recipes/mean.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

constexpr std::size_t kTermElems = 4096;  // so that the single-precision values fit in the cache

/// The same range of bytes of all terms of a mean.
struct Terms {
  std::span<const InputBox> inputs;
  std::size_t begin;
  std::size_t bytes;

  std::span<const std::byte> of(const InputBox& term) const { return term.bytes.subspan(begin, bytes); }
  /// Whether `count` bytes at `at` are equal in all terms.
  bool is_equal(std::size_t at, std::size_t count) const {
    const std::byte* const first = of(inputs.front()).data() + at;
    return std::all_of(inputs.begin() + 1, inputs.end(),
                       [&](const InputBox& term) { return std::memcmp(first, of(term).data() + at, count) == 0; });
  }
};

/// Computes the mean in dtype `wide`.
template <typename T>
void add_up(const Terms& chunk, DType wide, std::vector<T>& sum, std::vector<T>& term, std::span<std::byte> out) {
  const DType dtype = chunk.inputs.front().dtype;
  const std::size_t elems = chunk.bytes / (bits(dtype) / 8);
  std::fill_n(sum.begin(), elems, T{0});
  for (const InputBox& input : chunk.inputs) {
    cast_elements(dtype, chunk.of(input), wide, std::as_writable_bytes(std::span(term).first(elems)),
                  Overflow::kSaturate);
    for (std::size_t i = 0; i < elems; ++i) sum[i] += term[i];
  }
  for (std::size_t i = 0; i < elems; ++i) sum[i] /= static_cast<T>(chunk.inputs.size());
  cast_elements(wide, std::as_bytes(std::span(sum).first(elems)), dtype, out, Overflow::kSaturate);
}

class Mean : public Recipe {
 public:
  std::string key() const override { return std::string(kMeanKey); }
  bool is_elementwise() const override { return true; }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    for (const Operand& input : inputs) {
      const Operand& first = inputs.front();
      const auto form = [](const Operand& of) { return std::string(name(of.dtype)) + " " + to_string(of.shape); };
      if (form(input) != form(first))
        throw Error(ErrorKind::kBadInput, "is " + form(input) + ", but " + std::string(first.name) + " is " +
                                              form(first) + ": their mean cannot be computed")
            .tensor(std::string(input.name));
      if (inputs.size() > 1 && (!can_cast(input.dtype, DType::kF64) || !can_cast(DType::kF64, input.dtype)))
        throw Error(ErrorKind::kUnsupported, "is " + std::string(name(input.dtype)) + ", which has no mean")
            .tensor(std::string(input.name));
    }
    if (inputs.empty() || output.dtype != inputs.front().dtype || output.shape != inputs.front().shape)
      throw Error(ErrorKind::kInternal, "is not a mean of its inputs").tensor(std::string(output.name));
  }

  void apply(std::span<const InputBox> inputs, const Box&, std::span<std::byte> result,
             Findings& findings) const override {
    if (inputs.size() == 1)
      std::memcpy(result.data(), inputs.front().bytes.data(), result.size());
    else if (inputs.front().dtype == DType::kF64)
      apply_as<double>(inputs, DType::kF64, result, findings);
    else
      apply_as<float>(inputs, DType::kF32, result, findings);
  }

 private:
  template <typename T>
  static void apply_as(std::span<const InputBox> inputs, DType wide, std::span<std::byte> result, Findings& findings) {
    const std::size_t width = bits(inputs.front().dtype) / 8;
    std::vector<T> sum(kTermElems), term(kTermElems);
    for (std::size_t begin = 0; begin < result.size(); begin += kTermElems * width) {
      const Terms chunk{inputs, begin, std::min(kTermElems * width, result.size() - begin)};
      const auto out = result.subspan(begin, chunk.bytes);
      const std::byte* const first = chunk.of(inputs.front()).data();
      if (chunk.is_equal(0, chunk.bytes)) {
        std::memcpy(out.data(), first, chunk.bytes);
        continue;
      }
      findings.inexact = true;
      add_up(chunk, wide, sum, term, out);
      // If all inputs are equal, restores their bits: arithmetic could change the sign of a zero, the payload of a NaN,
      // or the last bit of a mean of three.
      for (std::size_t at = 0; at < chunk.bytes; at += width)
        if (chunk.is_equal(at, width)) std::memcpy(out.data() + at, first + at, width);
    }
  }
};

}  // namespace

std::shared_ptr<const Recipe> mean_recipe() {
  return std::make_shared<Mean>();
}

}  // namespace reshard
