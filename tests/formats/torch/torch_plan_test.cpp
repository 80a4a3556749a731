#include "reshard/formats/torch/torch_plan.h"

#include <algorithm>

#include "reshard/base/crc32.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/formats/zip/zip.h"
#include "support/containers.h"
#include "support/local_files.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Parts and tensors fill the file from its first byte to its last. \returns it.
std::string assemble(const ContainerPlan& plan, const std::vector<std::string>& contents) {
  std::vector<FilePart> all = plan.parts;
  for (std::size_t i = 0; i < contents.size(); ++i)
    if (!contents[i].empty()) all.push_back({plan.tensors[i].offset_bytes, contents[i]});
  std::sort(all.begin(), all.end(),
            [](const FilePart& a, const FilePart& b) { return a.offset_bytes < b.offset_bytes; });
  std::string file;
  for (const FilePart& part : all) {
    CHECK(part.offset_bytes == file.size());
    file += part.bytes;
  }
  CHECK(file.size() == plan.size_bytes);
  return file;
}

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
  std::vector<TensorEntry> tensors;
  std::vector<std::string> contents;
  std::vector<std::uint32_t> crcs;
  std::vector<TensorAlias> aliases;
};

RandomFile random_file(Random& random) {
  RandomFile file;
  const std::vector<DType> dtypes = storable_dtypes();
  const std::uint64_t count = pick(random, 0, 12);
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
  REQUIRE(read.tensors.size() == file.tensors.size() + file.aliases.size());
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    const TensorEntry& tensor = read.tensors[i];
    INFO(tensor.name);
    CHECK(tensor.name == file.tensors[i].name);
    CHECK(tensor.dtype == file.tensors[i].dtype);
    CHECK(tensor.shape == file.tensors[i].shape);
    CHECK(tensor.strides.empty());
    CHECK(tensor.offset_bytes == plan.tensors[i].offset_bytes);
    CHECK(tensor.offset_bytes % 64 == 0);
    CHECK(tensor.size_bytes == file.contents[i].size());
  }
  for (std::size_t i = 0; i < file.aliases.size(); ++i) {
    const TensorEntry& alias = read.tensors[file.tensors.size() + i];
    CHECK(alias.name == file.aliases[i].name);
    const auto source = std::find_if(read.tensors.begin(), read.tensors.end(),
                                     [&](const TensorEntry& tensor) { return tensor.name == file.aliases[i].source; });
    REQUIRE(source != read.tensors.end());
    CHECK(alias.offset_bytes == source->offset_bytes);
    CHECK(alias.dtype == source->dtype);
    CHECK(alias.shape == source->shape);
  }
  CHECK(check_crcs(temp.path()) == file.tensors.size() + 3);  // data.pkl, byteorder, version
}

TEST_CASE("Every dtype of whole bytes is read back from a file of torch, whole or of one tensor") {
  for (const DType dtype : storable_dtypes()) {
    INFO(name(dtype));
    const TempDir temp;
    const TensorEntry tensor{"w", dtype, {3, 2}};
    Random random(5);
    const std::string content = random_tensor(random, dtype, {3, 2}).bytes;
    write_file(temp / "dict.pt", assemble(plan_torch("dict", {tensor}), {content}));
    CHECK((tensors_of(read_torch(temp / "dict.pt")).at("w") == TensorData{dtype, {3, 2}, content}));

    write_file(temp / "tensor_0.pt", assemble(plan_torch_tensor("tensor_0", tensor), {content}));
    const TorchFile file = read_torch_file(temp / "tensor_0.pt");
    const TorchTensor read = file.tensor(file.pickle().root(), "w");
    CHECK(read.dtype == dtype);
    CHECK(read.shape == Dims{3, 2});
    CHECK(read_file(temp / "tensor_0.pt").substr(read.offset_bytes, content.size()) == content);
  }
}

TEST_CASE("What a file says of itself is its last entry, and read back, state dict and sharing are as without it") {
  Random random(11);
  RandomFile file = random_file(random);
  while (file.tensors.size() < 3) file = random_file(random);
  const FileMetadata metadata{{"reshard.\"ü\"", "\\ \n"}, {"reshard.tp_degree", "4"}};
  const TempDir temp;
  write_file(temp / "with.pt",
             assemble(plan_torch("with", file.tensors, file.aliases, file.crcs, metadata), file.contents));
  write_file(temp / "less.pt", assemble(plan_torch("less", file.tensors, file.aliases, file.crcs), file.contents));
  const Container with = read_torch(temp / "with.pt");
  const Container less = read_torch(temp / "less.pt");
  CHECK(with.metadata == metadata);
  CHECK(less.metadata.empty());
  CHECK((tensors_of(with) == tensors_of(less)));
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
                          .says = "has 4097 bytes; tensors are written with names of at most 4096 bytes",
                          .hint = "`rename`"});
}

