#include "reshard/layouts/dcp/dcp_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/base/error.h"

namespace reshard {
namespace {

constexpr std::uint32_t kMissing = UINT32_MAX;

Dims without_first(const Dims& dims) {
  Dims rest;
  for (std::size_t d = 1; d < dims.size(); ++d) rest.push_back(dims[d]);
  return rest;
}

/// Pairs of rows may be stored as one row, so that those of each half of a head are one piece.
bool has_paired_rows(const DcpEntry& entry, const Box& box) {
  return entry.interleaved_rows > 0 && box.size.size() > 1 && box.size[0] % 2 == 0;
}

/// Row 2i + j of a head's D here is row j * D / 2 + i of the model's.
void add_interleaved(TensorMap& map, const DcpEntry& entry, const Box& box, std::uint32_t stored) {
  const std::uint64_t head_dim = entry.interleaved_rows;
  const std::uint64_t begin = box.begin[0], end = begin + box.size[0];
  const bool paired = has_paired_rows(entry, box);
  std::vector<Piece>& pieces = map.pieces[entry.logical.front()];
  for (std::uint64_t head = begin / head_dim * head_dim; head < end; head += head_dim)
    for (std::uint64_t half = 0; half < 2; ++half) {
      const std::uint64_t from = std::max(begin, head), to = std::min(end, head + head_dim);
      const std::uint64_t first = from + (from - head + half) % 2;  // with the head's first row of this half
      if (first >= to) continue;
      Piece piece{stored, box, Dims(box.size.size())};
      piece.box.begin[0] = head + half * (head_dim / 2) + (first - head) / 2;
      const std::uint64_t rows = (to - first + 1) / 2;
      if (paired) {
        piece.box.size[0] = rows;
        piece.stored_begin[0] = (first - begin) / 2;
        piece.stored_begin[1] = (first - begin) % 2 * box.size[1];
        pieces.push_back(std::move(piece));
        continue;
      }
      piece.box.size[0] = 1;
      for (std::uint64_t row = 0; row < rows; ++row) {
        piece.stored_begin[0] = first - begin + 2 * row;
        pieces.push_back(piece);
        ++piece.box.begin[0];
      }
    }
}

}  // namespace

DcpEntry dcp_entry(const LogicalTensor& tensor, std::uint32_t index, const WrittenNames::Place& place,
                   std::uint64_t head_dim) {
  DcpEntry entry{place.entry, tensor.dtype, tensor.shape, {index}, place.stacked > 0};
  entry.is_object = tensor.role == TensorRole::kObject;
  if (entry.stacked) {
    entry.shape = {place.stacked};
    for (const std::uint64_t size : tensor.shape) entry.shape.push_back(size);
    entry.logical.assign(place.stacked, kMissing);
    add_expert(entry, tensor, index, place.index);
  }
  if (!place.interleaved) return entry;
  if (head_dim == 0 || head_dim % 2 != 0)
    throw Error(ErrorKind::kUnsupported, fmt::format("its heads have {} rows, which are no pairs", head_dim))
        .tensor(tensor.name);
  if (tensor.shape.empty() || tensor.shape[0] % head_dim != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("its shape {} is not one of whole heads of {} rows", to_string(tensor.shape), head_dim))
        .tensor(tensor.name)
        .hint("config.json belongs to another model");
  entry.interleaved_rows = head_dim;
  return entry;
}

void add_expert(DcpEntry& stack, const LogicalTensor& tensor, std::uint32_t index, std::uint64_t expert) {
  if (tensor.shape.empty() || tensor.dtype != stack.dtype || tensor.shape != without_first(stack.shape))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is {} {}, and cannot be stacked with other experts into {} {}", name(tensor.dtype),
                            to_string(tensor.shape), name(stack.dtype), to_string(stack.shape)))
        .tensor(tensor.name);
  stack.logical.at(expert) = index;
}

void validate_all_experts(const DcpEntry& stack) {
  const auto missing = std::find(stack.logical.begin(), stack.logical.end(), kMissing);
  if (missing == stack.logical.end()) return;
  throw Error(ErrorKind::kBadInput, fmt::format("stacks {} experts, of which number {} is missing",
                                                stack.logical.size(), missing - stack.logical.begin()))
      .tensor(stack.name)
      .hint("the checkpoint is incomplete, or config.json belongs to another model");
}

StoredTensor stored_part(const DcpEntry& entry, const Box& box) {
  StoredTensor stored{entry.name, entry.dtype, box.size};
  stored.is_object = entry.is_object;
  if (entry.stacked) {
    stored.set_view(stored.view().merged(0).value());
  } else if (has_paired_rows(entry, box)) {
    Dims paired = box.size;
    paired[0] /= 2;
    paired[1] *= 2;
    stored.set_view(View::of(std::move(paired)));
  }
  return stored;
}

void reserve_pieces(TensorMap& map, const DcpEntry& entry, std::size_t parts) {
  if (!entry.stacked && entry.interleaved_rows == 0) map.pieces[entry.logical.front()].reserve(parts);
}

void add_part_pieces(TensorMap& map, const DcpEntry& entry, const Box& box, std::uint32_t stored) {
  if (entry.interleaved_rows > 0) return add_interleaved(map, entry, box, stored);
  if (!entry.stacked) {
    map.pieces[entry.logical.front()].push_back({stored, box, Dims(box.size.size())});
    return;
  }
  const Box of_each{without_first(box.begin), without_first(box.size)};
  for (std::uint64_t i = 0; i < box.size[0]; ++i) {
    Piece piece{stored, of_each, Dims(of_each.size.size())};
    piece.stored_begin[0] = i * of_each.size[0];
    map.pieces[entry.logical[box.begin[0] + i]].push_back(std::move(piece));
  }
}

}  // namespace reshard
