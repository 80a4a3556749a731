#include "reshard/specs/peft/fused_adapter_config.h"

#include <cmath>

#include "reshard/base/json.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

AdapterConfig read(const std::string& text) {
  return parse_adapter_config(text, "adapter_config.json");
}

std::vector<FusedLayer> two_layers() {
  std::vector<FusedLayer> layers;
  for (const char* layer : {"l.0.", "l.1."})
    layers.push_back({layer + std::string("gu"), {layer + std::string("g"), layer + std::string("u")}});
  return layers;
}

TEST_CASE("Fused linears are named once where they are alike, one by one where not, before all other patterns") {
  const AdapterConfig plain = read(R"({"r": 4, "lora_alpha": 8})");
  CHECK(fused_config_text(plain, two_layers(), LoraFuse::kMean) == plain.text);
  CHECK(OrderedJson::parse(fused_config_text(plain, two_layers(), LoraFuse::kExact)) ==
        OrderedJson::parse(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"gu": 8}, "alpha_pattern": {"gu": 16}})"));

  const AdapterConfig uneven =
      read(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"l.0.*": 2}, "alpha_pattern": {"l.0.*": 4}})");
  const std::string text = fused_config_text(uneven, two_layers(), LoraFuse::kExact);
  CHECK(OrderedJson::parse(text)["rank_pattern"] == OrderedJson::parse(R"({"l.0.gu": 4, "l.1.gu": 8, "l.0.*": 2})"));
  CHECK(text.find("l.0.gu") < text.find("l.0.*"));
  const AdapterConfig again = read(text);
  CHECK(again.rank_of("l.0.gu") == 4);
  CHECK(again.rank_of("l.0.g") == 2);
  CHECK(again.alpha_of("l.1.gu") == 16);
}

TEST_CASE("A config whose patterns miss the fused linears is mended") {
  // The reference matches patterns against fused names alone, and would give these the rank 4.
  const AdapterConfig by_name = read(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"g": 2, "u": 2}})");
  const OrderedJson mean = OrderedJson::parse(fused_config_text(by_name, two_layers(), LoraFuse::kMean));
  CHECK(mean["rank_pattern"] == OrderedJson::parse(R"({"gu": 2, "g": 2, "u": 2})"));
}

/// The linears g and u of two layers, fused as gu, and one that is not.
std::vector<AdaptedModule> modules(std::uint64_t first_r, std::uint64_t second_r) {
  return {{"l.0.g", "l.0.gu", first_r},
          {"l.0.u", "l.0.gu", first_r},
          {"l.1.g", "l.1.gu", second_r},
          {"l.1.u", "l.1.gu", second_r},
          {"l.1.d", "l.1.d", 4}};
}

/// The patterns of the separate config, after whose rules each module has its rank and the alpha that is given.
OrderedJson separate(const std::string& text, const std::vector<AdaptedModule>& modules,
                     const std::vector<double>& alphas) {
  const AdapterConfig config = read(text);
  const SeparateConfig separate = separate_config(config, modules);
  CHECK(separate.unexplained.empty());
  const AdapterConfig again = read(separate.text);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    CAPTURE(modules[i].name, separate.text);
    CHECK(again.rank_of(modules[i].name) == modules[i].r);
    CHECK(again.alpha_of(modules[i].name) == alphas[i]);
  }
  CHECK(separate_config(again, modules).text == separate.text);
  return OrderedJson::parse(separate.text);
}

TEST_CASE("Separate linears get the rank and the alpha that their fused one was trained with, by the shortest names") {
  const OrderedJson once =
      separate(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"gu": 8}, "alpha_pattern": {"gu": 16}})", modules(8, 8),
               {16, 16, 16, 16, 8});
  CHECK(once["rank_pattern"] == OrderedJson::parse(R"({"g": 8, "u": 8})"));
  CHECK(once["alpha_pattern"] == OrderedJson::parse(R"({"g": 16, "u": 16})"));

  const OrderedJson layers = separate(
      R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"l.0.gu": 6, "gu": 8, "l\\.0\\..*": 3},
          "alpha_pattern": {"l.0.gu": 12, "gu": 16, "l\\.0\\..*": 6}})",
      modules(6, 8), {12, 12, 16, 16, 8});
  CHECK(layers["rank_pattern"] ==
        OrderedJson::parse(R"({"l.0.g": 6, "l.0.u": 6, "l.1.g": 8, "l.1.u": 8, "l\\.0\\..*": 3})"));

  const OrderedJson kept = separate(
      R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"gu": 8, "g": 3, "d": 4}, "alpha_pattern": {"gu": 16, "d": 5}})",
      modules(8, 8), {16, 16, 16, 16, 5});
  CHECK(kept["rank_pattern"] == OrderedJson::parse(R"({"g": 8, "u": 8, "d": 4})"));
  CHECK(kept["alpha_pattern"] == OrderedJson::parse(R"({"g": 16, "u": 16, "d": 5})"));
}

