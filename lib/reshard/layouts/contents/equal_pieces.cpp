#include "reshard/layouts/contents/equal_pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/contents/stored_rows.h"

namespace reshard {
namespace {

/// Whether a piece consists of equal slices along the split dim, or is constant, so that an equal piece on another rank
/// is legitimate.
bool repeats(const StoredRows& rows, std::size_t split) {
  const bool one_index = rows.size(split) == 1, along_rows = split + 1 == rows.dims();
  const std::uint64_t per_index = rows.rows_per_index(split);
  return rows.all_of([&](std::uint64_t row, std::uint64_t first, std::uint64_t elems) {
    const std::vector<std::byte> part = rows.read(row, first, elems);
    if (one_index || along_rows) {
      const std::vector<std::byte> value = rows.read(one_index ? 0 : row, 0, 1);
      for (std::size_t at = 0; at < part.size(); at += value.size())
        if (!std::equal(value.begin(), value.end(), part.begin() + static_cast<std::ptrdiff_t>(at))) return false;
      return true;
    }
    const std::uint64_t index = row / per_index % rows.size(split);
    return index == 0 || part == rows.read(row - index * per_index, first, elems);
  });
}

/// The first stored tensor of a logical tensor on a tensor-parallel rank, and its box.
struct PiecePart {
  std::uint32_t stored = 0;
  const Box* box = nullptr;
};

std::map<std::uint32_t, PiecePart> parts_by_rank(const SourceMap& map, std::uint32_t logical) {
  std::map<std::uint32_t, PiecePart> parts;
  for (const Piece& piece : map.pieces[logical]) {
    const StoredTensor& stored = map.stored[piece.stored];
    if (!stored.tied) parts.emplace(map.files[stored.file].tp_rank, PiecePart{piece.stored, &piece.box});
  }
  return parts;
}

/// Returns the first dim along which two pieces have different offsets; std::nullopt for replicas.
std::optional<std::size_t> dim_between(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d)
    if (a.begin[d] != b.begin[d]) return d;
  return std::nullopt;
}

bool can_be_compared(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && has_plain_rows(a) && has_plain_rows(b) && a.shape == b.shape &&
         std::find(a.shape.begin(), a.shape.end(), 0u) == a.shape.end();
}

class PieceComparison {
 public:
  PieceComparison(Files& files, const SourceMap& map) : files_(files, map.files), map_(map) {}

  void run(std::uint32_t logical) {
    const auto parts = parts_by_rank(map_, logical);
    if (parts.size() < 2) return;
    const auto first = parts.begin();
    for (const auto other : {std::next(first), std::next(first, static_cast<std::ptrdiff_t>(parts.size() / 2))}) {
      const auto split = dim_between(*first->second.box, *other->second.box);
      if (split) compare(logical, *first, *other, *split);
    }
  }

 private:
  using RankPart = std::pair<const std::uint32_t, PiecePart>;

  void compare(std::uint32_t logical, const RankPart& first, const RankPart& other, std::size_t split) {
    const StoredTensor& a = map_.stored[first.second.stored];
    const StoredTensor& b = map_.stored[other.second.stored];
    if (!can_be_compared(a, b) || split >= a.shape.size()) return;
    const Dims strides = a.strides(), other_strides = b.strides();
    const Dims order = dims_by_stride(strides);
    Dims sizes, inner, other_inner;
    for (const std::size_t dim : order) {
      const bool is_expanded = strides[dim] == 0 && other_strides[dim] == 0;  // one value along the dim, stored once
      if (is_expanded && dim == split) return;
      sizes.push_back(is_expanded ? 1 : a.shape[dim]);
      inner.push_back(strides[dim]);
      other_inner.push_back(other_strides[dim]);
    }
    const StoredRows rows(files_, a, 0, sizes, inner), others(files_, b, 0, sizes, other_inner);
    const auto position = static_cast<std::size_t>(std::find(order.begin(), order.end(), split) - order.begin());
    if (!have_equal_bytes(rows, others) || repeats(rows, position)) return;
    throw Error(ErrorKind::kBadInput,
                fmt::format("is the same {} on tensor-parallel ranks {} and {}, but according to the plan in "
                            "config.json they are parts of {}",
                            to_string(a.shape), first.first, other.first, to_string(map_.logical[logical].shape)))
        .in(map_.files[b.file].path)
        .tensor(map_.logical[logical].name)
        .hint(
            "if every rank has the whole tensor (an embedding that is not parallel, replicated heads), remove it from "
            "base_model_tp_plan or set it to \"replicate\"; otherwise one rank file was copied over another");
  }

  OpenedFiles files_;
  const SourceMap& map_;
};

}  // namespace

void validate_pieces_differ(Files& files, const SourceMap& map) {
  PieceComparison comparison(files, map);
  for (std::uint32_t logical = 0; logical < map.logical.size(); ++logical)
    if (!map.logical[logical].constant() && map.logical[logical].role == TensorRole::kParameter)
      comparison.run(logical);
}

void validate_heads_differ(Files& files, const SourceMap& map, const Model& model) {
  if (!model.family->attention || model.layers == 0) return;
  const Family::Attention& attention = *model.family->attention;
  OpenedFiles opened(files, map.files);
  for (const std::string& projection : {attention.key, attention.value})
    for (std::uint64_t layer = 0; layer < model.layers; ++layer) {
      const auto module = module_in(attention.module, layer);
      const auto logical = module ? map.find_logical(*module + "." + projection + ".weight") : std::nullopt;
      if (!logical) continue;
      std::map<std::uint32_t, const Piece*> by_rank;
      for (const Piece& piece : map.pieces[*logical])
        by_rank.emplace(map.files[map.stored[piece.stored].file].tp_rank, &piece);
      if (by_rank.empty()) break;
      const auto& [first_rank, first] = *by_rank.begin();
      const auto is_same = [&, &first = first](const Piece* piece) {
        return have_equal_bytes(opened, map, {first->stored, first->stored_begin}, {piece->stored, piece->stored_begin},
                                first->box.size);
      };
      if (volume(first->box) == 0) break;
      const bool is_placed_otherwise = std::any_of(
          by_rank.begin(), by_rank.end(),
          [&, &first = first](const auto& one) { return one.second->box == first->box && !is_same(one.second); });
      if (is_placed_otherwise) break;  // the run reports replicas that differ
      for (const auto& [rank, piece] : by_rank) {
        if (piece->box.begin == first->box.begin || piece->box.size != first->box.size || !is_same(piece) ||
            is_constant(opened, map, {first->stored, first->stored_begin}, first->box.size))
          continue;
        throw Error(ErrorKind::kBadInput,
                    fmt::format("tensor-parallel ranks {} and {} have the same heads, but according to config.json "
                                "they are parts of {} different key/value heads",
                                first_rank, rank, model.kv_heads))
            .in(map.files[map.stored[piece->stored].file].path)
            .tensor(map.logical[*logical].name)
            .hint(
                "they are replicas: num_key_value_heads in config.json is a multiple of the model's; use the "
                "config.json that came with the weights. If the model has equal heads, `from-kv-size-multiplier` 1 "
                "confirms it in layouts with that option");
      }
      break;
    }
}

}  // namespace reshard
