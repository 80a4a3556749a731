#include "reshard/tensor/recipes/change.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

std::size_t width_of(DType dtype) {
  return bits(dtype) / 8;
}

/// Number of runs along the last dim, which is not empty.
std::size_t rows_of(const Box& box) {
  return volume(box) / box.size.back();
}

/// Copies `count` elements of `width` bytes between arrays in which they are `from_step` and `to_step` elements apart.
void copy_apart(const std::byte* from, std::size_t from_step, std::byte* to, std::size_t to_step, std::size_t count,
                std::size_t width) {
  const auto copy = [&](auto one) {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&one, from + i * from_step * sizeof one, sizeof one);
      std::memcpy(to + i * to_step * sizeof one, &one, sizeof one);
    }
  };
  if (width == 1) return copy(std::uint8_t{});
  if (width == 2) return copy(std::uint16_t{});
  if (width == 4) return copy(std::uint32_t{});
  copy(std::uint64_t{});
}

template <typename T, typename Action>
void replace_as(DType wide, DType dtype, std::span<std::byte> bytes, Action&& action) {
  std::vector<T> values(bytes.size() / width_of(dtype));
  cast_elements(dtype, bytes, wide, std::as_writable_bytes(std::span(values)), Overflow::kSaturate);
  for (T& value : values) value = action(value);
  cast_elements(wide, std::as_bytes(std::span(values)), dtype, bytes, Overflow::kSaturate);
}

/// Replaces each element of a float dtype by the result of `action`.
template <typename Action>
void replace(DType dtype, std::span<std::byte> bytes, Action&& action) {
  if (dtype == DType::kF64)
    replace_as<double>(DType::kF64, dtype, bytes, action);
  else
    replace_as<float>(DType::kF32, dtype, bytes, action);
}

/// Casts, and counts the values that overflow.
void cast_counted(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out, Findings& findings) {
  if (const auto overflowed = cast_elements(from, in, to, out, Overflow::kError))
    findings.overflows += overflowed->count;
}

bool computes(const ValueChange& change) {
  return change.plus != 0 || change.divisor != 1;
}

/// Validates that an input and the output have dtypes with which `change` can be computed.
void validate_dtypes(const ValueChange& change, const Operand& input, const Operand& output) {
  const bool is_float = describe(input.dtype).kind == DTypeClass::kFloat && can_cast(input.dtype, output.dtype) &&
                        can_cast(output.dtype, DType::kF64) && can_cast(DType::kF64, output.dtype);
  const bool is_copied = (input.dtype == output.dtype && bits(input.dtype) % 8 == 0 && bits(input.dtype) <= 64) ||
                         can_cast(input.dtype, output.dtype);
  if (computes(change) ? is_float : is_copied) return;
  throw Error(ErrorKind::kUnsupported, fmt::format("is {}, from which {} {} cannot be computed", name(input.dtype),
                                                   name(output.dtype), output.name))
      .tensor(std::string(input.name))
      .hint("cast the model to a dtype such as bfloat16 first (`dtype`)");
}

/// Replaces the elements of `box` that `change` computes by the results of `action`.
template <typename Action>
void replace_computed(const ValueChange& change, DType dtype, const Box& box, std::span<std::byte> bytes,
                      Action&& action) {
  const std::size_t width = width_of(dtype), each = box.size.back();
  const std::uint64_t skipped = (change.first + change.step - box.begin.back() % change.step) % change.step;
  if (bytes.empty() || skipped >= each) return;
  const std::size_t count = (each - skipped + change.step - 1) / change.step;
  std::vector<std::byte> values(count * width);
  for (std::size_t row = 0; row < rows_of(box); ++row) {
    std::byte* const begin = bytes.data() + (row * each + skipped) * width;
    copy_apart(begin, change.step, values.data(), 1, count, width);
    replace(dtype, values, action);
    copy_apart(values.data(), 1, begin, change.step, count, width);
  }
}

/// Computes an arranged tensor from its parameter.
class Arrange : public Recipe {
 public:
  Arrange(const ValueChange& change, DType dtype) : change_(change), dtype_(dtype) {}

