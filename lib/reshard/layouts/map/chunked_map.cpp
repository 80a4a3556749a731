#include "reshard/layouts/map/chunked_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/region.h"
#include "reshard/specs/model/model.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxExpertChunks = std::size_t{1} << 24;  // of all stacks; each expert has a chunk, or a few

/// The boxes of a tensor's chunks, each once: several files may hold the same, and are compared.
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
        .hint("the save did not finish, or is of a program that this version does not know");
  };
  if (filled < elems) throw bad(fmt::format("its {} chunks have {} of its {} elements", boxes.size(), filled, elems));
  if (filled > elems) throw bad(fmt::format("its {} chunks overlap", boxes.size()));
  if (boxes.size() < 2) return;
  TensorMap tiles;  // as if the chunks were pieces of one stored tensor
  tiles.files.push_back({where});
  tiles.add_stored({SharedName(tensor.entry), tensor.dtype, tensor.shape});
  tiles.add_logical({tensor.entry, tensor.dtype, tensor.shape, {}}, where);
  tiles.pieces[0].reserve(boxes.size());
  for (const Box& box : boxes) tiles.pieces[0].push_back({0, box, box.begin});
  validate_tiling(tiles);
}

/// The tensor of expert `number` of a stack, without chunks.
ChunkedTensor expert_of(const ChunkedTensor& stack, std::uint64_t number, Dims shape) {
  ChunkedTensor one = {stack.entry, stack.name, stack.dtype, std::move(shape), {}};
  one.role = stack.role;
  one.state = stack.state;
  const std::string text = std::to_string(number);
  one.name.replace(stack.name.find('*', stack.state.parameter_begin), 1, text);
  if (one.role != TensorRole::kParameter)
    one.state.parameter_size = static_cast<std::uint16_t>(one.state.parameter_size + text.size() - 1);
  return one;
}

/// Adds to tensors what the chunks of an array have of them.
/// \param tensors  by number.
void add_chunks(const ChunkedTensor& array, const Packing& packing, std::span<ChunkedTensor> tensors) {
  for (const ChunkedTensor::Chunk& chunk : array.chunks) {
    const Dims strides = chunk.strides.empty() ? c_strides(chunk.box.size) : chunk.strides;
    for (Region& region : packing.regions_in(array.shape, chunk.box)) {
      PlacedView placed = view_of(region, strides);
      tensors[region.tensor].chunks.push_back({std::move(region.box), chunk.file,
                                               chunk.offset_bytes + placed.offset * bits(array.dtype) / 8,
                                               std::move(placed.view.strides)});
    }
  }
}

}  // namespace

std::vector<ChunkedTensor> unstacked(std::vector<ChunkedTensor> tensors, const std::filesystem::path& where) {
  if (std::none_of(tensors.begin(), tensors.end(),
                   [](const ChunkedTensor& tensor) { return tensor.stacked || tensor.copies > 0; }))
    return tensors;
  std::vector<ChunkedTensor> made;
  std::uint64_t chunks_left = kMaxExpertChunks;
  for (ChunkedTensor& tensor : tensors) {
    const auto refuse = [&](ErrorKind kind, const std::string& what) {
      throw Error(kind, what).in(where).tensor(tensor.entry);
    };
    const std::uint64_t room = kMaxParameters - std::min<std::uint64_t>(made.size(), kMaxParameters);
    if (tensor.copies > std::min(room, chunks_left / std::max<std::size_t>(1, tensor.chunks.size())))
      refuse(ErrorKind::kUnsupported,
             fmt::format("belongs to a stack of {} experts, more than any model has", tensor.copies));
    chunks_left -= tensor.copies * tensor.chunks.size();
    for (std::uint64_t copy = 0; copy < tensor.copies; ++copy) {
      made.push_back(expert_of(tensor, copy, tensor.shape));
      made.back().chunks = tensor.chunks;
    }
    if (tensor.copies > 0) continue;
    if (!tensor.stacked) {
      made.push_back(std::move(tensor));
      continue;
    }
    const bool is_stack = !tensor.shape.empty() && num_elems(tensor.shape).value_or(0) > 0;
    if (!is_stack)
      refuse(ErrorKind::kBadInput,
             fmt::format("has the shape {}, where experts must be stacked in dim 0", to_string(tensor.shape)));
    if (tensor.shape[0] > room)
      refuse(ErrorKind::kUnsupported, fmt::format("stacks {} experts, more than any model has", tensor.shape[0]));
    for (const ChunkedTensor::Chunk& chunk : tensor.chunks) {
      if (chunk.box.size[0] > chunks_left)
        refuse(ErrorKind::kUnsupported, fmt::format("stacks {} experts in {} chunks, more than {} parts in all",
                                                    tensor.shape[0], tensor.chunks.size(), kMaxExpertChunks));
      chunks_left -= chunk.box.size[0];
    }
    const std::size_t first = made.size();
    for (std::uint64_t expert = 0; expert < tensor.shape[0]; ++expert)
      made.push_back(expert_of(tensor, expert, tensor.shape.from(1)));
    add_chunks(tensor, {.is_stack = true}, std::span(made).subspan(first));
  }
  return made;
}

