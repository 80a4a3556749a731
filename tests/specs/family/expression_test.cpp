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

std::uint64_t size(const std::string& text) {
  return Expression::parse(text).size(value_of);
}

bool holds(const std::string& text) {
  return Expression::parse(text).holds(value_of);
}

void check_sizes(const std::vector<std::pair<const char*, std::uint64_t>>& rows) {
  for (const auto& [text, expected] : rows) {
    CAPTURE(text);
    CHECK(size(text) == expected);
  }
}

void check_hold(const std::vector<const char*>& texts) {
  for (const char* text : texts) {
    CAPTURE(text);
    CHECK(holds(text));
  }
}

TEST_CASE("Sizes come out as arithmetic says") {
  check_sizes({{"7", 7},
               {"two * three", 6},
               {"2*three", 6},
               {"two + three * 4", 14},
               {"(two + three) * 4", 20},
               {"12 / three / two", 2},
               {"12 - three - two", 7},
               {"17 % three", 2},
               {"ceil(7 / two)", 4},
               {"ceil(three * two / (1 + 1))", 3},
               {"floor(7 / two)", 3},
               {"2 * length(list)", 4},
               {"2 * floor(three * 5 / 4)", 6},
               {"list[1] + list[two - 2]", 4},
               {"zero + two", 2}});
}

TEST_CASE("Conditions hold as logic says") {
  check_hold({"yes", "not no", "not no and yes", "no and no or yes", "two < three", "three >= 3", "two != three",
              "nothing == null", "two != null", "a.b == \"mxfp4\"", "layer in list", "two not in list",
              "two not in nothing", "not two in list",
              "layer not in nothing and two > zero and (layer + 1) % two == 0"});
  for (const char* text :
       {"no", "no and (no or yes)", "a.b == \"fp8\"", "zero > 0 and 1 / zero == 1"})  // the second is not looked at
    CHECK_FALSE(holds(text));
}

TEST_CASE("An item of a list, and a key of an item, is null where there is none") {
  check_hold({"list[0] == 1", "list[two] == null", "nothing[layer] == null", "list[list[0]] == 3", "a.b[1] == \"x\"",
              "a.b[5] == null", "two[layer] == 2", "objects[0].a.on", "objects[0].a.off == null",
              "objects[1].a.size == null", "objects[2].a.size == null", "nothing[0].a == null"});
  CHECK(size("two * objects[0].a.size") == 12);
  check_each_refused(holds, {},
                     {{"yes[0] == 1", "\"yes\" is true, expected a list"},
                      {"list[yes] == 1", "expected a whole number"},
                      {"list[0].a == 1", "expected an object"}});
}

TEST_CASE("What cannot be read is refused with its place") {
  std::string nots;
  for (int i = 0; i < 1000; ++i) nots += "not ";
  check_each_refused(Expression::parse, {},
                     {{"", "ends where"},
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
                      {"99999999999999999999", "too large"},
                      {"list[0", "a closing square bracket is expected"},
                      {"7[0]", "\"[\" is too much"},
                      {"objects[0].", "a key of the item is expected"},
                      {"objects[0].7", "a key of the item is expected"},
                      {"(two).a", "\".\" is too much"},
                      {std::string(100, '(') + "1" + std::string(100, ')'), "brackets"},
                      {std::string(5000, '1'), "longer"},
                      {nots + "yes", "brackets"}});
}

TEST_CASE("Decimal numbers are rounded as Python rounds them") {
  std::string nested = "half";
  for (int i = 0; i < 40; ++i) nested = "floor(" + nested + " * three / two)";
  nested.insert(0, "1 + ");
  check_sizes({{"floor(decimals[0] * 1280 / 1)", 934},
               {"ceil(decimals[0] * 1280 / 1)", 935},
               {"floor((decimals[1] * three + 1 - half) / two)", 2},
               {"ceil(floor(2 * objects[0].a.part * 8192 / 3) / 256) * 256", 28672},
               {"floor(half * 9 / half)", 9},
               {"ceil(three / half)", 6},
               {nested.c_str(), 1}});  // each part is evaluated once, not twice per bracket
}

TEST_CASE("What does not come out is refused with its numbers") {
  check_each_refused(size, {},
                     {{"three / two", "\"three / two\" cannot be computed: 3 / 2 is not a whole number"},
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
                      {"gone", "\"gone\" is missing"},
                      {"floor(half / zero)", "0.5 / 0 divides by 0"},
                      {"floor(decimals[2] / two)", "-1.25 is less than 0"},
                      {"floor(half * large * large / 1)", "is larger than any size"},
                      {"floor(half * yes / 1)", "\"yes\" is true, expected a positive whole number"},
                      {"floor(list[7] * half / 1)", "expected a number"},
                      {"half * two", "\"half\" is 0.5, expected a positive whole"}});
  check_each_refused(holds, {},
                     {{"two", "\"two\" is 2, expected true or false"},
                      {"not nothing", "\"nothing\" is null, expected true"},
                      {"yes and two", "\"two\" is 2, expected true"},
                      {"two in two", "\"two\" is 2, expected a list"},
                      {"list < two", "expected a whole number"}});
}

TEST_CASE("The keys of an expression are told in their order") {
  CHECK(Expression::parse("b * ceil(a / 2) + c.d - b").keys() == std::vector<std::string>{"b", "a", "c.d", "b"});
  CHECK(Expression::parse("objects[layer].a.size").keys() == std::vector<std::string>{"objects", "layer"});
  CHECK(Expression::parse("\"x\" == y").keys() == std::vector<std::string>{"y"});
  CHECK(Expression().keys().empty());
  CHECK_FALSE(Expression());
}

}  // namespace
}  // namespace reshard::test
