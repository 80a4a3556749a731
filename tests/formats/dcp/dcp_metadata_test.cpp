// The `.metadata` of torch.distributed.checkpoint: those of real torch, and hostile ones.

#include "reshard/formats/dcp/dcp_metadata.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "reshard/formats/dcp/dcp_item.h"
#include "support/dcp.h"
#include "support/fault_storage.h"
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

TEST_CASE(
    "The metadata of every torch from 1.13 to 2.9 says what its files hold, and items are where torch has put them") {
  std::size_t folders = 0;
  for (const fs::path& golden_case : golden_cases("dcp")) {
    const json golden = golden_of(golden_case);
    if (!golden.contains("folders")) continue;
    for (const auto& [folder, expected] : golden["folders"].items()) {
      DYNAMIC_SECTION(golden_case.filename().string() << " " << folder) {
        const DcpMetadata metadata = read_dcp_metadata(*local_storage().open(golden_case / folder / ".metadata"), "");
        CHECK(metadata.tensors.size() == expected["tensors"].size());
        for (const auto& [name, tensor] : expected["tensors"].items()) {
          CAPTURE(name);
          const auto found = std::find_if(metadata.tensors.begin(), metadata.tensors.end(),
                                          [&, wanted = name](const DcpTensor& one) { return one.name == wanted; });
          REQUIRE(found != metadata.tensors.end());
          CHECK(found->torch_dtype == tensor["dtype"].get<std::string>());
          CHECK(found->shape == tensor["shape"].get<Dims>());
          std::size_t chunks = 0;
          for (const json& chunk : tensor["chunks"]) {
            const Dims sizes = chunk["sizes"];
            if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) continue;
            const DcpChunk& one = found->chunks.at(chunks++);
            CHECK(one.box == Box{chunk["offsets"], sizes});
            CHECK(metadata.files[one.place.file] == chunk["file"].get<std::string>());
            CHECK(one.place.offset_bytes == chunk["begin"]);
            CHECK(one.place.length_bytes == chunk["length"]);
            CHECK(metadata.transforms[one.place.transforms] == chunk.value("transforms", std::vector<std::string>()));
            if (chunk.contains("transforms")) continue;
            DcpFile file(local_storage(), golden_case / folder / chunk["file"]);
            const TensorEntry entry = file.find(*found, one).tensor;
            CHECK(entry.offset_bytes == chunk["data"]);
            CHECK(entry.shape == sizes);
            CHECK(entry.strides == chunk.value("strides", Dims()));
          }
          CHECK(found->chunks.size() == chunks);
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
  CHECK(folders >= 14);
}

/// A tensor of 4 × 2 floats in two chunks.
dcp::Metadata two_chunks() {
  dcp::Tensor tensor{"w", "float32", {4, 2}, {{{0, 0}, {3, 2}, {}}, {{3, 0}, {1, 2}, {}}}};
  tensor.chunks[0].place = {"__0_0.distcp", 0, 100, {}};
  tensor.chunks[1].place = {"__1_0.distcp", 7, 50, {}};
  return {{tensor}, {{"lr", {"__0_0.distcp", 100, 10, {}}}}};
}

TEST_CASE("Chunks without elements need no place, a scalar has one chunk, and a dtype that safetensors lacks is kept") {
  dcp::Metadata wanted;
  wanted.tensors = {{"none", "qint8", {0, 3}, {{{0, 0}, {0, 3}, {}, false}}},
                    {"some", "int8", {2}, {{{0}, {2}, {"a", 0, 9, {}}}, {{2}, {0}, {}, false}, {{2}, {0}, {}, false}}},
                    {"scalar", "float64", {}, {{{}, {}, {"a", 9, 9, {}}}}}};
  const DcpMetadata metadata = read(metadata_bytes(wanted));
  CHECK(metadata.tensors[0].chunks.empty());
  CHECK_FALSE(metadata.tensors[0].dtype);
  CHECK(metadata.tensors[0].torch_dtype == "qint8");
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

void refused(const std::string& bytes, const std::string& says, const std::string& tensor = "w",
             ErrorKind kind = ErrorKind::kBadInput) {
  check_refused([&] { read(bytes); }, {.kind = kind, .path = "d/.metadata", .tensor = tensor, .says = says});
}

TEST_CASE("Chunks that contradict their tensor or have no place are refused") {
  using Sizes = std::vector<std::int64_t>;
  const auto tensor = [](Sizes shape, Sizes offsets, Sizes sizes, bool has_place = true, std::int64_t offset = 0) {
    dcp::Tensor changed = two_chunks().tensors[0];
    changed.shape = std::move(shape);
    changed.chunks[0].place.offset = offset;
    changed.chunks[1] = {std::move(offsets), std::move(sizes), changed.chunks[1].place, has_place};
    return changed;
  };
  dcp::Tensor two_places = two_chunks().tensors[0];
  two_places.chunks.push_back(two_places.chunks[1]);
  CHECK_NOTHROW(read(dcp::metadata_bytes({{two_places}, {}})));  // the tiling says what is wrong
  two_places.chunks.back().place.offset = 8;
  const std::vector<std::pair<dcp::Tensor, std::string>> rows = {
      {tensor({4, 2}, {3, 0}, {2, 2}), "a chunk of [2, 2] at [3, 0], which is not inside its shape [4, 2]"},
      {tensor({4, 2}, {INT64_MAX, 0}, {1, 2}), "is not inside"},
      {tensor({4, 2}, {3, 0}, {1}), "is not inside"},
      {tensor({4, 2}, {3, 0}, {1, 2}, false), "does not record where its chunk at [3, 0] is stored"},
      {tensor({-4, 2}, {3, 0}, {1, 2}), "its size is -4"},
      {tensor({INT64_MAX, 4}, {3, 0}, {1, 2}), "overflows 64 bits"},
      {tensor({4, 2}, {3, 0}, {1, 2}, true, -1), "its offset in the file is -1"},
      {two_places, "two locations for its chunk at [3, 0]"}};
  for (const auto& [changed, says] : rows) refused(dcp::metadata_bytes({{changed}, {}}), says);
}

TEST_CASE("Files that lie elsewhere are refused") {
  const auto in_file = [](const std::string& file) {
    dcp::Metadata metadata = two_chunks();
    metadata.tensors[0].chunks[0].place.file = file;
    return metadata_bytes(metadata);
  };
  refused(in_file("/etc/passwd"), "not relative");
  for (const char* file : {"../other/f", "a/../../f"}) refused(in_file(file), "outside the checkpoint's directory");
  for (const std::string& file : {std::string(), std::string("a\nb"), std::string(4097, 'f')})
    refused(in_file(file), "not a valid file name");
  for (const std::string& file : {std::string("deep/..hidden/f.."), std::string(4096, 'f')})
    CHECK_NOTHROW(read(in_file(file)));
}

TEST_CASE("Objects of other classes are refused by their name") {
  const std::vector<std::int64_t> begin{0};
  const std::string entry = text("w") + dcp::tensor_value({"w", "float32", {1}, {{{0}, {1}, {}}}});
  const std::string index = dcp::index_value("w", &begin), place = dcp::place_value({"f", 0, 9, {}});
  const std::string metadata_module = "torch.distributed.checkpoint.metadata";
  refused(dcp::metadata_bytes(text("w") + object("pkg", "Sharded", "}"), ""),
          "has an object of pkg.Sharded instead of a tensor", "w", ErrorKind::kUnsupported);
  refused(dcp::metadata_bytes(text("w") + object("pkg", "TensorStorageMetadata", "}"), ""), "pkg.TensorStorageMetadata",
          "w", ErrorKind::kUnsupported);
  refused(dcp::metadata_bytes(entry, index + object("pkg", "_StorageInfo", "}")),
          "has an object of pkg._StorageInfo instead of a _StorageInfo");
  refused(dcp::metadata_bytes(entry, index + text("f")), "has a string instead of a _StorageInfo");
  refused(dcp::metadata_bytes(entry, text("w") + place), "has a string instead of a MetadataIndex", "");
  refused(dcp::metadata_bytes(entry, index + call(metadata_module, "StorageMeta", {})), "instead of a _StorageInfo");
  refused(stream(dict({{"w", kNone}})), "it contains a dict", "");
  refused(stream(object(metadata_module, "Metadata", "}")), "has no storage_data", "");
  refused(stream(call(metadata_module, "Metadata", {})), "without attributes", "");
  refused(dcp::metadata_bytes(entry + entry, index + place), "has it twice");
  refused(dcp::metadata_bytes(number(1) + kNone, ""), "an int instead of an entry's name", "");
  refused(dcp::metadata_bytes(text("a\x1b[1mb") + kNone, ""), "control character", "");
  refused(dcp::metadata_bytes(text("a\xff") + kNone, ""), "not UTF-8", "");
  refused(dcp::metadata_bytes(text(std::string(4097, 'n')) + kNone, ""), "4097 bytes", "");
  const std::string longest(4096, 'n');
  refused(dcp::metadata_bytes(text(longest) + kNone, ""), "instead of a tensor", longest, ErrorKind::kUnsupported);
  refused(metadata_bytes(two_chunks()) + "x", "trailing data after its pickle", "");
}

TEST_CASE("A metadata that runs code is refused by what it runs") {
  const std::string more = text("planner_data") + call("os", "system", {text("true")});
  refused(dcp::metadata_bytes("", "", more), "names os.system, which runs code", "");
  refused(dcp::metadata_bytes("", "", text("x") + call("builtins", "getattr", {global("os", "system"), text("a")})),
          "names os.system", "");
}

TEST_CASE("No patch of one byte, and no cut, escapes the errors of metadata") {
  const std::string good = metadata_bytes(two_chunks());
  for (std::size_t size = 0; size < good.size(); ++size) CHECK_THROWS_AS(read(good.substr(0, size)), Error);
  CHECK(check_byte_patches(good, std::string("\0\1.(}]X\x80\xff", 9), read) > 1000);
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
  check_refused([&] { read(dcp::metadata_bytes(entries, "")); }, {.says = "chunks that belong to several tensors"});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("A name of many paths is not copied for each of them") {
  // One long name, and one path of 64 times that name, of a thousand entries: 260 MB in a file of 40 kB.
  std::string paths = text("first") + "(";
  for (int part = 0; part < 64; ++part) paths += part == 0 ? text(std::string(4096, 'n')) + "q\1" : "h\1";
  paths += "tq\2";
  for (int i = 0; i < 1000; ++i) paths += text("other" + std::to_string(i)) + "h\2";
  const std::string bytes = dcp::metadata_bytes("", "", text("planner_data") + "}(" + paths + "u");
  refused(bytes, "has paths with more names than the entire file", "first");
  CHECK(read_dcp_metadata(MemorySource(bytes), "d/.metadata", DcpPaths::kLeave).paths.empty());
}

TEST_CASE("Keys that come twice are refused, so that a short file cannot have many entries") {
  const std::string path = text("w") + tuple({text("w")});
  refused(dcp::metadata_bytes("", "", text("planner_data") + "}(" + path + path + "u"), "has a path to it twice");
  const std::vector<std::int64_t> begin{0};
  const std::string index = dcp::index_value("w", &begin), place = dcp::place_value({"f", 0, 9, {}});
  refused(dcp::metadata_bytes("", index + "q\1" + place + "q\2" + "h\1h\2"), "duplicate key in its storage_data", "");
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

const std::string kFloats(16, 'f');
const std::string kItem = dcp::item_bytes("float32", {2, 2}, kFloats);
constexpr const char* kFile = "d/__0_0.distcp";

/// A checkpoint of one item in memory.
struct OneItem {
  explicit OneItem(const std::string& bytes, const std::string& before = {}, Dims shape = {2, 2})
      : content(before + bytes) {
    tensor = {"w", "float32", DType::kF32, shape, {}};
    chunk = {{Dims(shape.size()), shape}, {0, 0, before.size(), bytes.size()}};
  }

  DcpItem find() const {
    MemoryFiles files;
    files.write(kFile, content);
    return DcpFile(files, kFile).find(tensor, chunk, transforms);
  }
  std::string elements() const {
    return content.substr(find().tensor.offset_bytes, *num_bytes(DType::kF32, chunk.box.size));
  }
  OneItem with_transform(const char* name) && {
    transforms = {name};
    return std::move(*this);
  }
  OneItem with_length(std::uint64_t bytes) && {
    chunk.place.length_bytes = bytes;
    return std::move(*this);
  }

  std::string content;
  DcpTensor tensor;
  DcpChunk chunk;
  std::vector<std::string> transforms;
};

TEST_CASE("An item is found at any offset, with bytes around it that belong to nobody, and of any size") {
  OneItem item(kItem, std::string(13, '\0'));
  item.content += "rest";
  CHECK(item.elements() == kFloats);
  CHECK(item.find().tensor.size_bytes == 16);
  CHECK(item.find().tensor.strides.empty());
  const OneItem far(dcp::item_bytes("float32", {2, 2}, kFloats, {1, 2}), std::string(100'000, 'x'));
  CHECK(far.find().tensor.strides == Dims{1, 2});
  const std::string floats(120'000, 'f');  // more than what is read of its ends
  CHECK(OneItem(dcp::item_bytes("float32", {300, 100}, floats), "before", {300, 100}).elements() == floats);
}

TEST_CASE("Items that are not what metadata says are refused with file and tensor") {
  const View repeated{.elems = 4, .shape = {1 << 10, 1 << 8}, .strides = {0, 0}};
  OneItem short_file(kItem, "ab"), too_long(kItem, "ab");
  short_file.content.pop_back();
  too_long.content += "xyz";
  const std::string zip_end = "the end of the zip archive is not the end of the file";
  check_refusals<OneItem>(
      [](const OneItem& item) {
        CHECK_FALSE(error_of([&] { item.find(); }).hint().empty());
        item.find();
      },
      {.path = kFile, .tensor = "w"},
      {{"a short file", short_file, {.says = "goes past the file's end"}},
       {"an item that ends too early", OneItem(kItem, "ab").with_length(kItem.size() - 1), {.says = "zip directory"}},
       {"an item that ends too late", OneItem(too_long).with_length(kItem.size() + 1), {.says = zip_end}},
       {"an item with all behind it", OneItem(too_long).with_length(kItem.size() + 3), {.says = zip_end}},
       {"another dtype",
        OneItem(dcp::item_bytes("int32", {2, 2}, kFloats)),
        {.says = "is F32 [2, 2] in .metadata, but I32 [2, 2] in the file"}},
       {"another shape", OneItem(dcp::item_bytes("float32", {4}, kFloats)), {.says = "but F32 [4] in the file"}},
       {"no tensor", OneItem(torch_zip(stream(number(1)), {})), {.says = "is an int, no tensor"}},
       {"what runs code",
        OneItem(torch_zip(stream(call("os", "system", {text("true")})), {})),
        {.says = "names os.system"}},
       {"strides that make many elements of one",
        OneItem(torch_zip(stream(pickles::tensor(repeated)), {{"0", kFloats}}), {}, {1 << 10, 1 << 8}),
        {.says = "bytes for elements of 1048576"}},
       {"no zip", OneItem(std::string(500, 'x')), {.says = "does not begin like an item of torch.save"}},
       {"zstd that metadata does not tell",
        OneItem("\x28\xb5\x2f\xfd" + std::string(50, 'z')),
        {.says = "compressed with zstd, but .metadata lists no transform for it"}},
       {"an unknown transform",
        OneItem(kItem).with_transform("stream.rot13/1"),
        {.kind = ErrorKind::kUnsupported, .says = "transformed by stream.rot13/1, which is not supported"}},
       {"a zstd bomb",
        OneItem(zstd_bomb(100)).with_transform("stream.zstd/1"),
        {.says = "decodes to more than 1048592 bytes"}},
       {"no zstd frame", OneItem(kItem).with_transform("stream.zstd/1"), {.says = "its zstd frame is damaged"}}});
}

TEST_CASE("An item in a zstd frame is found in what that decodes to, and is decoded once for many tensors") {
  const std::string floats(120'000, 'f');
  OneItem item(zstd_frame(dcp::item_bytes("float32", {300, 100}, floats)), "before", {300, 100});
  MemoryFiles files;
  files.write(kFile, item.content);
  FaultStorage watched(files);
  DcpFile file(watched, kFile);
  for (int i = 0; i < 100; ++i) {
    item.tensor.name = "w" + std::to_string(i);
    const DcpItem found = file.find(item.tensor, item.chunk, {"stream.zstd/1"});
    REQUIRE(found.frame);
    CHECK(*found.frame == ZstdFrame{6, item.content.size() - 6});
    if (i > 0) continue;
    std::string decoded(found.decoded_bytes, '\0');
    open_zstd(files.open(kFile), *found.frame, found.decoded_bytes, "f")
        ->read_at(0, std::as_writable_bytes(std::span(decoded)));
    CHECK((decoded.substr(found.tensor.offset_bytes, floats.size()) == floats));
  }
  std::uint64_t read_bytes = 0;
  for (const FaultStorage::Range range : watched.reads(kFile)) read_bytes += range.end_bytes - range.begin_bytes;
  CHECK(read_bytes < 2 * item.content.size());
}

TEST_CASE("An object is found whole, whatever it would run, and opened by nobody") {
  const std::string object = torch_zip(stream(call("os", "system", {text("true")})), {});
  const auto find = [](const std::string& content, const DcpPlace& place,
                       const std::vector<std::string>& transforms = {}) {
    MemoryFiles files;
    files.write(kFile, content);
    return DcpFile(files, kFile).find(DcpBytes{"rng", place}, transforms);
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

  struct Place {
    std::string content;
    std::uint64_t length_bytes;
  };
  check_refusals<Place>(
      [&](const Place& place) {
        find(place.content, {0, 0, 0, place.length_bytes});
      },
      {.path = kFile, .tensor = "rng"},
      {{"a short file", {object, object.size() + 1}, {.says = "goes past the file's end"}},
       {"a byte too many", {object + "x", object.size() + 1}, {.says = "is not the end of the file"}},
       {"a byte too few", {object, object.size() - 1}, {.says = "has no zip directory at its end"}},
       {"no zip",
        {std::string(object.size(), 'x'), object.size()},
        {.says = "do not begin like an item of torch.save"}},
       {"a bucket of safetensors",
        {safetensors_bytes({{"a", {DType::kU8, {1}, "a"}}}), 0},
        {.kind = ErrorKind::kUnsupported, .says = "lists it in a safetensors file"}}});
}

TEST_CASE("A bucket of safetensors is read by the names of tensors") {
  OneItem item(safetensors_bytes({{"w", {DType::kF32, {2, 2}, kFloats}}, {"a", {DType::kU8, {1}, "a"}}}));
  item.chunk.place.offset_bytes = item.chunk.place.length_bytes = 0;
  CHECK(item.elements() == kFloats);
  item.chunk.box.size = {1, 2};  // two chunks of one name overwrite each other
  CHECK_THAT(error_of([&] { item.find(); }).what(), Says("is F32 [1, 2] in .metadata, but F32 [2, 2]"));
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
  CHECK(item.elements() == kFloats);
  item.chunk.box.begin = {0, 0};
  check_refused([&] { item.find(); },
                {.path = kFile,
                 .tensor = "w",
                 .says = "its chunk at [0, 0] is not in this safetensors file, which contains the chunk at [2, 0]"});
}

TEST_CASE("A file that is missing is named") {
  MemoryFiles files;
  files.write("d/.metadata", "x");
  check_refused([&] { DcpFile(files, "d/__3_0.distcp"); },
                {.path = "d/__3_0.distcp", .says = "is missing, though .metadata lists tensors in it"});
}

}  // namespace
}  // namespace reshard::test
