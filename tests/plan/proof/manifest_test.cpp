#include "reshard/plan/proof/manifest.h"

#include <nlohmann/json.hpp>

#include "reshard/base/error.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

Sha256Digest digest(unsigned char first) {
  Sha256Digest all{};
  all.front() = std::byte{first};
  return all;
}

Manifest sample() {
  Manifest manifest;
  manifest.version = "0.1.0";
  manifest.command = "shard";
  manifest.layout = "ranks";
  manifest.tp = 4;
  manifest.pp = 2;
  manifest.options = {{"format", "xser"}, {"max-shard-size", std::uint64_t{5} << 30}, {"pad", true}};
  manifest.fingerprint = "00ff";
  manifest.sources = {{"model.safetensors", 10, std::nullopt}, {"config \"x\".json", 3, digest(1)}};
  manifest.files = {{"a/b.safetensors", 5, digest(2)}};
  const std::vector<Sha256Digest> leaves = {digest(3), digest(4)};
  manifest.tensors = {{"a.weight", DType::kBF16, {2, 3}, {digest(5), {}}},
                      {"b", DType::kF32, {}, {sha256(std::as_bytes(std::span(leaves))), leaves}},
                      {"optim.lr", DType::kU8, {9}, {digest(6), {}}, TensorRole::kObject},
                      {"optim.step", DType::kF32, {}, {digest(7), {}}, TensorRole::kState}};
  return manifest;
}

TEST_CASE("A manifest comes back from its text, which has a tensor a line") {
  const Manifest manifest = sample();
  const std::string text = manifest_text(manifest);
  CHECK((parse_manifest(text, "m.json") == manifest));
  CHECK_THAT(text, Says("\n{\"name\": \"a.weight\", \"dtype\": \"BF16\", \"shape\": [2, 3], \"sha256\": \"05"));
  CHECK_THAT(text, Says("\"sha256\": \"" + to_hex(digest(6)) + "\", \"role\": \"object\"}"));
  CHECK_THAT(text, Says("\"sha256\": \"" + to_hex(digest(7)) + "\", \"role\": \"state\"}"));
  CHECK_THAT(text, !Says("parameter"));
  CHECK_THAT(text, Says("\n\"options\": {\"format\": \"xser\", \"max-shard-size\": 5368709120, \"pad\": true},\n"));
  Manifest empty;
  CHECK((parse_manifest(manifest_text(empty), "m.json") == empty));
}

TEST_CASE("A manifest that was edited, or is another file, is refused with what is wrong") {
  using Json = nlohmann::json;
  std::vector<Refused<std::function<void(Json&)>>> rows{
      {"not a manifest", [](Json& json) { json.erase("manifest"); }, {.says = "is not a manifest of this program"}},
      {"another version",
       [](Json& json) { json["manifest"] = 2; },
       {.kind = ErrorKind::kUnsupported, .says = "is a manifest of version 2"}},
      {"another size of leaves",
       [](Json& json) { json["leaf_bytes"] = 7; },
       {.says = "\"leaf_bytes\" is 7, expected 4194304"}},
      {"another leaf",
       [](Json& json) { json["tensors"][1]["leaves"][0] = to_hex(digest(9)); },
       {.says = "b: its leaves do not make its digest"}},
      {"a short leaf", [](Json& json) { json["tensors"][1]["leaves"][0] = "12"; }, {.says = "\"leaves\""}},
      {"a name twice", [](Json& json) { json["tensors"][1]["name"] = "a.weight"; }, {.says = "a.weight: occurs twice"}},
      {"a dtype", [](Json& json) { json["tensors"][0]["dtype"] = "BF15"; }, {.says = "\"dtype\""}},
      {"a shape", [](Json& json) { json["tensors"][0]["shape"] = {-1}; }, {.says = "\"shape\""}},
      {"a role", [](Json& json) { json["tensors"][2]["role"] = "buffer"; }, {.says = {"tensors[2]", "\"role\""}}},
      {"a digest of a file",
       [](Json& json) { json["files"][0]["sha256"] = "00"; },
       {.says = {"files[0]", "64 hexadecimal"}}},
      {"a mesh", [](Json& json) { json["mesh"]["tp"] = "4"; }, {.says = "\"tp\""}},
      {"an option", [](Json& json) { json["options"]["pad"] = 0.5; }, {.says = {"options", "\"pad\""}}}};
  for (const std::string outside : {"../other.json", "/etc/passwd", "a/../../b", ""})
    rows.push_back({"the path " + outside,
                    [=](Json& json) { json["files"][0]["path"] = outside; },
                    {.says = {"files[0].path", "leads out of the directory"}}});
  check_refusals<std::function<void(Json&)>>(
      [](const auto& change) {
        Json json = Json::parse(manifest_text(sample()));
        change(json);
        parse_manifest(json.dump(), "m.json");
      },
      {.path = "m.json", .hint = "`manifest`"}, rows);
  CHECK_THAT(error_of([] { parse_manifest("no JSON", "m.json"); }).what(), Says("not valid JSON"));
  const std::string cut = manifest_text(sample()).substr(0, 300);
  CHECK_THAT(error_of([&] { parse_manifest(cut, "m.json"); }).hint(), Says("was edited or damaged"));
}

