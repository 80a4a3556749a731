#include "reshard/base/json.h"

#include <cmath>
#include <limits>

#include "reshard/io/local_storage.h"
#include "reshard/io/text_file.h"
#include "support/files.h"
#include "support/growth.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

const std::filesystem::path kPath = "some/config.json";

Error refused(std::string_view text) {
  INFO("text: " << text.substr(0, 100));
  return check_refused([&] { parse_json(text, kPath); }, {.path = kPath});
}

std::string nested(int levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST_CASE("JSON text becomes its value, white space around it allowed") {
  const Json json = parse_json(" \t\r\n{\"a\": [1, -2, 0.5, null, true, \"x\"]}\n ", kPath);
  CHECK(json["a"] == Json::parse("[1, -2, 0.5, null, true, \"x\"]"));
  CHECK(json["a"][0].is_number_unsigned());
  CHECK_FALSE(json["a"][1].is_number_unsigned());
  CHECK(parse_json("7", kPath) == 7);
}

TEST_CASE("Text that is not one JSON value is refused") {
  for (const char* text : {"",
                           " ",
                           "{",
                           "{}{}",
                           "{} x",
                           "[1,]",
                           "{\"a\":1,}",
                           "{'a':1}",
                           "{a:1}",
                           "nan",
                           "NaN",
                           "[Infinity]",
                           "[01]",
                           "[+1]",
                           "[.5]",
                           "[1.]",
                           "\"\\x\"",
                           "\"a\nb\"",
                           "[\"\\ud800\"]",
                           "[\"\xff\"]",
                           "[\"\xc0\xaf\"]",
                           "// c\n{}",
                           "tru",
                           "{\"a\":1e999}",
                           "{\"a\":-1e999}"})
    CHECK_THAT(refused(text).what(), Says("some/config.json: "));
  for (const std::string_view text : {std::string_view("{}\0{\"a\":1}", 10), std::string_view("{}\0", 3)})
    refused(text);
  check_error(refused(R"({"a":x})"), {.says = "not valid JSON", .offset_bytes = 5});  // counted from 0
}

TEST_CASE("A key given twice in one object is refused, at any depth, and in different objects fine") {
  // At the byte where the second ends.
  check_error(refused(R"({"a":1,"b":2,"a":1})"), {.says = "has the key \"a\" twice", .offset_bytes = 15});
  check_error(refused(R"({"x":[{"y":{}},{"y":1,"\u0079":2}]})"), {.says = "has the key \"y\" twice"});
  CHECK(parse_json(R"({"a":{"a":1,"b":{"a":2}},"b":[{"a":3},{"a":4}]})", kPath)["b"][1]["a"] == 4);
}

TEST_CASE("An object of 200 000 objects takes no time that grows with their square") {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":{\"a\":[{}]}";
  CHECK(parse_json(text + "}", kPath).size() == 200'000);  // squared, it does not end within the time limit
}

TEST_CASE("Values after a nested one go where they belong") {
  const char* text = R"({"a":{"b":{"c":[{"d":1},2,[3]]},"e":4},"f":[[],{},5],"g":6})";
  CHECK(parse_json(text, kPath).dump() == text);
}

constexpr const char* kLiterals =
    R"({"a":[NaN,-1,Infinity,"NaN\\","\"Infinity",2.5],"Infinity":-Infinity,"b":{"NaN":7}})";

TEST_CASE("NaN and infinities are accepted where Python's dialect is asked for, outside strings alone") {
  const Json json = parse_json(kLiterals, kPath, JsonDialect::kPython);
  REQUIRE(json["a"].size() == 6);
  CHECK(std::isnan(json["a"][0].get<double>()));
  CHECK(json["a"][1] == -1);
  CHECK(json["a"][2] == std::numeric_limits<double>::infinity());
  CHECK(json["a"][3] == "NaN\\");
  CHECK(json["a"][4] == "\"Infinity");
  CHECK(json["a"][5] == 2.5);
  CHECK(json["Infinity"] == -std::numeric_limits<double>::infinity());
  CHECK(json["b"]["NaN"] == 7);
  CHECK(refused(kLiterals).offset_bytes() == 6);
  CHECK(std::isnan(parse_json(" NaN\n", kPath, JsonDialect::kPython).get<double>()));
}

