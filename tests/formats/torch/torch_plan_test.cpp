#include "reshard/formats/torch/torch_plan.h"

#include <algorithm>

#include "reshard/base/crc32.h"
#include "reshard/formats/common/container_keys.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/formats/zip/zip.h"
#include "reshard/formats/zip/zip_plan.h"
#include "support/containers.h"
#include "support/local_files.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// The plan's parts in a file that is a hole elsewhere.
void write_sparse(const fs::path& path, const ContainerPlan& plan) {
  write_file(path, "");
  fs::resize_file(path, plan.size_bytes);
  const auto sink = local_storage().reopen(path);
  for (const FilePart& part : plan.parts) sink->write_at(part.offset_bytes, std::as_bytes(std::span(part.bytes)));
}

std::vector<DType> storable_dtypes() {
  std::vector<DType> dtypes;
  for (const DTypeRow& row : kDTypes)
    if (row.bits % 8 == 0) dtypes.push_back(row.dtype);
  return dtypes;
}

struct RandomFile {
  TensorMap expected() const {
    TensorMap all;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      all[tensors[i].name] = {tensors[i].dtype, tensors[i].shape, contents[i]};
    for (const TensorAlias& alias : aliases) all[alias.name] = all.at(alias.source);
    return all;
  }

  std::vector<TensorEntry> tensors;
  std::vector<std::string> contents;
  std::vector<std::uint32_t> crcs;
  std::vector<TensorAlias> aliases;
};

RandomFile random_file(Random& random, std::uint64_t at_least = 0) {
  RandomFile file;
  const std::vector<DType> dtypes = storable_dtypes();
  const std::uint64_t count = pick(random, at_least, 12);
  for (std::uint64_t i = 0; i < count; ++i) {
    Dims shape(pick(random, 0, 4));
    for (std::uint64_t& size : shape) size = random() % 5 ? pick(random, 1, 4) : pick(random, 0, 300);
    const DType dtype = dtypes[random() % dtypes.size()];
    file.tensors.push_back({"größe " + std::to_string(random() % 1000) + "." + std::to_string(i), dtype, shape});
    file.contents.push_back(random_tensor(random, dtype, shape).bytes);
    file.crcs.push_back(crc32(std::as_bytes(std::span(file.contents.back()))));
    if (random() % 4 == 0) file.aliases.push_back({"alias." + std::to_string(i), file.tensors.back().name});
  }
  return file;
}

TEST_CASE("Random state dicts that are planned are read back in their order, aligned, with their aliases") {
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(1, 61));
  CAPTURE(seed);
  Random random(seed);
  const RandomFile file = random_file(random);
  const TempDir temp;
  const ContainerPlan plan = plan_torch("model", file.tensors, file.aliases, file.crcs);
  write_file(temp / "model.pt", assemble(plan, file.contents));
  const Container read = read_torch(temp / "model.pt");
  CHECK(read.warnings.empty());
  CHECK((tensors_of(read) == file.expected()));
  std::map<std::string, std::uint64_t> offsets;
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    const TensorEntry& tensor = read.tensors[i];
    CHECK(tensor.name == file.tensors[i].name);
    CHECK(tensor.strides.empty());
    CHECK(tensor.offset_bytes == plan.tensors[i].offset_bytes);
    CHECK(tensor.offset_bytes % 64 == 0);
    offsets[tensor.name] = tensor.offset_bytes;
  }
  for (std::size_t i = 0; i < file.aliases.size(); ++i) {
    const TensorEntry& alias = read.tensors[file.tensors.size() + i];
    CHECK(alias.name == file.aliases[i].name);
    CHECK(alias.offset_bytes == offsets.at(file.aliases[i].source));
  }
  CHECK(check_crcs(temp.path()) == file.tensors.size() + 3);  // data.pkl, byteorder, version
}

TEST_CASE("What a file says of itself is its last entry, and read back, state dict and sharing are as without it") {
  Random random(11);
  const RandomFile file = random_file(random, 3);
  const FileMetadata metadata{{"reshard.\"ü\"", "\\ \n"}, {"reshard.tp_degree", "4"}};
  const TempDir temp;
  write_file(temp / "with.pt",
             assemble(plan_torch("with", file.tensors, file.aliases, file.crcs, metadata), file.contents));
  write_file(temp / "less.pt", assemble(plan_torch("less", file.tensors, file.aliases, file.crcs), file.contents));
  const Container with = read_torch(temp / "with.pt");
  const Container less = read_torch(temp / "less.pt");
  CHECK(with.metadata == metadata);
  CHECK(less.metadata.empty());
  CHECK((tensors_of(with) == file.expected()));
  for (std::size_t i = 0; i < with.tensors.size(); ++i) {
    CHECK(with.tensors[i].name == less.tensors[i].name);
    CHECK(with.tensors[i].offset_bytes == less.tensors[i].offset_bytes);
  }
  CHECK(check_crcs(temp.path()) == 2 * (file.tensors.size() + 3) + 1);
  const ZipDirectory zip = read_zip(*local_storage().open(temp / "with.pt"), temp / "with.pt");
  CHECK(zip.entries().back().name == "with/reshard.json");

  write_file(temp / "refers", xser_reference_file("refers", {{"w", 0}}, metadata));
  CHECK(read_torch_file(temp / "refers").metadata() == metadata);
}

