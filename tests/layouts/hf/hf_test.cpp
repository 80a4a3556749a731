#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/memory_files.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/hf/hf_files.h"
#include "reshard/layouts/map/whole_map.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Pairs = std::vector<std::pair<std::string, std::string>>;

const std::string kFirst = "model-00001-of-00002.safetensors";
const std::string kSecond = "model-00002-of-00002.safetensors";

/// A directory in memory.
struct Directory {
  mutable MemoryFiles files;

  Directory() { files.make_directory(path()); }
  fs::path path() const { return "model"; }
  fs::path operator/(const fs::path& relative) const { return path() / relative; }
};

nlohmann::json valid_index() {
  return {{"metadata", {{"total_size", 15}}}, {"weight_map", {{"a", kFirst}, {"b", kFirst}, {"c", kSecond}}}};
}

void write_index(const Directory& dir, const nlohmann::json& index) {
  dir.files.write(dir / kSafetensorsIndexFile, index.dump());
}

/// Two files and their index.
void write_checkpoint(const Directory& dir, const nlohmann::json& index = valid_index()) {
  dir.files.write(dir / kFirst,
                  safetensors_bytes({{"a", {DType::kU8, {4}, "aaaa"}}, {"b", {DType::kF32, {2}, "bbbbbbbb"}}}));
  dir.files.write(dir / kSecond, safetensors_bytes({{"c", {DType::kU8, {3}, "ccc"}}}));
  write_index(dir, index);
}

/// Files in memory that count how often those of a name are opened.
class CountingFiles final : public Files {
 public:
  CountingFiles(Files& files, std::string name) : files_(files), name_(std::move(name)) {}
  int opened() const { return opened_; }

  std::unique_ptr<Source> open(const fs::path& path) override {
    opened_ += path.filename() == name_;
    return files_.open(path);
  }
  std::vector<DirectoryEntry> list(const fs::path& directory) override { return files_.list(directory); }
  FileKind kind_of(const fs::path& path) override { return files_.kind_of(path); }
  FileStamp stamp(const fs::path& path) override { return files_.stamp(path); }
  fs::path absolute(const fs::path& path) override { return files_.absolute(path); }
  fs::path resolve(const fs::path& path) override { return files_.resolve(path); }

 private:
  Files& files_;
  std::string name_;
  int opened_ = 0;
};

TEST_CASE("A checkpoint of several files is read by its index, whatever PyTorch weights are beside it") {
  const Directory dir;
  write_checkpoint(dir);
  const bool has_others = GENERATE(false, true);
  if (has_others) dir.files.write(dir / "pytorch_model.bin", "x");
  const auto files = read_hf_checkpoint(dir.files, dir.path());
  REQUIRE(files.size() == 2);
  CHECK(files[0].path == dir / kFirst);
  CHECK(files[0].tensors.size() == 2);
  CHECK(files[1].path == dir / kSecond);
  CHECK(files[1].tensors.size() == 1);
  CHECK(files[0].warnings.empty() != has_others);
  CHECK(files[1].warnings.empty());
}

TEST_CASE("A checkpoint of one file needs no index, and may be a link") {
  const TempDir dir;
  write_safetensors(dir / "blobs" / "123", {{"a", {DType::kU8, {4}, "aaaa"}}});
  fs::create_symlink(dir / "blobs" / "123", dir / kSafetensorsFile);
  const auto files = read_hf_checkpoint(local_storage(), dir.path());
  REQUIRE(files.size() == 1);
  CHECK(files[0].path == dir / kSafetensorsFile);
  CHECK(files[0].tensors.size() == 1);
}

TEST_CASE("An index may name the single file") {
  const Directory dir;
  dir.files.write(dir / kSafetensorsFile, safetensors_bytes({{"a", {DType::kU8, {4}, "aaaa"}}}));
  write_index(dir, {{"metadata", {{"total_size", 4}}}, {"weight_map", {{"a", kSafetensorsFile}}}});
  CHECK(read_hf_checkpoint(dir.files, dir.path()).size() == 1);
}

