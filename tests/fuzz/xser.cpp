// xser containers. An input is up to three pickles with "@@" between them: of the reference file, of the one tensor
// file, and of the info file. A container of files that are whole archives is their readers' matter (torch_file.cpp).

#include "reshard/formats/torch/xser.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "fuzz/time_limit.h"
#include "reshard/base/error.h"
#include "reshard/io/memory_files.h"
#include "support/zips.h"

namespace reshard {
namespace {

void check_bounds(const Container& container) {
  for (const TensorEntry& tensor : container.tensors) {
    if (tensor.file >= container.files.size()) std::abort();
    if (tensor.strides.empty() && tensor.offset_bytes + tensor.size_bytes > container.files[tensor.file].size_bytes)
      std::abort();
  }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  const std::string input(reinterpret_cast<const char*>(bytes), size);
  reshard::MemoryFiles files;
  std::size_t begin = 0;
  for (const char* path : {"c", "c.tensors/tensor_0.pt", "c.info.pt"}) {
    if (begin > size) break;
    const std::size_t end = std::min(input.find("@@", begin), size);
    files.write(path, reshard::test::torch_zip(input.substr(begin, end - begin), {{"0", std::string(48, 's')}}));
    begin = end + 2;
  }
  try {
    reshard::check_bounds(reshard::read_xser(files, "c"));
  } catch (const reshard::Error& error) {
    // A read past the end is the reader's mistake: it must have looked at the size before.
    if (error.kind() != reshard::ErrorKind::kBadInput && error.kind() != reshard::ErrorKind::kUnsupported) std::abort();
  }
  return 0;
}