TEST_CASE("What a file says of itself is an object of strings, or an error at its place") {
  const TensorEntry tensor{"w", DType::kU8, {1}};
  const TempDir temp;
  const std::string good = R"({"a":"bcdefgh"})";
  const std::string file = assemble(plan_torch("m", {tensor}, {}, {}, {{"a", "bcdefgh"}}), {"x"});
  const std::size_t at = file.find(good);
  REQUIRE(at != std::string::npos);
  for (std::string text : {R"({"a":"bcdefgh")", R"(["a","bcdefg"])", R"({"a":12345678})", R"({"a":["cdefg"]})",
                           R"({"a":1,"a":"c"})", R"("a bcdefghijk")", ""}) {
    CAPTURE(text);
    text.resize(good.size(), ' ');
    std::string patched = file;
    patched.replace(at, good.size(), text);
    write_file(temp / "m.pt", patched);
    check_refused([&] { read_torch(temp / "m.pt"); },
                  {.says = "reshard.json is not a JSON object of strings", .offset_bytes = at});
  }
}

TEST_CASE("A name is as long as it may be in every format, and one byte more is refused before anything is written") {
  const std::string longest(kMaxTensorNameBytes, 'n');
  const auto tensor = [](const std::string& name) { return TensorEntry{name, DType::kU8, {1}}; };
  const TempDir temp;
  write_file(temp / "m.pt", assemble(plan_torch("m", {tensor("a")}, {{longest, "a"}}), {"x"}));
  CHECK(read_torch(temp / "m.pt").tensors[1].name == longest);
  write_file(temp / "m.pt", assemble(plan_torch("m", {tensor(longest)}), {"x"}));
  CHECK(read_torch(temp / "m.pt").tensors[0].name == longest);
  write_file(temp / "m.safetensors", assemble(plan_safetensors({tensor(longest)}), {"x"}));
  CHECK(read_safetensors(temp / "m.safetensors").tensors[0].name == longest);
  CHECK_NOTHROW(xser_reference_file("m", {{longest, 0}}));

  const std::string longer = longest + "n";
  const std::function<void()> writers[] = {[&] { plan_torch("m", {tensor(longer)}); },
                                           [&] {
                                             plan_torch("m", {tensor("a")}, {{longer, "a"}});
                                           },
                                           [&] { plan_safetensors({tensor(longer)}); },
                                           [&] {
                                             xser_reference_file("m", {{longer, 0}});
                                           }};
  for (const auto& write : writers)
    check_refused(write, {.kind = ErrorKind::kUnsupported,
                          .tensor = longer,
                          .says = "has 4097 bytes; names of written tensors may have at most 4096 bytes",
                          .hint = "`rename`"});
}

TEST_CASE("Without CRCs the sizes and places are final, and only the CRCs of the parts are not") {
  Random random(9);
  const RandomFile file = random_file(random, 3);
  const ContainerPlan before = plan_torch("m", file.tensors, file.aliases);
  const ContainerPlan after = plan_torch("m", file.tensors, file.aliases, file.crcs);
  CHECK(before.size_bytes == after.size_bytes);
  REQUIRE(before.parts.size() == after.parts.size());
  std::size_t differing = 0;
  for (std::size_t p = 0; p < before.parts.size(); ++p) {
    CHECK(before.parts[p].offset_bytes == after.parts[p].offset_bytes);
    REQUIRE(before.parts[p].bytes.size() == after.parts[p].bytes.size());
    for (std::size_t i = 0; i < after.parts[p].bytes.size(); ++i)
      differing += before.parts[p].bytes[i] != after.parts[p].bytes[i];
  }
  CHECK(differing > 0);
  CHECK(differing <= 2ull * 4 * file.tensors.size());  // in both headers of each
}

TEST_CASE("Tensors beyond four gibibytes are planned and read back, without writing their bytes") {
  const std::uint64_t large = (std::uint64_t{1} << 32) + 10;
  const std::vector<TensorEntry> tensors{{"small", DType::kBF16, {3}},
                                         {"large", DType::kU8, {large}},  // a dim of more than 32 bits
                                         {"behind", DType::kF32, {1, 2}},
                                         {"wide", DType::kF64, {std::uint64_t{1} << 31, 2}},  // strides, too
                                         {"last", DType::kI64, {}}};
  const TempDir temp;
  const ContainerPlan plan = plan_torch("huge", tensors, {{"alias", "large"}});
  write_sparse(temp / "huge.pt", plan);
  const Container read = read_torch(temp / "huge.pt");
  REQUIRE(read.tensors.size() == 6);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    INFO(tensors[i].name);
    CHECK(read.tensors[i].shape == tensors[i].shape);
    CHECK(read.tensors[i].offset_bytes == plan.tensors[i].offset_bytes);
    CHECK(read.tensors[i].offset_bytes % 64 == 0);
    CHECK(read.tensors[i].size_bytes == num_bytes(tensors[i].dtype, tensors[i].shape));
  }
  CHECK(read.tensors[5].offset_bytes == plan.tensors[1].offset_bytes);
  CHECK(plan.size_bytes > large + (std::uint64_t{1} << 35));

  write_sparse(temp / "tensor_7.pt", plan_torch_tensor("tensor_7", tensors[1]));
  const TorchFile file = read_torch_file(temp / "tensor_7.pt");
  CHECK(file.tensor(file.pickle().root(), "large").shape == Dims{large});
}

