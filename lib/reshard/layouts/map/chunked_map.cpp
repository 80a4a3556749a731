#include "reshard/layouts/map/chunked_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "reshard/base/error.h"

namespace reshard {
namespace {

/// The distinct boxes of a tensor's chunks. Several files may contain the same box; such replicas are compared later.
std::vector<Box> distinct_boxes(const ChunkedTensor& tensor) {
  std::vector<Box> boxes;
  boxes.reserve(tensor.chunks.size());
  for (const ChunkedTensor::Chunk& chunk : tensor.chunks) boxes.push_back(chunk.box);
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return std::tie(a.begin, a.size) < std::tie(b.begin, b.size); });
  boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
  return boxes;
}

void validate(const ChunkedTensor& tensor, const std::filesystem::path& where) {
  const std::vector<Box> boxes = distinct_boxes(tensor);
  const std::uint64_t elems = num_elems(tensor.shape).value_or(0);
  std::uint64_t filled = 0;
  for (const Box& box : boxes) filled += std::min(elems, volume(box));
  const auto bad = [&](const std::string& what) {
    return Error(ErrorKind::kBadInput, what)
        .in(where)
        .tensor(tensor.entry)
        .hint("the save is incomplete, or this version does not support the program that wrote it");
  };
  if (filled < elems) throw bad(fmt::format("its {} chunks have {} of its {} elements", boxes.size(), filled, elems));
  if (filled > elems) throw bad(fmt::format("its {} chunks overlap", boxes.size()));
  if (boxes.size() < 2) return;
  SourceMap tiles;  // treats the chunks as pieces of one stored tensor
  tiles.files.push_back({{where}});
  tiles.add_stored({SharedName(tensor.entry), tensor.dtype, tensor.shape});
  tiles.add_logical({tensor.entry, tensor.dtype, tensor.shape, {}}, where);
  tiles.pieces[0].reserve(boxes.size());
  for (const Box& box : boxes) tiles.pieces[0].push_back({0, box, box.begin});
  validate_tiling(tiles);
}

}  // namespace

void validate_chunks(const std::vector<ChunkedTensor>& tensors, const std::filesystem::path& where) {
  for (const ChunkedTensor& tensor : tensors) validate(tensor, where);
}

SourceMap chunked_map(std::vector<SourceFile> files, std::vector<ChunkedTensor> tensors,
                      const std::filesystem::path& where) {
  SourceMap map;
  map.files = std::move(files);
  map.reserve_logical(tensors.size());
  for (ChunkedTensor& tensor : tensors) {
    const std::uint32_t logical = map.add_logical({tensor.name, tensor.dtype, tensor.shape, {}, tensor.role}, where);
    const SharedName entry(tensor.entry);
    // In row order, so that only one or a few boxes of the tensor are incomplete at a time while it is assembled.
    std::sort(tensor.chunks.begin(), tensor.chunks.end(),
              [](const auto& a, const auto& b) { return a.box.begin < b.box.begin; });
    for (ChunkedTensor::Chunk& chunk : tensor.chunks) {
      StoredTensor stored{entry, tensor.dtype, chunk.box.size, chunk.file, chunk.offset_bytes};
      stored.is_object = tensor.role == TensorRole::kObject;
      if (!chunk.strides.empty()) stored.set_view({stored.shape, std::move(chunk.strides)});
      map.add_chunk(logical, std::move(stored), std::move(chunk.box));
    }
  }
  return map;
}

}  // namespace reshard
