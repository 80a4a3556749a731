// Files from strangers take time in proportion to their size.

#include "support/growth.h"

#include "reshard/base/json.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/peft/adapter_config.h"
#include "support/catch.h"

namespace reshard::test {
namespace {

/// `count` texts that `one` makes of numbers, with commas between them.
template <typename One>
std::string listed(std::size_t count, One&& one) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i ? "," : "") + one(std::to_string(i));
  return text;
}

TEST_CASE("Reading an adapter's configuration takes time in proportion to its patterns") {
  const auto text = [](std::size_t count) {
    return R"({"rank_pattern":{)" + listed(count, [](const std::string& i) { return "\"l." + i + ".q\":4"; }) + "}}";
  };
  CHECK(growth(1000, text, [](const std::string& made) {
          CHECK(parse_adapter_config(made, "adapter_config.json").rank_pattern.size() >= 1000);
        }) < kMostGrowth);
}

TEST_CASE("Reading a description takes time in proportion to its modules, defaults and definitions") {
  const auto module = [](const std::string& i) {
    return "{\"name\":\"m" + i + "\",\"plan\":\"replicate\",\"shape\":[1]}\n";
  };
  const auto define = [](const std::string& i) { return "\"d" + i + "\":\"hidden_size\""; };
  const auto value = [](const std::string& i) { return "\"v" + i + "\":1"; };
  const auto text = [&](const std::string& like, std::size_t count) {
    return R"({"model_type":"x",)" + like + "\"defaults\":{" + listed(count, value) + "},\"define\":{" +
           listed(count, define) + "},\"modules\":[" + listed(count, module) + "]}";
  };
  for (const std::string like : {"", R"("like":"llama",)"}) {
    INFO(like);
    const auto make = [&](std::size_t count) { return text(like, count); };
    CHECK(growth(500, make, [](const std::string& made) {
            CHECK(parse_family_text(made, "description.json").modules.size() >= 500);
          }) < kMostGrowth);
  }
}

}  // namespace
}  // namespace reshard::test
