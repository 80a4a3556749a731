#include "reshard/layouts/core/layout.h"

#include <map>
#include <set>

#include "reshard/layouts/core/checkpoint.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

constexpr const char* kChoices[] = {"left", "right"};
constexpr LayoutOption kDegree{"copies", LayoutOption::Type::kDegree, "Copies"};
constexpr LayoutOption kCount{"size-of-head", LayoutOption::Type::kCount, "Size"};
constexpr LayoutOption kRank{"first", LayoutOption::Type::kRank, "First rank"};
constexpr LayoutOption kSize{"size", LayoutOption::Type::kSize, "Size", {}, "5GB"};
constexpr LayoutOption kChoice{"side", LayoutOption::Type::kChoice, "Side", kChoices};

TEST_CASE("Every layout of the table has a name of its own, and is found by it") {
  std::set<std::string> names;
  std::size_t adapters = 0, whole = 0;
  for (const Layout* one : layouts()) {
    const LayoutTraits& traits = one->traits();
    CAPTURE(traits.name);
    CHECK(names.insert(traits.name).second);
    CHECK(layout_named(traits.name) == one);
    CHECK(std::string(traits.meaning) != "");
    adapters += traits.holds_adapters();
    whole += !traits.has_ranks();
  }
  CHECK(layout_named("Ranks") == nullptr);
  CHECK(adapters >= 1);
  CHECK(whole == 1);
  CHECK(default_rank_layout().traits().has_ranks());
}

TEST_CASE("An option that several layouts have is of one type in all of them") {
  std::map<std::string, const LayoutOption*> known;
  for (const Layout* one : layouts())
    for (const LayoutOption* option : one->options()) {
      CAPTURE(one->traits().name, option->name);
      const auto [found, is_new] = known.emplace(option->name, option);
      CHECK(found->second->type == option->type);
      CHECK(option->of_source == (*option->source_help != '\0'));
      if (option->type == LayoutOption::Type::kChoice) CHECK(option->choices.size() > 1);
    }
  CHECK(known.size() > 5);
}

TEST_CASE("Values of options are parsed by their type, and errors say the option and what it takes") {
  OptionValues values;
  CHECK_FALSE(values.number(kDegree));
  CHECK_FALSE(values.number(kCount));
  CHECK(values.number(kSize) == 5'000'000'000);
  CHECK(values.choice(kChoice) == "left");
  values.set("copies", "4096");
  values.set("size-of-head", "8192");
  values.set("first", "0");
  values.set("size", "1KiB");
  values.set("side", "right");
  CHECK(values.number(kDegree) == 4096);
  CHECK(values.number(kCount) == 8192);
  CHECK(values.number(kRank) == 0);
  CHECK(values.number(kSize) == 1024);
  CHECK(values.choice(kChoice) == "right");
  const auto check = [&](const LayoutOption& option, const std::string& text, const std::string& says) {
    values.set(option.name, text);
    check_refused(
        [&] {
          if (option.type == LayoutOption::Type::kChoice) values.choice(option, "from-");
          values.number(option, "from-");
        },
        {.kind = ErrorKind::kUsage,
         .says = "`from-" + std::string(option.name) + "`: \"" + text + "\" is not " + says});
  };
  for (const char* text : {"0", "4097", "-1", "", "two", "1.5"}) check(kDegree, text, "a whole number from 1 to 4096");
  for (const char* text : {"0", "1048577", "-1", "1.5"}) check(kCount, text, "a whole number from 1 to 1048576");
  check(kRank, "4096", "a rank number");
  check(kSize, "much", "a size");
  check(kChoice, "up", "one of left, right");
}

TEST_CASE("What a layout does not have is refused before anything is read, with what does have it") {
  struct Row {
    const char* layout_name;
    std::function<void(TargetRequest&)> change;
    Refusal refusal;
  };
  const Row rows[] = {
      {"hf", [](TargetRequest& r) { r.tp = 2; }, {.says = "layout hf has no ranks (`tp`)"}},
      {"nxdi", [](TargetRequest& r) { r.vpp = 2; }, {.says = "layout nxdi has no pipeline stages"}},
      {"vllm", [](TargetRequest& r) { r.ep = 2; }, {.says = "has no expert-parallel ranks"}},
      {"optimum",
       [](TargetRequest& r) { r.format = Format::kSafetensors; },
       {.says = "layout optimum does not support `format` safetensors", .hint = "pytorch, xser"}},
      {"ranks",
       [](TargetRequest& r) { r.options.set("vocab-parallel"); },
       {.says = "layout ranks has no option `vocab-parallel`", .hint = "layouts with `vocab-parallel`: nxdi"}},
      {"ranks", [](TargetRequest& r) { r.options.set("kv-size-multiplier", "many"); }, {}}};
  for (const Row& row : rows) {
    TargetRequest request;
    request.layout = layout(row.layout_name);
    CHECK_NOTHROW(validate_request(request));
    row.change(request);
    check_refused([&] { validate_request(request); }, with_common(row.refusal, {.kind = ErrorKind::kUsage}));
  }
}

TEST_CASE("A layout that is read-only is refused as a target, with those that are written") {
  for (const Layout* one : layouts()) {
    if (one->traits().is_written()) continue;
    CAPTURE(one->traits().name);
    TargetRequest request;
    request.layout = one;
    check_refused([&] { validate_request(request); },
                  {.kind = ErrorKind::kUsage,
                   .says = std::string("layout ") + one->traits().name + " is read-only",
                   .hint = "hf, ranks, "});
  }
}

TEST_CASE("What a layout writes is read as that layout, from its folder and from the one above") {
  for (const Layout* one : layouts()) {
    if (!one->traits().has_ranks() || !one->traits().is_written()) continue;
    DYNAMIC_SECTION(one->traits().name) {
      const Input input;
      shard(input / "model", input / "out", {.layout = one->traits().name, .tp = 2});
      CHECK(read_checkpoint(input / "out", {ConfigUse::kStrict}).layout == one);
      CHECK(read_checkpoint(input / "out" / one->traits().folder, {ConfigUse::kStrict}).layout == one);
      CHECK_FALSE(find_whole(input / "out"));
    }
  }
}

}  // namespace
}  // namespace reshard::test