void check_sums(const std::string& text, const std::vector<FileDigest>& expected) {
  const auto files = parse_sha256sums(text, "SHA256SUMS");
  REQUIRE(files.size() == expected.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    CHECK(files[i].path == expected[i].path);
    CHECK((files[i].digest == expected[i].digest));
  }
}

TEST_CASE("SHA256SUMS has the lines of coreutils, whatever a file is called") {
  const std::vector<FileDigest> files = {{"model.safetensors", digest(1)},
                                         {"dir/with blanks  and *", digest(2)},
                                         {"back\\slash", digest(3)},
                                         {"new\nline\rreturn", digest(4)}};
  const std::string text = sha256sums_text(files);
  CHECK_THAT(text, Says(to_hex(digest(1)) + "  model.safetensors\n") &&
                       Says("\\" + to_hex(digest(3)) + "  back\\\\slash\n") &&
                       Says("\\" + to_hex(digest(4)) + "  new\\nline\\rreturn\n"));
  check_sums(text, files);
  check_sums(to_hex(digest(1)) + " *./a.bin\r\n\n", {{"a.bin", digest(1)}});
  // As BSD and OpenSSL write them, one blank and comments.
  const std::string hex = to_hex(digest(1));
  check_sums("# made by\nSHA256 (a (1).bin) = " + hex + "\nSHA256(b.bin)= " + hex + "\n\\SHA256 (new\\nline) = " + hex +
                 "\n" + hex + " c.bin\n",
             {{"a (1).bin", digest(1)}, {"b.bin", digest(1)}, {"new\nline", digest(1)}, {"c.bin", digest(1)}});
}

TEST_CASE("A list in which some files are looked up may have lines of others, and lines that are none") {
  const std::string text = to_hex(digest(1)) + "  a\nhello\n" + to_hex(digest(2)) + "  ../b\n" + to_hex(digest(3)) +
                           "  /abs/c\n" + to_hex(digest(3)) + "  /abs/c\nSHA256 (x\n" + to_hex(digest(4)) + "  a\n";
  const SumsList list = read_sha256sums(text, "/dir/sub");
  CHECK(list.other_lines == std::vector<std::uint64_t>{2, 6});
  REQUIRE(list.digests.size() == 3);
  CHECK_FALSE(list.digests.at("/dir/sub/a"));  // twice, with two digests
  CHECK((list.digests.at("/dir/b") == digest(2)));
  CHECK((list.digests.at("/abs/c") == digest(3)));
}

TEST_CASE("A line of SHA256SUMS that is none, or leads elsewhere, is refused with its number") {
  const std::string hex = to_hex(digest(1)), none = "is not a line of a SHA256SUMS",
                    outside = "leads out of the directory";
  check_each_refused([&](const std::string& line) { parse_sha256sums(hex + "  a\n" + line, "S"); },
                     {.path = "S", .hint = " "},
                     {{"hello", {"line 2", none}},
                      {hex + "a", {"line 2", none}},
                      {hex + "  ", {"line 2", none}},
                      {hex + " ", {"line 2", none}},
                      {"\\" + hex + "  a\\x", {"line 2", none}},
                      {"SHA256 (a) " + hex, {"line 2", none}},
                      {"SHA256 a) = " + hex, {"line 2", none}},
                      {"SHA256 () = " + hex, {"line 2", none}},
                      {"SHA256 (a) = 00", {"line 2", none}},
                      {hex + "  /etc/passwd", {"line 2", outside}},
                      {hex + "  x/../../y", {"line 2", outside}},
                      {hex + "  a", {"line 2", "occurs twice"}}});
}

}  // namespace
}  // namespace reshard::test
