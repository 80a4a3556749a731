#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/io/memory_files.h"
#include "reshard/tensor/values/dtype.h"
#include "support/zips.h"

/// What the fuzz targets share.
namespace reshard::test {

/// Reads one input; each target defines it. It may throw errors of bad or unsupported input, and no others.
void fuzz(std::string_view input);

inline void check(bool holds) {
  if (!holds) std::abort();
}

/// Aborts unless all elements of `tensor`, a TensorEntry of whole bytes, lie in a file of that size.
template <typename Tensor>
void check_bounds(const Tensor& tensor, std::uint64_t file_bytes) {
  if (tensor.size_bytes == 0) return;
  const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
  std::uint64_t end = tensor.offset_bytes + (tensor.strides.empty() ? tensor.size_bytes : elem_bytes);
  for (std::size_t dim = 0; dim < tensor.strides.size(); ++dim)
    end += (tensor.shape[dim] - 1) * tensor.strides[dim] * elem_bytes;
  check(end <= file_bytes);
}

/// Calls `read`, whose errors may only be about its input.
template <typename Read>
void expect_no_crash(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    // A read past the end is the reader's mistake: it must have looked at the size before.
    check(error.kind() == ErrorKind::kBadInput || error.kind() == ErrorKind::kUnsupported);
  }
}

/// An archive of torch.save with this pickle and storages of 12 and 16 elements of 4 bytes, "0" and "1".
inline std::string archive_of(std::string_view pickle) {
  return torch_zip(std::string(pickle), {{"0", std::string(48, 's')}, {"1", std::string(64, 't')}});
}

/// Writes the xser container "c" of pickles with "@@" between them: of the reference file, of the one tensor file, and
/// of the info file. The last ones may be missing.
inline void write_xser(MemoryFiles& files, std::string_view input) {
  std::size_t begin = 0;
  for (const char* path : {"c", "c.tensors/tensor_0.pt", "c.info.pt"}) {
    if (begin > input.size()) break;
    const std::size_t end = std::min(input.find("@@", begin), input.size());
    files.write(path, archive_of(input.substr(begin, end - begin)));
    begin = end + 2;
  }
}

}  // namespace reshard::test
