#include "reshard/tensor/copy/runs.h"

#include <array>
#include <random>

#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

using Bits = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // bit of a, bit of b

std::uint64_t between(Random& random, std::uint64_t least, std::uint64_t most) {
  return std::uniform_int_distribution<std::uint64_t>(least, most)(random);
}

struct Case {
  DType dtype = DType::kU8;
  Dims size, a_shape, a_begin, b_shape, b_begin;
};

/// A box of up to four dims in two tensors that hold it, each dim with or without room around it.
Case random_case(Random& random) {
  static constexpr DType kSome[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kC64, DType::kF4, DType::kF6E2M3};
  Case c;
  c.dtype = kSome[between(random, 0, std::size(kSome) - 1)];
  const std::uint64_t step = bits(c.dtype) % 8 == 0 || between(random, 0, 3) == 0 ? 1 : 4;
  for (std::uint64_t ndim = between(random, 0, 4); ndim > 0; --ndim) {
    c.size.push_back(between(random, between(random, 0, 9) == 0 ? 0 : 1, 3) * step);
    for (auto [shape, begin] : {std::pair{&c.a_shape, &c.a_begin}, std::pair{&c.b_shape, &c.b_begin}}) {
      const bool room = between(random, 0, 1) == 1;
      begin->push_back(room ? between(random, 0, 2) * step : 0);
      shape->push_back(begin->back() + c.size.back() + (room ? between(random, 0, 2) * step : 0));
    }
  }
  return c;
}

std::uint64_t flat(const Dims& shape, const Dims& begin, const Dims& index) {
  std::uint64_t position = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) position = position * shape[d] + begin[d] + index[d];
  return position;
}

/// The oracle: every bit of every element of the box, in C order, by its place in a and b.
Bits bits_of_box(const Case& c) {
  Bits all;
  std::uint64_t elems = 1;
  for (const std::uint64_t size : c.size) elems *= size;
  for (std::uint64_t i = 0; i < elems; ++i) {
    Dims index(c.size.size());
    std::uint64_t rest = i;
    for (std::size_t d = c.size.size(); d-- > 0; rest /= c.size[d]) index[d] = rest % c.size[d];
    for (std::uint64_t bit = 0; bit < bits(c.dtype); ++bit)
      all.emplace_back(flat(c.a_shape, c.a_begin, index) * bits(c.dtype) + bit,
                       flat(c.b_shape, c.b_begin, index) * bits(c.dtype) + bit);
  }
  return all;
}

Bits bits_of_runs(const Runs& runs) {
  Bits all;
  runs.for_each([&](std::uint64_t a, std::uint64_t b) {
    for (std::uint64_t bit = 0; bit < runs.run_bytes * 8; ++bit) all.emplace_back(a * 8 + bit, b * 8 + bit);
  });
  return all;
}

/// Into how many stretches that are contiguous in both tensors the box's bits fall, taken in order; std::nullopt if not
/// all of them are whole bytes.
std::optional<std::uint64_t> count_stretches(const Bits& all) {
  std::uint64_t stretches = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && all[i].first == all[i - 1].first + 1 && all[i].second == all[i - 1].second + 1) continue;
    if (i % 8 != 0 || all[i].first % 8 != 0 || all[i].second % 8 != 0) return std::nullopt;
    ++stretches;
  }
  return all.size() % 8 == 0 ? std::optional(stretches) : std::nullopt;
}

std::uint64_t b_span_bytes(const Runs& runs) {
  std::uint64_t span = runs.run_bytes;
  for (const Runs::Loop& loop : runs.loops) span += (loop.count - 1) * loop.b_stride_bytes;
  return span;
}

std::optional<Runs> runs_of(const Case& c) {
  return make_runs(c.dtype, c.size, c.a_shape, c.a_begin, c.b_shape, c.b_begin);
}

TEST_CASE("The runs of a random box visit each of its bits once, in C order, and are as long as both tensors allow") {
  std::size_t refused = 0;
  std::size_t looped = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Case c = random_case(random);
    INFO("seed " << seed << ": " << name(c.dtype) << " " << to_string(c.size) << " at " << to_string(c.a_begin)
                 << " of " << to_string(c.a_shape) << " and " << to_string(c.b_begin) << " of "
                 << to_string(c.b_shape));
    const Bits expected = bits_of_box(c);
    const auto runs = runs_of(c);
    const auto stretches = count_stretches(expected);
    REQUIRE(runs.has_value() == stretches.has_value());
    if (!runs) {
      ++refused;
      continue;
    }
    looped += !runs->loops.empty();
    REQUIRE(bits_of_runs(*runs) == expected);
    CHECK(runs->total_bytes() * 8 == expected.size());
    if (expected.empty()) continue;
    CHECK(runs->total_bytes() == *stretches * runs->run_bytes);
    for (const Runs::Loop& loop : runs->loops) CHECK(loop.count > 1);
    CHECK(runs->a_begin_bytes * 8 == expected.front().first);
    CHECK(runs->b_begin_bytes * 8 == expected.front().second);
    CHECK((runs->a_begin_bytes + runs->a_span_bytes()) * 8 == expected.back().first + 1);
    CHECK((runs->b_begin_bytes + b_span_bytes(*runs)) * 8 == expected.back().second + 1);
  }
  CHECK(refused > 100);
  CHECK(looped > 1000);
}

