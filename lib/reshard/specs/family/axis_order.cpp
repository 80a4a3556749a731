#include "reshard/specs/family/axis_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {

std::optional<DimAxes> words_of_dims(const std::string& text) {
  DimAxes dims;
  bool is_open = false;
  for (std::string word : split(text, ' ')) {
    if (word.starts_with('(')) {
      if (std::exchange(is_open, true)) return std::nullopt;
      dims.emplace_back();
      word.erase(0, 1);
    } else if (!is_open) {
      dims.emplace_back();
    }
    if (word.ends_with(')')) {
      if (!std::exchange(is_open, false)) return std::nullopt;
      word.pop_back();
    }
    dims.back().push_back(std::move(word));
  }
  return is_open ? std::nullopt : std::optional(dims);
}

std::optional<AxisOrder> AxisOrder::parse(const std::string& text) {
  constexpr std::string_view kArrow = " -> ", kAtMost = "<=";
  const std::size_t arrow = text.find(kArrow);
  if (arrow == text.npos) return std::nullopt;
  const auto from = words_of_dims(text.substr(0, arrow)), to = words_of_dims(text.substr(arrow + kArrow.size()));
  if (!from || !to) return std::nullopt;
  AxisOrder order;
  order.text_ = text;
  std::vector<std::string> names;
  for (const std::vector<std::string>& words : *from) {
    std::vector<Axis>& axes = order.from_.emplace_back();
    for (const std::string& word : words) {
      Axis axis;
      const std::size_t colon = word.find(':'), at_most = word.find(kAtMost);
      const std::size_t end = std::min(colon, at_most);
      const std::string size = end == word.npos ? "" : word.substr(end + (end == colon ? 1 : kAtMost.size()));
      if (size == "parts" && end == colon)
        axis.kind = Axis::Size::kParts;
      else if (end != word.npos)
        axis = {end == colon ? Axis::Size::kNumber : Axis::Size::kAtMost, parse_unsigned(size, UINT16_MAX).value_or(0)};
      const bool has_number = axis.kind == Axis::Size::kNumber || axis.kind == Axis::Size::kAtMost;
      names.push_back(word.substr(0, end));
      if (names.back().empty() || (has_number && axis.number == 0)) return std::nullopt;
      axes.push_back(axis);
    }
    for (const Axis::Size kind : {Axis::Size::kAtMost, Axis::Size::kRest})
      if (std::count_if(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.kind == kind; }) > 1)
        return std::nullopt;
  }
  std::vector<bool> is_used(names.size());
  for (const std::vector<std::string>& words : *to) {
    order.to_.emplace_back();
    for (const std::string& word : words) {
      const auto at = static_cast<std::size_t>(std::find(names.begin(), names.end(), word) - names.begin());
      if (at == names.size() || is_used[at]) return std::nullopt;
      is_used[at] = true;
      order.to_.back().push_back(at);
    }
  }
  constexpr std::uint64_t kPair = 2;
  order.joins_ = !is_used.back() && order.from_.back().back().kind == Axis::Size::kNumber &&
                 order.from_.back().back().number == kPair;
  const auto unused = std::count(is_used.begin(), is_used.end(), false);
  return unused == (order.joins_ ? 1 : 0) ? std::optional(order) : std::nullopt;
}

/// Returns the sizes of the axes of a dim of `size` elements.
Dims AxisOrder::sizes_of(std::size_t dim, std::uint64_t size, std::uint32_t parts) const {
  if (size == 0) throw Error(ErrorKind::kUsage, fmt::format("dim {} has no elements (\"{}\")", dim, text_));
  Dims sizes;
  std::uint64_t rest = size;
  const auto take = [&](std::uint64_t own) {
    if (rest % own != 0)
      throw Error(ErrorKind::kUsage, fmt::format("dim {} has {} elements, which {} does not divide (\"{}\")", dim, size,
                                                 size / rest * own, text_))
          .hint("choose another number of ranks, or pad the model's sizes");
    rest /= own;
    return own;
  };
  for (const Axis& axis : from_[dim])
    sizes.push_back(axis.kind == Axis::Size::kNumber  ? take(axis.number)
                    : axis.kind == Axis::Size::kParts ? take(parts)
                                                      : 1);
  for (const Axis::Size kind : {Axis::Size::kAtMost, Axis::Size::kRest})
    for (std::size_t a = 0; a < sizes.size(); ++a)
      if (from_[dim][a].kind == kind)
        sizes[a] = take(kind == Axis::Size::kRest ? rest : std::min(from_[dim][a].number, rest));
  if (rest != 1)
    throw Error(ErrorKind::kUsage,
                fmt::format("dim {} has {} elements, expected {} (\"{}\")", dim, size, size / rest, text_))
        .hint("choose another number of ranks, or pad the model's sizes");
  return sizes;
}

std::shared_ptr<const Arrangement> AxisOrder::arrangement(const Dims& shape, const Dims& padded,
                                                          std::uint32_t parts) const {
  if (shape.size() != from_.size())
    throw Error(ErrorKind::kUsage,
                fmt::format("has {} dims, and {} in its order (\"{}\")", shape.size(), from_.size(), text_));
  Dims sizes;
  Arrangement::DimsOfAxes from;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    std::vector<std::size_t>& axes = from.emplace_back(from_[dim].size());
    std::iota(axes.begin(), axes.end(), sizes.size());
    for (const std::uint64_t size : sizes_of(dim, padded[dim], parts)) sizes.push_back(size);
  }
  const std::uint64_t word = joins_ ? sizes.back() : 1;
  if (joins_) {
    sizes.resize(sizes.size() - 1);
    from.back().pop_back();
  }
  return std::make_shared<const Arrangement>(std::move(sizes), std::move(from), to_, shape, word);
}

}  // namespace reshard