TEST_CASE("Words that only look like NaN or infinities are refused in any dialect, at their byte") {
  const std::pair<const char*, std::uint64_t> texts[] = {
      {"[-NaN]", 2},       {"[NaN1]", 1}, {"[+Infinity]", 1}, {"[Infinityx]", 1},     {"[1NaN]", 2},
      {"[nan]", 2},        {"[inf]", 1},  {"[NAN]", 1},       {"[NaN NaN]", 5},       {"{NaN:1}", 1},
      {"[- Infinity]", 2}, {"[NaN,]", 5}, {"[Infinity", 9},   {"{\"a\":NaN,NaN}", 9}, {"[0NaN,\"NaN\"]", 2}};
  for (const auto& [text, byte] : texts) {
    INFO(text);
    check_refused([&, text = text] { parse_json(text, kPath, JsonDialect::kPython); },
                  {.path = kPath, .says = "not valid JSON", .offset_bytes = byte});
    CHECK(error_of([&, text = text] { parse_json(text, kPath); }).kind() == ErrorKind::kBadInput);
  }
}

TEST_CASE("A document keeps its NaN and infinities, and the order of its keys, when it is written again") {
  CHECK(json_text(parse_ordered_json(kLiterals, kPath, JsonDialect::kPython)) == kLiterals);
  const OrderedJson json =
      parse_ordered_json(R"({"b":[NaN,[],{}],"a":{"c":-Infinity,"d":"é"}})", kPath, JsonDialect::kPython);
  CHECK(json_text(json, 2) == R"({
  "b": [
    NaN,
    [],
    {}
  ],
  "a": {
    "c": -Infinity,
    "d": "é"
  }
})");
}

TEST_CASE("Numbers beside NaN stay the numbers that they are") {
  std::string text = "[0";
  Json expected = Json::array({0});
  for (int i = 1; i < 2000; ++i) {
    const bool non_finite = i % 7 == 3;
    const char* const words[] = {"-3", "0.5", "18446744073709551615", "1e-7", "-0.0", "0"};
    text += std::string(",") + (i % 5 ? "" : " {\"1\": [\"2 NaN\"]}, ") + (non_finite ? "-Infinity" : words[i % 6]);
    if (i % 5 == 0) expected.push_back({{"1", {"2 NaN"}}});
    expected.push_back(non_finite ? Json(-std::numeric_limits<double>::infinity()) : Json::parse(words[i % 6]));
  }
  const Json json = parse_json(text + "]", kPath, JsonDialect::kPython);
  CHECK(json == expected);
  CHECK(json_text(json) == json_text(expected));
}

TEST_CASE("Reading, looking up, copying and writing an object takes time in proportion to its keys") {
  const auto text_of = [](std::size_t keys) {
    std::string text = "{";
    for (std::size_t i = 0; i < keys; ++i)
      text += (i ? ",\"key." : "\"key.") + std::to_string(i) + "\":" + std::to_string(i);
    return text + "}";
  };
  const auto use = [](const auto& json) {
    for (const auto& [key, value] : json.items())
      if (json.at(key) != value || !json.contains(key)) FAIL(key);
    auto copy = json;
    for (const auto& [key, value] : json.items()) copy[key] = copy[key + "."] = value;
    CHECK(copy.size() == 2 * json.size());
    CHECK(json_text(json).size() > json.size());
  };
  CHECK(growth(2000, text_of, [&](const std::string& text) { use(parse_ordered_json(text, kPath)); }) < kMostGrowth);
  CHECK(growth(2000, text_of, [&](const std::string& text) { use(parse_json(text, kPath)); }) < kMostGrowth);
}

