#include "reshard/specs/family/expression.h"

#include <map>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

const Json kNull = nullptr;
const Json kList = Json::parse("[1, 3]");
const Json kObjects = Json::parse(R"([{"a": {"on": true, "size": 6, "part": 5.25}}, {"a": null}])");
const Json kDecimals = Json::parse("[0.73, 1.5, -2.5]");
const Json kText = "mxfp4";
const Json kNegative = Json::parse("-1");
const Json kHalf = Json::parse("0.5");

ConfigValue value_of(const std::string& key) {
  const std::map<std::string, ConfigValue> values = {{"two", std::uint64_t{2}},
                                                     {"three", std::uint64_t{3}},
                                                     {"zero", std::uint64_t{0}},
                                                     {"yes", true},
                                                     {"no", false},
                                                     {"nothing", {}},
                                                     {"list", &kList},
                                                     {"objects", &kObjects},
                                                     {"decimals", &kDecimals},
                                                     {"half", &kHalf},
                                                     {"a.b", &kText},
                                                     {"negative", &kNegative},
                                                     {"layer", std::uint64_t{3}},
                                                     {"huge", std::uint64_t{1} << 63},
                                                     {"large", std::uint64_t{1} << 40}};
  const auto found = values.find(key);
  if (found == values.end()) throw Error(ErrorKind::kBadInput, "\"" + key + "\" is missing");
  return found->second;
}

std::uint64_t size(const char* text) {
  return Expression::parse(text).size(value_of);
}

bool holds(const char* text) {
  return Expression::parse(text).holds(value_of);
}

TEST_CASE("Sizes come out as arithmetic says") {
  CHECK(size("7") == 7);
  CHECK(size("two * three") == 6);
  CHECK(size("two + three * 4") == 14);
  CHECK(size("(two + three) * 4") == 20);
  CHECK(size("12 / three / two") == 2);
  CHECK(size("12 - three - two") == 7);
  CHECK(size("17 % three") == 2);
  CHECK(size("ceil(7 / two)") == 4);
  CHECK(size("ceil(three * two / (1 + 1))") == 3);
  CHECK(size("floor(7 / two)") == 3);
  CHECK(size("2 * length(list)") == 4);
  CHECK(size("2 * floor(three * 5 / 4)") == 6);
  CHECK(size("list[1] + list[two - 2]") == 4);
  CHECK(size("zero + two") == 2);
  CHECK(size("2*three") == 6);
}

TEST_CASE("Conditions hold as logic says") {
  CHECK(holds("yes"));
  CHECK_FALSE(holds("no"));
  CHECK(holds("not no"));
  CHECK(holds("not no and yes"));
  CHECK(holds("no and no or yes"));
  CHECK_FALSE(holds("no and (no or yes)"));
  CHECK(holds("two < three"));
  CHECK(holds("three >= 3"));
  CHECK(holds("two != three"));
  CHECK(holds("nothing == null"));
  CHECK(holds("two != null"));
  CHECK(holds("a.b == \"mxfp4\""));
  CHECK_FALSE(holds("a.b == \"fp8\""));
  CHECK(holds("layer in list"));
  CHECK(holds("two not in list"));
  CHECK(holds("two not in nothing"));
  CHECK(holds("not two in list"));
  CHECK(holds("layer not in nothing and two > zero and (layer + 1) % two == 0"));
  CHECK_FALSE(holds("zero > 0 and 1 / zero == 1"));  // the second is not looked at
}

TEST_CASE("An item of a list is null where there is none") {
  CHECK(holds("list[0] == 1"));
  CHECK(holds("list[two] == null"));
  CHECK(holds("nothing[layer] == null"));
  CHECK(holds("list[list[0]] == 3"));
  CHECK(holds("a.b[1] == \"x\""));
  CHECK(holds("a.b[5] == null"));
  CHECK(holds("two[layer] == 2"));
  CHECK_THAT(error_of([] { holds("yes[0] == 1"); }).what(), Says("\"yes\" is true, expected a list"));
  CHECK_THAT(error_of([] { holds("list[yes] == 1"); }).what(), Says("expected a whole number"));
  CHECK_THAT(error_of([] { Expression::parse("list[0"); }).what(), Says("a closing square bracket is expected"));
  CHECK_THAT(error_of([] { Expression::parse("7[0]"); }).what(), Says("\"[\" is too much"));
}

TEST_CASE("What cannot be read is refused with its place") {
  const std::pair<const char*, const char*> texts[] = {{"", "ends where"},
                                                       {"two three", "character 5"},
                                                       {"two *", "ends where"},
                                                       {"* two", "character 1"},
                                                       {"(two", "closing bracket"},
                                                       {"two)", "too much"},
                                                       {"\"two", "not end"},
                                                       {"two & three", "character 5"},
                                                       {"ceil(two)", "division"},
                                                       {"ceil two", "brackets"},
                                                       {"two not three", "\"not\""},
                                                       {"a < b < c", "too much"},
                                                       {"99999999999999999999", "too large"}};
  for (const auto& [text, says] : texts) {
    DYNAMIC_SECTION("\"" << text << "\"") {
      check_refused([&, expression = text] { Expression::parse(expression); }, {.says = says});
    }
  }
  CHECK_THAT(error_of([] { Expression::parse(std::string(100, '(') + "1" + std::string(100, ')')); }).what(),
             Says("brackets"));
  CHECK_THAT(error_of([] { Expression::parse(std::string(5000, '1')); }).what(), Says("longer"));
  std::string nots;
  for (int i = 0; i < 1000; ++i) nots += "not ";
  CHECK_THAT(error_of([&] { Expression::parse(nots + "yes"); }).what(), Says("brackets"));
}

