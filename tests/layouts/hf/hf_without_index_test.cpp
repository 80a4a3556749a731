// Numbered weight files whose index is missing, or belongs to other files.

#include <nlohmann/json.hpp>

#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/hf/hf_files.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const std::string kFileOne = "model-00001-of-00002.safetensors";
const std::string kFileTwo = "model-00002-of-00002.safetensors";

void write_index(const TempDir& dir, const nlohmann::json& index) {
  write_file(dir / kSafetensorsIndexFile, index.dump());
}

/// An index that puts the tensors of write_three into files of the given names.
nlohmann::json index_of_files(const std::string& a, const std::string& b, const std::string& c) {
  return {{"metadata", {{"total_size", 15}}}, {"weight_map", {{"a", a}, {"b", b}, {"c", c}}}};
}

Error check_unread(const TempDir& dir, const Refusal& refusal) {
  return check_refused([&] { read_hf_checkpoint(local_storage(), dir.path()); }, refusal);
}

/// The names of one program's files, without an index.
struct NumberedCase {
  std::string stem;
  std::string ending;
  Format format;

  std::string file(const std::string& number, const std::string& count) const {
    return stem + "-" + number + "-of-" + count + ending;
  }
  void write(const fs::path& path, const TensorMap& tensors) const {
    format == Format::kPytorch ? write_torch(path, tensors) : write_safetensors(path, tensors);
  }
};
const NumberedCase kNumberedCases[] = {{"model", ".safetensors", Format::kSafetensors},
                                       {"pytorch_model", ".bin", Format::kPytorch},
                                       {"diffusion_pytorch_model", ".safetensors", Format::kSafetensors},
                                       {"diffusion_pytorch_model", ".bin", Format::kPytorch}};

TEST_CASE("The number of a weight file is in its name, of any width, after the stem that a program uses") {
  for (const NumberedCase& names : kNumberedCases) {
    const auto number = hf_file_number(names.file("7", "000163"));
    REQUIRE(number);
    CHECK(number->whole == names.stem + names.ending);
    CHECK(number->number == 7);
    CHECK(number->count == 163);
  }
  for (const char* name :
       {"", "model", "model.safetensors", "model-.safetensors", "model-of-.safetensors", "model-1-of-.safetensors",
        "model--of-2.safetensors", "model-1-of-2-of-3.safetensors", "model-x1-of-2.safetensors", "model-1-of-2.bin",
        "model-1of-2.safetensors", "other-1-of-2.safetensors", "model-1-of-2.safetensors.index.json",
        "model-1-of-18446744073709551616.safetensors", "model-1-of-1000001.safetensors"}) {
    CAPTURE(name);
    CHECK_FALSE(hf_file_number(name));
  }
}

TEST_CASE("A complete set of numbered files is read without its index, in their order, with a note") {
  for (const NumberedCase& names : kNumberedCases) {
    CAPTURE(names.file("N", "M"));
    const TempDir dir;
    // The width of the numbers is the writer's choice: "model-00001-of-000163.safetensors".
    names.write(dir / names.file("00002", "000002"), {{"b", {DType::kU8, {4}, "bbbb"}}});
    names.write(dir / names.file("00001", "000002"), {{"z", {DType::kU8, {4}, "zzzz"}}});
    CHECK(hf_format(local_storage(), dir.path()) == names.format);
    HfIndexReport report;
    const auto files = read_hf_checkpoint(local_storage(), dir.path(), &report);
    REQUIRE(files.size() == 2);
    CHECK(files[0].tensors.at(0).name == "z");
    CHECK(files[1].tensors.at(0).name == "b");
    REQUIRE(report.notes.size() == 1);
    CHECK(report.notes[0] == names.stem + names.ending +
                                 ".index.json is missing; read the complete set of 2 numbered " +
                                 "files: " + names.file("00001", "000002") + ", " + names.file("00002", "000002"));
    const auto found = find_whole(local_storage(), dir.path());
    REQUIRE(found);
    CHECK_FALSE(found->is_empty);
  }
}

TEST_CASE("A set of one numbered file, and one that is numbered from zero, are complete") {
  const NumberedCase& names = kNumberedCases[0];
  const TempDir one;
  names.write(one / names.file("00001", "00001"), {{"a", {DType::kU8, {4}, "aaaa"}}});
  CHECK(read_hf_checkpoint(local_storage(), one.path()).size() == 1);
  const TempDir two;
  names.write(two / names.file("00000", "00002"), {{"a", {DType::kU8, {4}, "aaaa"}}});
  names.write(two / names.file("00001", "00002"), {{"b", {DType::kU8, {4}, "bbbb"}}});
  CHECK(read_hf_checkpoint(local_storage(), two.path()).size() == 2);
}

TEST_CASE("An incomplete set of numbered files without an index is refused, and so are two sets") {
  const std::pair<std::vector<std::pair<std::string, std::string>>, std::string> sets[] = {
      {{{"00001", "00004"}, {"00003", "00004"}}, "numbers 2, 4 are missing"},
      {{{"00002", "00002"}}, "number 1 is missing"},
      {{{"00000", "00003"}, {"00002", "00003"}}, "number 1 is missing"},
      {{{"00001", "00002"}, {"00002", "00002"}, {"00003", "00002"}}, "state a set of 2, but there are 3"},
      {{{"00001", "00002"}, {"1", "00002"}, {"00002", "00002"}}, "state a set of 2, but there are 3"},
      {{{"00000", "00001"}, {"00001", "00001"}}, "state a set of 1, but there are 2"},
      {{{"00001", "00000"}}, "state a set of 0, but there are 1"},
      {{{"00001", "00002"}, {"00002", "00002"}, {"00001", "00003"}},
       "weight files of several numbered sets, of 2, 3 files"}};
  for (const NumberedCase& names : kNumberedCases)
    for (const auto& [numbers, says] : sets) {
      CAPTURE(names.file("N", "M"), says);
      const TempDir dir;
      for (const auto& [number, count] : numbers)
        names.write(dir / names.file(number, count), {{"t" + number + "." + count, {DType::kU8, {4}, "aaaa"}}});
      check_unread(dir, {.path = dir.path(), .says = says, .hint = " "});
      const auto found = find_whole(local_storage(), dir.path());
      REQUIRE(found);
      CHECK(found->is_empty);
    }
}

