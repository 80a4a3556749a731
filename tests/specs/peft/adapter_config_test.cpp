#include "reshard/specs/peft/adapter_config.h"

#include "reshard/base/json.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

AdapterConfig read(const std::string& text) {
  return parse_adapter_config(text, "adapter_config.json");
}

TEST_CASE("A pattern names modules as PEFT's regular expressions do") {
  const std::string module = "model.layers.0.self_attn.q_proj";
  const std::pair<const char*, bool> cases[] = {{"q_proj", true},
                                                {"self_attn.q_proj", true},
                                                {"attn.q_proj", false},
                                                {"self_attn.q.proj", true},
                                                {"layers_0.self_attn.q_proj", false},
                                                {"_proj", false},
                                                {".*q_proj", true},
                                                {"^q_proj", false},
                                                {"^model.layers.0.self_attn.q_proj", true},
                                                {"model.layers.0.self_attn.q_proj", true},
                                                {"base_model.model.model.layers.0.self_attn.q_proj", false},
                                                {"[kq]_proj", true},
                                                {R"(layers\\.\\d+\\.self_attn\\.q_proj)", true}};
  for (const auto& [pattern, matches] : cases) {
    CAPTURE(pattern);
    const AdapterConfig config = read(std::string(R"({"r": 8, "rank_pattern": {")") + pattern + R"(": 3}})");
    CHECK(config.rank_of(module) == (matches ? 3u : 8u));
  }
  const AdapterConfig first = read(R"({"r": 8, "rank_pattern": {"z|q_proj": 1, ".*": 2}, "lora_alpha": 3})");
  CHECK(first.rank_of(module) == 1);
  CHECK(first.rank_of("lm_head") == 2);
  CHECK(first.alpha_of(module) == 3);
}

TEST_CASE("A config that makes no sense is refused") {
  check_each_refused(read, {.path = "adapter_config.json"},
                     {{"[]", "expected an object"},
                      {R"({"r": 0})", "expected a rank"},
                      {R"({"r": "8"})", "expected a rank"},
                      {R"({"lora_alpha": "x"})", "expected a number"},
                      {R"({"rank_pattern": []})", "expected an object"},
                      {R"({"rank_pattern": {"a": -1}})", "expected a rank"},
                      {R"({"alpha_pattern": {"a": null}})", "expected a number"},
                      {R"({"modules_to_save": [1]})", "an array of names"},
                      {R"({"use_rslora": 1})", "use_rslora"}});
}

TEST_CASE("A pattern that is no regular expression is unsupported, and the error names file and pattern") {
  const auto rank = [](const std::string& pattern) {
    read("{\"rank_pattern\": {\"" + pattern + "\": 1}}").rank_of("m.q_proj");
  };
  check_each_refused(rank, {.kind = ErrorKind::kUnsupported, .path = "adapter_config.json"},
                     {{"(?!q)_proj", {"\"(?!q)_proj\"", "uses look-ahead"}}, {"(", "\"(\""}});
}

TEST_CASE("A pattern of an adapter takes no exponential time") {
  const AdapterConfig config = read(R"({"r": 8, "rank_pattern": {"(a*)*b": 1}})");
  CHECK(config.rank_of(std::string(10'000, 'a')) == 8);
}

TEST_CASE("Names of adapters' tensors are taken apart by their components") {
  const auto name = lora_name("base_model.model.m.lora_A.my.ad.weight");
  REQUIRE(name);
  CHECK(name->module == "base_model.model.m");
  CHECK(name->component == "lora_A");
  CHECK(name->rest == "my.ad.weight");
  CHECK(lora_name("m.lora_embedding_B")->rest.empty());
  for (const char* none : {"", "lora_A", "m.lora_AB.weight", "m.xlora_A.weight", "m.modules_to_save.lora_A.weight"})
    CHECK_FALSE(lora_name(none));
}

}  // namespace
}  // namespace reshard::test
