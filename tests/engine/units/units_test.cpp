#include "reshard/engine/units/units.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "reshard/engine/move/block_queue.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/models.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

/// A program that reads tensors, each whole from a stored one.
struct Tensors {
  explicit Tensors(std::vector<LogicalTensor> list) {
    map.logical = std::move(list);
    for (std::uint32_t i = 0; i < map.logical.size(); ++i) {
      const Dims& shape = map.logical[i].shape;
      map.add_stored({"t", map.logical[i].dtype, shape});
      program.transfers.emplace_back().source = Reading{i, {{i, whole(shape), Dims(shape.size())}}, {}};
    }
  }
  const LogicalTensor& tensor(std::size_t transfer) const { return map.logical[transfer]; }
  std::uint64_t bytes(std::size_t transfer) const { return *num_bytes(tensor(transfer).dtype, tensor(transfer).shape); }
  ProgramMaps maps() const { return {&map}; }

  reshard::SourceMap map;
  Program program;
};

Tensors random_tensor_list(Random& random, DType dtype) {
  std::vector<LogicalTensor> list(pick(random, 0, 8));
  for (LogicalTensor& tensor : list) {
    tensor.dtype = dtype;
    for (std::uint64_t d = pick(random, dtype == DType::kF4 ? 1 : 0, 3); d > 0; --d)
      tensor.shape.push_back(pick(random, 0, 9) * (d == 1 ? 2 : 1));
  }
  return Tensors(std::move(list));
}

/// Has the program write to a target with a file for each tensor.
reshard::TargetMap files_of(Tensors& tensors) {
  reshard::TargetMap target;
  const auto count = static_cast<std::uint32_t>(tensors.map.logical.size());
  target.logical = tensors.map.logical;
  target.files.resize(count);
  for (std::uint32_t t = 0; t < count; ++t) {
    const Dims& shape = tensors.tensor(t).shape;
    target.add_stored({"t", tensors.tensor(t).dtype, shape, t});
    tensors.program.transfers[t].target = t;
    target.pieces.push_back({{t, whole(shape), Dims(shape.size())}});
  }
  return target;
}

std::vector<Part> parts_of(const Units& units, std::uint32_t unit) {
  std::vector<Part> parts;
  units.add_parts(unit, parts);
  return parts;
}

