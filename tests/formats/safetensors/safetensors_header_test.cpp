#include "reshard/formats/safetensors/safetensors_header.h"

#include "reshard/base/strings.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

const std::filesystem::path kPath = "dir/model.safetensors";
const std::string kValid = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("b":{"dtype":"U8","shape":[5],"data_offsets":[24,29]}})";

/// `kValid` with the first `from` replaced; the test fails if there is none.
std::string patched(const std::string& from, const std::string& to) {
  const auto at = kValid.find(from);
  REQUIRE(at != std::string::npos);
  return std::string(kValid).replace(at, from.size(), to);
}

SafetensorsHeader parse(const std::string& header) {
  return parse_header_json(header, kPath);
}

struct Patch {
  const char* name;
  std::string from, to;
  std::string tensor;  // that the error must name
  std::string says;
};

void check_patches(const std::vector<Patch>& patches) {
  for (const Patch& it : patches) DYNAMIC_SECTION(it.name) {
      check_refused([&] { parse(patched(it.from, it.to)); }, {.path = kPath, .tensor = it.tensor, .says = it.says});
    }
}

TEST_CASE("A header gives its tensors and fields in any order, its metadata, and ignores white space") {
  for (const std::string& text : {kValid, " \t\r\n" + patched("[2,3]", "[ 2 ,\n3\t]") + "   \n",
                                  patched(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,24])",
                                          R"("data_offsets":[0,24],"shape":[2,3],"dtype":"F32")")}) {
    CAPTURE(text);
    const SafetensorsHeader header = parse(text);
    REQUIRE(header.tensors.size() == 2);
    CHECK(header.tensors[0].name == "a");
    CHECK(header.tensors[0].dtype == DType::kF32);
    CHECK(header.tensors[0].shape == Dims{2, 3});
    CHECK(header.tensors[0].begin == 0);
    CHECK(header.tensors[0].end == 24);
    CHECK(header.tensors[1].name == "b");
    CHECK(header.tensors[1].shape == Dims{5});
    CHECK(header.tensors[1].begin == 24);
    CHECK(header.tensors[1].end == 29);
    CHECK(header.metadata == Pairs{{"format", "pt"}});
    CHECK(header.warnings.empty());
  }
}

TEST_CASE("Sizes and offsets may be any number of 64 bits") {
  CHECK(parse(patched("[2,3]", "[0,18446744073709551615]")).tensors.at(0).shape == Dims{0, UINT64_MAX});
}

TEST_CASE("Metadata may be absent, empty or anywhere in the header") {
  CHECK(parse(patched(R"("__metadata__":{"format":"pt"},)", "")).metadata.empty());
  CHECK(parse(patched(R"({"format":"pt"})", "{}")).metadata.empty());
  CHECK(parse(R"({"__metadata__":{}})").tensors.empty());
  const auto late = parse(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"__metadata__":{"k":"v","":"w\n"}})");
  CHECK(late.tensors.size() == 1);
  CHECK(late.metadata == Pairs{{"k", "v"}, {"", "w\n"}});
}

TEST_CASE("Metadata that is not an object of strings is refused") {
  const std::string good = R"({"format":"pt"})";
  check_patches({
      {"metadata is an array", good, "[]", "", "__metadata__ is an array"},
      {"metadata is a string", good, "\"pt\"", "", "__metadata__ is \"pt\""},
      {"metadata is a number", good, "1", "", "__metadata__ is 1"},
      {"metadata is null", good, "null", "", "__metadata__ is null, expected an object of strings"},
      {"metadata is true", good, "true", "", "__metadata__ is a boolean"},
      {"metadata holds a number", good, R"({"format":7})", "", "__metadata__ has 7 under \"format\""},
      {"metadata holds null", good, R"({"format":null})", "", "__metadata__ has null under \"format\""},
      {"metadata holds an object", good, R"({"format":{}})", "", "__metadata__ has an object under \"format\""},
      {"metadata holds an array", good, R"({"format":["pt"]})", "", "__metadata__ has an array under \"format\""},
      {"metadata has a key twice", good, R"({"k":"v","k":"v"})", "", "__metadata__ has the key \"k\" twice"},
      {"metadata is there twice", "\"a\":{", R"("__metadata__":{},"a":{)", "", "__metadata__ twice"},
  });
}

TEST_CASE("A name given twice is refused, though both entries are the same or empty") {
  check_patches({
      {"b renamed a", "\"b\":", "\"a\":", "a", "this name twice"},
      {"b renamed a by an escape", "\"b\":", "\"\\u0061\":", "a", "this name twice"},
      {"empty copy of a", "\"b\":{", R"("a":{"dtype":"U8","shape":[0],"data_offsets":[24,24]},"b":{)", "a", "twice"},
  });
}

