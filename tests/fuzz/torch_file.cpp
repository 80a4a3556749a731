// Files of torch.save. An input is a file as it is, or, after a '@', the pickle of an archive with two storages.

#include "reshard/formats/torch_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "support/zips.h"

namespace reshard {
namespace {

/// A file in memory that has a name.
class NamedMemory {
 public:
  explicit NamedMemory(const std::string& content) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, content.data(), content.size()) != static_cast<ssize_t>(content.size())) std::abort();
  }
  NamedMemory(const NamedMemory&) = delete;
  NamedMemory& operator=(const NamedMemory&) = delete;
  ~NamedMemory() { ::close(fd_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

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
  std::string content(reinterpret_cast<const char*>(bytes), size);
  if (!content.empty() && content[0] == '@')
    content = reshard::test::torch_zip(content.substr(1), {{"0", std::string(48, 's')}, {"1", std::string(64, 't')}});
  const reshard::NamedMemory file(content);
  try {
    reshard::check_bounds(reshard::read_torch(file.path()));
  } catch (const reshard::Error& error) {
    if (error.kind() != reshard::ErrorKind::kBadInput && error.kind() != reshard::ErrorKind::kUnsupported) std::abort();
  }
  return 0;
}
