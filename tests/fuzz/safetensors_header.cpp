// Whole safetensors files, but for their data, of which only the length counts: the first 8 bytes of an input are that
// length, the rest is the header.

#include <cstring>

#include "fuzz/target.h"
#include "reshard/formats/safetensors/safetensors.h"

void reshard::test::fuzz(std::string_view input) {
  if (input.size() < 8) return;
  std::uint64_t data_bytes = 0;
  std::memcpy(&data_bytes, input.data(), 8);
  const std::uint64_t file_bytes = input.size() + data_bytes;
  if (file_bytes < data_bytes) return;
  for (const TensorEntry& tensor : parse_safetensors_header(input.substr(8), file_bytes, "f").tensors)
    check(tensor.offset_bytes <= file_bytes && tensor.size_bytes <= file_bytes - tensor.offset_bytes);
}
