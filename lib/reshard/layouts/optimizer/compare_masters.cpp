#include "reshard/layouts/optimizer/compare_masters.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

constexpr std::uint64_t kElems = 256;       // that are compared of a tensor
constexpr std::size_t kTensorsPerFile = 8;  // that are compared of each file, at least

using Bytes = std::vector<std::byte>;

Bytes cast(DType from, const Bytes& in, DType to) {
  Bytes out(in.size() / (bits(from) / 8) * (bits(to) / 8));
  cast_elements(from, in, to, out, Overflow::kSaturate);
  return out;
}

std::vector<double> values(DType dtype, const Bytes& bytes) {
  const Bytes wide = cast(dtype, bytes, DType::kF64);
  std::vector<double> values(wide.size() / sizeof(double));
  std::memcpy(values.data(), wide.data(), wide.size());
  return values;
}

Bytes read(LastOpened& files, const std::filesystem::path& path, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  Bytes bytes(size_bytes);
  files.at(path).read_at(offset_bytes, bytes);
  return bytes;
}

bool is_comparable(DType dtype) {
  return describe(dtype).kind == DTypeClass::kFloat && bits(dtype) >= 16;
}

/// The explicit bits of a significand.
int significand_bits(DType dtype) {
  if (dtype == DType::kBF16) return 7;
  if (dtype == DType::kF16) return 10;
  return dtype == DType::kF32 ? 23 : 52;
}

/// Whether `weight` is `master` rounded to `dtype`, up or down: Trainium rounds stochastically where it is told to
/// (NEURON_RT_STOCHASTIC_ROUNDING_EN), and takes the smallest numbers for zero.
bool is_rounded(double weight, double master, DType dtype) {
  if (weight == master || (std::isnan(weight) && std::isnan(master))) return true;
  if (!std::isfinite(master) || !std::isfinite(weight)) return false;
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const double distance = std::abs(weight - master);
  if (std::abs(master) < kSmallest) return distance <= kSmallest;
  return distance < std::ldexp(1.0, std::ilogb(master) - significand_bits(dtype));
}

bool is_bf16(double value) {
  const auto single = static_cast<float>(value);
  return static_cast<double>(single) == value && (std::bit_cast<std::uint32_t>(single) & 0xFFFFu) == 0;
}

/// The files of a rank's weights and of its master weights.
struct Opened {
  LastOpened model, masters;
};

/// Compares some elements. \returns false if there are none, or none that can be compared.
bool compare(Opened& files, const StatePart& part, const TensorMap& model) {
  const StoredTensor& weight = model.stored[part.local];
  const TensorEntry& master = *part.tensor;
  const bool in_order = model.strides.count(part.local) == 0 && master.strides.empty() && !weight.paired_rows;
  if (!in_order || !is_comparable(weight.dtype) || !is_comparable(master.dtype)) return false;
  const std::uint64_t size = bits(weight.dtype) / 8, elems = weight.size_bytes / size;
  const Dims in_file = weight.file_shape();
  const std::uint64_t begin = in_file.empty() || in_file[0] == 0 ? 0 : part.begin_row * (elems / in_file[0]);
  if (begin >= elems) return false;  // padding alone
  const std::uint64_t master_size = bits(master.dtype) / 8;
  const std::uint64_t count = std::min({kElems, elems - begin, master.size_bytes / master_size});
  const std::filesystem::path& path = model.files[part.first_file + master.file].path;
  const std::filesystem::path& model_path = model.files[weight.file].path;
  const Bytes own = read(files.masters, path, master.offset_bytes, count * master_size);
  const std::vector<double> weights =
      values(weight.dtype, read(files.model, model_path, weight.offset_bytes + begin * size, count * size));
  const std::vector<double> masters = values(master.dtype, own);
  const std::vector<double> as_weights = values(weight.dtype, cast(master.dtype, own, weight.dtype));
  for (std::uint64_t i = 0; i < count; ++i) {
    // Under XLA_DOWNCAST_BF16 weights are float32 that hold bfloat16 values.
    if (weights[i] == as_weights[i] || is_rounded(weights[i], masters[i], weight.dtype) ||
        (is_bf16(weights[i]) && is_rounded(weights[i], masters[i], DType::kBF16)))
      continue;
    throw Error(ErrorKind::kBadInput,
                fmt::format("it is not what the model has for its parameter {} in {}: {} and {} at element {} of it",
                            printable(weight.name.text()), model_path.string(), masters[i], weights[i], begin + i))
        .in(path)
        .tensor(part.name.text())
        .hint(
            "the optimizer and the model are of two saves, or files of ranks were swapped; without the optimizer the "
            "model's weights can be had");
  }
  return count > 0;
}

}  // namespace

void compare_masters(Files& files, const ShardedOptimizer& optimizer, const TensorMap& model) {
  const std::vector<StatePart> parts = master_parts(optimizer, model);
  Opened opened{LastOpened(files), LastOpened(files)};
  std::vector<bool> compared(model.stored.size());
  for (auto first = parts.begin(); first != parts.end();) {
    const auto end =
        std::find_if(first, parts.end(), [&](const StatePart& part) { return part.first_file != first->first_file; });
    const auto count = static_cast<std::size_t>(end - first);
    const std::size_t step = std::max<std::size_t>(1, count / kTensorsPerFile);
    for (std::size_t i = 0; i < count; i += step) {
      const StatePart& part = *(first + static_cast<std::ptrdiff_t>(i));
      if (compare(opened, part, model)) compared[part.local] = true;
    }
    first = end;
  }
  for (const StatePart& part : parts)
    if (!compared[part.local]) compared[part.local] = compare(opened, part, model);
}

}  // namespace reshard
