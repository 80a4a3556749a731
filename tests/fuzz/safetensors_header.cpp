// Whole safetensors files, but for their data, of which only the length counts.

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "fuzz/time_limit.h"
#include "reshard/base/error.h"
#include "reshard/formats/safetensors/safetensors.h"

/// The first 8 bytes are the length of the data, the rest is the header.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  if (size < 8) return 0;
  std::uint64_t data_bytes = 0;
  std::memcpy(&data_bytes, bytes, 8);
  const std::string_view header(reinterpret_cast<const char*>(bytes) + 8, size - 8);
  const std::uint64_t file_bytes = 8 + header.size() + data_bytes;
  if (file_bytes < data_bytes) return 0;
  try {
    const reshard::Container container = reshard::parse_safetensors_header(header, file_bytes, "f");
    for (const reshard::TensorEntry& tensor : container.tensors)
      if (tensor.offset_bytes > file_bytes || tensor.size_bytes > file_bytes - tensor.offset_bytes) std::abort();
  } catch (const reshard::Error& error) {
    if (error.kind() == reshard::ErrorKind::kInternal) std::abort();
  }
  return 0;
}