TEST_CASE("A name that ends in another is not given its rank") {
  const std::vector<AdaptedModule> nested{
      {"a.g", "a.gu", 8}, {"a.u", "a.gu", 8}, {"x.a.g", "x.a.g", 4}, {"x.a.u", "x.a.u", 2}, {"x+y.g", "x+y.gu", 6}};
  separate(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"x.a.u": 2, "a.gu": 8, "x\\+y.gu": 6},
              "alpha_pattern": {"a.gu": 3, "x\\+y.gu": 2}})",
           nested, {3, 3, 8, 8, 2});
}

TEST_CASE("Patterns that PEFT has sorted when it saved give what they gave in the order that they had") {
  // In training "gu" came first; in the saved file ".*" does.
  separate(R"({"r": 9, "rank_pattern": {".*": 4, "gu": 8}, "alpha_pattern": {".*": 1, "gu": 16}})", modules(8, 8),
           {16, 16, 16, 16, 1});
  separate(R"({"r": 4, "lora_alpha": 2, "rank_pattern": {"gu": 8}, "alpha_pattern": {".*": 32, "gu": 64}})",
           modules(8, 8), {64, 64, 64, 64, 32});
}

TEST_CASE("A config that gives the separate linears what they have stays as it is, to the byte") {
  const std::string plain = R"({"r":4,   "lora_alpha": 8, "target_modules": ["g", "u"]})";
  CHECK(separate_config(read(plain), modules(4, 4)).text == plain);
  const SeparateConfig other = separate_config(read(plain), modules(4, 7));
  CHECK(other.text == plain);
  CHECK(other.unexplained == std::vector<std::string>{"l.1.g", "l.1.u"});
}

TEST_CASE("Fused linears in target_modules become the separate ones, and so do patterns that name nothing else") {
  const OrderedJson json = separate(
      R"({"r": 4, "lora_alpha": 8, "target_modules": ["d", "gu", "u"], "rank_pattern": {"gu": 4, "nothing": 2}})",
      modules(4, 4), {8, 8, 8, 8, 8});
  CHECK(json["target_modules"] == OrderedJson::parse(R"(["d", "g", "u"])"));
  CHECK(json["rank_pattern"] == OrderedJson::parse(R"({"nothing": 2})"));
  const OrderedJson whole =
      separate(R"({"r": 4, "lora_alpha": 8, "target_modules": ["l.0.gu", "1.gu"]})", modules(4, 4), {8, 8, 8, 8, 8});
  CHECK(whole["target_modules"] == OrderedJson::parse(R"(["l.0.g", "l.0.u", "1.g", "1.u"])"));
}

TEST_CASE("The scale of rslora, by the root of the rank, is kept too") {
  const AdapterConfig config = read(R"({"r": 4, "lora_alpha": 3, "use_rslora": true})");
  const std::string fused = fused_config_text(config, two_layers(), LoraFuse::kExact);
  const AdapterConfig again = read(separate_config(read(fused), modules(8, 8)).text);
  CHECK(again.use_rslora);
  CHECK(again.alpha_of("l.0.g") / std::sqrt(8.0) == read(fused).alpha_of("l.0.gu") / std::sqrt(8.0));
  CHECK(std::abs(again.alpha_of("l.0.g") / std::sqrt(8.0) - 3 / std::sqrt(4.0)) < 1e-12);
}

TEST_CASE("exact is advised where it would take the linears, and only there") {
  const auto hint = [](const std::string& text) {
    return error_of([&] { fused_config_text(read(text), two_layers(), LoraFuse::kMean); }).hint();
  };
  CHECK_THAT(hint(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"u": 2}, "alpha_pattern": {"u": 4}})"), Says("exact"));
  CHECK(hint(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"u": 2}})").empty());
  CHECK(hint(R"({"r": 4, "lora_alpha": 8, "alpha_pattern": {"u": 4}})").empty());
  // One layer would do, the other not.
  CHECK(hint(R"({"r": 4, "lora_alpha": 8, "rank_pattern": {"l.0.u": 2},
                 "alpha_pattern": {"l.0.u": 4, "l.1.u": 4}})")
            .empty());
}

}  // namespace
}  // namespace reshard::test
