#include "reshard/layouts/states/row_shards.h"

#include <algorithm>
#include <string>

#include "support/catch.h"
#include "support/random.h"

namespace reshard::test {
namespace {

/// Which element of which logical tensor each element of a stored tensor is: "w [1, 2]", or "0" for zeros.
std::vector<std::string> elements(const reshard::SourceMap& map, std::uint32_t stored) {
  const Dims steps = c_strides(map.stored[stored].shape);
  std::vector<std::string> found(*num_elems(map.stored[stored].shape));
  for (std::size_t l = 0; l < map.logical.size(); ++l)
    for (const Piece& piece : map.pieces[l]) {
      if (piece.stored != stored) continue;
      Dims index(piece.box.size.size());
      for (std::uint64_t i = 0; i < volume(piece.box); ++i) {
        std::uint64_t to = 0;
        Dims at = piece.box.begin;
        for (std::size_t d = 0; d < index.size(); ++d) {
          to += (piece.stored_begin[d] + index[d]) * steps[d];
          at[d] += index[d];
        }
        REQUIRE(found[to].empty());
        found[to] = map.logical[l].constant() ? "0" : map.logical[l].name + " " + to_string(at);
        for (std::size_t d = index.size(); d-- > 0 && ++index[d] == piece.box.size[d];) index[d] = 0;
      }
    }
  return found;
}

reshard::SourceMap with_file() {
  reshard::SourceMap map;
  map.files.emplace_back();
  return map;
}

LogicalTensor moment(const LogicalTensor& local) {
  return {"m." + local.name, DType::kF32, local.shape, {}, TensorRole::kState};
}

/// A stored tensor that is made of rows of several logical tensors, in a random order, and of padding.
std::uint32_t add_fused(Random& random, reshard::SourceMap& local) {
  const std::uint64_t columns = 1 + pick(random, 0, 2);
  std::vector<std::uint64_t> rows(1 + pick(random, 0, 4));
  std::uint64_t all = 0;
  for (std::uint64_t& count : rows) all += count = 1 + pick(random, 0, 5);
  const auto number = static_cast<std::uint32_t>(local.stored.size());
  local.add_stored({"fused" + std::to_string(number), DType::kF32, {all, columns}});
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Dims stored_begin{begin, 0};
    if (pick(random, 0, 3) == 0) {
      local.add_constant(number, {stored_begin, {rows[i], columns}}, Constant::Kind::kPadding, 0);
    } else {
      const std::uint64_t before = pick(random, 0, 3);
      const std::uint32_t logical = local.add_logical(
          {"w" + std::to_string(number) + "." + std::to_string(i), DType::kF32, {before + rows[i], columns}}, {});
      local.pieces[logical].push_back({number, {{before, 0}, {rows[i], columns}}, stored_begin});
    }
    begin += rows[i];
  }
  return number;
}

TEST_CASE("Shards hold the rows of their local tensor, whatever that is made of, and zeros beyond") {
  for (const std::uint64_t seed : seeds(300)) {
    CAPTURE(seed);
    Random random(seed);
    reshard::SourceMap local = with_file(), map = with_file();
    std::vector<std::vector<RowShard>> shards(1 + pick(random, 0, 2));
    for (std::vector<RowShard>& of : shards) {
      const std::uint32_t number = add_fused(random, local);
      const std::uint64_t count = 1 + pick(random, 0, 6);
      const Dims shape = row_shard_shape(local.stored[number].shape, count);
      for (std::uint64_t d = 0; d < count; ++d)
        of.push_back({map.add_stored({"shard", DType::kF32, shape}), d * shape[0]});
    }
    add_row_shards(map, local, shards, moment);
    for (std::uint32_t s = 0; s < shards.size(); ++s) {
      std::vector<std::string> whole = elements(local, s);
      for (std::string& element : whole)
        if (element != "0") element.insert(0, "m.");
      const std::uint64_t columns = local.stored[s].shape[1];
      for (const RowShard& shard : shards[s]) {
        const std::uint64_t size = *num_elems(map.stored[shard.stored].shape);
        const std::size_t begin = std::min<std::size_t>(whole.size(), shard.begin_row * columns);
        const std::size_t end = std::min<std::size_t>(whole.size(), begin + size);
        std::vector<std::string> expected(whole.begin() + begin, whole.begin() + end);
        expected.resize(size, "0");
        CHECK(elements(map, shard.stored) == expected);
      }
    }
    CHECK_NOTHROW(validate_tiling(map));
  }
}

TEST_CASE("Padding is of a state, or of the weights that shards are to be") {
  for (const TensorRole role : {TensorRole::kState, TensorRole::kParameter}) {
    reshard::SourceMap local = with_file(), map = with_file();
    local.add_whole(local.add_stored({"w", DType::kF32, {3}}), "w");
    const std::vector<RowShard> shards{{map.add_stored({"w", DType::kF32, {4}}), 0}};
    add_row_shards(map, local, std::vector<std::vector<RowShard>>{shards}, moment, role);
    const auto padding = std::find_if(map.logical.begin(), map.logical.end(),
                                      [](const LogicalTensor& tensor) { return static_cast<bool>(tensor.constant()); });
    REQUIRE(padding != map.logical.end());
    CHECK(padding->role == role);
  }
}

TEST_CASE("A number is whole in every shard, and shards are marked as their local tensor is") {
  reshard::SourceMap local = with_file(), map = with_file();
  local.add_whole(local.add_stored({"step", DType::kF32, {}}), "step");
  local.stored[0].replicated = true;
  std::vector<RowShard> shards;
  for (int d = 0; d < 3; ++d) shards.push_back({map.add_stored({"step", DType::kF32, {}}), 0});
  add_row_shards(map, local, std::vector<std::vector<RowShard>>{shards}, moment);
  for (std::uint32_t d = 0; d < 3; ++d) {
    CHECK(elements(map, d) == std::vector<std::string>{"m.step []"});
    CHECK(map.stored[d].replicated);
  }
}

}  // namespace
}  // namespace reshard::test
