#include "support/strided.h"

namespace reshard::test {
namespace {

std::string read_bytes(const Source& file, std::uint64_t offset, std::uint64_t size) {
  std::string bytes(size, '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace

std::string c_order_bytes(const TensorEntry& tensor, const Source& file) {
  if (tensor.strides.empty()) return read_bytes(file, tensor.offset_bytes, tensor.size_bytes);
  const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
  std::string bytes;
  Dims index(tensor.shape.size());
  while (bytes.size() < tensor.size_bytes) {
    std::uint64_t at = tensor.offset_bytes;
    for (std::size_t dim = 0; dim < index.size(); ++dim) at += index[dim] * tensor.strides[dim] * elem_bytes;
    bytes += read_bytes(file, at, elem_bytes);
    for (std::size_t dim = index.size(); dim-- > 0 && ++index[dim] == tensor.shape[dim];) index[dim] = 0;
  }
  return bytes;
}

}  // namespace reshard::test