TEST_CASE("Packed dtypes, which torch cannot store, are unsupported by name") {
  for (const DType dtype : {DType::kF4, DType::kF6E2M3, DType::kF6E3M2}) {
    const TensorEntry tensor{"experts.w", dtype, {8}};
    const Refusal refusal{.kind = ErrorKind::kUnsupported,
                          .tensor = "experts.w",
                          .says = std::string(name(dtype)),
                          .hint = "safetensors"};
    check_refused([&] { plan_torch_tensor("t", tensor); }, refusal);
    check_refused([&] { plan_torch("t", {{"fine", DType::kF32, {1}}, tensor}); }, refusal);
  }
}

TEST_CASE("Two entries of a name, and an alias of nothing, are defects") {
  const TensorEntry tensor{"w", DType::kF32, {2}};
  CHECK(error_of([&] { plan_torch("t", {tensor, tensor}); }).kind() == ErrorKind::kInternal);
  CHECK(error_of([&] { plan_torch("t", {tensor}, {{"v", "x"}}); }).tensor() == "v");
}

TEST_CASE("An xser container of every dtype that is planned is read back, tied names and all") {
  Random random(3);
  const TempDir temp;
  std::vector<TensorEntry> tensors{{"scale", DType::kF32, {}}, {"none", DType::kI64, {0, 5}}};
  for (const DType dtype : storable_dtypes()) tensors.push_back({std::string(name(dtype)), dtype, {4, 6}});
  TensorMap expected;
  std::vector<std::pair<std::string, std::uint64_t>> references;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& tensor = tensors[i];
    const TensorData& data = expected[tensor.name] = random_tensor(random, tensor.dtype, tensor.shape);
    const std::string stem = "tensor_" + std::to_string(i);
    const std::uint32_t crc = crc32(std::as_bytes(std::span(data.bytes)));
    write_file(temp / "rank.pt.tensors" / (stem + ".pt"), assemble(plan_torch_tensor(stem, tensor, crc), {data.bytes}));
    references.emplace_back(tensor.name, i);
  }
  expected["head"] = expected.at("F32");
  const auto tied =
      std::find_if(references.begin(), references.end(), [](const auto& one) { return one.first == "F32"; });
  references.emplace_back("head", tied->second);
  write_file(temp / "rank.pt", xser_reference_file("rank", references));
  write_file(temp / "rank.pt.info.pt", xser_info_file("rank.pt.info", tensors));
  REQUIRE(is_xser(temp / "rank.pt"));
  const Container read = read_xser(temp / "rank.pt");
  CHECK(read.warnings.empty());
  CHECK(read.metadata.empty());
  CHECK(read.files.size() == 1 + tensors.size());
  CHECK((tensors_of(read) == expected));
  CHECK(check_crcs(temp.path()) == 4 * tensors.size() + 3 + 3);
}

TEST_CASE("A pickle of 512 MiB and metadata of 64 MiB are read, and of longer ones nothing is") {
  const TempDir temp;
  for (const bool longer : {false, true}) {
    const ErrorKind kind = longer ? ErrorKind::kUnsupported : ErrorKind::kBadInput;
    const auto check_last_entry = [&](ZipPlan zip, const char* name, std::uint64_t most, const char* too_long,
                                      const char* as_it_is) {
      const std::uint64_t begin = zip.add(name, most + longer, 0);
      ContainerPlan plan;
      plan.parts = zip.finish();
      plan.size_bytes = zip.size_bytes();
      write_sparse(temp / "m.pt", plan);
      check_refused([&] { read_torch(temp / "m.pt"); },
                    {.kind = kind, .says = longer ? too_long : as_it_is, .offset_bytes = begin});
    };
    check_last_entry({}, "m/data.pkl", kMaxPickleBytes, "its pickle has 537 MB, more than the 537 MB", "byte 0");
    ZipPlan empty;
    empty.add("m/data.pkl", "\x80\2}.");
    check_last_entry(empty, "m/reshard.json", kMaxArchiveMetadataBytes, "has 67.1 MB, more than the 67.1 MB",
                     "is not a JSON object of strings");
    // A text in place of the magic number that ends behind the file.
    write_file(temp / "s.pt", std::string("\x80\2X\xff\xff\xff\xff"));
    fs::resize_file(temp / "s.pt", kMaxPickleBytes + longer);
    check_refused(
        [&] { read_torch(temp / "s.pt"); },
        {.kind = longer ? ErrorKind::kUnsupported : ErrorKind::kBadInput,
         .says = longer ? "its pickle is longer than the 537 MB that are supported" : "ends before it is complete"});
  }
}

}  // namespace
}  // namespace reshard::test
