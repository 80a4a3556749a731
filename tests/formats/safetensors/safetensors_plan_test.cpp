#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/formats/safetensors/safetensors.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/random.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::string prefix_of(const std::string& json) {
  return safetensors_bytes(json, "");
}

/// A name of pieces that a writer may stumble over.
std::string random_name(Random& random) {
  static const std::vector<std::string> kPieces = {"model", ".layers.", "7", "\"", "\\", "/",
                                                   "é",     "层",       "😀", " ",  "A",  "_"};
  std::string name;
  for (auto n = random() % 6; n > 0; --n) name += kPieces[random() % kPieces.size()];
  return name + std::to_string(random() % 1000);
}

std::vector<TensorEntry> random_tensors(Random& random) {
  std::vector<TensorEntry> tensors;
  std::set<std::string> names;
  for (auto n = random() % 30; n > 0; --n) {
    TensorEntry tensor{random_name(random), kDTypes[random() % std::size(kDTypes)].dtype, {}};
    for (auto ndim = random() % 5; ndim > 0; --ndim) tensor.shape.push_back(random() % 9);
    if (bits(tensor.dtype) % 8 != 0) tensor.shape.push_back(4 * (1 + random() % 3));
    if (names.insert(tensor.name).second) tensors.push_back(tensor);
  }
  return tensors;
}

TEST_CASE("The files of the reference are laid out byte for byte as it wrote them") {
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testdata("golden/optimum"))) {
    if (entry.path().extension() != ".safetensors") continue;
    INFO(fs::relative(entry.path(), testdata("")).string());
    const std::string content = read_file(entry.path());
    const Container file = read_safetensors(entry.path());
    std::vector<TensorEntry> shuffled = file.tensors;
    std::shuffle(shuffled.begin(), shuffled.end(), Random(files));
    for (TensorEntry& tensor : shuffled) tensor.offset_bytes = tensor.size_bytes = 12345;
    const ContainerPlan plan = plan_safetensors(shuffled);
    CHECK(plan.size_bytes == content.size());
    REQUIRE(plan.parts.front().bytes.size() < content.size());
    CHECK(plan.parts.front().bytes == content.substr(0, plan.parts.front().bytes.size()));
    REQUIRE(plan.tensors.size() == file.tensors.size());
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      CHECK(plan.tensors[i].name == file.tensors[i].name);
      CHECK(plan.tensors[i].offset_bytes == file.tensors[i].offset_bytes);
      CHECK(plan.tensors[i].size_bytes == file.tensors[i].size_bytes);
    }
    ++files;
  }
  CHECK(files >= 11);
}

TEST_CASE("Tensors are laid out by dtype from the last to the first, then by name") {
  const ContainerPlan plan = plan_safetensors({{"b", DType::kU8, {3}},
                                               {"a", DType::kU8, {5}},
                                               {"B", DType::kU8, {1}},
                                               {"half", DType::kBF16, {2, 0}},
                                               {"z", DType::kI64, {}},
                                               {"y", DType::kF32, {2}},
                                               {"flag", DType::kBool, {1}}});
  std::string json =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("y":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"half":{"dtype":"BF16","shape":[2,0],"data_offsets":[16,16]},)"
      R"("B":{"dtype":"U8","shape":[1],"data_offsets":[16,17]},"a":{"dtype":"U8","shape":[5],"data_offsets":[17,22]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[22,25]},"flag":{"dtype":"BOOL","shape":[1],"data_offsets":[25,26]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  CHECK(plan.parts.front().bytes == prefix_of(json));
  CHECK(plan.size_bytes == plan.parts.front().bytes.size() + 26);
}

TEST_CASE("A file of no tensors is a header alone") {
  const ContainerPlan plan = plan_safetensors({});
  CHECK(plan.parts.front().bytes == prefix_of(R"({"__metadata__":{"format":"pt"}})"));
  CHECK(plan.size_bytes == 40);
}

