#include "reshard/layouts/contents/equal_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/contents/stored_rows.h"

namespace reshard {
namespace {

constexpr std::size_t kSampledTensors = 4;        // per rank, to find ranks that may be equal
constexpr std::uint64_t kComparedElems = 256;     // per tensor
constexpr std::uint64_t kFewestVariedBytes = 64;  // fewer may be equal by chance

constexpr const char* kCopied = "one rank file was copied over the other: copy the right file of each rank here";

struct RankKey {
  std::uint32_t pp_rank, ep_rank, tp_rank;

  friend auto operator<=>(const RankKey&, const RankKey&) = default;
};

/// Stored tensors of a rank, by name. Of several replicas, those of the first.
using TensorsByName = std::map<std::string_view, std::uint32_t>;

bool can_be_read(const StoredTensor& tensor) {
  return bits(tensor.dtype) % 8 == 0 && !tensor.shape.empty() &&
         std::find(tensor.shape.begin(), tensor.shape.end(), 0u) == tensor.shape.end();
}

std::map<RankKey, TensorsByName> tensors_by_rank(const SourceMap& map) {
  std::map<RankKey, TensorsByName> ranks;
  for (std::uint32_t s = 0; s < map.stored.size(); ++s) {
    const StoredTensor& tensor = map.stored[s];
    const bool is_part = !tensor.tied && !tensor.is_object && tensor.label != PartitionLabel::kConstant &&
                         tensor.label != PartitionLabel::kReplicated;
    if (!is_part || !can_be_read(tensor)) continue;
    const SourceFile& file = map.files[tensor.file];
    ranks[{file.pp_rank, file.ep_rank, file.tp_rank}].emplace(tensor.name.text(), s);
  }
  return ranks;
}

class RankComparison {
 public:
  RankComparison(Files& files, const SourceMap& map) : files_(files, map.files), map_(map) {}

  /// Returns a few elements of the rank's largest tensors.
  std::string sample(const TensorsByName& rank) {
    std::vector<std::pair<std::string_view, std::uint32_t>> tensors(rank.begin(), rank.end());
    const auto is_larger = [&](const auto& a, const auto& b) {
      return std::tuple(map_.stored[b.second].size_bytes(), a.first) <
             std::tuple(map_.stored[a.second].size_bytes(), b.first);
    };
    const std::size_t count = std::min(tensors.size(), kSampledTensors);
    std::partial_sort(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(count), tensors.end(), is_larger);
    std::string all;
    for (std::size_t i = 0; i < count; ++i) {
      all += tensors[i].first;
      all += '\0';
      for (const std::byte byte : elements(tensors[i].second)) all += static_cast<char>(byte);
    }
    return all;
  }

  /// Returns the number of tensors that are split between two ranks, if all these parts are equal and some varied; 0
  /// otherwise.
  std::size_t equal_tensors(const TensorsByName& a, const TensorsByName& b) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
    if (a.size() != b.size()) return 0;
    for (const auto& [name, stored] : a) {
      const auto other = b.find(name);
      if (other == b.end()) return 0;
      const StoredTensor &x = map_.stored[stored], &y = map_.stored[other->second];
      if (x.dtype != y.dtype || x.shape != y.shape || x.strides() != y.strides()) return 0;
      if (pieces_of(stored) == pieces_of(other->second)) continue;  // replicas, which the run compares
      if (elements(stored) != elements(other->second)) return 0;
      pairs.emplace_back(stored, other->second);
    }
    std::uint64_t varied_bytes = 0;
    for (const auto& [x, y] : pairs) {
      if (is_varied(x)) varied_bytes += map_.stored[x].size_bytes();
      if (!have_equal_bytes(rows_of(x), rows_of(y))) return 0;
    }
    return varied_bytes < kFewestVariedBytes ? 0 : pairs.size();
  }

 private:
  /// A stored tensor's pieces of logical tensors, in the order of these.
  struct TensorPieces {
    std::vector<std::pair<std::uint32_t, Piece>> pieces;

    friend bool operator==(const TensorPieces& a, const TensorPieces& b) {
      return std::equal(
          a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(), [](const auto& x, const auto& y) {
            return x.first == y.first && x.second.box == y.second.box && x.second.stored_begin == y.second.stored_begin;
          });
    }
  };

  const TensorPieces& pieces_of(std::uint32_t stored) {
    if (pieces_.empty()) {
      pieces_.resize(map_.stored.size());
      for (std::uint32_t logical = 0; logical < map_.logical.size(); ++logical)
        if (!map_.logical[logical].constant())
          for (const Piece& piece : map_.pieces[logical]) pieces_[piece.stored].pieces.emplace_back(logical, piece);
    }
    return pieces_[stored];
  }

