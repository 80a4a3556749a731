#include "reshard/engine/check/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reshard/layouts/core/checkpoint.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

Verification verify_paths(const fs::path& a, const fs::path& b, Tolerance tolerance = {},
                          const RunOptions& options = {}) {
  const Checkpoint one = read_checkpoint(a, {ConfigUse::kLenient});
  const Checkpoint other = read_checkpoint(b, {ConfigUse::kLenient});
  return verify(one.map, other.map, {tolerance.is_zero() ? std::nullopt : std::optional(tolerance)}, options);
}

/// The same of tensors in two files.
Verification verify_maps(const TensorMap& a, const TensorMap& b, Tolerance tolerance = {},
                         const RunOptions& options = {}) {
  const TempDir temp;
  write_safetensors(temp / "a.safetensors", a);
  write_safetensors(temp / "b.safetensors", b);
  return verify_paths(temp / "a.safetensors", temp / "b.safetensors", tolerance, options);
}

/// The place of an element in C order.
std::uint64_t place_of(const Dims& index, const Dims& shape) {
  std::uint64_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

TEST_CASE("A checkpoint is the same in every form, and so it is to itself") {
  const std::uint64_t seed = GENERATE(from_range(seeds(12)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const TempDir temp;
  const TinyModel model = random_model(random);
  const TensorMap originals = random_tensors(model, random);
  write_model(temp / "model", model, originals, pick(random, 1, 3));
  FaultStorage storage;
  for (const Layout* const kind : {layout("ranks"), layout("optimum")}) {
    Request request = convert_request(temp / "model", temp / kind->traits().name);
    request.target.layout = kind;
    request.target.format = random() % 2 ? Format::kPytorch : Format::kXser;
    set_target(request.target, legal_options(random, model));
    convert(request, random_run(random, storage));
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : originals) bytes += tensor.bytes.size();
  for (const char* a : {"model", "ranks", "optimum"})
    for (const char* b : {"model", "ranks", "optimum"}) {
      INFO(a << " and " << b);
      const Verification result = verify_paths(temp / a, temp / b, {}, random_run(random, storage));
      CHECK(result.same());
      CHECK(result.compared_tensors == originals.size());
      CHECK(result.compared_bytes == bytes);
    }
}

TEST_CASE("What only one side has is listed in that side's order, and what both have is compared") {
  const TensorData w = floats({2}, {1, 2});
  const Verification result = verify_maps({{"a", w}, {"x", w}, {"b", w}}, {{"x", w}, {"d", w}, {"c", w}});
  CHECK(result.only_a == std::vector<std::string>{"a", "b"});
  CHECK(result.only_b == std::vector<std::string>{"c", "d"});
  CHECK(result.different.empty());
  CHECK(result.compared_tensors == 1);
  CHECK_FALSE(result.same());
  CHECK_FALSE(verify_maps({{"a", w}, {"x", w}}, {{"x", w}}).same());
  CHECK_FALSE(verify_maps({{"x", w}}, {{"a", w}, {"x", w}}).same());
}

TEST_CASE("Another shape is another form, with tolerance or without, and is not counted as compared") {
  const TensorData w = floats({2, 3}, {1, 2, 3, 4, 5, 6}), turned{w.dtype, {3, 2}, w.bytes};
  const double rtol = GENERATE(0.0, 0.5);
  const Verification result = verify_maps({{"v", w}, {"w", w}}, {{"v", w}, {"w", turned}}, {rtol, 0});
  CHECK(result.other_form == std::vector<std::string>{"w: F32 [2, 3] and F32 [3, 2]"});
  CHECK(result.compared_tensors == 1);
  CHECK(result.compared_bytes == 24);
  CHECK_FALSE(result.same());
}

TEST_CASE("Another dtype is another form without tolerance, is not counted as compared, and is not read") {
  const TempDir temp;
  write_safetensors(temp / "a", {{"v", floats({1}, {5})}, {"w", floats({3}, {1, 2, 3})}});
  write_safetensors(temp / "b", {{"v", floats({1}, {5})}, {"w", {DType::kI32, {3}, std::string(12, '\1')}}});
  FaultStorage storage;
  const Verification result = verify_paths(temp / "a", temp / "b", {}, {.stores = storage});
  CHECK(result.other_form == std::vector<std::string>{"w: F32 [3] and I32 [3]"});
  CHECK(result.different.empty());
  CHECK(result.compared_tensors == 1);
  CHECK(result.compared_bytes == 4);
  CHECK(storage.count(FaultStorage::Operation::kRead) == 2);
}

TEST_CASE("Dtypes that no tolerance can compare are another form") {
  Random random(4);
  const TensorMap a{{"z", random_tensor(random, DType::kC64, {2})}, {"p", random_tensor(random, DType::kF4, {4})}};
  const TensorMap b{{"z", random_tensor(random, DType::kF32, {2})}, {"p", random_tensor(random, DType::kF8E4M3, {4})}};
  const Verification result = verify_maps(a, b, {1, 1});
  CHECK(result.other_form.size() == 2);
  CHECK(result.compared_tensors == 0);
}

TEST_CASE(
    "The first element that differs, the number of them and the largest difference are right, whatever the threads") {
  const std::uint64_t seed = GENERATE(from_range(seeds(8)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const Dims shape{2, pick(random, 2, 3), 300, pick(random, 300, 500)};  // one block to six
  const std::uint64_t elems = num_elems(shape).value();
  std::vector<float> a(elems);
  for (float& value : a) value = static_cast<float>(random() % 1000);
  std::vector<float> b = a;
  std::uint64_t first = elems;
  std::uint64_t changed = 0;
  double largest = 0;
  std::map<std::uint64_t, bool> seen;
  for (std::uint64_t i = 0, count = pick(random, 1, 40); i < count; ++i) {
    const std::uint64_t at = random() % elems;
    if (!seen.emplace(at, true).second) continue;
    b[at] += static_cast<float>(pick(random, 1, 50));
    first = std::min(first, at);
    largest = std::max(largest, std::abs(double{b[at]} - double{a[at]}));
    ++changed;
  }
  for (const unsigned threads : {1u, 2u, 4u}) {
    CAPTURE(threads);
    const Verification result = verify_maps({{"w", floats(shape, a)}}, {{"w", floats(shape, b)}}, {},
                                            {.threads = threads, .max_memory_bytes = kMinMemoryBytes});
    REQUIRE(result.different.size() == 1);
    const TensorDifference& difference = result.different[0];
    CHECK(difference.name == "w");
    CHECK(difference.elems == elems);
    CHECK(difference.differing == changed);
    CHECK(difference.max_abs == largest);
    REQUIRE(difference.first.size() == 4);
    CHECK(place_of(difference.first, shape) == first);
    CHECK(std::stof(difference.a) == a[first]);
    CHECK(std::stof(difference.b) == b[first]);
  }
}

TEST_CASE("A single element of any dtype that differs is found where it is, in any form of the checkpoint") {
  const std::uint64_t seed = GENERATE(from_range(seeds(25)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const TempDir temp;
  const TinyModel model = random_model(random);
  TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  auto changed = tensors.begin();
  std::advance(changed, random() % tensors.size());
  const std::uint64_t at = random() % changed->second.bytes.size();
  changed->second.bytes[at] ^= 4;
  write_model(temp / "changed", model, tensors);
  Request request = convert_request(temp / "changed", temp / "shards");
  request.target.layout = random() % 2 ? layout("ranks") : layout("optimum");
  set_target(request.target, legal_options(random, model));
  FaultStorage storage;
  convert(request, random_run(random, storage));
  fs::path a = temp / "model", b = temp / "shards";
  if (random() % 2) swap(a, b);
  const Verification result = verify_paths(a, b, {}, random_run(random, storage));
  REQUIRE(result.different.size() == 1);
  CHECK(result.different[0].name == changed->first);
  CHECK(result.different[0].differing == 1);
  CHECK(place_of(result.different[0].first, changed->second.shape) == at / 2);
  CHECK(result.different[0].a != result.different[0].b);
}

TEST_CASE("Scalars, tensors without elements and packed elements are compared") {
  TensorMap a{
      {"empty", {DType::kF32, {0, 4}, ""}}, {"packed", {DType::kF4, {4}, "\x21\x43"}}, {"scalar", floats({}, {2})}};
  CHECK(verify_maps(a, a).same());
  TensorMap b = a;
  b["packed"].bytes = "\x21\x53";
  b["scalar"] = floats({}, {3});
  const Verification result = verify_maps(a, b);
  REQUIRE(result.different.size() == 2);
  CHECK(result.different[0].first == Dims{3});
  CHECK(result.different[1].first.empty());
  CHECK(result.different[1].max_abs == 1);
}

TEST_CASE("After a cast the two are alike within the dtype's precision, and not within less") {
  const TempDir temp;
  Random random(5);
  std::vector<float> values(5000);
  for (float& value : values) value = static_cast<float>(random() % 100000) / 1000 - 50;
  write_safetensors(temp / "a/model.safetensors", {{"w", floats({50, 100}, values)}});
  Request request = convert_request(temp / "a", temp / "b");
  request.dtype = DType::kBF16;
  convert(request);
  CHECK_FALSE(verify_paths(temp / "a", temp / "b").same());
  CHECK(verify_paths(temp / "a", temp / "b", {0x1p-8, 0}).same());
  CHECK(verify_paths(temp / "b", temp / "a", {0x1p-8, 0}).same());
  CHECK(verify_paths(temp / "a", temp / "b", {0, 0.25}).same());
  const Verification result = verify_paths(temp / "a", temp / "b", {0, 0.05});
  REQUIRE(result.different.size() == 1);
  CHECK(result.different[0].differing > 0);
  CHECK(result.different[0].differing < 5000);
  CHECK(result.different[0].max_abs > 0.05);
  CHECK(result.different[0].max_abs <= 0.125);
}

}  // namespace
}  // namespace reshard::test
