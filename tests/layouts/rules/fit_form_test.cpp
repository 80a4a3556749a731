#include "reshard/layouts/rules/fit_form.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace reshard::test {
namespace {

constexpr LayoutOption kVersion{"version", LayoutOption::Type::kText, "Version"};
constexpr LayoutOption kGroups{"groups", LayoutOption::Type::kDegree, "Groups"};

std::string text_of(const OptionValues& form) {
  std::string all;
  for (const auto& [name, value] : form.all()) all += name + "=" + value + " ";
  return all;
}

TEST_CASE("The first form that fits is found, with the values of the last unknown setting tried first") {
  std::vector<std::string> trials;
  OptionValues form;
  form.set("kept", "yes");
  const std::vector<Unknown> unknowns{{&kVersion, {"2", "1"}}, {&kGroups, {"", "4"}}};
  const bool fits = fit_form(form, unknowns, [&](const OptionValues& tried) -> std::size_t {
    trials.push_back(text_of(tried));
    return tried.text(kVersion) == "1" ? 0 : 7;
  });
  CHECK(fits);
  CHECK(text_of(form) == "kept=yes version=1 ");
  CHECK(trials ==
        std::vector<std::string>{"kept=yes version=2 ", "groups=4 kept=yes version=2 ", "kept=yes version=1 "});
}

TEST_CASE("If no form fits, the first of those with the fewest misfits is nearest") {
  OptionValues form;
  const std::vector<Unknown> unknowns{{&kGroups, {"1", "2", "3", "4"}}};
  CHECK_FALSE(fit_form(form, unknowns, [](const OptionValues& tried) -> std::size_t {
    const auto groups = tried.number(kGroups);
    if (groups == 1u) throw Error(ErrorKind::kUsage, "ranks cannot share one group");
    return groups == 2u ? 5 : 3;
  }));
  CHECK(text_of(form) == "groups=3 ");
}

TEST_CASE("A form that ranks cannot have is no error, and other errors are") {
  OptionValues form;
  const std::vector<Unknown> unknowns{{&kGroups, {"1", "2"}}};
  CHECK_FALSE(
      fit_form(form, unknowns, [](const OptionValues&) -> std::size_t { throw Error(ErrorKind::kUsage, "no"); }));
  CHECK(text_of(form) == "groups=1 ");
  CHECK_THROWS_AS(fit_form(form, unknowns,
                           [](const OptionValues&) -> std::size_t { throw Error(ErrorKind::kBadInput, "damaged"); }),
                  Error);
}

TEST_CASE("A setting without values leaves the form as it is") {
  OptionValues form;
  form.set_number(kGroups.name, 2);
  const std::vector<Unknown> unknowns{{&kVersion, {}}};
  CHECK_FALSE(fit_form(form, unknowns, [](const OptionValues&) -> std::size_t { return 0; }));
  CHECK(text_of(form) == "groups=2 ");
}

TEST_CASE("Held tensors are those of the first rank with each, and errors name its file") {
  const auto file = [](const std::string& path, const std::string& name, std::uint64_t rows) {
    Container made;
    made.path = path;
    TensorEntry tensor;
    tensor.name = name;
    tensor.shape = {rows};
    made.tensors.push_back(tensor);
    return made;
  };
  const std::vector<std::vector<Container>> files{{file("a", "x", 1), file("b", "x", 2)}, {file("c", "y", 3)}};
  const HeldTensors held(files);
  CHECK(held.find("x")->shape == Dims{1});
  CHECK(held.has("y"));
  CHECK(held.find("z") == nullptr);
  CHECK(held.error(ErrorKind::kBadInput, "y", "is odd").path() == "c");
  CHECK(held.error(ErrorKind::kBadInput, "y", "is odd").tensor() == "y");
}

}  // namespace
}  // namespace reshard::test