TEST_CASE("Places of values take memory in proportion to the text, however long the keys around them are") {
  const auto text_of = [](std::size_t items) {
    std::string text = "{\"" + std::string(items, 'k') + "\":[0";
    for (std::size_t i = 1; i < items; ++i) text += ",0";
    return text + "\n]}";
  };
  CHECK(growth(2000, text_of, [&](const std::string& text) {
          CHECK(parse_located_json(text, kPath).places.line_of("/nothing") == 1);
        }) < kMostGrowth);
}

TEST_CASE("An ordered object keeps the order of its keys and finds each, be they few or many") {
  for (const int count : {0, 1, 15, 16, 17, 18, 400}) {
    INFO(count);
    OrderedJson json = OrderedJson::object();
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(std::to_string(i * 7919 % 1000));
    for (const std::string& key : keys) json[key] = "value of " + key;
    const auto check = [&](const OrderedJson& found) {
      CHECK(found.size() == keys.size());
      std::vector<std::string> in_order;
      for (const auto& [key, value] : found.items()) in_order.push_back(key);
      CHECK(in_order == keys);
      for (const std::string& key : keys) CHECK(found.at(key) == "value of " + key);
      CHECK_FALSE(found.contains("none"));
      CHECK(parse_ordered_json(json_text(found), kPath) == found);
    };
    check(json);
    OrderedJson copy = json;
    check(copy);
    check(OrderedJson(std::move(copy)));
    CHECK(json.erase("none") == 0);
    if (count < 3) continue;
    for (const std::size_t index : {keys.size() - 1, std::size_t{1}, std::size_t{0}}) {
      CHECK(json.erase(keys[index]) == 1);
      CHECK_FALSE(json.contains(keys[index]));
      keys.erase(keys.begin() + static_cast<std::ptrdiff_t>(index));
      check(json);
    }
    json["again"] = "value of again";
    json["again"] = "value of again";
    keys.push_back("again");
    check(json);
    CHECK_THAT(error_of([&] { parse_ordered_json(R"({"a":1,"b":2,"a":3})", kPath); }).what(), Says("\"a\" twice"));
  }
}

TEST_CASE("What is finite is written as the JSON library writes it") {
  for (const char* text :
       {"{}", "[]", "null", "\"\\u0001\"", R"({"a":[1,[],{},{"b":[]}],"c":{"d":[[2.5e-9]],"e":"é\n"}})"}) {
    const auto json = OrderedJson::parse(text);
    for (const int indent : {-1, 0, 2, 4}) CHECK(json_text(json, indent) == json.dump(indent));
  }
}

TEST_CASE("An error shows NaN and infinities as they stand in the file") {
  const Json json = parse_json(R"({"n":NaN,"a":[-Infinity]})", kPath, JsonDialect::kPython);
  const JsonObject object(json, kPath);
  CHECK_THAT(error_of([&] { object.unsigned_at("n"); }).what(), Says("\"n\" is NaN, expected a whole number"));
  CHECK_THAT(error_of([&] { object.object_at("a"); }).what(), Says("\"a\" is [-Infinity], expected an object"));
}

TEST_CASE("JSON may be nested 128 deep and no deeper") {
  CHECK(parse_json(nested(128), kPath).is_array());
  for (const int levels : {129, 1'000'000})
    check_error(refused(nested(levels)), {.says = "128 levels", .offset_bytes = 128});
}

TEST_CASE("A JSON file is read up to its cap") {
  const TempDir dir;
  write_file(dir / "a.json", R"({"a":1})");
  CHECK(read_json_file(local_storage(), dir / "a.json", 7)["a"] == 1);
  write_file(dir / "pointer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  check_refused([&] { read_json_file(local_storage(), dir / "pointer.json", 100); },
                {.path = dir / "pointer.json", .says = "is a git-lfs pointer"});
  check_refused([&] { read_json_file(local_storage(), dir / "a.json", 6); },
                {.path = dir / "a.json", .says = {"7 B", "6 B"}});
}

