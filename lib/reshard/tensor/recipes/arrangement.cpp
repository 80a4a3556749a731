#include "reshard/tensor/recipes/arrangement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "reshard/base/strings.h"

namespace reshard {
namespace {

using DimsOfAxes = Arrangement::DimsOfAxes;

/// How the indices of one dim contribute to the indices along every dim of another tensor.
using Contributions = std::vector<Dims>;  // by dim of the other tensor, then by index in the box

/// Returns the contributions of indices `begin` to `begin` + `count` of a dim with these axes.
Contributions contributions(const std::vector<std::size_t>& axes, const Dims& sizes, const DimsOfAxes& other,
                            std::uint64_t begin, std::uint64_t count) {
  Contributions result(other.size(), Dims(count));
  std::uint64_t inner = 1;  // product of the sizes of the axes that change faster
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    for (std::size_t dim = 0; dim < other.size(); ++dim) {
      const auto at = std::find(other[dim].begin(), other[dim].end(), *axis);
      if (at == other[dim].end()) continue;
      std::uint64_t stride = 1;
      for (auto faster = at + 1; faster != other[dim].end(); ++faster) stride *= sizes[*faster];
      for (std::uint64_t i = 0; i < count; ++i) result[dim][i] += (begin + i) / inner % sizes[*axis] * stride;
    }
    inner *= sizes[*axis];
  }
  return result;
}

/// Extends a range to the smallest aligned range of a dim's faster axes that contains it.
void align(std::uint64_t& begin, std::uint64_t& size, const std::vector<std::size_t>& axes, const Dims& sizes) {
  const std::uint64_t last = begin + size - 1;
  std::uint64_t aligned = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend() && begin / aligned != last / aligned; ++axis)
    aligned *= sizes[*axis];
  begin = begin / aligned * aligned;
  size = aligned;
}

/// Returns a box of the tensor of `other` dims that contains the elements of `box`. Where these are apart, it contains all
/// that neighbours of `box` need as well, so that it is the same for them.
Box box_in(const Box& box, const DimsOfAxes& dims, const Dims& sizes, const DimsOfAxes& other) {
  Box result{Dims(other.size()), Dims(other.size(), 1)};
  Dims counts(other.size(), 1);  // of different indices
  for (std::size_t d = 0; d < dims.size(); ++d) {
    Contributions of_dim = contributions(dims[d], sizes, other, box.begin[d], box.size[d]);
    for (std::size_t o = 0; o < other.size() && box.size[d] > 0; ++o) {
      Dims& indices = of_dim[o];
      std::sort(indices.begin(), indices.end());
      result.begin[o] += indices.front();
      result.size[o] += indices.back() - indices.front();
      counts[o] *= static_cast<std::uint64_t>(std::unique(indices.begin(), indices.end()) - indices.begin());
    }
  }
  std::vector<bool> is_extended(other.size());
  for (const std::vector<std::size_t>& axes : dims) {
    const auto shares_axis = [&](std::size_t o) {
      return std::find_first_of(axes.begin(), axes.end(), other[o].begin(), other[o].end()) != axes.end();
    };
    bool is_apart = false;
    for (std::size_t o = 0; o < other.size(); ++o)
      is_apart = is_apart || (counts[o] < result.size[o] && shares_axis(o));
    for (std::size_t o = 0; o < other.size() && is_apart; ++o) is_extended[o] = is_extended[o] || shares_axis(o);
  }
  for (std::size_t o = 0; o < other.size(); ++o)
    if (is_extended[o]) align(result.begin[o], result.size[o], other[o], sizes);
  return result;
}