TEST_CASE("Files and indexes that contradict each other are refused, with the file and the tensor") {
  using Json = nlohmann::json;
  const fs::path index_path = Directory() / kSafetensorsIndexFile;
  const auto text = [](const std::string& index) {
    return [index](const Directory& dir, Json&) { dir.files.write(dir / kSafetensorsIndexFile, index); };
  };
  const auto entry = [](const std::string& tensor, const Json& file) {
    return [tensor, file](const Directory&, Json& index) { index["weight_map"][tensor] = file; };
  };
  const auto map = [](const Json& value) {
    return [value](const Directory&, Json& index) { index["weight_map"] = value; };
  };
  const auto file = [](const std::string& name, const TensorMap& tensors) {
    return [name, tensors](const Directory& dir, Json&) { dir.files.write(dir / name, safetensors_bytes(tensors)); };
  };
  std::vector<Refused<std::function<void(const Directory&, Json&)>>> rows{
      {"a file that is missing",
       [](const Directory& dir, Json&) { dir.files.remove(dir / kFirst); },
       {.says = kFirst + " (2 tensors), which is missing", .hint = " "}},
      {"a tensor in a file without it",
       entry("d", kSecond),
       {.tensor = "d", .says = "the index assigns it to " + kSecond + ", which does not contain it"}},
      {"a tensor in the wrong file", entry("b", kSecond), {.tensor = "b"}},
      {"a tensor that is not listed",
       [](const Directory&, Json& index) { index["weight_map"].erase("b"); },
       {.path = Directory() / kFirst, .tensor = "b", .says = "does not list it there"}},
      {"a damaged file",
       [](const Directory& dir, Json&) {
         dir.files.write(dir / kSecond, read_text_file(dir.files, dir / kSecond, 1 << 20) + "x");
       },
       {.path = Directory() / kSecond}},
      {"a single file that is not named",
       file(kSafetensorsFile, {{"a", {DType::kU8, {4}, "aaaa"}}}),
       {.path = Directory().path(), .says = "model.safetensors and an index that names other files", .hint = " "}},
      {"no weight map",
       [](const Directory&, Json& index) { index.erase("weight_map"); },
       {.says = "the key \"weight_map\" is missing"}},
      {"a list as weight map", map({"a", kFirst}), {.says = "\"weight_map\" is"}},
      {"a weight map without tensors", map(Json::object()), {.says = "lists no tensors"}},
      {"a number as file", entry("b", 7), {.says = "weight_map: \"b\" is 7, expected a file name"}},
      {"a list as index", [](const Directory&, Json& index) { index = Json::array(); }, {.says = "expected an object"}},
      {"no JSON", text("{\"weight_map\":{"), {.says = std::string(kSafetensorsIndexFile) + ": at byte"}},
      {"a tensor that is listed twice",
       text(R"({"weight_map":{"a":")" + kFirst + R"(","a":")" + kSecond + R"("}})"),
       {.says = "the key \"a\" twice"}}};
  for (const std::string& name : {"../" + kFirst, std::string("/etc/passwd"), "sub/" + kFirst, std::string(".."),
                                  std::string("."), std::string(), std::string("a\\b"), std::string("/"),
                                  std::string("a\0b", 3), kFirst + "/", "./" + kFirst})  // refused before it is opened
    rows.push_back({"the name " + name, entry("c", name), {.tensor = "c", .says = "not a plain file name"}});
  check_refusals<std::function<void(const Directory&, Json&)>>(
      [](const auto& spoil) {
        const Directory dir;
        Json index = valid_index();
        write_checkpoint(dir);
        spoil(dir, index);
        if (index != valid_index()) write_index(dir, index);
        read_hf_checkpoint(dir.files, dir.path());
      },
      {.path = index_path}, rows);
}

