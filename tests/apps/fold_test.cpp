#include "fold.h"

#include <random>
#include <set>

#include "support/catch.h"

using namespace reshard::cli;

namespace {

std::vector<std::string> folded_names(const std::vector<std::string>& names) {
  std::vector<Foldable> items;
  for (const std::string& name : names) items.push_back({name, ""});
  std::vector<std::string> out;
  for (const Folded& folded : fold(items)) out.push_back(folded.name);
  return out;
}

}  // namespace

TEST_CASE("names over all layers become one name with a range") {
  CHECK(folded_names({"model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight",
                      "model.layers.2.mlp.down_proj.weight"}) ==
        std::vector<std::string>{"model.layers.{0..2}.mlp.down_proj.weight"});
}

TEST_CASE("a name without numbers, and a number alone, stay as they are") {
  CHECK(folded_names({"lm_head.weight", "layers.7.w"}) == std::vector<std::string>{"lm_head.weight", "layers.7.w"});
}

TEST_CASE("gaps in the numbers are shown") {
  CHECK(folded_names({"a.0.w", "a.1.w", "a.5.w"}) == std::vector<std::string>{"a.{0..1,5}.w"});
}

TEST_CASE("two numbers fold to two ranges where every combination is there") {
  CHECK(folded_names({"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w"}) ==
        std::vector<std::string>{"l.{0..1}.e.{0..1}.w"});
}

TEST_CASE("layers with other experts get a line of their own") {
  const auto names = folded_names({"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w", "l.2.e.0.w"});
  CHECK(std::set<std::string>(names.begin(), names.end()) == std::set<std::string>{"l.{0..1}.e.{0..1}.w", "l.2.e.0.w"});
}

TEST_CASE("tensors of different keys are not folded together") {
  const auto folded = fold({{"a.0.w", "F32"}, {"a.1.w", "BF16"}, {"a.2.w", "F32"}});
  REQUIRE(folded.size() == 2);
  CHECK(folded[0].name == "a.{0,2}.w");
  CHECK(folded[1].name == "a.1.w");
}

TEST_CASE("a part with a leading zero is not a number") {
  CHECK(folded_names({"a.00.w", "a.01.w"}) == std::vector<std::string>{"a.00.w", "a.01.w"});
}

TEST_CASE("any set of names is folded into lines that stand for each of them once") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::set<std::string> unique;
    for (int i = 0; i < 30; ++i)
      unique.insert("l." + std::to_string(random() % 4) + ".e." + std::to_string(random() % 4) +
                    (random() % 2 ? ".w" : ".b"));
    std::vector<Foldable> items;
    for (const std::string& name : unique) items.push_back({name, ""});
    std::set<std::uint32_t> seen;
    for (const Folded& folded : fold(items))
      for (const std::uint32_t member : folded.members) CHECK(seen.insert(member).second);
    CHECK(seen.size() == items.size());
  }
}