TEST_CASE("A key of an item is null if the item lacks it") {
  CHECK(size("two * objects[0].a.size") == 12);
  CHECK(holds("objects[0].a.on"));
  CHECK(holds("objects[0].a.off == null"));
  CHECK(holds("objects[1].a.size == null"));
  CHECK(holds("objects[2].a.size == null"));
  CHECK(holds("nothing[0].a == null"));
  CHECK(Expression::parse("objects[layer].a.size").keys() == std::vector<std::string>{"objects", "layer"});
  CHECK_THAT(error_of([] { holds("list[0].a == 1"); }).what(), Says("expected an object"));
  CHECK_THAT(error_of([] { Expression::parse("objects[0]."); }).what(), Says("a key of the item is expected"));
  CHECK_THAT(error_of([] { Expression::parse("objects[0].7"); }).what(), Says("a key of the item is expected"));
  CHECK_THAT(error_of([] { Expression::parse("(two).a"); }).what(), Says("\".\" is too much"));
}

TEST_CASE("Decimal numbers are rounded as Python rounds them") {
  CHECK(size("floor(decimals[0] * 1280 / 1)") == 934);
  CHECK(size("ceil(decimals[0] * 1280 / 1)") == 935);
  CHECK(size("floor((decimals[1] * three + 1 - half) / two)") == 2);
  CHECK(size("ceil(floor(2 * objects[0].a.part * 8192 / 3) / 256) * 256") == 28672);
  CHECK(size("floor(half * 9 / half)") == 9);
  CHECK(size("ceil(three / half)") == 6);
  std::string nested = "half";
  for (int i = 0; i < 40; ++i) nested = "floor(" + nested + " * three / two)";
  CHECK(size(("1 + " + nested).c_str()) == 1);  // each part is evaluated once, not twice per bracket
  const std::pair<const char*, const char*> texts[] = {
      {"floor(half / zero)", "0.5 / 0 divides by 0"},
      {"floor(decimals[2] / two)", "-1.25 is less than 0"},
      {"floor(half * large * large / 1)", "is larger than any size"},
      {"floor(half * yes / 1)", "\"yes\" is true, expected a positive whole number"},
      {"floor(list[7] * half / 1)", "expected a number"},
      {"half * two", "\"half\" is 0.5, expected a positive whole"}};
  for (const auto& [text, says] : texts) {
    DYNAMIC_SECTION("\"" << text << "\"") {
      check_refused([&, expression = text] { size(expression); }, {.says = says});
    }
  }
}

TEST_CASE("What does not come out is refused with its numbers") {
  const std::pair<const char*, const char*> sizes[] = {
      {"three / two", "\"three / two\" cannot be computed: 3 / 2 is not a whole number"},
      {"three / zero", "3 / 0 divides by 0"},
      {"ceil(three / zero)", "3 / 0 divides by 0"},
      {"three % zero", "3 % 0 divides by 0"},
      {"two - three", "2 - 3 is less than 0"},
      {"zero", "\"zero\" is 0, expected a positive whole number"},
      {"two * zero", "two * zero is 0"},
      {"huge", "\"huge\" is 9223372036854775808"},
      {"large * large", "is larger than any size"},
      {"negative", "\"negative\" is -1, expected a positive"},
      {"yes", "\"yes\" is true, expected a positive"},
      {"nothing + 1", "\"nothing\" is null"},
      {"list", "\"list\" is [1,3]"},
      {"two < three", "is true, expected a positive"},
      {"gone", "\"gone\" is missing"}};
  for (const auto& [text, says] : sizes) {
    DYNAMIC_SECTION("\"" << text << "\"") {
      check_refused([&, expression = text] { size(expression); }, {.says = says});
    }
  }
  const std::pair<const char*, const char*> conditions[] = {{"two", "\"two\" is 2, expected true or false"},
                                                            {"not nothing", "\"nothing\" is null, expected true"},
                                                            {"yes and two", "\"two\" is 2, expected true"},
                                                            {"two in two", "\"two\" is 2, expected a list"},
                                                            {"list < two", "expected a whole number"}};
  for (const auto& [text, says] : conditions) {
    DYNAMIC_SECTION("\"" << text << "\"") {
      CHECK_THAT(error_of([&, expression = text] { holds(expression); }).what(), Says(says));
    }
  }
}

TEST_CASE("The keys of an expression are told in their order") {
  CHECK(Expression::parse("b * ceil(a / 2) + c.d - b").keys() == std::vector<std::string>{"b", "a", "c.d", "b"});
  CHECK(Expression::parse("\"x\" == y").keys() == std::vector<std::string>{"y"});
  CHECK(Expression().keys().empty());
  CHECK_FALSE(Expression());
}

}  // namespace
}  // namespace reshard::test
