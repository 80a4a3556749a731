#include "reshard/layouts/core/tied_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/contents/stored_rows.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/specs/config/ties.h"

namespace reshard {
namespace {

/// Returns the pieces of a logical tensor, one per distinct box.
std::vector<const Piece*> distinct_pieces(const SourceMap& map, std::uint32_t logical) {
  std::set<std::pair<Dims, Dims>> seen;
  std::vector<const Piece*> pieces;
  for (const Piece& piece : map.pieces[logical])
    if (seen.emplace(piece.box.begin, piece.box.size).second) pieces.push_back(&piece);
  return pieces;
}

/// Returns the place at which a piece stores the first element of `box`. The piece must contain `box`.
StoredPlace place_of(const Piece& piece, const Box& box) {
  StoredPlace place{piece.stored, piece.stored_begin};
  for (std::size_t d = 0; d < place.begin.size(); ++d) place.begin[d] += box.begin[d] - piece.box.begin[d];
  return place;
}

/// Pieces of one tensor, sorted by offset along the dim that has the most distinct offsets.
class PieceIndex {
 public:
  explicit PieceIndex(std::vector<const Piece*> pieces) : pieces_(std::move(pieces)) {
    std::size_t most = 0;
    for (std::size_t d = 0; !pieces_.empty() && d < pieces_.front()->box.begin.size(); ++d) {
      std::set<std::uint64_t> begins;
      for (const Piece* piece : pieces_) begins.insert(piece->box.begin[d]);
      if (begins.size() > most) dim_ = d;
      most = std::max(most, begins.size());
    }
    if (most == 0) return;  // a tensor without dims
    std::sort(pieces_.begin(), pieces_.end(), [&](const Piece* a, const Piece* b) { return begin(*a) < begin(*b); });
    for (const Piece* piece : pieces_) longest_ = std::max(longest_, piece->box.size[dim_]);
  }

  const std::vector<const Piece*>& all() const { return pieces_; }

  /// Returns all pieces that overlap `box`, and few others.
  std::span<const Piece* const> near(const Box& box) const {
    if (longest_ == 0) return pieces_;
    const std::uint64_t from = box.begin[dim_], to = from + box.size[dim_];
    const auto first_at = [&](std::uint64_t place) {
      return std::partition_point(pieces_.begin(), pieces_.end(),
                                  [&](const Piece* piece) { return begin(*piece) < place; });
    };
    return {first_at(from < longest_ ? 0 : from - longest_ + 1), first_at(to)};
  }

 private:
  std::uint64_t begin(const Piece& piece) const { return piece.box.begin[dim_]; }

  std::vector<const Piece*> pieces_;
  std::size_t dim_ = 0;
  std::uint64_t longest_ = 0;  // size along dim_
};

class TieComparison {
 public:
  TieComparison(Files& files, const SourceMap& map) : files_(files, map.files), map_(map) {}

  /// Whether two tensors are equal, or should be. Rank files that are equal in part, or contain the parts of other
  /// ranks, were damaged or swapped, which the run reports later.
  bool are_one(std::uint32_t a, std::uint32_t b) {
    const LogicalTensor &one = map_.logical[a], &other = map_.logical[b];
    if (one.dtype != other.dtype || one.shape != other.shape) return false;
    const std::vector<const Piece*> pieces = distinct_pieces(map_, a);
    const PieceIndex others(distinct_pieces(map_, b));
    const bool has_ranks = std::any_of(pieces.begin(), pieces.end(), [&](const Piece* piece) {
      return map_.files[map_.stored[piece->stored].file].tp_rank > 0;
    });
    bool some_equal = false, some_differ = false;
    for (const Piece* piece : pieces)
      for (const Piece* with : others.near(piece->box)) {
        const auto box = intersect(piece->box, with->box);
        if (!box) continue;
        const bool is_equal = have_equal_bytes(files_, map_, place_of(*piece, *box), place_of(*with, *box), box->size);
        // Rows of unused tokens may be zero in both tensors even if the tensors differ.
        if (is_equal && has_ranks && is_constant(files_, map_, place_of(*piece, *box), box->size)) continue;
        (is_equal ? some_equal : some_differ) = true;
        if (some_differ && !has_ranks) return false;
        if (some_differ && some_equal) return true;
      }
    return !some_differ || (has_ranks && holds_elsewhere(*pieces.front(), others.all()));
  }

 private:
  /// Whether one of `others` has the same bytes as `piece`.
  bool holds_elsewhere(const Piece& piece, const std::vector<const Piece*>& others) {
    return std::any_of(others.begin(), others.end(), [&](const Piece* other) {
      return other->box.size == piece.box.size &&
             have_equal_bytes(files_, map_, {piece.stored, piece.stored_begin}, {other->stored, other->stored_begin},
                              piece.box.size);
    });
  }

  OpenedFiles files_;
  const SourceMap& map_;
};

void rename_logical(SourceMap& map, std::uint32_t logical, const std::string& name) {
  std::vector<std::string> names;
  names.reserve(map.logical.size());
  for (const LogicalTensor& tensor : map.logical) names.push_back(tensor.name);
  names[logical] = name;
  map.rename_logical(names);
}

void untie(Model& model, const std::string& name) {
  for (ModelParameter& parameter : model.parameters)
    if (parameter.name == name) parameter.tied_to.clear();
}

}  // namespace

std::vector<TiedParameter> join_tied(Files& files, SourceMap& map, const std::vector<TiedParameter>& tied) {
  std::vector<TiedParameter> different;
  for (const TiedParameter& one : tied) {
    const auto own = map.find_logical(one.name), source = map.find_logical(one.source);
    if (!own || !source) continue;
    if (map.logical[*own].computed || map.logical[*source].computed)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("is tied to {}, and the program that wrote the files changes the values of one of them",
                              printable(one.source)))
          .in(map.files.front().path)
          .tensor(one.name)
          .hint("leave out one of the two with `drop`");
    if (TieComparison(files, map).are_one(*own, *source))
      map.tie_logical(*own, *source);
    else
      different.push_back(one);
  }
  return different;
}

void settle_ties(Files& files, Checkpoint& checkpoint) {
  if (!checkpoint.model) return;
  Model& model = *checkpoint.model;
  SourceMap& map = checkpoint.map;
  const std::vector<TiedParameter> tied = tied_parameters(checkpoint.model);
  for (const TiedParameter& one : join_tied(files, map, tied)) {
    untie(model, one.name);
    model.tied_by_files = false;
    checkpoint.notes
        .mismatch(fmt::format("{} differs from {}, so both are kept, although config.json declares them tied ({})",
                              one.name, one.source, kTiedKey))
        .of({one.name, one.source});
  }
  for (const TiedParameter& one : tied)
    if (const auto own = map.find_logical(one.name); own && !map.find_logical(one.source))
      rename_logical(map, *own, one.source);
}

void untie_held(Model& model, std::span<const LogicalTensor> tensors) {
  std::unordered_set<std::string_view> names;
  for (const LogicalTensor& tensor : tensors) names.insert(tensor.name);
  for (const TiedParameter& one : tied_parameters(model))
    if (names.count(one.name) > 0 && names.count(one.source) > 0) untie(model, one.name);
}

}  // namespace reshard
