// Files of torch.save. An input is a file as it is, or, after a '@', the pickle of an archive with two storages.

#include "reshard/formats/torch/torch_file.h"

#include <cstdlib>
#include <string>

#include "fuzz/time_limit.h"
#include "reshard/io/memory_files.h"
#include "support/zips.h"

namespace reshard {
namespace {

void check_bounds(const Container& container) {
  for (const TensorEntry& tensor : container.tensors) {
    std::uint64_t last = tensor.offset_bytes;
    if (tensor.size_bytes == 0) continue;
    const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
    if (tensor.strides.empty()) last += tensor.size_bytes - elem_bytes;
    for (std::size_t dim = 0; dim < tensor.strides.size(); ++dim)
      last += (tensor.shape[dim] - 1) * tensor.strides[dim] * elem_bytes;
    if (last + elem_bytes > container.size_bytes) std::abort();
  }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  std::string content(reinterpret_cast<const char*>(bytes), size);
  if (!content.empty() && content[0] == '@')
    content = reshard::test::torch_zip(content.substr(1), {{"0", std::string(48, 's')}, {"1", std::string(64, 't')}});
  const reshard::MemorySource source(std::move(content));
  try {
    reshard::check_bounds(reshard::read_torch(source, "f"));
  } catch (const reshard::Error& error) {
    // A read past the end is the reader's mistake: it must have looked at the size before.
    if (error.kind() != reshard::ErrorKind::kBadInput && error.kind() != reshard::ErrorKind::kUnsupported) std::abort();
  }
  return 0;
}