TEST_CASE("Of a tensor in several files the one that the index names is read, and a note names the others") {
  const Directory dir;
  nlohmann::json index = valid_index();
  write_checkpoint(dir);
  const std::string overlay = "model-overlay-00001.safetensors";
  dir.files.write(dir / overlay, safetensors_bytes({{"a", {DType::kU8, {4}, "AAAA"}}}));
  index["weight_map"]["a"] = overlay;
  write_index(dir, index);
  HfIndexReport report;
  const SourceMap map = whole_map(read_hf_checkpoint(dir.files, dir.path(), &report));
  CHECK(map.logical.size() == 3);
  CHECK(map.files[map.stored[map.pieces[map.find_logical("a").value()].front().stored].file].path == dir / overlay);
  CHECK(report.notes.texts() ==
        std::vector<std::string>{
            "read 1 tensor from the file that model.safetensors.index.json names, and not from another "
            "file that also contains it: left out a of " +
            kFirst});
  SECTION("An index that is also wrong about another tensor is not to be moved away") {
    index["weight_map"]["c"] = overlay;
    write_index(dir, index);
    const Error error = error_of([&] { read_hf_checkpoint(dir.files, dir.path()); });
    CHECK_THAT(error.hint(), Says("correct its \"weight_map\""));
    CHECK(error.hint().find("move the index away") == std::string::npos);
  }
}

TEST_CASE("A file name too long for the file system is refused as bad input") {
  auto index = valid_index();
  index["weight_map"]["c"] = std::string(300, 'x');
  const TempDir dir;
  write_safetensors(dir / kFirst, {{"a", {DType::kU8, {4}, "aaaa"}}, {"b", {DType::kF32, {2}, "bbbbbbbb"}}});
  write_file(dir / kSafetensorsIndexFile, index.dump());
  check_refused([&] { read_hf_checkpoint(local_storage(), dir.path()); }, {.path = dir / kSafetensorsIndexFile});
}

TEST_CASE(
    "A wrong total size is a warning with both numbers, and one that is absent or no whole number is passed over") {
  const auto check = [](const char* metadata, const std::vector<std::string>& notes) {
    INFO(metadata);
    const Directory dir;
    auto index = valid_index();
    index["metadata"] = nlohmann::json::parse(metadata);
    write_checkpoint(dir, index);
    HfIndexReport report;
    const auto files = read_hf_checkpoint(dir.files, dir.path(), &report);
    REQUIRE(files.size() == 2);
    CHECK(files[0].warnings.empty());
    CHECK(report.notes.texts() == notes);
  };
  check(R"({"total_size": 16})", {"model.safetensors.index.json has total_size 16, but the tensors have 15 bytes"});
  for (const char* metadata : {"null", "{}", R"({"total_size":"15"})", R"({"total_size":99.5})", "[]", "7"})
    check(metadata, {});
}

TEST_CASE("A weight file that the index does not name is reported") {
  const Directory dir;
  write_checkpoint(dir);
  dir.files.write(dir / "model-00003-of-00003.safetensors", safetensors_bytes({{"d", {DType::kU8, {1}, "d"}}}));
  HfIndexReport report;
  CHECK(read_hf_checkpoint(dir.files, dir.path(), &report).size() == 2);
  CHECK(report.notes.empty());
  CHECK(report.unlisted == std::vector<std::string>{"model-00003-of-00003.safetensors"});
}

TEST_CASE("PyTorch weights without safetensors are read as such") {
  for (const char* file : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    const Directory dir;
    dir.files.write(dir / file, "x");
    CHECK(hf_format(dir.files, dir.path()) == Format::kPytorch);
    check_refused([&] { read_hf_checkpoint(dir.files, dir.path()); }, {.path = dir / file});
  }
}

TEST_CASE("A directory without weights, and one that is not there, are bad input") {
  const Directory dir;
  check_refused([&] { read_hf_checkpoint(dir.files, dir.path()); },
                {.path = dir.path(), .says = "neither model.safetensors nor pytorch_model.bin"});
  check_refused([&] { read_hf_checkpoint(dir.files, dir / "no"); }, {.path = dir / "no"});
}