TEST_CASE("Control characters in a name are refused and shown as codes") {
  check_patches({
      {"NUL in a name", "\"a\":", "\"a\\u0000b\":", std::string("a\0b", 3),
       "tensor a\\x00b: the name contains control"},
      {"newline in a name", "\"a\":", "\"a\\nb\":", "a\nb", "tensor a\\x0ab: "},
      {"escape in a name", "\"a\":", "\"\\u001b[31m\":", "\x1b[31m", "tensor \\x1b[31m: "},
      {"DEL in a name", "\"a\":", "\"a\x7f\":", "a\x7f", "tensor a\\x7f: "},
  });
}

TEST_CASE("A tensor that is not an object with its three fields is refused") {
  const std::string all = R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
  check_patches({
      {"tensor is null", all, "null", "a", "is null, expected an object with dtype, shape and data_offsets"},
      {"tensor is a number", all, "7", "a", "is 7, expected an object"},
      {"tensor is an array", all, "[]", "a", "is an array, expected an object"},
      {"tensor is a string", all, "\"F32\"", "a", "is \"F32\", expected an object"},
      {"no fields", all, "{}", "a", "has no dtype"},
      {"no dtype", R"("dtype":"F32",)", "", "a", "has no dtype"},
      {"no shape", R"("shape":[2,3],)", "", "a", "has no shape"},
      {"no data_offsets", R"(,"data_offsets":[0,24])", "", "a", "has no data_offsets"},
      {"dtype twice", R"("dtype":"F32",)", R"("dtype":"F32","dtype":"F32",)", "a", "has \"dtype\" twice"},
      {"shape twice", R"("shape":[2,3],)", R"("shape":[2,3],"shape":[2,3],)", "a", "has \"shape\" twice"},
      {"offsets twice", "[0,24]", R"([0,24],"data_offsets":[0,24])", "a", "has \"data_offsets\" twice"},
  });
}

TEST_CASE("A dtype must be one of the format's names, in their case") {
  check_patches({
      {"lower case", "\"F32\"", "\"f32\"", "a", "has the dtype \"f32\""},
      {"torch's name", "\"F32\"", "\"float32\"", "a", "has the dtype \"float32\""},
      {"no name", "\"F32\"", "\"\"", "a", "has the dtype \"\""},
      {"newer name", "\"F32\"", "\"F2\"", "a", "which safetensors does not define"},
      {"number", "\"F32\"", "32", "a", "dtype is 32, expected a string"},
      {"null", "\"F32\"", "null", "a", "dtype is null, expected a string"},
      {"list", "\"F32\"", "[\"F32\"]", "a", "dtype is an array, expected a string"},
      {"object", "\"F32\"", "{}", "a", "dtype is an object, expected a string"},
  });
}

TEST_CASE("A shape holds whole numbers of 64 bits and nothing else") {
  check_patches({
      {"negative", "[2,3]", "[-2,3]", "a", "shape contains a negative number"},
      {"negative zero", "[2,3]", "[-0,3]", "a", "shape contains a negative number"},
      {"fraction", "[2,3]", "[2.0,3]", "a", "shape contains 2.0"},
      {"exponent", "[2,3]", "[2e0,3]", "a", "shape contains 2e0"},
      {"2 to the 64", "[2,3]", "[18446744073709551616,3]", "a", "shape contains 18446744073709551616"},
      {"below the least of 64 bits", "[2,3]", "[-9223372036854775809,3]", "a", "shape contains -9223372036854775809"},
      {"string", "[2,3]", "[\"2\",3]", "a", "shape contains \"2\""},
      {"null", "[2,3]", "[null]", "a", "shape contains null"},
      {"true", "[2,3]", "[true]", "a", "shape contains a boolean"},
      {"nested list", "[2,3]", "[[2,3]]", "a", "shape contains an array"},
      {"object inside", "[2,3]", "[{}]", "a", "shape contains an object"},
      {"shape is a number", "[2,3]", "6", "a", "shape is 6, expected an array"},
      {"shape is null", "[2,3]", "null", "a", "shape is null, expected an array"},
      {"shape is an object", "[2,3]", "{}", "a", "shape is an object, expected an array"},
  });
}

TEST_CASE("Offsets are two whole numbers of 64 bits and nothing else") {
  check_patches({
      {"none", "[0,24]", "[]", "a", "data_offsets has 0 numbers, expected two"},
      {"one", "[0,24]", "[0]", "a", "data_offsets has 1 numbers, expected two"},
      {"three", "[0,24]", "[0,12,24]", "a", "data_offsets has more than two numbers"},
      {"negative", "[0,24]", "[-1,24]", "a", "data_offsets contains a negative number"},
      {"fraction", "[0,24]", "[0,24.5]", "a", "data_offsets contains 24.5"},
      {"exponent", "[0,24]", "[0,24e0]", "a", "data_offsets contains 24e0"},
      {"2 to the 64", "[0,24]", "[0,18446744073709551616]", "a", "data_offsets contains 18446744073709551616"},
      {"string", "[0,24]", "[0,\"24\"]", "a", "data_offsets contains \"24\""},
      {"nested", "[0,24]", "[[0,24]]", "a", "data_offsets contains an array"},
      {"number", "[0,24]", "24", "a", "data_offsets is 24, expected two"},
      {"object", "[0,24]", R"({"begin":0})", "a", "data_offsets is an object, expected two"},
  });
}

