#include "support/strided.h"

namespace reshard::test {

std::string c_order_bytes(const TensorEntry& tensor, const std::string& file) {
  if (tensor.strides.empty()) return file.substr(tensor.offset_bytes, tensor.size_bytes);
  const std::size_t elem_bytes = bits(tensor.dtype) / 8;
  std::string bytes;
  Dims index(tensor.shape.size());
  while (bytes.size() < tensor.size_bytes) {
    std::size_t at = tensor.offset_bytes;
    for (std::size_t dim = 0; dim < index.size(); ++dim) at += index[dim] * tensor.strides[dim] * elem_bytes;
    bytes += file.substr(at, elem_bytes);
    for (std::size_t dim = index.size(); dim-- > 0 && ++index[dim] == tensor.shape[dim];) index[dim] = 0;
  }
  return bytes;
}

}  // namespace reshard::test
