#include "reshard/tensor/values/box.h"

#include <random>
#include <set>

#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

std::uint64_t up_to(Random& random, std::uint64_t most) {
  return std::uniform_int_distribution<std::uint64_t>(0, most)(random);
}

Dims random_shape(Random& random) {
  Dims shape(up_to(random, 4));
  for (auto& size : shape) size = up_to(random, 20) == 0 ? 0 : 1 + up_to(random, 5);
  return shape;
}

std::vector<Box> without(const Box& box, const Box& hole) {
  std::vector<Box> rest;
  subtract(box, hole, rest);
  return rest;
}

/// Any box inside `shape`, a few of them empty; large ones are likelier, so that two often meet.
Box random_box(Random& random, const Dims& shape) {
  Box box{Dims(shape.size()), Dims(shape.size())};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const bool any = up_to(random, 9) == 0;
    box.begin[d] = up_to(random, any ? shape[d] : shape[d] / 2);
    const std::uint64_t room = shape[d] - box.begin[d];
    box.size[d] = room - up_to(random, any ? room : room / 2);
  }
  return box;
}

/// The positions of a box's elements, listed one by one.
std::set<Dims> positions(const Box& box) {
  std::set<Dims> all = {Dims{}};
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    std::set<Dims> longer;
    for (const Dims& start : all)
      for (std::uint64_t i = 0; i < box.size[d]; ++i) {
        Dims position = start;
        position.push_back(box.begin[d] + i);
        longer.insert(position);
      }
    all = std::move(longer);
  }
  return all;
}

std::set<Dims> without(std::set<Dims> all, const std::set<Dims>& gone) {
  for (const Dims& position : gone) all.erase(position);
  return all;
}

TEST_CASE("The intersection of random boxes holds just the elements of both") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Dims shape = random_shape(random);
    const Box a = random_box(random, shape);
    const Box b = random_box(random, shape);
    const auto in_a = positions(a);
    const auto in_b = positions(b);
    std::set<Dims> in_both;
    for (const Dims& position : in_a)
      if (in_b.count(position)) in_both.insert(position);
    const auto shared = intersect(a, b);
    REQUIRE(shared.has_value() == !in_both.empty());
    CHECK(intersect(b, a) == shared);
    if (!shared) continue;
    CHECK(positions(*shared) == in_both);
    CHECK(volume(*shared) == in_both.size());
    CHECK(contains(shape, *shared));
  }
}

TEST_CASE("Random boxes without a hole fall into pieces that are disjoint and complete") {
  std::size_t cut = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Dims shape = random_shape(random);
    const Box box = random_box(random, shape);
    const Box hole = random_box(random, shape);
    const std::vector<Box> pieces = without(box, hole);
    const auto shared = intersect(box, hole);
    std::set<Dims> covered;
    std::uint64_t elems = shared ? volume(*shared) : 0;
    for (const Box& piece : pieces) {
      elems += volume(piece);
      covered.merge(positions(piece));
      CHECK_FALSE(intersect(piece, hole));
      if (shared) CHECK(volume(piece) > 0);
    }
    CHECK(covered == without(positions(box), positions(hole)));
    CHECK(elems == volume(box));  // with the line above: no element is in two pieces
    if (shared) CHECK(pieces.size() <= 2 * shape.size());
    if (!shared && volume(box) > 0) CHECK(pieces == std::vector<Box>{box});
    cut += pieces.size() > 1;
  }
  CHECK(cut > 50);
}

TEST_CASE("A hole in the middle of a square leaves four pieces") {
  CHECK(without(whole({4, 4}), Box{{1, 1}, {2, 2}}) ==
        std::vector<Box>{{{0, 0}, {1, 4}}, {{3, 0}, {1, 4}}, {{1, 0}, {2, 1}}, {{1, 3}, {2, 1}}});
}

TEST_CASE("A box lies in a shape if no dim ends past it, however large its numbers") {
  CHECK(contains({8, 6}, whole({8, 6})));
  CHECK(contains({8, 6}, Box{{8, 6}, {0, 0}}));
  CHECK_FALSE(contains({8, 6}, Box{{0, 3}, {8, 4}}));
  CHECK_FALSE(contains({8, 6}, Box{{9, 0}, {0, 0}}));
  CHECK_FALSE(contains({8, 6}, Box{{1, 0}, {UINT64_MAX, 1}}));
  CHECK_FALSE(contains({8, 6}, Box{{UINT64_MAX, 0}, {2, 1}}));
  CHECK_FALSE(contains({8, 6}, whole({8})));
  CHECK_FALSE(contains({8}, whole({8, 6})));
}

TEST_CASE("A box is shown by its half-open ranges") {
  CHECK(to_string(Box{{0, 4}, {8, 2}}) == "[0:8, 4:6]");
  CHECK(to_string(whole({})) == "[]");
}

}  // namespace
}  // namespace reshard::test
