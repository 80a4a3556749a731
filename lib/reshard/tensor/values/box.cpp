#include "reshard/tensor/values/box.h"

#include <algorithm>

namespace reshard {

Box whole(const Dims& shape) {
  return {Dims(shape.size(), 0), shape};
}

std::uint64_t volume(const Box& box) {
  std::uint64_t elems = 1;
  for (const std::uint64_t size : box.size) elems *= size;
  return elems;
}

bool contains(const Dims& shape, const Box& box) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (box.begin[d] > shape[d] || box.size[d] > shape[d] - box.begin[d]) return false;
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box shared{Dims(a.begin.size()), Dims(a.begin.size())};
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    const std::uint64_t begin = std::max(a.begin[d], b.begin[d]);
    const std::uint64_t end = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]);
    if (begin >= end) return std::nullopt;
    shared.begin[d] = begin;
    shared.size[d] = end - begin;
  }
  return shared;
}

void subtract(const Box& box, const Box& hole, std::vector<Box>& rest) {
  const auto shared = intersect(box, hole);
  if (!shared) return rest.push_back(box);
  Box core = box;  // shrinks to `shared`, one dim at a time
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    const std::uint64_t shared_end = shared->begin[d] + shared->size[d];
    const std::uint64_t core_end = core.begin[d] + core.size[d];
    if (shared->begin[d] > core.begin[d]) {
      Box below = core;
      below.size[d] = shared->begin[d] - core.begin[d];
      rest.push_back(std::move(below));
    }
    if (shared_end < core_end) {
      Box above = core;
      above.begin[d] = shared_end;
      above.size[d] = core_end - shared_end;
      rest.push_back(std::move(above));
    }
    core.begin[d] = shared->begin[d];
    core.size[d] = shared->size[d];
  }
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    text += (d ? ", " : "") + std::to_string(box.begin[d]) + ":" + std::to_string(box.begin[d] + box.size[d]);
  return text + "]";
}

}  // namespace reshard
