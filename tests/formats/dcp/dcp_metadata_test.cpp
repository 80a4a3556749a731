// The `.metadata` of torch.distributed.checkpoint: those of real torch, and hostile ones.

#include "reshard/formats/dcp/dcp_metadata.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "reshard/formats/dcp/dcp_item.h"
#include "support/dcp.h"
#include "support/files.h"
#include "support/golden.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/zips.h"
#include "support/zstd_frames.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace pickles;

DcpMetadata read(const std::string& bytes) {
  return read_dcp_metadata(MemorySource(bytes), "d/.metadata");
}

DcpMetadata read_from(const fs::path& path) {
  return read_dcp_metadata(*local_storage().open(path), path);
}

const DcpTensor& tensor_of(const DcpMetadata& metadata, const std::string& name) {
  for (const DcpTensor& tensor : metadata.tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

Dims dims_of(const json& values) {
  Dims dims;
  for (const json& value : values) dims.push_back(value.get<std::uint64_t>());
  return dims;
}

bool is_empty(const Dims& sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

TEST_CASE("The metadata of every torch from 1.13 to 2.9 says what its files hold") {
  std::size_t folders = 0;
  for (const fs::path& golden_case : golden_cases("dcp")) {
    const json golden = golden_of(golden_case);
    if (!golden.contains("folders")) continue;
    for (const auto& [folder, expected] : golden["folders"].items()) {
      DYNAMIC_SECTION(golden_case.filename().string() << " " << folder) {
        const DcpMetadata metadata = read_from(golden_case / folder / ".metadata");
        CHECK(metadata.tensors.size() == expected["tensors"].size());
        for (const auto& [name, tensor] : expected["tensors"].items()) {
          CAPTURE(name);
          const DcpTensor& found = tensor_of(metadata, name);
          CHECK(found.torch_dtype == tensor["dtype"].get<std::string>());
          CHECK(found.shape == dims_of(tensor["shape"]));
          std::size_t chunks = 0;
          for (const json& chunk : tensor["chunks"]) {
            const Dims sizes = dims_of(chunk["sizes"]);
            if (is_empty(sizes)) continue;
            const DcpChunk& one = found.chunks.at(chunks++);
            CHECK(one.box == Box{dims_of(chunk["offsets"]), sizes});
            CHECK(metadata.files[one.place.file] == chunk["file"].get<std::string>());
            CHECK(one.place.offset_bytes == chunk["begin"]);
            CHECK(one.place.length_bytes == chunk["length"]);
            CHECK(metadata.transforms[one.place.transforms] == chunk.value("transforms", std::vector<std::string>()));
          }
          CHECK(found.chunks.size() == chunks);
        }
        CHECK(metadata.bytes.size() == expected["bytes"].size());
        const json paths = expected.value("planner_data", json());
        CHECK(metadata.paths.size() == paths.size());
        for (const auto& [name, path] : metadata.paths) {
          json parts = json::array();
          for (const auto& part : path) std::visit([&](const auto& value) { parts.push_back(value); }, part);
          CHECK(parts == paths[name]);
        }
      }
      ++folders;
    }
  }
  CHECK(folders == 14);
}

TEST_CASE("Items of a file are found where torch has put them") {
  for (const fs::path& golden_case : golden_cases("dcp")) {
    const json golden = golden_of(golden_case);
    if (!golden.contains("folders")) continue;
    for (const auto& [folder, expected] : golden["folders"].items()) {
      DYNAMIC_SECTION(golden_case.filename().string() << " " << folder) {
        const DcpMetadata metadata = read_from(golden_case / folder / ".metadata");
        for (const auto& [name, tensor] : expected["tensors"].items()) {
          CAPTURE(name);
          std::size_t chunks = 0;
          for (const json& chunk : tensor["chunks"]) {
            const Dims sizes = dims_of(chunk["sizes"]);
            if (is_empty(sizes) || chunk.contains("transforms")) continue;
            DcpFile file(local_storage(), golden_case / folder / chunk["file"]);
            const TensorEntry entry =
                file.find(tensor_of(metadata, name), tensor_of(metadata, name).chunks[chunks++]).tensor;
            CHECK(entry.offset_bytes == chunk["data"]);
            CHECK(entry.shape == sizes);
            CHECK(entry.strides == (chunk.contains("strides") ? dims_of(chunk["strides"]) : Dims()));
          }
        }
      }
    }
  }
}

/// A tensor of 4 × 2 floats in two chunks.
dcp::Metadata two_chunks() {
  dcp::Tensor tensor{"w", "float32", {4, 2}, {{{0, 0}, {3, 2}, {}}, {{3, 0}, {1, 2}, {}}}};
  tensor.chunks[0].place = {"__0_0.distcp", 0, 100, {}};
  tensor.chunks[1].place = {"__1_0.distcp", 7, 50, {}};
  return {{tensor}, {{"lr", {"__0_0.distcp", 100, 10, {}}}}};
}

TEST_CASE("Metadata made by hand is read") {
  const DcpMetadata metadata = read(metadata_bytes(two_chunks()));
  REQUIRE(metadata.tensors.size() == 1);
  CHECK(metadata.tensors[0].dtype == DType::kF32);
  CHECK(metadata.tensors[0].chunks[1].box == Box{{3, 0}, {1, 2}});
  CHECK(metadata.files == std::vector<std::string>{"__0_0.distcp", "__1_0.distcp"});
  CHECK(metadata.bytes[0].place.offset_bytes == 100);
}

TEST_CASE("Chunks without elements need no place, and a scalar has one chunk") {
  dcp::Metadata wanted;
  wanted.tensors = {{"none", "int8", {0, 3}, {{{0, 0}, {0, 3}, {}, false}}},
                    {"some", "int8", {2}, {{{0}, {2}, {"a", 0, 9, {}}}, {{2}, {0}, {}, false}, {{2}, {0}, {}, false}}},
                    {"scalar", "float64", {}, {{{}, {}, {"a", 9, 9, {}}}}}};
  const DcpMetadata metadata = read(metadata_bytes(wanted));
  CHECK(metadata.tensors[0].chunks.empty());
  CHECK(metadata.tensors[1].chunks.size() == 1);
  CHECK(metadata.tensors[2].chunks.size() == 1);
}

TEST_CASE("What a newer torch or another program adds is ignored") {
  const std::string entries = text("w") + dcp::tensor_value({"w", "float32", {1}, {{{0}, {1}, {}}}});
  const std::vector<std::int64_t> begin{0};
  const std::string storage = dcp::index_value("w", &begin) + dcp::place_value({"f", 0, 9, {}});
  const std::string more = text("mcore_data") + dict({{"w", object("megatron.core.Thing", "Plan", "}")}}) +
                           text("planner_data") + object("pkg", "Planner", "}") + text("version") + text("9.0");
  const DcpMetadata metadata = read(dcp::metadata_bytes(entries, storage, more));
  CHECK(metadata.tensors.size() == 1);
  CHECK(metadata.paths.empty());
}

TEST_CASE("A dtype that safetensors lacks is kept by its name") {
  dcp::Metadata wanted;
  wanted.tensors = {{"q", "qint8", {1}, {{{0}, {1}, {"a", 0, 9, {}}}}}};
  const DcpMetadata metadata = read(metadata_bytes(wanted));
  CHECK_FALSE(metadata.tensors[0].dtype);
  CHECK(metadata.tensors[0].torch_dtype == "qint8");
}

void refused(const std::string& bytes, const std::string& says, const std::string& tensor = "w",
             ErrorKind kind = ErrorKind::kBadInput) {
  check_refused([&] { read(bytes); }, {.kind = kind, .path = "d/.metadata", .tensor = tensor, .says = says});
}

TEST_CASE("Chunks that contradict their tensor or have no place are refused") {
  using Tensor = dcp::Tensor;
  check_refusals<std::function<void(Tensor&)>>(
      [](const auto& patch) {
        dcp::Metadata metadata = two_chunks();
        patch(metadata.tensors[0]);
        read(metadata_bytes(metadata));
      },
      {.path = "d/.metadata", .tensor = "w"},
      {{"outside its tensor",
        [](Tensor& t) {
          t.chunks[1].sizes = {2, 2};
        },
        {.says = "a chunk of [2, 2] at [3, 0], which does not lie inside its shape [4, 2]"}},
       {"that overflows",
        [](Tensor& t) {
          t.chunks[1].offsets = {INT64_MAX, 0};
        },
        {.says = "does not lie inside"}},
       {"of other dims", [](Tensor& t) { t.chunks[1].sizes = {1}; }, {.says = "does not lie inside"}},
       {"without a place",
        [](Tensor& t) { t.chunks[1].has_place = false; },
        {.says = "does not say where its chunk at [3, 0] lies"}},
       {"a negative size",
        [](Tensor& t) {
          t.shape = {-4, 2};
        },
        {.says = "its size is -4"}},
       {"a shape beyond 64 bits",
        [](Tensor& t) {
          t.shape = {INT64_MAX, 4};
        },
        {.says = "overflows 64 bits"}},
       {"a negative offset in the file",
        [](Tensor& t) { t.chunks[0].place.offset = -1; },
        {.says = "its offset in the file is -1"}},
       {"two places",
        [](Tensor& t) { t.chunks.push_back(t.chunks[1]), t.chunks.back().place.offset = 8; },
        {.says = "two places for its chunk at [3, 0]"}}});
  dcp::Metadata twice = two_chunks();
  twice.tensors[0].chunks.push_back(twice.tensors[0].chunks[1]);
  CHECK_NOTHROW(read(metadata_bytes(twice)));  // the tiling says what is wrong
}

TEST_CASE("Files that lie elsewhere are refused") {
  for (const auto& [file, says] : {std::pair{"/etc/passwd", "not relative"}, std::pair{"../other/f", "leads out"},
                                   std::pair{"a/../../f", "leads out"}, std::pair{"", "no file can be called"},
                                   std::pair{"a\nb", "no file can be called"}}) {
    CAPTURE(file);
    dcp::Metadata metadata = two_chunks();
    metadata.tensors[0].chunks[0].place.file = file;
    refused(metadata_bytes(metadata), says);
  }
  dcp::Metadata metadata = two_chunks();
  metadata.tensors[0].chunks[0].place.file = "deep/..hidden/f..";
  CHECK_NOTHROW(read(metadata_bytes(metadata)));
}

TEST_CASE("Objects of other classes are refused by their name") {
  const std::vector<std::int64_t> begin{0};
  const std::string entry = text("w") + dcp::tensor_value({"w", "float32", {1}, {{{0}, {1}, {}}}});
  const std::string index = dcp::index_value("w", &begin), place = dcp::place_value({"f", 0, 9, {}});
  const std::string metadata_module = "torch.distributed.checkpoint.metadata";
  refused(dcp::metadata_bytes(text("w") + object("pkg", "Sharded", "}"), ""),
          "has an object of pkg.Sharded in the place of a tensor", "w", ErrorKind::kUnsupported);
  refused(dcp::metadata_bytes(text("w") + object("pkg", "TensorStorageMetadata", "}"), ""), "pkg.TensorStorageMetadata",
          "w", ErrorKind::kUnsupported);
  refused(dcp::metadata_bytes(entry, index + object("pkg", "_StorageInfo", "}")), "calls pkg._StorageInfo", "");
  refused(dcp::metadata_bytes(entry, index + text("f")), "has a string where a _StorageInfo must be");
  refused(dcp::metadata_bytes(entry, text("w") + place), "has a string where a MetadataIndex must be", "");
  refused(dcp::metadata_bytes(entry, index + call(metadata_module, "StorageMeta", {})), "where a _StorageInfo must be");
  refused(stream(dict({{"w", kNone}})), "it holds a dict", "");
  refused(stream(object(metadata_module, "Metadata", "}")), "has no storage_data", "");
  refused(stream(call(metadata_module, "Metadata", {})), "without attributes", "");
  refused(dcp::metadata_bytes(entry + entry, index + place), "has it twice");
  refused(dcp::metadata_bytes(number(1) + kNone, ""), "an int in the place of an entry's name", "");
  refused(dcp::metadata_bytes(text("a\x1b[1mb") + kNone, ""), "control character", "");
  refused(dcp::metadata_bytes(text("a\xff") + kNone, ""), "not UTF-8", "");
  refused(dcp::metadata_bytes(text(std::string(5000, 'n')) + kNone, ""), "5000 bytes", "");
  refused(metadata_bytes(two_chunks()) + "x", "something after its pickle", "");
}

TEST_CASE("A metadata that runs code is refused by what it runs") {
  const std::string more = text("planner_data") + call("os", "system", {text("true")});
  refused(dcp::metadata_bytes("", "", more), "calls os.system", "");
  refused(dcp::metadata_bytes("", "", text("x") + call("builtins", "getattr", {global("os", "system"), text("a")})),
          "calls builtins.getattr", "");
}

TEST_CASE("No patch of one byte, and no cut, escapes the errors of metadata") {
  const std::string good = metadata_bytes(two_chunks());
  for (std::size_t size = 0; size < good.size(); ++size) CHECK_THROWS_AS(read(good.substr(0, size)), Error);
  std::size_t refusals = 0;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const int mask : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ mask);
      try {
        read(bytes);
      } catch (const Error& error) {
        CHECK((error.kind() == ErrorKind::kBadInput || error.kind() == ErrorKind::kUnsupported));
        ++refusals;
      }
    }
  CHECK(refusals > 1000);
}

TEST_CASE("Chunks that many tensors share take no time for each") {
  // One list of 10,000 chunks, which as many tensors have.
  std::string chunks = "](";
  for (int i = 0; i < 10'000; ++i) chunks += i == 0 ? dcp::chunk_value({0}, {0}) + "q\1" : "h\1";
  std::string entries = text("w0") + dcp::tensor_value({"w0", "int8", {1}, {}});
  const std::size_t at = entries.rfind("](e");
  entries.replace(at, 3, chunks + "eq\2");
  for (int i = 1; i < 10'000; ++i) {
    std::string entry = dcp::tensor_value({"w", "int8", {1}, {}});
    entry.replace(entry.rfind("](e"), 3, "h\2");
    entries += text("w" + std::to_string(i)) + entry;
  }
  const auto begin = std::chrono::steady_clock::now();
  check_refused([&] { read(dcp::metadata_bytes(entries, "")); }, {.says = "chunks that are of several tensors"});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("A name of many paths is not copied for each of them") {
  // One long name, and one path of 64 times that name, of a thousand entries: 260 MB in a file of 40 kB.
  std::string paths = text("first") + "(";
  for (int part = 0; part < 64; ++part) paths += part == 0 ? text(std::string(4096, 'n')) + "q\1" : "h\1";
  paths += "tq\2";
  for (int i = 0; i < 1000; ++i) paths += text("other" + std::to_string(i)) + "h\2";
  const std::string bytes = dcp::metadata_bytes("", "", text("planner_data") + "}(" + paths + "u");
  refused(bytes, "has paths with more names than the whole file", "first");
  CHECK(read_dcp_metadata(MemorySource(bytes), "d/.metadata", DcpPaths::kLeave).paths.empty());
}

TEST_CASE("Keys that come twice are refused, so that a short file cannot have many entries") {
  const std::string path = text("w") + tuple({text("w")});
  refused(dcp::metadata_bytes("", "", text("planner_data") + "}(" + path + path + "u"), "has a path to it twice");
  const std::vector<std::int64_t> begin{0};
  const std::string index = dcp::index_value("w", &begin), place = dcp::place_value({"f", 0, 9, {}});
  refused(dcp::metadata_bytes("", index + "q\1" + place + "q\2" + "h\1h\2"), "one key of its storage_data twice", "");
}

TEST_CASE("Attributes that come twice are refused, as readers disagree which one counts") {
  const std::string good = metadata_bytes(two_chunks());
  for (const char* attribute : {"offset", "relative_path", "sizes", "chunks", "storage_data", "planner_data"}) {
    CAPTURE(attribute);
    std::string bytes = good;
    // The attribute's name and another value of it, before the first that is there.
    const std::size_t at = bytes.find(text(attribute));
    REQUIRE(at != bytes.npos);
    bytes.insert(at, text(attribute) + number(1));
    check_refused(
        [&] { read(bytes); },
        {.path = "d/.metadata", .says = "contradicts itself: an object has \"" + std::string(attribute) + "\" twice"});
  }
}

/// A checkpoint of one item in memory.
struct OneItem {
  explicit OneItem(std::string bytes, std::string before = {}) : content(before + bytes) {
    tensor.name = "w";
    tensor.torch_dtype = "float32";
    tensor.dtype = DType::kF32;
    tensor.shape = {2, 2};
    chunk.box = {{0, 0}, {2, 2}};
    chunk.place = {0, 0, before.size(), bytes.size()};
  }

  TensorEntry find() const {
    MemoryFiles files;
    files.write("d/__0_0.distcp", content);
    return DcpFile(files, "d/__0_0.distcp").find(tensor, chunk, transforms).tensor;
  }

  std::string content;
  DcpTensor tensor;
  DcpChunk chunk;
  std::vector<std::string> transforms;
};

const std::string kFloats(16, 'f');

TEST_CASE("An item is found at any offset, with bytes around it that belong to nobody") {
  OneItem item(dcp::item_bytes("float32", {2, 2}, kFloats), std::string(13, '\0'));
  item.content += "rest";
  const TensorEntry entry = item.find();
  CHECK(item.content.substr(entry.offset_bytes, 16) == kFloats);
  CHECK(entry.size_bytes == 16);
  CHECK(entry.strides.empty());
  OneItem large(dcp::item_bytes("float32", {2, 2}, kFloats, {1, 2}), std::string(100'000, 'x'));
  CHECK(large.find().strides == Dims{1, 2});
}

TEST_CASE("Items larger than what is read of their ends are found, too") {
  OneItem item(dcp::item_bytes("float32", {300, 100}, std::string(120'000, 'f')), std::string(13, '\0'));
  item.tensor.shape = item.chunk.box.size = {300, 100};
  CHECK(item.content.substr(item.find().offset_bytes, 120'000) == std::string(120'000, 'f'));
}

TEST_CASE("Items that are not what metadata says are refused with file and tensor") {
  const auto check = [](const OneItem& item, const std::string& says, ErrorKind kind = ErrorKind::kBadInput) {
    const Error error =
        check_refused([&] { item.find(); }, {.kind = kind, .path = "d/__0_0.distcp", .tensor = "w", .says = says});
    CHECK_FALSE(error.hint().empty());
  };
  const std::string good = dcp::item_bytes("float32", {2, 2}, kFloats);
  SECTION("a short file") {
    OneItem item(good, "ab");
    item.content.pop_back();
    check(item, "goes past the file's end");
  }
  SECTION("an item that ends too early or too late") {
    OneItem item(good, "ab");
    item.content += "xyz";
    for (const int change : {-1, 1, 3}) {
      item.chunk.place.length_bytes = good.size() + static_cast<std::uint64_t>(change);
      CHECK(error_of([&] { item.find(); }).kind() == ErrorKind::kBadInput);
    }
    check(item, "the end of the zip archive is not the end of the file");
  }
  SECTION("another dtype or shape") {
    check(OneItem(dcp::item_bytes("int32", {2, 2}, kFloats)), "is F32 [2, 2] by .metadata, but I32 [2, 2] in the file");
    check(OneItem(dcp::item_bytes("float32", {4}, kFloats)), "but F32 [4] in the file");
  }
  SECTION("no tensor") {
    check(OneItem(torch_zip(stream(number(1)), {})), "is an int, no tensor");
  }
  SECTION("something that runs code") {
    check(OneItem(torch_zip(stream(call("os", "system", {text("true")})), {})), "calls os.system");
  }
  SECTION("strides that make many elements of one") {
    View view;
    view.type = "FloatStorage";
    view.elems = 4;
    view.shape = {1 << 10, 1 << 8};
    view.strides = {0, 0};
    OneItem item(torch_zip(stream(pickles::tensor(view)), {{"0", kFloats}}));
    item.tensor.shape = item.chunk.box.size = {1 << 10, 1 << 8};
    check(item, "bytes for elements of 1048576");
  }
  SECTION("no zip") {
    check(OneItem(std::string(500, 'x')), "does not begin like an item of torch.save");
  }
  SECTION("zstd that metadata does not tell") {
    check(OneItem("\x28\xb5\x2f\xfd" + std::string(50, 'z')),
          "compressed with zstd, but .metadata lists no transform for it");
  }
}

TEST_CASE("An item in a zstd frame is found in what that decodes to") {
  OneItem item(zstd_frame(dcp::item_bytes("float32", {2, 2}, kFloats)), "before");
  item.transforms = {"stream.zstd/1"};
  MemoryFiles files;
  files.write("d/__0_0.distcp", item.content);
  const DcpItem found = DcpFile(files, "d/__0_0.distcp").find(item.tensor, item.chunk, item.transforms);
  REQUIRE(found.frame);
  CHECK(*found.frame == ZstdFrame{6, item.content.size() - 6});
  std::string decoded(found.decoded_bytes, '\0');
  open_zstd(files.open("d/__0_0.distcp"), *found.frame, found.decoded_bytes, "f")
      ->read_at(0, std::as_writable_bytes(std::span(decoded)));
  CHECK(decoded.substr(found.tensor.offset_bytes, 16) == kFloats);

  OneItem other(dcp::item_bytes("float32", {2, 2}, kFloats));
  other.transforms = {"stream.rot13/1"};
  check_refused(
      [&] { other.find(); },
      {.kind = ErrorKind::kUnsupported, .tensor = "w", .says = "transformed by stream.rot13/1, which is not known"});
  OneItem bomb(zstd_bomb(100));
  bomb.transforms = {"stream.zstd/1"};
  CHECK_THAT(error_of([&] { bomb.find(); }).what(), Says("decodes to more than 1048592 bytes"));
  OneItem plain(dcp::item_bytes("float32", {2, 2}, kFloats));
  plain.transforms = {"stream.zstd/1"};
  CHECK_THAT(error_of([&] { plain.find(); }).what(), Says("its zstd frame is damaged"));
}

/// A file that counts what is read of it.
class CountedFiles final : public Files {
 public:
  explicit CountedFiles(std::string content) : source_(std::move(content)) {}

  std::unique_ptr<Source> open(const fs::path&) override { return std::make_unique<Counted>(*this); }
  std::vector<DirectoryEntry> list(const fs::path&) override { return {}; }
  FileKind kind_of(const fs::path&) override { return FileKind::kFile; }
  FileStamp stamp(const fs::path&) override { return {}; }
  fs::path absolute(const fs::path& path) override { return path; }
  fs::path resolve(const fs::path& path) override { return path; }
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Counted final : Source {
    explicit Counted(CountedFiles& owner) : of(owner) {}
    std::uint64_t size_bytes() const override { return of.source_.size_bytes(); }
    void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
      of.bytes_read_ += out.size();
      of.source_.read_at(offset_bytes, out);
    }
    CountedFiles& of;
  };

  MemorySource source_;
  std::uint64_t bytes_read_ = 0;
};

TEST_CASE("A zstd frame that many tensors name is decoded once") {
  OneItem item(zstd_frame(dcp::item_bytes("float32", {300, 100}, std::string(120'000, 'f'))));
  item.tensor.shape = item.chunk.box.size = {300, 100};
  CountedFiles files(item.content);
  DcpFile file(files, "d/__0_0.distcp");
  for (int i = 0; i < 100; ++i) {
    item.tensor.name = "w" + std::to_string(i);
    CHECK(file.find(item.tensor, item.chunk, {"stream.zstd/1"}).frame);
  }
  CHECK(files.bytes_read() < 2 * item.content.size());
}

TEST_CASE("An object is found whole, whatever it would run, and opened by nobody") {
  const std::string object = torch_zip(stream(call("os", "system", {text("true")})), {});
  const auto find = [](const std::string& content, const DcpPlace& place,
                       const std::vector<std::string>& transforms = {}) {
    MemoryFiles files;
    files.write("d/__0_0.distcp", content);
    return DcpFile(files, "d/__0_0.distcp").find(DcpBytes{"rng", place}, transforms);
  };
  const DcpItem plain = find("before" + object + "after", {0, 0, 6, object.size()});
  CHECK_FALSE(plain.frame);
  CHECK(plain.tensor.dtype == DType::kU8);
  CHECK(plain.tensor.shape == Dims{object.size()});
  CHECK(plain.tensor.offset_bytes == 6);

  const std::string frame = zstd_frame(object);
  const DcpItem decoded = find("before" + frame, {0, 1, 6, frame.size()}, {"stream.zstd/1"});
  CHECK(decoded.frame == ZstdFrame{6, frame.size()});
  CHECK(decoded.decoded_bytes == object.size());
  CHECK(decoded.tensor.offset_bytes == 0);
  CHECK(decoded.tensor.shape == Dims{object.size()});

  const auto check = [&](const std::string& content, std::uint64_t length, const std::string& what,
                         ErrorKind kind = ErrorKind::kBadInput) {
    check_refused(
        [&] {
          find(content, {0, 0, 0, length});
        },
        {.kind = kind, .path = "d/__0_0.distcp", .tensor = "rng", .says = what});
  };
  check(object, object.size() + 1, "goes past the file's end");
  check(object + "x", object.size() + 1, "is not the end of the file");
  check(object, object.size() - 1, "has no zip directory at its end");
  check(std::string(object.size(), 'x'), object.size(), "do not begin like an item of torch.save");
  check(safetensors_bytes({{"a", {DType::kU8, {1}, "a"}}}), 0, "puts it into a file of safetensors",
        ErrorKind::kUnsupported);
}

TEST_CASE("A bucket of safetensors is read by the names of tensors") {
  OneItem item(safetensors_bytes({{"w", {DType::kF32, {2, 2}, kFloats}}, {"a", {DType::kU8, {1}, "a"}}}));
  item.chunk.place.offset_bytes = item.chunk.place.length_bytes = 0;
  CHECK(item.content.substr(item.find().offset_bytes, 16) == kFloats);
  item.chunk.box.size = {1, 2};  // two chunks of one name overwrite each other
  CHECK_THAT(error_of([&] { item.find(); }).what(), Says("is F32 [1, 2] by .metadata, but F32 [2, 2]"));
  item.tensor.name = "b";
  CHECK_THAT(error_of([&] { item.find(); }).what(), Says("is not in this safetensors file"));
}

TEST_CASE("A chunk that another one of its tensor has overwritten in a bucket is refused") {
  // torch keeps one tensor per name and file, and the metadata of the file say where that begins.
  const std::string header = R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[2,0]}}"},)"
                             R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  OneItem item(safetensors_bytes(header, kFloats));
  item.tensor.shape = {4, 2};
  item.chunk.box.begin = {2, 0};
  item.chunk.place.offset_bytes = item.chunk.place.length_bytes = 0;
  CHECK(item.content.substr(item.find().offset_bytes, 16) == kFloats);
  item.chunk.box.begin = {0, 0};
  check_refused([&] { item.find(); },
                {.path = "d/__0_0.distcp",
                 .tensor = "w",
                 .says = "its chunk at [0, 0] is not in this safetensors file, which has the one at [2, 0]"});
}

TEST_CASE("A file that is missing is named") {
  MemoryFiles files;
  files.write("d/.metadata", "x");
  check_refused([&] { DcpFile(files, "d/__3_0.distcp"); },
                {.path = "d/__3_0.distcp", .says = "is missing, though .metadata puts tensors into it"});
}

}  // namespace
}  // namespace reshard::test