void validate_interleaved(const std::vector<ChunkedTensor>& tensors, const Model& model,
                          const std::filesystem::path& where) {
  if (std::none_of(tensors.begin(), tensors.end(), [](const ChunkedTensor& tensor) { return tensor.interleaved; }))
    return;
  std::unordered_map<std::string_view, const Dims*> shapes;
  for (const ModelParameter& parameter : model.parameters) shapes.emplace(parameter.name, &parameter.shape);
  for (const ChunkedTensor& tensor : tensors) {
    if (!tensor.interleaved) continue;
    const auto found = shapes.find(tensor.name);
    if (found != shapes.end() && *found->second == tensor.shape) continue;
    throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but the model {}", to_string(tensor.shape),
                                                  found == shapes.end() ? "has no " + printable(tensor.name)
                                                                        : "has " + to_string(*found->second)))
        .in(where)
        .tensor(tensor.entry)
        .hint("config.json belongs to another model");
  }
}

void deinterleave(std::vector<ChunkedTensor>& tensors, std::uint64_t head_dim, const std::filesystem::path& where) {
  for (ChunkedTensor& tensor : tensors) {
    if (!tensor.interleaved) continue;
    const auto refuse = [&](ErrorKind kind, const std::string& what) {
      throw Error(kind, what).in(where).tensor(tensor.entry).hint("config.json belongs to another model");
    };
    if (head_dim == 0 || head_dim % 2 != 0)
      refuse(ErrorKind::kUnsupported, fmt::format("its heads have {} rows, which are no pairs", head_dim));
    if (tensor.shape.empty() || tensor.shape[0] % head_dim != 0)
      refuse(ErrorKind::kBadInput,
             fmt::format("its shape {} is not one of whole heads of {} rows, which config.json has",
                         to_string(tensor.shape), head_dim));
    ChunkedTensor array;
    array.dtype = tensor.dtype;
    array.shape = tensor.shape;
    array.chunks = std::exchange(tensor.chunks, {});
    add_chunks(array, {.head_dim = head_dim}, {&tensor, 1});
  }
}

void validate_chunks(const std::vector<ChunkedTensor>& tensors, const std::filesystem::path& where) {
  for (const ChunkedTensor& tensor : tensors) validate(tensor, where);
}

TensorMap chunked_map(std::vector<TensorFile> files, std::vector<ChunkedTensor> tensors,
                      const std::filesystem::path& where) {
  TensorMap map;
  map.files = std::move(files);
  map.reserve_logical(tensors.size());
  for (ChunkedTensor& tensor : tensors) {
    const std::uint32_t logical =
        map.add_logical({tensor.name, tensor.dtype, tensor.shape, {}, std::nullopt, tensor.role}, where);
    const SharedName entry(tensor.entry);
    // In rows, so that what is open of the tensor while it is put together stays one box or a few.
    std::sort(tensor.chunks.begin(), tensor.chunks.end(),
              [](const auto& a, const auto& b) { return a.box.begin < b.box.begin; });
    for (ChunkedTensor::Chunk& chunk : tensor.chunks) {
      StoredTensor stored{entry, tensor.dtype, chunk.box.size, chunk.file, chunk.offset_bytes};
      if (!chunk.strides.empty()) stored.set_view({stored.shape, std::move(chunk.strides)});
      const std::uint32_t index = map.add_stored(std::move(stored));
      const Dims zeros(chunk.box.size.size());
      map.pieces[logical].push_back({index, std::move(chunk.box), zeros});
    }
  }
  return map;
}

}  // namespace reshard
