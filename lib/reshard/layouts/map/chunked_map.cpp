#include "reshard/layouts/map/chunked_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/packing.h"
#include "reshard/specs/model/model.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxPackedTensors = std::uint64_t{1} << 18;  // of all packed entries
constexpr std::uint64_t kMaxUnpackedChunks = std::uint64_t{1}
                                             << 24;  // of all packed entries; each tensor has a chunk, or a few

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
  SourceMap tiles;  // as if the chunks were pieces of one stored tensor
  tiles.files.push_back({{where}});
  tiles.add_stored({SharedName(tensor.entry), tensor.dtype, tensor.shape});
  tiles.add_logical({tensor.entry, tensor.dtype, tensor.shape, {}}, where);
  tiles.pieces[0].reserve(boxes.size());
  for (const Box& box : boxes) tiles.pieces[0].push_back({0, box, box.begin});
  validate_tiling(tiles);
}

/// A tensor of a packed entry, without chunks.
ChunkedTensor tensor_of(const ChunkedTensor& array, const std::string& name, Dims shape) {
  ChunkedTensor one = {array.entry, array.name, array.dtype, std::move(shape), {}};
  one.role = array.role;
  one.state = array.state;
  if (array.role == TensorRole::kParameter) {
    one.name = name;
  } else {
    one.name.replace(array.state.parameter_begin, array.state.parameter_size, name);
    one.state.parameter_size = static_cast<std::uint16_t>(name.size());
  }
  return one;
}

/// Adds to tensors what the chunks of an array have of them.
/// \param tensors  by number.
void add_chunks(const ChunkedTensor& array, const Packing& packing, std::span<ChunkedTensor> tensors) {
  for (const ChunkedTensor::Chunk& chunk : array.chunks) {
    const Dims strides = chunk.strides.empty() ? c_strides(chunk.box.size) : chunk.strides;
    for (Region& region : packing.regions_in(chunk.box)) {
      PlacedView placed = view_of(region, strides);
      tensors[region.tensor].chunks.push_back({std::move(region.box), chunk.file,
                                               chunk.offset_bytes + placed.offset * bits(array.dtype) / 8,
                                               std::move(placed.view.strides)});
    }
  }
}

/// Takes packed entries apart, and bounds how much that makes of a file.
class Unpacker {
 public:
  Unpacker(const Model* model, const std::filesystem::path& where, std::vector<std::string>& notes)
      : where_(where), notes_(notes) {
    if (model == nullptr) return;
    model_ = model;
    for (const ModelParameter& parameter : model->parameters) shapes_.emplace(parameter.name, &parameter.shape);
  }