TEST_CASE("An index is written with sorted keys and two spaces of indent") {
  const HfIndex index{7, {{"z", "model-00002-of-00002.safetensors"}, {"b\"", "model-00001-of-00002.safetensors"}}, {}};
  CHECK(hf_index_text(index) ==
        "{\n  \"metadata\": {\n    \"total_size\": 7\n  },\n  \"weight_map\": {\n"
        "    \"b\\\"\": \"model-00001-of-00002.safetensors\",\n"
        "    \"z\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
}

TEST_CASE("The reference's index is read, and written again with the same content") {
  const fs::path path = testdata("golden/optimum/llama-tp2-pp2/original") / kSafetensorsIndexFile;
  const HfIndex index = read_hf_index(path);
  CHECK(index.total_size_bytes == 70208);
  CHECK(index.weight_map.size() == 39);
  CHECK(index.metadata.empty());
  CHECK(nlohmann::json::parse(hf_index_text(index)) == nlohmann::json::parse(read_file(path)));
  const auto files = read_hf_checkpoint(local_storage(), path.parent_path());
  REQUIRE(files.size() == 3);
  CHECK(files[0].warnings.empty());
}

TEST_CASE("What transformers' save_pretrained says in an index is read and written as the same text") {
  const Directory dir;
  const std::string text =
      "{\n  \"metadata\": {\n    \"total_parameters\": 12,\n    \"total_size\": 15\n  },\n  \"weight_map\": {\n"
      "    \"a\\u00e9\\u007f\": \"model-00001-of-00002.safetensors\"\n  }\n}\n";
  dir.files.write(dir / kSafetensorsIndexFile, text);
  const HfIndex index = read_hf_index(dir.files, dir / kSafetensorsIndexFile);
  CHECK(index.total_size_bytes == 15);
  CHECK(index.metadata == R"({"total_parameters":12,"total_size":15})");
  CHECK(hf_index_text(index) == text);
  CHECK(recounted_metadata(index.metadata, 12, 5) == R"({"total_parameters":5,"total_size":15})");
  CHECK(recounted_metadata(index.metadata, 11, 5) == R"({"total_size":15})");
  CHECK(recounted_metadata("", 11, 5).empty());
}

TEST_CASE("Names of weight files and indexes are known, whatever their numbers") {
  for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
    CHECK(is_hf_weights_name(hf_index_name(format)));
    for (const std::size_t count : {1, 2, 100000}) CHECK(is_hf_weights_name(hf_file_name(format, 1, count)));
  }
  for (const char* name : {"adapter_model.safetensors", "model.bin", "model-1.bin", "pytorch_model-1.safetensors",
                           "model.safetensors.bak", "models.safetensors", "consolidated.safetensors"}) {
    CAPTURE(name);
    CHECK_FALSE(is_hf_weights_name(name));
  }
}

TEST_CASE("Files are numbered from one with five digits, and one alone has no number") {
  CHECK(hf_file_name(Format::kSafetensors, 1, 1) == "model.safetensors");
  CHECK(hf_file_name(Format::kSafetensors, 1, 2) == "model-00001-of-00002.safetensors");
  CHECK(hf_file_name(Format::kSafetensors, 123, 100000) == "model-00123-of-100000.safetensors");
  CHECK(hf_file_name(Format::kPytorch, 1, 1) == "pytorch_model.bin");
  CHECK(hf_file_name(Format::kPytorch, 2, 12) == "pytorch_model-00002-of-00012.bin");
  CHECK(hf_index_name(Format::kSafetensors) == "model.safetensors.index.json");
  CHECK(hf_index_name(Format::kPytorch) == "pytorch_model.bin.index.json");
}

TEST_CASE("The index of a checkpoint is read once, however often its directory is looked at") {
  const Directory dir;
  write_checkpoint(dir);
  CountingFiles files(dir.files, kSafetensorsIndexFile);
  CHECK(find_whole(files, dir.path()));
  CHECK(files.opened() == 0);
  read_checkpoint(files, dir.path(), {});
  CHECK(files.opened() == 1);
}

TEST_CASE("An index without any file that it names holds no weights") {
  const Directory dir;
  write_checkpoint(dir);
  dir.files.remove(dir / kFirst);
  dir.files.remove(dir / kSecond);
  const auto found = find_whole(dir.files, dir.path());
  REQUIRE(found);
  CHECK(found->is_empty);
  dir.files.write(dir / "other-name.safetensors", "");
  write_index(dir, {{"metadata", {{"total_size", 15}}}, {"weight_map", {{"a", "other-name.safetensors"}}}});
  CHECK_FALSE(find_whole(dir.files, dir.path())->is_empty);
}

}  // namespace
}  // namespace reshard::test
