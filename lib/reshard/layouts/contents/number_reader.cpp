#include "reshard/layouts/contents/number_reader.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "reshard/tensor/cast/numeric.h"

namespace reshard {

bool NumberReader::can_read(const LogicalTensor& tensor) {
  const DTypeClass kind = describe(tensor.dtype).kind;
  return tensor.shape.empty() && !tensor.constant() && bits(tensor.dtype) % 8 == 0 && kind != DTypeClass::kComplex;
}

PlainValue NumberReader::read(const StoredTensor& tensor) {
  std::array<std::byte, sizeof(std::uint64_t)> buffer;
  const auto bytes = std::span(buffer).first(bits(tensor.dtype) / 8);
  opened_.at(tensor.file).read_at(tensor.offset_bytes, bytes);
  const ValueSummary summary = summarize(tensor.dtype, bytes);
  return PlainValue{summary.nan_count > 0 ? std::numeric_limits<double>::quiet_NaN() : summary.min};
}

}  // namespace reshard