  /// The names of the tensors in `array`, which is packed.
  std::vector<std::string> names(const ChunkedTensor& array) {
    try {
      const Dims numbers = numbers_of(*array.packed->rule, array.packed_shape);
      const auto count = checked_mul(num_elems(numbers).value_or(UINT64_MAX), array.packed->parameters.size());
      if (count.value_or(UINT64_MAX) > tensors_left_)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("contains {} tensors, more than any model has", count.value_or(UINT64_MAX)));
      tensors_left_ -= *count;
      return array.packed->tensors(numbers);
    } catch (Error& error) {
      throw error.in(where_).tensor(array.entry);
    }
  }

  /// Adds the tensors of `array` to `made`.
  void add(ChunkedTensor array, std::vector<ChunkedTensor>& made) {
    try {
      const bool is_copied = array.shape != array.packed_shape;
      const auto packed = is_copied ? PackedArray() : packing_of(array);
      if (!packed) return made.push_back(std::move(array));
      const std::vector<std::string> names = this->names(array);
      const std::size_t first = made.size();
      for (std::size_t i = 0; i < names.size(); ++i)
        made.push_back(tensor_of(array, names[i], is_copied ? array.shape : packed->parts[i % packed->parts.size()]));
      const std::span<ChunkedTensor> tensors = std::span(made).subspan(first);
      if (is_copied) {
        take(array.chunks.size(), tensors.size());
        for (ChunkedTensor& tensor : tensors) tensor.chunks = array.chunks;
      } else {
        for (const ChunkedTensor::Chunk& chunk : array.chunks) take(packed->packing.count_in(chunk.box), 1);
        add_chunks(array, packed->packing, tensors);
      }
    } catch (Error& error) {
      throw error.in(where_).tensor(array.entry);
    }
  }

 private:
  /// Returns std::nullopt if that depends on a model that is not known.
  std::optional<PackedArray> packing_of(const ChunkedTensor& array) {
    const Scheme::Entry& rule = *array.packed->rule;
    if (auto packed = unpack_single(rule, array.shape); packed || model_ == nullptr) return packed;
    const Dims numbers = numbers_of(rule, array.shape);
    const std::vector<std::string> zeros(numbers.size(), "0");
    std::vector<Dims> parts;
    for (const std::string& parameter : array.packed->parameters) {
      const std::string name = with_numbers(parameter, zeros);
      const auto shape = shapes_.find(name);
      if (shape == shapes_.end())
        throw Error(ErrorKind::kBadInput, fmt::format("contains {}, which the model does not have", printable(name)))
            .hint("config.json belongs to another model");
      parts.push_back(*shape->second);
    }
    PackedArray packed = pack(rule, std::move(parts), numbers, *model_);
    if (!fits(rule, packed.shape, array.shape))
      throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but the model has {} ({})",
                                                    to_string(array.shape), to_string(packed.shape), rule.where))
          .hint("config.json belongs to another model");
    if (packed.shape != array.shape && array.role == TensorRole::kParameter)
      notes_.push_back(fmt::format("{} is padded from {} to {}: the padding is left out", printable(array.entry),
                                   to_string(packed.shape), to_string(array.shape)));
    return packed;
  }

  static bool fits(const Scheme::Entry& rule, const Dims& packed, const Dims& array) {
    for (std::size_t d = 0; d < packed.size(); ++d) {
      const std::vector<std::string>& axes = rule.entry_dims[d];
      const bool may_be_longer = rule.is_padded && axes.size() == 1 && axes.front() == rule.joined;
      if (may_be_longer ? array[d] < packed[d] : array[d] != packed[d]) return false;
    }
    return true;
  }

  void take(std::uint64_t chunks, std::uint64_t times) {
    const auto count = checked_mul(chunks, times);
    if (!count || *count > chunks_left_)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("its chunks become more than {} parts of tensors, with those of other entries",
                              kMaxUnpackedChunks));
    chunks_left_ -= *count;
  }

  const Model* model_ = nullptr;
  const std::filesystem::path& where_;
  std::vector<std::string>& notes_;
  std::unordered_map<std::string_view, const Dims*> shapes_;
  std::uint64_t tensors_left_ = kMaxPackedTensors;
  std::uint64_t chunks_left_ = kMaxUnpackedChunks;
};

}  // namespace

std::vector<std::string> names_packed_in(const std::vector<ChunkedTensor>& tensors,
                                         const std::filesystem::path& where) {
  std::vector<std::string> names, notes;
  Unpacker unpacker(nullptr, where, notes);
  for (const ChunkedTensor& tensor : tensors)
    if (tensor.packed != nullptr)
      for (std::string& name : unpacker.names(tensor)) names.push_back(std::move(name));
  return names;
}

std::vector<ChunkedTensor> unpacked(std::vector<ChunkedTensor> tensors, const Model* model,
                                    const std::filesystem::path& where, std::vector<std::string>& notes) {
  const auto is_packed = [](const ChunkedTensor& tensor) { return tensor.packed != nullptr; };
  if (std::none_of(tensors.begin(), tensors.end(), is_packed)) return tensors;
  std::vector<ChunkedTensor> made;
  Unpacker unpacker(model, where, notes);
  for (ChunkedTensor& tensor : tensors)
    if (is_packed(tensor))
      unpacker.add(std::move(tensor), made);
    else
      made.push_back(std::move(tensor));
  std::unordered_map<std::string_view, const ChunkedTensor*> by_name;
  for (const ChunkedTensor& tensor : made) {
    const auto [other, is_new] = by_name.emplace(tensor.name, &tensor);
    if (!is_new)
      throw Error(ErrorKind::kBadInput, fmt::format("exists twice, in {} and in {}", printable(other->second->entry),
                                                    printable(tensor.entry)))
          .in(where)
          .tensor(tensor.name)
          .hint("files of two saves are mixed in one folder");
  }
  return made;
}

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
    // In rows, so that what is open of the tensor while it is put together stays one box or a few.
    std::sort(tensor.chunks.begin(), tensor.chunks.end(),
              [](const auto& a, const auto& b) { return a.box.begin < b.box.begin; });
    for (ChunkedTensor::Chunk& chunk : tensor.chunks) {
      StoredTensor stored{entry, tensor.dtype, chunk.box.size, chunk.file, chunk.offset_bytes};
      stored.is_object = tensor.role == TensorRole::kObject;
      if (!chunk.strides.empty()) stored.set_view({stored.shape, std::move(chunk.strides)});
      const std::uint32_t index = map.add_stored(std::move(stored));
      const Dims zeros(chunk.box.size.size());
      map.pieces[logical].push_back({index, std::move(chunk.box), zeros});
    }
  }
  return map;
}

}  // namespace reshard