  std::string key() const override {
    return fmt::format("{} {} {}", change_.name_of("change"), change_.arrangement->key(), name(dtype_));
  }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    const Operand& input = inputs.front();
    if (inputs.size() != 1 || output.dtype != dtype_ || input.shape != change_.arrangement->from_shape() ||
        output.shape != change_.arrangement->to_shape())
      throw Error(ErrorKind::kInternal, "does not follow from its input").tensor(std::string(output.name));
    if (change_.arrangement->word() == 1)
      validate_dtypes(change_, input, output);
    else if (input.dtype == dtype_ || change_.dtype_of(input.dtype) != dtype_)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("is {}, of which pairs are not {}", name(input.dtype), name(dtype_)))
          .tensor(std::string(input.name));
  }

  Box input_box(std::size_t, const Box& output) const override { return change_.arrangement->box_from(output); }

  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings& findings) const override {
    const InputBox& input = inputs.front();
    const DType dtype = change_.arrangement->word() == 1 ? dtype_ : input.dtype;
    if (input.dtype == dtype && !computes(change_))
      return change_.arrangement->arrange(input.box, input.bytes, output, result, width_of(dtype));
    std::vector<std::byte> values(volume(input.box) * width_of(dtype));
    if (input.dtype == dtype)
      std::copy(input.bytes.begin(), input.bytes.end(), values.begin());
    else
      cast_counted(input.dtype, input.bytes, dtype, values, findings);
    if (change_.plus != 0)
      replace_computed(change_, dtype, input.box, values,
                       [&](auto value) { return value + static_cast<decltype(value)>(change_.plus); });
    if (change_.divisor != 1)
      replace_computed(change_, dtype, input.box, values,
                       [&](auto value) { return value / static_cast<decltype(value)>(change_.divisor); });
    change_.arrangement->arrange(input.box, values, output, result, width_of(dtype));
  }

 private:
  ValueChange change_;
  DType dtype_;
};

/// Computes a parameter from its arranged tensor.
class RestoreArranged : public Recipe {
 public:
  explicit RestoreArranged(ValueChange change) : change_(std::move(change)) {}

  std::string key() const override {
    return fmt::format("restore{} {}", change_.name_of(""), change_.arrangement->key());
  }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    const Operand& input = inputs.front();
    if (inputs.size() == 1 && output.shape == change_.arrangement->from_shape() &&
        input.shape == change_.arrangement->to_shape() && change_.dtype_of(output.dtype) == input.dtype &&
        (change_.arrangement->word() == 1) == (input.dtype == output.dtype)) {
      if (change_.arrangement->word() == 1) validate_dtypes(change_, input, output);
      return;
    }
    throw Error(ErrorKind::kBadInput,
                fmt::format("is {} {}, which does not fit {}, {} {}", name(input.dtype), to_string(input.shape),
                            output.name, name(output.dtype), to_string(output.shape)))
        .tensor(std::string(input.name));
  }

  Box input_box(std::size_t, const Box& output) const override { return change_.arrangement->box_to(output); }

  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings&) const override {
    const InputBox& input = inputs.front();
    const std::size_t width = width_of(input.dtype) / change_.arrangement->word();
    change_.arrangement->restore(input.box, input.bytes, output, result, width);
    if (computes(change_))
      replace_computed(change_, input.dtype, output, result, [&](auto value) {
        using T = decltype(value);
        return value * static_cast<T>(change_.divisor) - static_cast<T>(change_.plus);
      });
  }

 private:
  ValueChange change_;
};

class Change : public Recipe {
 public:
  Change(const ValueChange& change, DType dtype) : change_(change), dtype_(dtype) {}

  std::string key() const override { return fmt::format("{} {}", change_.name_of("change"), name(dtype_)); }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    const Operand& input = inputs.front();
    if (inputs.size() != 1 || output.dtype != dtype_ || input.shape.empty() || input.shape.back() % change_.step != 0 ||
        change_.shape_of(input.shape) != output.shape)
      throw Error(ErrorKind::kInternal, "does not follow from its input").tensor(std::string(output.name));
    validate_dtypes(change_, input, output);
  }

  Box input_box(std::size_t, const Box& output) const override {
    Box box = output;
    box.begin.back() *= change_.step;
    box.size.back() *= change_.step;
    return box;
  }

  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings& findings) const override {
    if (result.empty()) return;
    const InputBox& input = inputs.front();
    const std::size_t width = width_of(input.dtype), count = output.size.back();
    const bool is_cast = input.dtype != dtype_;
    std::vector<std::byte> picked(is_cast ? volume(output) * width : 0);
    std::byte* const to = is_cast ? picked.data() : result.data();
    for (std::size_t row = 0; row < rows_of(output); ++row)
      copy_apart(input.bytes.data() + (row * count * change_.step + change_.first) * width, change_.step,
                 to + row * count * width, 1, count, width);
    if (is_cast) cast_counted(input.dtype, picked, dtype_, result, findings);
    if (change_.plus != 0)
      replace(dtype_, result, [&](auto value) { return value + static_cast<decltype(value)>(change_.plus); });
    if (change_.divisor != 1)
      replace(dtype_, result, [&](auto value) { return value / static_cast<decltype(value)>(change_.divisor); });
  }

 private:
  ValueChange change_;
  DType dtype_;
};