/// Counts each element of `box`, by its place in C order.
void count_elements(std::vector<unsigned>& counts, const Dims& shape, const Box& box) {
  for (std::uint64_t i = 0; i < volume(box); ++i) {
    std::uint64_t rest = i, place = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      place += (box.begin[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= shape[d];
    }
    ++counts.at(place);
  }
}

TEST_CASE("Each element of a program is in one share, and in one block of it, whatever the blocks of each share") {
  const std::uint64_t seed = GENERATE(from_range(seeds(300)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const DType dtype = random() % 4 ? DType::kBF16 : DType::kF4;
  Tensors tensors = random_tensor_list(random, dtype);
  reshard::TargetMap target = files_of(tensors);
  for (StoredTensor& stored : target.stored)  // matrices that the files have transposed
    if (stored.shape.size() > 1 && random() % 2)
      stored.set_view(View::of(View::of(stored.shape).transposed().shape).transposed());
  const ProgramMaps maps{&tensors.map, &target};
  const auto count = static_cast<std::uint32_t>(pick(random, 1, 7));
  std::vector<std::vector<unsigned>> counts;
  for (const LogicalTensor& tensor : tensors.map.logical) counts.emplace_back(num_elems(tensor.shape).value());
  const bool whole_leaves = random() % 2;
  const Units units(maps, tensors.program, count, whole_leaves);
  REQUIRE(units.count() == count);
  for (std::uint32_t index = 0; index < count; ++index) {
    const std::uint64_t block_bytes = pick(random, 1, 60);
    const auto workers = static_cast<unsigned>(pick(random, 1, 3));
    BlockQueue queue(maps, tensors.program, parts_of(units, index), {block_bytes, block_bytes}, workers, whole_leaves);
    std::vector<BlockQueue::Item> items;
    for (unsigned worker = 0; worker < workers; ++worker)
      while (queue.next(worker, items))
        for (const BlockQueue::Item& item : items) {
          REQUIRE(contains(tensors.tensor(item.transfer).shape, item.at.box));
          count_elements(counts[item.transfer], tensors.tensor(item.transfer).shape, item.at.box);
        }
  }
  for (const auto& of_tensor : counts)
    CHECK(std::all_of(of_tensor.begin(), of_tensor.end(), [](unsigned times) { return times == 1; }));
}

/// Has the program write to one tensor per rank, whose rows have columns of all tensors: pieces of `rows[t]` rows of
/// tensor t, and a last one with the rest.
reshard::TargetMap columns_of(Tensors& tensors, const std::vector<std::uint64_t>& rows, std::uint64_t height) {
  reshard::TargetMap target;
  target.logical = tensors.map.logical;
  target.pieces.resize(tensors.map.logical.size());
  target.files.resize(1);
  for (std::uint32_t rank = 0, is_last = 0; is_last == 0; ++rank) {
    std::uint64_t columns = 0;
    is_last = 1;
    for (std::uint32_t t = 0; t < target.logical.size(); ++t) {
      const std::uint64_t all = target.logical[t].shape[0], begin = std::min(all, rank * rows[t]);
      const std::uint64_t count = std::min(rows[t], all - begin);
      tensors.program.transfers[t].target = t;
      if (count > 0) target.pieces[t].push_back({rank, {{begin, 0}, {count, height}}, {columns, 0}});
      if (begin + count < all) is_last = 0;
      columns += count;
    }
    StoredTensor stored{"t", DType::kBF16, {columns, height}};
    stored.set_view(View::of({height, columns}).transposed());
    target.add_stored(std::move(stored));
  }
  return target;
}

TEST_CASE("Each element of tensors that interleave is in one block, whatever their pieces and the memory") {
  const std::uint64_t seed = GENERATE(from_range(seeds(300)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const std::uint64_t height = pick(random, 2, 6);
  std::vector<LogicalTensor> list(pick(random, 1, 4));
  std::vector<std::uint64_t> rows;
  const std::uint64_t usual = pick(random, 1, 4), pieces = pick(random, 1, 6);
  for (LogicalTensor& tensor : list) {
    rows.push_back(random() % 2 ? usual : pick(random, 1, 4));
    tensor = {"t", DType::kBF16, {random() % 2 ? rows.back() * pieces : pick(random, 1, 20), height}};
  }
  Tensors tensors(list);
  const reshard::TargetMap target = columns_of(tensors, rows, height);
  const ProgramMaps maps{&tensors.map, &target};
  const auto count = static_cast<std::uint32_t>(pick(random, 1, 4));
  const bool whole_leaves = random() % 2;
  const Units units(maps, tensors.program, count, whole_leaves);
  std::vector<std::vector<unsigned>> counts;
  for (const LogicalTensor& tensor : list) counts.emplace_back(num_elems(tensor.shape).value());
  for (std::uint32_t index = 0; index < count; ++index) {
    BlockSizes sizes{pick(random, 1, 100), pick(random, 1, 400)};
    sizes.joined_bytes = pick(random, 0, 4000);
    BlockQueue queue(maps, tensors.program, parts_of(units, index), sizes, 2, whole_leaves);
    std::vector<BlockQueue::Item> items;
    for (unsigned worker = 0; worker < 2; ++worker)
      while (queue.next(worker, items))
        for (const BlockQueue::Item& item : items)
          count_elements(counts[item.transfer], list[item.transfer].shape, item.at.box);
  }
  for (const auto& of_tensor : counts)
    CHECK(std::all_of(of_tensor.begin(), of_tensor.end(), [](unsigned times) { return times == 1; }));
}

TEST_CASE("Shares are about equally large, but for rows that are not cut") {
  const std::uint64_t seed = GENERATE(from_range(seeds(200)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const Tensors tensors = random_tensor_list(random, DType::kF32);
  std::uint64_t all = 0, largest_row = 0;
  for (std::size_t t = 0; t < tensors.map.logical.size(); ++t) {
    all += tensors.bytes(t);
    const Dims& shape = tensors.tensor(t).shape;
    const auto rows = std::find_if(shape.begin(), shape.end(), [](std::uint64_t size) { return size != 1; });
    if (tensors.bytes(t) > 0) largest_row = std::max(largest_row, tensors.bytes(t) / (rows == shape.end() ? 1 : *rows));
  }
  const auto count = static_cast<std::uint32_t>(pick(random, 1, 7));
  const Units units(tensors.maps(), tensors.program, count, false);
  for (std::uint32_t index = 0; index < count; ++index) {
    std::uint64_t bytes = 0;
    for (const Part& part : parts_of(units, index)) bytes += volume(part.box(tensors.tensor(part.transfer))) * 4;
    CHECK(bytes == units.cost(index));
    CHECK(bytes <= all / count + largest_row + count);
    CHECK(bytes + largest_row + count >= all / count);
  }
}

TEST_CASE("One huge tensor is cut between rows of the first dim that has several") {
  const Tensors tensors({{"t", DType::kU8, {1, 10, 3}}});
  const Units units(tensors.maps(), tensors.program, 3, false);
  const auto box_of = [&](std::uint32_t unit) { return parts_of(units, unit).at(0).box(tensors.tensor(0)); };
  CHECK(box_of(0) == Box{{0, 0, 0}, {1, 3, 3}});
  CHECK(box_of(1) == Box{{0, 3, 0}, {1, 3, 3}});
  CHECK(box_of(2) == Box{{0, 6, 0}, {1, 4, 3}});
}

TEST_CASE("Rows of a sub-byte dtype are cut where they are whole bytes") {
  const Tensors tensors({{"t", DType::kF4, {50, 3}}});
  const Units units(tensors.maps(), tensors.program, 7, false);
  for (std::uint32_t index = 0; index < 7; ++index)
    for (const Part& part : parts_of(units, index)) CHECK(part.begin_row % 8 == 0);
}

TEST_CASE("What is written to many places weighs as much as it writes") {
  Tensors tensors({{"once", DType::kU8, {300}}, {"often", DType::kU8, {300}}});
  reshard::TargetMap target = files_of(tensors);
  for (std::uint32_t rank = 2; rank < 10; ++rank) target.pieces[1].push_back({rank, {{0}, {300}}, {0}});
  target.stored.resize(10, StoredTensor{"t"});
  const ProgramMaps maps{&tensors.map, &target};
  const auto half = parts_of(Units(maps, tensors.program, 2, false), 0);  // 600 of 3600 bytes move with the first one
  REQUIRE(half.size() == 2);
  CHECK(half[1].box(tensors.tensor(1)) == Box{{0}, {120}});
}

TEST_CASE("Units end where a file of the target ends, if that is near") {
  const auto [first_elems, snap, expected_row] = GENERATE(table<std::uint64_t, double, std::uint64_t>(
      {{303, 0.02, 0}, {310, 0.02, 300}, {310, 0.5, 0}, {297, 0.02, 0}}));  // at which the second unit begins
  CAPTURE(first_elems, snap);
  Tensors tensors({{"a", DType::kU8, {first_elems}}, {"b", DType::kU8, {600 - first_elems}}});
  const reshard::TargetMap target = files_of(tensors);
  const Units units({&tensors.map, &target}, tensors.program, 2, false, snap);
  const Part second = parts_of(units, 1).at(0);
  CHECK(second.transfer == (expected_row == 0 ? 1 : 0));
  CHECK(second.begin_row == expected_row);
  CHECK(units.cost(0) + units.cost(1) == 1200);
}

TEST_CASE("Units are dealt out so that shares end where files do, if that costs little") {
  // Ten files of a tensor each, in 33 units, none of which ends with a file by itself.
  std::vector<LogicalTensor> list;
  for (int i = 0; i < 10; ++i) list.push_back({"t" + std::to_string(i), DType::kU8, {1000, 10}, {}});
  Tensors tensors(list);
  const reshard::TargetMap target = files_of(tensors);
  const Units units({&tensors.map, &target}, tensors.program, 33, false, 0.5);
  std::vector<std::uint32_t> all(33);
  std::iota(all.begin(), all.end(), 0u);
  const auto files_of = [&](const std::vector<std::size_t>& firsts, std::size_t share) {
    std::vector<Part> parts;
    for (std::size_t i = firsts[share]; i < firsts[share + 1]; ++i) units.add_parts(all[i], parts);
    std::set<std::size_t> files;
    for (const Part& part : parts) files.insert(part.transfer);
    return files.size();
  };
  for (const std::uint32_t count : {1u, 2u, 5u, 10u}) {
    CAPTURE(count);
    const auto firsts = units.deal(all, count);
    REQUIRE(firsts.size() == count + 1);
    for (std::uint32_t share = 0; share < count; ++share) CHECK(files_of(firsts, share) == 10 / count);
  }
  const auto thirds = units.deal(all, 3);  // no file ends within 2 %
  CHECK(files_of(thirds, 0) == 4);
  CHECK(thirds[1] == 11);
  CHECK(units.deal({}, 3) == std::vector<std::size_t>{0, 0, 0, 0});
  CHECK(units.deal({5}, 3).back() == 1);
}

}  // namespace
}  // namespace reshard::test