  /// Returns the box of `size` at `begin` of a stored tensor as rows along its smallest stride.
  StoredRows rows_of(std::uint32_t stored, const Dims& begin, const Dims& size) {
    const StoredTensor& tensor = map_.stored[stored];
    const Dims strides = tensor.strides();
    Dims sizes, inner;
    for (const std::size_t dim : dims_by_stride(strides)) {
      sizes.push_back(size[dim]);
      inner.push_back(strides[dim]);
    }
    return {files_, tensor, tensor.view().offset(begin), std::move(sizes), std::move(inner)};
  }
  StoredRows rows_of(std::uint32_t stored) {
    const Dims& shape = map_.stored[stored].shape;
    return rows_of(stored, Dims(shape.size()), shape);
  }

  /// Returns the first elements of the row in the middle.
  std::vector<std::byte> elements(std::uint32_t stored) {
    const StoredRows rows = rows_of(stored);
    return rows.read(rows.count() / 2, 0, std::min({kComparedElems, rows.elems(), rows.part_elems()}));
  }

  /// Whether the tensor differs along each of its dims.
  bool is_varied(std::uint32_t stored) {
    const Dims& shape = map_.stored[stored].shape;
    for (std::size_t d = 0; d < shape.size(); ++d) {  // compares the tensor with itself, shifted along each dim
      if (shape[d] == 1) return false;
      Dims rest = shape, next(shape.size());
      --rest[d];
      next[d] = 1;
      if (have_equal_bytes(rows_of(stored, Dims(shape.size()), rest), rows_of(stored, next, rest))) return false;
    }
    return true;
  }

  OpenedFiles files_;
  const SourceMap& map_;
  std::vector<TensorPieces> pieces_;  // by stored tensor; empty until they are needed
};

}  // namespace

std::optional<Error> find_equal_ranks(Files& files, const SourceMap& map, Notes& notes) {
  const std::map<RankKey, TensorsByName> ranks = tensors_by_rank(map);
  RankComparison comparison(files, map);
  const auto path_of = [&](const RankKey& rank) {
    return map.files[map.stored[ranks.at(rank).begin()->second].file].path;
  };
  std::map<std::pair<std::uint32_t, std::string>, const RankKey*> alike;  // the first rank by stage and sample
  std::map<RankKey, const RankKey*> first_alike;
  std::vector<std::pair<RankKey, RankKey>> equal_experts;
  for (const auto& [key, tensors] : ranks) {
    const auto [first, is_new] = alike.emplace(std::pair(key.pp_rank, comparison.sample(tensors)), &key);
    first_alike[key] = first->second;
    if (is_new) continue;
    const RankKey* const other = first->second;
    const std::size_t count = comparison.equal_tensors(ranks.at(*other), tensors);
    if (count == 0) continue;
    if (key.tp_rank == other->tp_rank)
      equal_experts.emplace_back(*other, key);
    else
      return Error(ErrorKind::kBadInput,
                   fmt::format("tensor-parallel ranks {} and {} have the same bytes, although they should have "
                               "different parts of {} tensor{}",
                               other->tp_rank, key.tp_rank, count, count == 1 ? "" : "s"))
          .in(path_of(key))
          .hint(kCopied);
  }
  std::set<std::pair<std::uint32_t, std::uint32_t>> noted;
  for (const auto& [a, b] : equal_experts) {
    const std::string equal = fmt::format("expert-parallel ranks {} and {} have equal experts in {} and {}", a.ep_rank,
                                          b.ep_rank, path_of(a).string(), path_of(b).string());
    // Initial values are equal on all tensor-parallel ranks or on none.
    const bool is_copy = std::any_of(first_alike.begin(), first_alike.end(), [&, &a = a, &b = b](const auto& rank) {
      const auto other = first_alike.find({a.pp_rank, b.ep_rank, rank.first.tp_rank});
      return rank.first.pp_rank == a.pp_rank && rank.first.ep_rank == a.ep_rank && other != first_alike.end() &&
             other->second != rank.second;
    });
    if (is_copy)
      return Error(ErrorKind::kBadInput, equal + ", but not on all tensor-parallel ranks").in(path_of(b)).hint(kCopied);
    if (noted.emplace(a.ep_rank, b.ep_rank).second)
      notes.mismatch(equal + ": unless they were initialised so, one rank file was copied over the other");
  }
  return std::nullopt;
}

}  // namespace reshard
