#include "reshard/tensor/recipes/arrangement.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "support/box_elements.h"
#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

/// A random arrangement, and the tensors that it relates: the bytes of all elements, before and after.
struct Example {
  Arrangement arrangement;
  std::vector<std::byte> from, to;
};

/// Arranges whole tensors an element at a time.
Example example_of(Random& random, std::size_t width) {
  const auto number = [&](std::uint64_t low, std::uint64_t high) { return pick(random, low, high); };
  Dims sizes;
  Arrangement::DimsOfAxes from(number(1, 3)), to(number(1, 4));
  for (auto& axes : from)
    for (std::uint64_t axis = number(1, 3); axis > 0; --axis) {
      axes.push_back(sizes.size());
      sizes.push_back(number(1, 5));
    }
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t axis : order) to[number(0, to.size() - 1)].push_back(axis);
  const std::uint64_t word = number(1, 2);
  Dims padded(from.size(), 1);
  for (std::size_t d = 0; d < from.size(); ++d)
    for (const std::size_t axis : from[d]) padded[d] *= sizes[axis];
  Dims shape = padded;
  for (std::uint64_t& size : shape) size = number((size + 1) / 2, size);
  shape.back() *= word;
  Example example{Arrangement(sizes, from, to, shape, word), {}, {}};
  example.from.resize(volume(whole(shape)) * width);
  for (std::byte& one : example.from) one = static_cast<std::byte>(number(1, 255));
  example.to.resize(volume(whole(example.arrangement.to_shape())) * width * word);
  Dims index(sizes.size());  // of each axis
  const auto place_in = [&](const Arrangement::DimsOfAxes& dims, const Dims& of) -> std::optional<std::uint64_t> {
    std::uint64_t place = 0;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      std::uint64_t at = 0;
      for (const std::size_t axis : dims[d]) at = at * sizes[axis] + index[axis];
      if (at >= of[d]) return std::nullopt;
      place = place * of[d] + at;
    }
    return place;
  };
  Dims words = shape;
  words.back() /= word;
  const std::size_t each = width * word;
  for (std::uint64_t count = volume(whole(sizes)); count > 0; --count) {
    const std::uint64_t own = place_in(to, example.arrangement.to_shape()).value();
    if (const auto source = place_in(from, words))
      std::copy_n(example.from.begin() + static_cast<std::ptrdiff_t>(*source * each), each,
                  example.to.begin() + static_cast<std::ptrdiff_t>(own * each));
    for (std::size_t a = sizes.size(); a-- > 0;) {
      if (++index[a] < sizes[a]) break;
      index[a] = 0;
    }
  }
  return example;
}

/// The bytes of a box of a tensor whose elements have `width` bytes.
std::vector<std::byte> bytes_of(const std::vector<std::byte>& all, Dims shape, Box box, std::size_t width) {
  shape.push_back(width);
  box.begin.push_back(0);
  box.size.push_back(width);
  return elements_of(all, shape, box);
}

Box box_within(Random& random, const Dims& shape) {
  Box box = whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.begin[d] = pick(random, 0, shape[d] - 1);
    box.size[d] = pick(random, 1, shape[d] - box.begin[d]);
  }
  return box;
}

TEST_CASE("Neighbours that need elements far apart need the same box, and no more than their tile") {
  // rows of 2 tiles, of which each has 8 rows of 4 lanes; columns of 3 blocks of 4
  const Arrangement arrangement({2, 8, 4, 3, 4}, {{0, 1, 2}, {3, 4}}, {{4}, {3}, {0, 2, 1}}, {60, 12}, 1);
  CHECK(arrangement.box_from({{0, 0, 0}, {1, 3, 64}}) == whole({60, 12}));
  CHECK(arrangement.box_from({{2, 0, 0}, {1, 3, 64}}) == whole({60, 12}));
  CHECK(arrangement.box_from({{0, 1, 0}, {4, 1, 64}}) == Box{{0, 4}, {60, 4}});
  CHECK(arrangement.box_from({{0, 0, 32}, {4, 3, 8}}) == Box{{32, 0}, {28, 12}});
  CHECK(arrangement.box_to({{5, 0}, {3, 12}}) == Box{{0, 0, 0}, {4, 3, 32}});
}

TEST_CASE("Any box is arranged, and restored, from the box that it names") {
  for (const std::uint64_t seed : seeds(1600)) {
    CAPTURE(seed);
    Random random(seed);
    const std::size_t width = std::size_t{1} << seed % 3;
    const Example example = example_of(random, width);
    const Arrangement& arrangement = example.arrangement;
    INFO(arrangement.key() << " from " << to_string(arrangement.from_shape()) << ", width " << width);
    const std::size_t to_width = width * arrangement.word();
    const Box to = box_within(random, arrangement.to_shape()), needed = arrangement.box_from(to);
    REQUIRE(contains(arrangement.from_shape(), needed));
    std::vector<std::byte> arranged(volume(to) * to_width);
    arrangement.arrange(needed, bytes_of(example.from, arrangement.from_shape(), needed, width), to, arranged, width);
    CHECK(arranged == bytes_of(example.to, arrangement.to_shape(), to, to_width));

    const Box from = box_within(random, arrangement.from_shape()), source = arrangement.box_to(from);
    REQUIRE(contains(arrangement.to_shape(), source));
    std::vector<std::byte> restored(volume(from) * width);
    arrangement.restore(source, bytes_of(example.to, arrangement.to_shape(), source, to_width), from, restored, width);
    CHECK(restored == bytes_of(example.from, arrangement.from_shape(), from, width));
  }
}

}  // namespace
}  // namespace reshard::test
