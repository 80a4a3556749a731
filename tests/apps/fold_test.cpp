#include "fold.h"

#include <random>
#include <set>
#include <sstream>

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

/// The numbers of "0..3,5,7..11..2".
std::vector<std::uint64_t> numbers_of(const std::string& ranges) {
  std::vector<std::uint64_t> numbers;
  std::istringstream in(ranges);
  for (std::string range; std::getline(in, range, ',');) {
    const std::size_t dots = range.find("..");
    const std::uint64_t first = std::stoull(range);
    const std::uint64_t last = dots == range.npos ? first : std::stoull(range.substr(dots + 2));
    const std::size_t more = dots == range.npos ? dots : range.find("..", dots + 2);
    const std::uint64_t step = more == range.npos ? 1 : std::stoull(range.substr(more + 2));
    for (std::uint64_t number = first; number <= last; number += step) numbers.push_back(number);
  }
  return numbers;
}

/// Every name that a folded one stands for.
std::vector<std::string> expanded(const std::string& name) {
  const std::size_t open = name.find('{');
  if (open == name.npos) return {name};
  const std::size_t close = name.find('}', open);
  std::vector<std::string> names;
  for (const std::uint64_t number : numbers_of(name.substr(open + 1, close - open - 1)))
    for (const std::string& rest : expanded(name.substr(close + 1)))
      names.push_back(name.substr(0, open) + std::to_string(number) + rest);
  return names;
}

}  // namespace

TEST_CASE("names over all layers become one name with a range, in which gaps are shown, and others stay as they are") {
  using Names = std::vector<std::string>;
  CHECK(folded_names({"m.layers.0.mlp.w", "m.layers.1.mlp.w", "m.layers.2.mlp.w"}) == Names{"m.layers.{0..2}.mlp.w"});
  CHECK(folded_names({"a.0.w", "a.1.w", "a.5.w"}) == Names{"a.{0..1,5}.w"});
  // Where every combination is there, two numbers fold; layers with other experts get a line of their own.
  CHECK(folded_names({"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w"}) == Names{"l.{0..1}.e.{0..1}.w"});
  CHECK(folded_names({"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w", "l.2.e.0.w"}) ==
        Names{"l.{0..1}.e.{0..1}.w", "l.2.e.0.w"});
  for (const Names& names : {Names{"lm_head.weight", "layers.7.w"}, Names{"a.00.w", "a.01.w"}})
    CHECK(folded_names(names) == names);
}

TEST_CASE("numbers at equal steps are a range with its step, as shells write it") {
  CHECK(number_set({0, 2, 4, 6, 8, 10, 12, 14}) == "{0..14..2}");
  CHECK(number_set({7}, 2) == "07");
  CHECK(number_set({0, 2}) == "{0,2}");
  CHECK(number_set({8, 9, 10, 12}, 2) == "{08..10,12}");
  CHECK(number_set({0, 2, 3, 4, 9, 12, 15, 18}) == "{0,2..4,9..18..3}");
}

TEST_CASE("tensors of different keys are not folded together") {
  const auto folded = fold({{"a.0.w", "F32"}, {"a.1.w", "BF16"}, {"a.2.w", "F32"}});
  REQUIRE(folded.size() == 2);
  CHECK(folded[0].name == "a.{0,2}.w");
  CHECK(folded[1].name == "a.1.w");
}

TEST_CASE("any set of names is folded into lines that stand for each of them once") {
  const std::uint64_t seed = GENERATE(range<std::uint64_t>(1, 201));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const std::uint64_t layers = 1 + random() % 12;  // numbers of one digit and of two
  const std::uint64_t experts = 1 + random() % 12;
  std::set<std::string> unique;
  for (std::uint64_t i = 0, count = random() % 60; i < count; ++i)
    unique.insert("l." + std::to_string(random() % layers) +
                  (random() % 3 ? ".e." + std::to_string(random() % experts) : "") + (random() % 2 ? ".w" : ".b"));
  std::vector<Foldable> items;
  for (const std::string& name : unique) items.push_back({name, random() % 4 ? "F32" : "BF16"});
  std::set<std::uint32_t> seen;
  std::set<std::string> stood_for;
  for (const Folded& folded : fold(items)) {
    INFO(folded.name);
    std::set<std::string> members;
    std::set<std::string> keys;
    for (const std::uint32_t member : folded.members) {
      CHECK(seen.insert(member).second);
      members.insert(items.at(member).name);
      keys.insert(items.at(member).key);
    }
    const std::vector<std::string> names = expanded(folded.name);
    CHECK(std::set<std::string>(names.begin(), names.end()) == members);
    CHECK(names.size() == members.size());
    CHECK(keys.size() == 1);
    for (const std::string& name : names) CHECK(stood_for.insert(name).second);
  }
  CHECK(seen.size() == items.size());
  CHECK(stood_for == unique);
}
