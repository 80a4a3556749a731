// Files of NxD's optimizer. An input is the pickle of one, or with "@@" between them those of a file of references, of
// the one tensor file, and of the info file.

#include "reshard/layouts/optimizer/optimizer_file.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "fuzz/time_limit.h"
#include "reshard/base/error.h"
#include "reshard/io/memory_files.h"
#include "support/zips.h"

namespace reshard {
namespace {

void check_tensor(const OptimizerFile& file, const TensorEntry& tensor) {
  if (tensor.file >= file.files.size()) std::abort();
  if (tensor.strides.empty() && tensor.offset_bytes + tensor.size_bytes > file.files[tensor.file].size_bytes)
    std::abort();
}

void check(const OptimizerFile& file) {
  std::size_t count = 0;
  for (const OptimizerFileGroup& group : file.groups) count += group.count;
  if (count != file.entries.size()) std::abort();
  for (const OptimizerEntry& entry : file.entries) {
    for (const TensorEntry& tensor : entry.tensors) check_tensor(file, tensor);
    if (entry.master) check_tensor(file, *entry.master);
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
    reshard::check(reshard::read_optimizer_file(files, "c"));
  } catch (const reshard::Error& error) {
    // A read past the end is the reader's mistake: it must have looked at the size before.
    if (error.kind() != reshard::ErrorKind::kBadInput && error.kind() != reshard::ErrorKind::kUnsupported) std::abort();
  }
  return 0;
}