/// Copies the elements of `box` of a tensor with dims `to` from the box `from_box` of one with dims `from` and of `shape`.
/// Elements beyond `shape` are padding, and stay zero.
template <typename Element>
void gather(const DimsOfAxes& from, const Dims& shape, const Box& from_box, std::span<const std::byte> source,
            const DimsOfAxes& to, const Dims& sizes, const Box& box, std::span<std::byte> result) {
  const std::size_t ndim = to.size(), last = ndim - 1;
  const Dims strides = c_strides(from_box.size);
  std::vector<Contributions> indices;
  for (std::size_t d = 0; d < ndim; ++d)
    indices.push_back(contributions(to[d], sizes, from, box.begin[d], box.size[d]));
  // The dim whose neighbours are close in the source. With the last one, it spans tiles that fit in the cache.
  const auto fastest = std::find_if(from.rbegin(), from.rend(), [](const auto& axes) { return !axes.empty(); });
  std::size_t near = last;
  for (std::size_t d = 0; d < ndim && fastest != from.rend(); ++d)
    if (std::find(to[d].begin(), to[d].end(), fastest->back()) != to[d].end()) near = d;
  // Dims of `from` that may have an index beyond their stored elements, by the dim along which that depends on the tile's
  // index: `last`, `near`, or both.
  std::vector<std::size_t> padded, by_last, by_near, by_both;
  const auto varies = [&](std::size_t d, std::size_t o) {
    return std::any_of(indices[d][o].begin(), indices[d][o].end(), [&](auto i) { return i != indices[d][o].front(); });
  };
  for (std::size_t o = 0; o < from.size(); ++o) {
    std::uint64_t size = 1;
    for (const std::size_t axis : from[o]) size *= sizes[axis];
    if (size <= shape[o]) continue;
    padded.push_back(o);
    const bool is_near = near != last && varies(near, o);
    (!is_near ? by_last : varies(last, o) ? by_both : by_near).push_back(o);
  }
  std::vector<Dims> offsets(ndim);  // in the source, in elements; of `from_box`
  for (std::size_t d = 0; d < ndim; ++d) {
    offsets[d].resize(box.size[d]);
    for (std::size_t o = 0; o < from.size(); ++o)
      for (std::uint64_t i = 0; i < box.size[d]; ++i) offsets[d][i] += indices[d][o][i] * strides[o];
  }
  std::uint64_t base = 0;
  for (std::size_t o = 0; o < from.size(); ++o) base += from_box.begin[o] * strides[o];
  const Dims to_strides = c_strides(box.size);
  Dims outer = box.size;
  outer[last] = outer[near] = 1;
  constexpr std::uint64_t kTile = 32;
  const Dims none{0};
  const Dims &last_offsets = offsets[last], &near_offsets = near == last ? none : offsets[near];
  const std::uint64_t nears = near_offsets.size(), near_stride = near == last ? 0 : to_strides[near];
  std::vector<std::uint8_t> is_stored(box.size[last]);  // by index along the last dim
  Dims at(ndim), position(from.size());
  for (std::uint64_t count = num_elems(outer).value_or(0); count > 0; --count) {
    std::uint64_t source_at = 0, result_at = 0;
    std::fill(position.begin(), position.end(), 0);
    for (std::size_t d = 0; d < ndim; ++d) {
      if (d == last || d == near) continue;
      source_at += offsets[d][at[d]];
      result_at += at[d] * to_strides[d];
      for (const std::size_t o : padded) position[o] += indices[d][o][at[d]];
    }
    const auto is_within = [&](const std::vector<std::size_t>& dims, std::uint64_t n, std::uint64_t l) {
      return std::all_of(dims.begin(), dims.end(), [&](std::size_t o) {
        return position[o] + indices[last][o][l] + (near == last ? 0 : indices[near][o][n]) < shape[o];
      });
    };
    for (std::uint64_t l = 0; l < is_stored.size(); ++l) is_stored[l] = is_within(by_last, 0, l);
    for (std::uint64_t n0 = 0; n0 < nears; n0 += kTile)
      for (std::uint64_t l0 = 0; l0 < box.size[last]; l0 += kTile)
        for (std::uint64_t n = n0; n < std::min(n0 + kTile, nears); ++n) {
          if (!is_within(by_near, n, 0)) continue;
          const std::uint64_t row = source_at + near_offsets[n] - base;  // modulo 2^64
          std::byte* const to_row = result.data() + (result_at + n * near_stride) * sizeof(Element);
          for (std::uint64_t l = l0; l < std::min(l0 + kTile, box.size[last]); ++l)
            if (is_stored[l] && (by_both.empty() || is_within(by_both, n, l)))
              std::memcpy(to_row + l * sizeof(Element), source.data() + (row + last_offsets[l]) * sizeof(Element),
                          sizeof(Element));
        }
    for (std::size_t d = ndim; d-- > 0;) {
      if (++at[d] < outer[d]) break;
      at[d] = 0;
    }
  }
}