TEST_CASE("Unknown fields are ignored with a warning, whatever they hold") {
  for (const std::string value :
       {"null", "true", "-1.5e3", "\"x\"", "[]", "{}", R"([1,[{"shape":[-1]},{"dtype":7}],{}])",
        R"({"shape":"x","a":{"data_offsets":[[]]},"__metadata__":{}})"}) {
    INFO(value);
    for (const std::string at : {"\"dtype\":", "\"data_offsets\":"}) {
      const auto header = parse(patched(at, "\"extra\":" + value + "," + at));
      REQUIRE(header.tensors.size() == 2);
      CHECK(header.tensors[0].name == "a");
      CHECK(header.tensors[0].shape == Dims{2, 3});
      CHECK(header.tensors[0].end == 24);
      CHECK(header.tensors[1].name == "b");
      REQUIRE(header.warnings.size() == 1);
      CHECK_THAT(header.warnings[0], Says("tensor a"));
      CHECK_THAT(header.warnings[0], Says("\"extra\""));
    }
  }
}

TEST_CASE("Very many unknown fields do not make very many warnings") {
  std::string fields;
  for (int i = 0; i < 1000; ++i) fields += "\"x" + std::to_string(i) + "\":0,";
  const auto header = parse(patched("\"dtype\":", fields + "\"dtype\":"));
  CHECK(header.tensors.size() == 2);
  CHECK_FALSE(header.warnings.empty());
  CHECK(header.warnings.size() < 10);
}

TEST_CASE("A header that is not one JSON object is refused, at the byte of the file that breaks it") {
  std::vector<Refused<std::string>> rows = {
      {"an array", "[]", {.says = "the header is an array, expected an object of tensors"}},
      {"a string", "\"a\"", {.says = "the header is \"a\", expected an object"}},
      {"a number", "7", {.says = "the header is 7, expected an object"}},
      {"null", "null", {.says = "the header is null, expected an object"}},
      {"a bare word", R"({"a":x})", {.says = "not valid JSON", .offset_bytes = 8 + 5}},
      {"something behind it", kValid + "!", {.says = "not valid JSON", .offset_bytes = 8 + kValid.size()}},
      {"not UTF-8", patched("\"b\"", "\"\xff\""), {.offset_bytes = 8 + kValid.find("\"b\"") + 1}},
      {"half a surrogate pair", patched("\"a\"", "\"\\ud800\""), {}},
      {"NUL padding",
       kValid + std::string(5, '\0'),
       {.says = "padding must be spaces", .offset_bytes = 8 + kValid.size()}},
      {"NUL before it", std::string(1, '\0') + kValid, {.offset_bytes = 8}},
      {"a byte order mark", "\xEF\xBB\xBF" + kValid, {.says = "byte order mark", .offset_bytes = 8}}};
  for (const std::string& text :
       {std::string(), std::string("   "), kValid + "{}", kValid + ",", kValid.substr(0, kValid.size() - 1),
        patched("[2,3]", "[2,3,]"), patched("\"a\"", "a"), patched("[2,3]", "[02,3]"), patched("[2,3]", "[1e999]"),
        patched("\"F32\"", "NaN"), "// " + kValid, std::string(200, '{')})
    rows.push_back({"the text " + text, text, {.says = "not valid JSON"}});
  for (const std::string bytes : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"})
    for (const std::string at : {"\"a\"", "\"pt\"", "\"dtype\":"}) {
      const std::string text = at == "\"dtype\":" ? "\"" + bytes + "\":0," + at : "\"" + bytes + "\"";
      rows.push_back({"the bytes " + printable(bytes) + " in " + at, patched(at, text), {}});
    }
  check_refusals(parse, {.path = kPath}, rows);
}

TEST_CASE("A header may be nested 128 deep and no deeper") {
  const auto with_depth = [](std::size_t levels) {
    const std::size_t inner = levels - 2;  // the header and the tensor are two
    return patched("\"dtype\":", "\"x\":" + std::string(inner, '[') + std::string(inner, ']') + ",\"dtype\":");
  };
  CHECK(parse(with_depth(128)).tensors.size() == 2);
  for (const std::size_t levels : {129, 1'000'000})
    check_refused([&] { parse(with_depth(levels)); }, {.path = kPath, .says = "128 levels"});
}

}  // namespace
}  // namespace reshard::test