TEST_CASE("A numbered file that is a broken symbolic link is missing from its set") {
  const TempDir dir;
  write_safetensors(dir / kFileOne, {{"a", {DType::kU8, {4}, "aaaa"}}});
  fs::create_symlink(dir / "blobs" / "123", dir / kFileTwo);
  check_refused([&] { read_hf_checkpoint(local_storage(), dir.path()); }, {.says = "number 2 is missing"});
}

TEST_CASE("The hint on an index that contradicts the files says which tensors they contain and how to repair it") {
  using Map = std::map<std::string, std::string>;
  for (const NumberedCase& names : kNumberedCases) {
    CAPTURE(names.file("N", "M"));
    const std::string first = names.file("00001", "00002"), second = names.file("00002", "00002");
    const std::string other = names.file("00001", "00004"), both = first + ", " + second;
    const std::string away = "move the index away: the files are read without it, and convert writes a new one";
    struct Row {
      Map weight_map;
      bool has_second;
      Refusal refusal;
      bool is_whole_hint = true;
    };
    const Row rows[] = {
        {{{"a", other}, {"b", other}, {"c", other}},
         true,
         {.says = other + " (3 tensors), which is missing",
          .hint = both + " contain all 3 tensors that the index lists, which is outdated; " + away}},
        {{{"a", other}, {"b", other}, {"c", other}},
         false,
         {.hint = first + " contains 2 of the 3 tensors that the index lists, and not c: fetch the model again"}},
        {{{"a", first}, {"b", first}, {"c", second}},
         false,
         {.hint = "the download did not finish; fetch the model again"}},
        {{{"a", first}, {"b", first}, {"c", second}, {"mtp.fc.weight", second}},
         true,
         {.tensor = "mtp.fc.weight",
          .hint = "no weight file contains mtp.fc.weight; fetch the model again or, if the model does not need it, "
                  "delete its entry from \"weight_map\", or " +
                  away}},
        {{{"a", first}, {"b", second}, {"c", second}},
         true,
         {.tensor = "b", .hint = both + " contain all 3 tensors that the index lists, which is outdated; " + away}},
        {{{"x", other}}, true, {.hint = {both + " contain none of the 1 tensors", "move the index away"}}, false},
        {{{"x.a", first}, {"x.b", second}}, true, {.hint = both + " contain none of the 2 tensors"}, false}};
    for (const Row& row : rows) {
      const TempDir dir;
      names.write(dir / first, {{"a", {DType::kU8, {4}, "aaaa"}}, {"b", {DType::kF32, {2}, "bbbbbbbb"}}});
      if (row.has_second) names.write(dir / second, {{"c", {DType::kU8, {3}, "ccc"}}});
      write_file(dir / (names.stem + names.ending + ".index.json"),
                 nlohmann::json{{"weight_map", row.weight_map}}.dump());
      const Error error = check_unread(dir, row.refusal);
      if (row.is_whole_hint) CHECK(error.hint() == row.refusal.hint.parts.front());
    }
  }
}

TEST_CASE("For an outdated index of a model in one file the hint says that the file is read without it") {
  const TempDir dir;
  write_index(dir, index_of_files(kFileOne, kFileOne, kFileTwo));
  write_safetensors(
      dir / kSafetensorsFile,
      {{"a", {DType::kU8, {4}, "aaaa"}}, {"b", {DType::kF32, {2}, "bbbbbbbb"}}, {"c", {DType::kU8, {3}, "ccc"}}});
  check_unread(dir, {.hint = {"model.safetensors contains all 3 tensors that the index lists", "move the index away"}});
}

TEST_CASE("The files of an index are not read without it if their names have no numbers") {
  const TempDir dir;
  write_index(dir, index_of_files("first.safetensors", "first.safetensors", "first.safetensors"));
  write_safetensors(dir / "first.safetensors", {{"a", {DType::kU8, {4}, "aaaa"}}});
  CHECK(check_unread(dir, {}).hint() ==
        "no weight file contains b, c; fetch the model again or, if the model does not need them, delete their entries "
        "from \"weight_map\"");
}

TEST_CASE("Of an index that lacks a tensor and names a file without a number the weight_map is to be corrected") {
  const TempDir dir;
  write_safetensors(dir / kFileOne, {{"a", {DType::kU8, {4}, "aaaa"}}, {"b", {DType::kF32, {2}, "bbbbbbbb"}}});
  write_safetensors(dir / kFileTwo, {{"c", {DType::kU8, {3}, "ccc"}}});
  write_safetensors(dir / "extra.safetensors", {{"d", {DType::kU8, {1}, "d"}}});
  auto index = index_of_files(kFileOne, kFileOne, kFileTwo);
  index["weight_map"].erase("b");
  index["weight_map"]["d"] = "extra.safetensors";
  write_index(dir, index);
  check_unread(dir,
               {.tensor = "b",
                .hint = "contain all 3 tensors that the index lists, which is outdated; correct its \"weight_map\""});
}

}  // namespace
}  // namespace reshard::test