TEST_CASE("Names are escaped as the reference writer escapes them") {
  const std::string prefix = plan_safetensors({{"\"\\/\b\f\n\r\t\x01\x1f\x7fé", DType::kU8, {1}}}).parts.front().bytes;
  CHECK_THAT(prefix, Says("\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7fé\":{"));
}

TEST_CASE("A random planned header is read back with the same tensors") {
  static std::size_t read = 0;
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(0, 300));
  CAPTURE(seed);
  Random random(seed);
  std::vector<TensorEntry> tensors = random_tensors(random);
  const ContainerPlan plan = plan_safetensors(tensors);
  std::uint64_t length = 0;
  std::memcpy(&length, plan.parts.front().bytes.data(), 8);
  const std::string header = plan.parts.front().bytes.substr(8);
  REQUIRE(length == header.size());
  CHECK(length % 8 == 0);
  CHECK(header.size() - header.find_last_not_of(' ') <= 8);  // padded with spaces, and no further
  const Container file = parse_safetensors_header(header, plan.size_bytes, "m");
  REQUIRE(file.tensors.size() == tensors.size());
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(-static_cast<int>(a.dtype), a.name) < std::pair(-static_cast<int>(b.dtype), b.name);
  });
  // Tensors of no bytes share their offset with the next one, so the two are compared by name.
  std::map<std::string, const TensorEntry*> found;
  for (const TensorEntry& tensor : file.tensors) found[tensor.name] = &tensor;
  std::uint64_t offset = plan.parts.front().bytes.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    REQUIRE(plan.tensors[i].name == tensors[i].name);
    REQUIRE(found.count(tensors[i].name) == 1);
    const TensorEntry& entry = *found[tensors[i].name];
    CHECK(entry.dtype == tensors[i].dtype);
    CHECK(entry.shape == tensors[i].shape);
    CHECK(entry.offset_bytes == offset);
    CHECK(plan.tensors[i].offset_bytes == offset);
    CHECK(plan.tensors[i].size_bytes == entry.size_bytes);
    offset += entry.size_bytes;
    ++read;
  }
  CHECK(offset == plan.size_bytes);
  CHECK(file.metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
  CHECK(file.warnings.empty());
  if (seed == 299) {  // counted over all of them
    CHECK(read > 2000);
  }
}

TEST_CASE("Tensors that have no size in whole bytes, or no name that a header can have, are not written") {
  check_refusals<TensorEntry>(
      [](const TensorEntry& tensor) {
        plan_safetensors({{"fine", DType::kU64, {1}}, tensor});
      },
      {.kind = ErrorKind::kInternal},
      {{"half a byte", {"odd", DType::kF4, {3}}, {.tensor = "odd"}},
       {"six bits", {"scalar", DType::kF6E2M3, {}}, {.tensor = "scalar"}},
       {"an overflow before a 0", {"huge", DType::kU8, {std::uint64_t{1} << 63, 4, 0}}, {.tensor = "huge"}},
       {"an overflow together with the other", {"wide", DType::kU64, {std::uint64_t{1} << 58}}, {.tensor = "wide"}},
       {"the name of the metadata",
        {"__metadata__", DType::kU8, {1}},
        {.kind = ErrorKind::kBadInput, .tensor = "__metadata__", .hint = "`rename`"}},
       {"a name in Latin-1", {"a\xff", DType::kU8, {1}}, {.kind = ErrorKind::kUnsupported, .tensor = "a\xff"}}});
}

TEST_CASE("A header that loaders would refuse is not written") {
  std::vector<TensorEntry> tensors;
  for (int i = 0; i < 6250; ++i) tensors.push_back({std::string(4000, 'a') + std::to_string(i), DType::kU8, {1}});
  check_refused([&] { plan_safetensors(tensors); },
                {.kind = ErrorKind::kUnsupported, .says = "6250 tensors", .hint = "`max-shard-size`"});
  tensors.erase(tensors.begin() + 6000, tensors.end());
  CHECK(plan_safetensors(tensors).parts.front().bytes.size() > 24'000'000);
}

}  // namespace
}  // namespace reshard::test