TEST_CASE("Without CRCs the sizes and places are final, and only the CRCs of the parts are not") {
  Random random(9);
  RandomFile file = random_file(random);
  while (file.tensors.size() < 3) file = random_file(random);
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
  CHECK(differing <= 2 * 4 * file.tensors.size());  // in both headers of each
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

TEST_CASE("More tensors than a zip archive could hold without zip64 are read back") {
  std::vector<TensorEntry> tensors;
  for (std::size_t i = 0; i < 65533; ++i) tensors.push_back({std::to_string(i), DType::kU8, {}});
  const TempDir temp;
  const ContainerPlan plan = plan_torch("many", tensors);
  write_sparse(temp / "many.pt", plan);
  const Container read = read_torch(temp / "many.pt");
  REQUIRE(read.tensors.size() == tensors.size());
  for (const std::size_t i : {std::size_t{0}, std::size_t{300}, tensors.size() - 1}) {
    CHECK(read.tensors[i].name == tensors[i].name);
    CHECK(read.tensors[i].offset_bytes == plan.tensors[i].offset_bytes);
  }
}

TEST_CASE("Packed dtypes, which torch cannot store, are unsupported by name") {
  for (const DType dtype : {DType::kF4, DType::kF6E2M3, DType::kF6E3M2}) {
    for (const bool alone : {false, true}) {
      const TensorEntry tensor{"experts.w", dtype, {8}};
      check_refused(
          [&] {
            if (alone)
              plan_torch_tensor("t", tensor);
            else
              plan_torch("t", {{"fine", DType::kF32, {1}}, tensor});
          },
          {.kind = ErrorKind::kUnsupported,
           .tensor = "experts.w",
           .says = std::string(name(dtype)),
           .hint = "safetensors"});
    }
  }
}

TEST_CASE("Two entries of a name, and an alias of nothing, are defects") {
  const TensorEntry tensor{"w", DType::kF32, {2}};
  CHECK(error_of([&] { plan_torch("t", {tensor, tensor}); }).kind() == ErrorKind::kInternal);
  CHECK(error_of([&] { plan_torch("t", {tensor}, {{"v", "x"}}); }).tensor() == "v");
}

TEST_CASE("An xser container that is planned is read back, tied names and all") {
  Random random(3);
  const TempDir temp;
  const std::vector<TensorEntry> tensors{
      {"embed", DType::kBF16, {4, 6}}, {"scale", DType::kF32, {}}, {"none", DType::kI64, {0, 5}}};
  std::vector<std::string> contents;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    contents.push_back(random_tensor(random, tensors[i].dtype, tensors[i].shape).bytes);
    const std::string stem = "tensor_" + std::to_string(i);
    const std::uint32_t crc = crc32(std::as_bytes(std::span(contents[i])));
    write_file(temp / "rank.pt.tensors" / (stem + ".pt"),
               assemble(plan_torch_tensor(stem, tensors[i], crc), {contents[i]}));
  }
  write_file(temp / "rank.pt", xser_reference_file("rank", {{"embed", 0}, {"scale", 1}, {"none", 2}, {"head", 0}}));
  write_file(temp / "rank.pt.info.pt", xser_info_file("rank.pt.info", tensors));
  REQUIRE(is_xser(temp / "rank.pt"));
  const Container read = read_xser(temp / "rank.pt");
  CHECK(read.warnings.empty());
  CHECK(read.metadata.empty());
  CHECK(read.files.size() == 4);
  REQUIRE(read.tensors.size() == 4);
  CHECK(read.tensors[3].file == read.tensors[0].file);
  const TensorMap held = tensors_of(read);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    CHECK((held.at(tensors[i].name) == TensorData{tensors[i].dtype, tensors[i].shape, contents[i]}));
  CHECK((held.at("head") == held.at("embed")));
  CHECK(check_crcs(temp.path()) == 3 * 4 + 3 + 3);
}

TEST_CASE("The info file of an xser container is held against its tensors, so what is planned wrong is noticed") {
  const TempDir temp;
  const TensorEntry tensor{"w", DType::kF16, {2, 3}};
  write_sparse(temp / "r.tensors/tensor_0.pt", plan_torch_tensor("tensor_0", tensor));
  write_file(temp / "r", xser_reference_file("r", {{"w", 0}}));
  for (const TensorEntry& wrong : {TensorEntry{"w", DType::kBF16, {2, 3}}, TensorEntry{"w", DType::kF16, {3, 2}}}) {
    write_file(temp / "r.info.pt", xser_info_file("r.info", {wrong}));
    check_refused([&] { read_xser(temp / "r"); }, {.path = temp / "r.info.pt", .tensor = "w"});
  }
  write_file(temp / "r.info.pt", xser_info_file("r.info", {tensor}));
  CHECK_NOTHROW(read_xser(temp / "r"));
}

}  // namespace
}  // namespace reshard::test
