// Checkpoints of torch.distributed.checkpoint: an input is a `.metadata`, or two with an "@@" between them: the
// `.metadata`, and the file that it names, whatever its name.

#include "reshard/formats/dcp/dcp_metadata.h"

#include "fuzz/target.h"
#include "reshard/formats/dcp/dcp_item.h"

namespace reshard::test {
namespace {

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
      check_bounds(item.tensor, bytes);
    }
}

}  // namespace

void fuzz(std::string_view input) {
  const std::size_t split = input.find("@@");
  const DcpMetadata metadata = read_dcp_metadata(MemorySource(std::string(input.substr(0, split))), "d/.metadata");
  check_metadata(metadata);
  if (split != input.npos) find_items(metadata, std::string(input.substr(split + 2)));
}

}  // namespace reshard::test
