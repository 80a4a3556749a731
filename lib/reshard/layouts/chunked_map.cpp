#include "reshard/layouts/chunked_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"

namespace reshard {
namespace {

void validate(const ChunkedTensor& tensor, const std::filesystem::path& where) {
  const std::uint64_t elems = num_elems(tensor.shape).value_or(0);
  std::uint64_t filled = 0;
  for (const ChunkedTensor::Chunk& chunk : tensor.chunks) filled += std::min(elems, volume(chunk.box));
  const auto bad = [&](const std::string& what) {
    return Error(ErrorKind::kBadInput, what)
        .in(where)
        .tensor(tensor.entry)
        .hint("the save did not finish, or is of a program that this version does not know");
  };
  if (filled < elems)
    throw bad(fmt::format("its {} chunks have {} of its {} elements", tensor.chunks.size(), filled, elems));
  if (filled > elems) throw bad(fmt::format("its {} chunks overlap", tensor.chunks.size()));
  if (tensor.chunks.size() < 2) return;
  TensorMap tiles;  // as if the chunks were pieces of one stored tensor
  tiles.files.push_back({where});
  StoredTensor all{SharedName(tensor.entry), tensor.dtype, tensor.shape};
  tiles.add_stored(std::move(all));
  tiles.add_logical({tensor.entry, tensor.dtype, tensor.shape, {}}, where);
  tiles.pieces[0].reserve(tensor.chunks.size());
  for (const ChunkedTensor::Chunk& chunk : tensor.chunks) tiles.pieces[0].push_back({0, chunk.box, chunk.box.begin});
  validate_tiling(tiles);
}

}  // namespace

void validate_chunks(const std::vector<ChunkedTensor>& tensors, const std::filesystem::path& where) {
  for (const ChunkedTensor& tensor : tensors) validate(tensor, where);
}

TensorMap chunked_map(std::vector<TensorFile> files, std::vector<ChunkedTensor> tensors,
                      const std::vector<TiedParameter>& tied, const std::filesystem::path& where) {
  std::unordered_set<std::string_view> held;
  for (const ChunkedTensor& tensor : tensors) held.insert(tensor.name);
  std::unordered_map<std::string, std::string> replicas;  // by name, of what they are replicas
  for (const TiedParameter& one : tied)
    if (held.count(one.name) && held.count(one.source)) replicas.emplace(one.name, one.source);

  TensorMap map;
  map.files = std::move(files);
  map.reserve_logical(tensors.size());
  for (ChunkedTensor& tensor : tensors) {
    const auto replica = replicas.find(tensor.name);
    const bool is_tied = replica != replicas.end();
    const std::uint32_t logical =
        map.add_logical({is_tied ? replica->second : tensor.name, tensor.dtype, tensor.shape, {}}, where);
    const SharedName entry(tensor.entry);
    // In rows, so that what is open of the tensor while it is put together stays one box or a few.
    std::sort(tensor.chunks.begin(), tensor.chunks.end(),
              [](const auto& a, const auto& b) { return a.box.begin < b.box.begin; });
    for (ChunkedTensor::Chunk& chunk : tensor.chunks) {
      StoredTensor stored{entry, tensor.dtype, chunk.box.size, chunk.file, chunk.offset_bytes};
      stored.size_bytes = num_bytes(tensor.dtype, stored.shape).value_or(0);
      stored.tied = is_tied;
      if (is_tied) stored.label = PartitionLabel::kTied;
      const std::uint32_t index = map.add_stored(std::move(stored));
      if (!chunk.strides.empty()) map.strides.emplace(index, std::move(chunk.strides));
      const Dims zeros(chunk.box.size.size());
      map.pieces[logical].push_back({index, std::move(chunk.box), zeros});
    }
  }
  return map;
}

}  // namespace reshard
