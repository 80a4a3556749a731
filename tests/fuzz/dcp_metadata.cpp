// Checkpoints of torch.distributed.checkpoint: an input is a `.metadata`, or two with an "@@" between them: the
// `.metadata`, and the file that it names, whatever its name.

#include "reshard/formats/dcp/dcp_metadata.h"

#include <cstdlib>
#include <string>

#include "fuzz/time_limit.h"
#include "reshard/formats/dcp/dcp_item.h"
#include "reshard/io/memory_files.h"

namespace reshard {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_metadata(const DcpMetadata& metadata) {
  check(!metadata.transforms.empty() && metadata.transforms.front().empty());
  const auto check_place = [&](const DcpPlace& place) {
    check(place.file < metadata.files.size() && place.transforms < metadata.transforms.size());
    check(place.offset_bytes <= UINT64_MAX - place.length_bytes);
  };
  for (const DcpTensor& tensor : metadata.tensors)
    for (const DcpChunk& chunk : tensor.chunks) {
      check(contains(tensor.shape, chunk.box) && volume(chunk.box) > 0);
      check_place(chunk.place);
    }
  for (const DcpBytes& bytes : metadata.bytes) check_place(bytes.place);
  for (const std::string& file : metadata.files) check(!file.empty() && file.front() != '/');
}

void find_items(const DcpMetadata& metadata, const std::string& content) {
  MemoryFiles files;
  files.write("d/f", content);
  DcpFile file(files, "d/f");
  for (const DcpTensor& tensor : metadata.tensors)
    for (const DcpChunk& chunk : tensor.chunks) {
      if (!tensor.dtype) continue;
      const DcpItem item = file.find(tensor, chunk, metadata.transforms[chunk.place.transforms]);
      const std::uint64_t bytes = item.frame ? item.decoded_bytes : content.size();
      check(item.tensor.shape == chunk.box.size && item.tensor.dtype == tensor.dtype);
      std::uint64_t last = item.tensor.offset_bytes;
      if (item.tensor.strides.empty()) last += item.tensor.size_bytes - bits(item.tensor.dtype) / 8;
      for (std::size_t dim = 0; dim < item.tensor.strides.size(); ++dim)
        last += (item.tensor.shape[dim] - 1) * item.tensor.strides[dim] * bits(item.tensor.dtype) / 8;
      check(last + bits(item.tensor.dtype) / 8 <= bytes);
    }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  const std::string input(reinterpret_cast<const char*>(bytes), size);
  const std::size_t split = input.find("@@");
  try {
    const reshard::DcpMetadata metadata =
        reshard::read_dcp_metadata(reshard::MemorySource(input.substr(0, split)), "d/.metadata");
    reshard::check_metadata(metadata);
    if (split != input.npos) reshard::find_items(metadata, input.substr(split + 2));
  } catch (const reshard::Error& error) {
    // A read past the end is the reader's mistake: it must have looked at the size before.
    if (error.kind() != reshard::ErrorKind::kBadInput && error.kind() != reshard::ErrorKind::kUnsupported) std::abort();
  }
  return 0;
}