TEST_CASE("Members of an object are read with their types") {
  const Json json = parse_json(R"({"n":18446744073709551615,"b":false,"s":"x","a":[1],"o":{"k":1},"z":null})", kPath);
  const JsonObject object(json, kPath);
  CHECK(object.unsigned_at("n") == UINT64_MAX);
  CHECK_FALSE(object.bool_at("b"));
  CHECK(object.string_at("s") == "x");
  CHECK(object.array_at("a").size() == 1);
  CHECK(object.object_at("o").at("k") == 1);
  CHECK(object.at("z").is_null());
  CHECK(object.has("z"));
  CHECK_FALSE(object.has("y"));
}

TEST_CASE("A member that is missing or of another type is refused with file, place, key and value") {
  const Json json =
      parse_json(R"({"neg":-1,"half":0.5,"one":1.0,"big":18446744073709551616,"s":"x","z":null,"o":{}})", kPath);
  const JsonObject object(json, kPath, "specs[0]");
  for (const char* key : {"neg", "half", "one", "big", "s", "z", "o"})
    check_refused([&] { object.unsigned_at(key); },
                  {.path = kPath, .says = "specs[0]: \"" + std::string(key) + "\" is "});
  check_refused([&] { object.unsigned_at("neg"); }, {.says = "is -1, expected a whole number"});
  check_refused([&] { object.bool_at("s"); }, {.says = "is \"x\", expected true or false"});
  check_refused([&] { object.string_at("z"); }, {.says = "is null, expected a string"});
  check_refused([&] { object.array_at("o"); }, {.says = "is an object, expected an array"});
  check_refused([&] { object.object_at("neg"); }, {.says = "is -1, expected an object"});
  check_refused([&] { object.at("tp_size"); }, {.what = "some/config.json: specs[0]: the key \"tp_size\" is missing"});
  check_refused([&] { JsonObject(parse_json("[1]", kPath), kPath); },
                {.what = "some/config.json: the file is [1], expected an object"});
}

TEST_CASE("An error in an inner object names the line, and the key that was meant") {
  const LocatedJson located = parse_located_json("{\n\"a/b\": [\n{\"size\": 1},\n{\"sise\": [1, \"x\"]}]\n}", kPath);
  const JsonFile file{kPath, [&](const std::string& pointer) { return located.places.line_of(pointer); }};
  const std::vector<JsonObject> inner = JsonObject(located.json, file).objects_at("a/b");
  REQUIRE(inner.size() == 2);
  CHECK_NOTHROW(inner[0].validate_keys({"size"}));
  check_refused(
      [&] { inner[1].validate_keys({"size"}); },
      {.what = "some/config.json: line 4: a/b[1]: the key \"sise\" is not known", .hint = "did you mean \"size\"?"});
  check_refused([&] { inner[1].at("size"); },
                {.what = "some/config.json: line 4: a/b[1]: the key \"size\" is missing"});
  check_refused([&] { inner[1].strings_at("sise"); }, {.says = "is [1,\"x\"], expected an array of strings"});
  check_refused([&] { inner[1].sizes_at("sise", "sizes"); }, {.says = "is [1,\"x\"], expected sizes"});
  check_refused([&] { JsonObject(located.json, file).object_at("a/b"); }, {.says = "line 2: \"a/b\" is "});
}

TEST_CASE("A JSON string is the one that the library writes") {
  for (int c = 0; c < 0x80; ++c) {
    const std::string text = std::string("a") + static_cast<char>(c) + "b";
    INFO("byte " << c);
    CHECK(json_string(text) == Json(text).dump());
    CHECK(Json::parse(json_string(text)) == text);
  }
  for (const char* text : {"", "model.layers.0.weight", "\xc3\xbc", "\xe2\x80\xa8", "\\\"\t"})
    CHECK(json_string(text) == Json(text).dump());
  CHECK_THROWS_AS(json_string("a\xff"), Json::exception);
}

TEST_CASE("A value in an error is cut short") {
  CHECK(brief(Json::parse("[1,2]")) == "[1,2]");
  CHECK(brief(Json::parse("[1,2,3,4,5,6,7,8,9]")) == "an array of 9");
  CHECK(brief(Json::object()) == "an object");
  CHECK(brief(Json(std::string(1000, 'x'))).size() < 100);
}

}  // namespace
}  // namespace reshard::test