void gather_width(std::size_t width, const DimsOfAxes& from, const Dims& shape, const Box& from_box,
                  std::span<const std::byte> source, const DimsOfAxes& to, const Dims& sizes, const Box& box,
                  std::span<std::byte> result) {
  std::fill(result.begin(), result.end(), std::byte{0});
  if (result.empty()) return;
  if (width == 1) return gather<std::uint8_t>(from, shape, from_box, source, to, sizes, box, result);
  if (width == 2) return gather<std::uint16_t>(from, shape, from_box, source, to, sizes, box, result);
  if (width == 4) return gather<std::uint32_t>(from, shape, from_box, source, to, sizes, box, result);
  gather<std::uint64_t>(from, shape, from_box, source, to, sizes, box, result);
}

}  // namespace

Arrangement::Arrangement(Dims sizes, DimsOfAxes from, DimsOfAxes to, Dims shape, std::uint64_t word)
    : sizes_(std::move(sizes)),
      from_(std::move(from)),
      to_(std::move(to)),
      from_shape_(std::move(shape)),
      word_shape_(from_shape_),
      word_(word) {
  for (const std::vector<std::size_t>& axes : to_) {
    to_shape_.push_back(1);
    for (const std::size_t axis : axes) to_shape_.back() *= sizes_[axis];
  }
  word_shape_.back() /= word_;
}

std::string Arrangement::key() const {
  const auto text = [&](const DimsOfAxes& dims) {
    std::vector<std::string> texts;
    for (const std::vector<std::size_t>& axes : dims) {
      std::vector<std::string> own;
      for (const std::size_t axis : axes) own.push_back(fmt::format("{}:{}", axis, sizes_[axis]));
      texts.push_back(fmt::format("({})", join(own, " ")));
    }
    return join(texts, " ");
  };
  return fmt::format("{} of {} -> {}", text(from_), word_, text(to_));
}

/// Returns the words that contain the elements of `box`.
Box Arrangement::in_words(Box box) const {
  const std::uint64_t begin = box.begin.back() / word_;
  box.size.back() = (box.begin.back() + box.size.back() + word_ - 1) / word_ - begin;
  box.begin.back() = begin;
  return box;
}

Box Arrangement::box_from(const Box& box) const {
  Box from = box_in(box, to_, sizes_, from_);
  for (std::size_t d = 0; d < from_.size(); ++d) {
    const std::uint64_t end = std::min(from.begin[d] + from.size[d], word_shape_[d]);
    from.begin[d] = std::min(from.begin[d], word_shape_[d] - 1);
    from.size[d] = std::max(end, from.begin[d] + 1) - from.begin[d];
  }
  from.begin.back() *= word_;
  from.size.back() *= word_;
  return from;
}

Box Arrangement::box_to(const Box& box) const {
  return box_in(in_words(box), from_, sizes_, to_);
}

void Arrangement::arrange(const Box& from_box, std::span<const std::byte> from, const Box& box,
                          std::span<std::byte> result, std::size_t width) const {
  gather_width(width * word_, from_, word_shape_, in_words(from_box), from, to_, sizes_, box, result);
}

void Arrangement::restore(const Box& to_box, std::span<const std::byte> to, const Box& box, std::span<std::byte> result,
                          std::size_t width) const {
  const Box words = in_words(box);
  const std::uint64_t first = box.begin.back() - words.begin.back() * word_;
  const std::size_t row = box.size.back() * width, word_row = words.size.back() * word_ * width;
  if (row == word_row) return gather_width(width * word_, to_, to_shape_, to_box, to, from_, sizes_, words, result);
  std::vector<std::byte> whole(volume(words) * word_ * width);
  gather_width(width * word_, to_, to_shape_, to_box, to, from_, sizes_, words, whole);
  for (std::size_t i = 0; row > 0 && i < result.size() / row; ++i)
    std::memcpy(result.data() + i * row, whole.data() + i * word_row + first * width, row);
}

}  // namespace reshard