class Restore : public Recipe {
 public:
  explicit Restore(std::vector<ValueChange> changes) : changes_(std::move(changes)) {}

  std::string key() const override {
    std::string key = "restore";
    for (const ValueChange& change : changes_) key += " " + change.name_of("");
    return key;
  }

  void validate(std::span<const Operand> inputs, const Operand& output) const override {
    std::vector<bool> is_there(changes_.front().step);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      validate_dtypes(changes_.at(i), inputs[i], output);
      is_there.at(changes_[i].first) = true;
      if (inputs[i].dtype != output.dtype || changes_[i].shape_of(output.shape) != inputs[i].shape)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("is {} {}, which does not fit {}, {} {}", name(inputs[i].dtype),
                                to_string(inputs[i].shape), output.name, name(output.dtype), to_string(output.shape)))
            .tensor(std::string(inputs[i].name));
    }
    if (std::find(is_there.begin(), is_there.end(), false) != is_there.end())
      throw Error(ErrorKind::kBadInput, "the files contain only some of its elements").tensor(std::string(output.name));
  }

  /// Covers at least one element, even if the box has none of this input.
  Box input_box(std::size_t input, const Box& output) const override {
    const std::uint64_t step = changes_[input].step;
    Box box = output;
    box.begin.back() = output.begin.back() / step;
    box.size.back() = (output.begin.back() + output.size.back() + step - 1) / step - box.begin.back();
    return box;
  }

  void apply(std::span<const InputBox> inputs, const Box& output, std::span<std::byte> result,
             Findings&) const override {
    if (result.empty()) return;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const ValueChange& change = changes_[i];
      const InputBox& input = inputs[i];
      std::vector<std::byte> values(input.bytes.begin(), input.bytes.end());
      if (computes(change))
        replace(input.dtype, values, [&](auto value) {
          using T = decltype(value);
          return value * static_cast<T>(change.divisor) - static_cast<T>(change.plus);
        });
      const std::uint64_t begin = output.begin.back(), end = begin + output.size.back();
      const std::uint64_t skipped = begin > change.first ? (begin - change.first + change.step - 1) / change.step : 0;
      const std::uint64_t at = skipped * change.step + change.first;  // in the output
      if (at >= end) continue;
      const std::uint64_t count = (end - at + change.step - 1) / change.step;
      const std::size_t width = width_of(input.dtype), each = input.box.size.back();
      for (std::size_t row = 0; row < rows_of(output); ++row)
        copy_apart(values.data() + (row * each + skipped - input.box.begin.back()) * width, 1,
                   result.data() + (row * (end - begin) + at - begin) * width, change.step, count, width);
    }
  }

 private:
  std::vector<ValueChange> changes_;
};

}  // namespace

std::string ValueChange::name_of(const std::string& parameter) const {
  std::string text = parameter;
  if (step != 1) text += fmt::format("[{}::{}]", first, step);
  if (plus != 0) text += fmt::format(" + {}", plus);
  if (divisor != 1) text += fmt::format(" / {}", divisor);
  if (arrangement) text += fmt::format(" as {}", to_string(arrangement->to_shape()));
  return text;
}

Dims ValueChange::shape_of(Dims shape) const {
  if (arrangement) return arrangement->to_shape();
  shape.back() /= step;
  return shape;
}

DType ValueChange::dtype_of(DType dtype) const {
  const bool joins_pairs = arrangement && arrangement->word() == 2 && dtype == DType::kU8;
  return joins_pairs ? DType::kU16 : dtype;
}

std::shared_ptr<const Recipe> change_recipe(const ValueChange& change, DType dtype) {
  if (change.arrangement) return std::make_shared<Arrange>(change, dtype);
  return std::make_shared<Change>(change, dtype);
}

std::shared_ptr<const Recipe> restore_recipe(std::vector<ValueChange> changes) {
  if (changes.front().arrangement) return std::make_shared<RestoreArranged>(std::move(changes.front()));
  return std::make_shared<Restore>(std::move(changes));
}

}  // namespace reshard