TEST_CASE("An empty box has no runs, even in a tensor whose other sizes are huge") {
  const std::uint64_t huge = std::uint64_t{1} << 63;
  const auto runs = make_runs(DType::kF32, {0, huge, 4}, {0, huge, 4}, {0, 0, 0}, {0, huge, 4}, {0, 0, 0});
  REQUIRE(runs);
  CHECK(runs->total_bytes() == 0);
  CHECK(bits_of_runs(*runs).empty());
}

TEST_CASE("Copying runs moves the box and nothing beside it, and swapped runs take it back") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Case c = random_case(random);
    const auto runs = runs_of(c);
    if (!runs) continue;
    // Bytes from and to windows that begin at the box, with a guard behind b's.
    std::vector<std::byte> a(runs->a_span_bytes());
    std::vector<std::byte> b(b_span_bytes(*runs) + 8, std::byte{0xee});
    for (auto& byte : a) byte = static_cast<std::byte>(random() & 0x7f);
    std::vector<std::byte> expected = b, again(a.size(), std::byte{0xee}), box_of_a = again;
    for (const auto& [from, to] : bits_of_box(c)) {
      const std::size_t at = from / 8 - runs->a_begin_bytes;
      expected[to / 8 - runs->b_begin_bytes] = box_of_a[at] = a[at];
    }
    copy_runs(*runs, a.data(), runs->a_begin_bytes, b.data(), runs->b_begin_bytes);
    REQUIRE(b == expected);
    copy_runs(swapped(*runs), b.data(), runs->b_begin_bytes, again.data(), runs->a_begin_bytes);
    REQUIRE(again == box_of_a);
  }
}

/// A tensor whose dims lie in some other order than C's, some of them with gaps, some repeating one element.
struct Strided {
  Dims size;
  Dims strides;
  Dims begin;
  std::uint64_t elems;  // from the first to past the last that is used
};

Strided random_strided(Random& random) {
  Strided t;
  const std::size_t ndim = random() % 4;
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < ndim; ++d) {
    t.size.push_back(1 + random() % 5 + (random() % 8 == 0 ? 70 : 0));
    t.begin.push_back(random() % 3);
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(random() % (d + 1)), d);
  }
  t.strides.resize(ndim);
  std::uint64_t stride = 1;
  t.elems = 1;
  for (const std::size_t d : order) {
    if (random() % 6 == 0) continue;  // stays 0
    stride *= random() % 4 == 0 ? 2 : 1;
    t.strides[d] = stride;
    stride *= t.begin[d] + t.size[d];
  }
  for (std::size_t d = 0; d < ndim; ++d) t.elems += (t.begin[d] + t.size[d] - 1) * t.strides[d];
  return t;
}

/// Calls `use(element of a, element of the C-ordered b)` for the box, in C order.
template <typename Use>
void for_each_element(const Strided& t, Use&& use) {
  const std::uint64_t count = *num_elems(t.size);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t a = 0;
    for (std::size_t d = t.size.size(); d-- > 0; rest /= t.size[d]) a += (t.begin[d] + rest % t.size[d]) * t.strides[d];
    use(a, i);
  }
}

TEST_CASE("A box of a tensor in any strides arrives in C order, copied whole or gathered first") {
  std::size_t looped = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const Strided t = random_strided(random);
    const DType dtype = std::array{DType::kU8, DType::kBF16, DType::kF32, DType::kI64}[random() % 4];
    const std::uint64_t width = bits(dtype) / 8;
    std::vector<std::byte> a(t.elems * width);
    for (auto& byte : a) byte = static_cast<std::byte>(random());
    std::vector<std::byte> expected(*num_bytes(dtype, t.size));
    for_each_element(t, [&](std::uint64_t from, std::uint64_t to) {
      std::copy_n(a.begin() + static_cast<std::ptrdiff_t>(from * width), width,
                  expected.begin() + static_cast<std::ptrdiff_t>(to * width));
    });

    const auto runs = make_strided_runs(dtype, t.size, t.strides, t.begin, c_strides(t.size), Dims(t.size.size(), 0));
    REQUIRE(runs);
    CHECK(runs->a_begin_bytes + runs->a_span_bytes() == a.size());
    std::vector<std::byte> b(expected.size());
    copy_runs(*runs, a.data(), 0, b.data(), 0);
    REQUIRE(b == expected);

    const Gather gathered = gather(*runs);
    looped += gathered.reads.loops.size() < runs->loops.size();
    std::vector<std::byte> packed(gathered.packed_bytes);
    gathered.reads.for_each([&](std::uint64_t from, std::uint64_t to) {
      REQUIRE(to + gathered.reads.run_bytes <= packed.size());
      std::copy_n(a.begin() + static_cast<std::ptrdiff_t>(from), gathered.reads.run_bytes,
                  packed.begin() + static_cast<std::ptrdiff_t>(to));
    });
    std::fill(b.begin(), b.end(), std::byte{0});
    copy_runs(gathered.scatter, packed.data(), 0, b.data(), 0);
    REQUIRE(b == expected);
  }
  CHECK(looped > 200);
}

TEST_CASE("Gathering a column-major matrix reads whole columns") {
  const auto runs = make_strided_runs(DType::kBF16, {16, 3}, {1, 100}, {20, 4}, {3, 1}, {0, 0});
  REQUIRE(runs);
  const Gather gathered = gather(*runs);
  CHECK(gathered.reads.run_bytes == 32);
  REQUIRE(gathered.reads.loops.size() == 1);
  CHECK(gathered.reads.loops[0].count == 3);
  CHECK(gathered.reads.loops[0].a_stride_bytes == 200);
  CHECK(gathered.packed_bytes == 96);
}

}  // namespace
}  // namespace reshard::test
