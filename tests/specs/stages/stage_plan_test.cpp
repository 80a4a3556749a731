#include "reshard/specs/stages/stage_plan.h"

#include <algorithm>
#include <random>

#include "reshard/base/json.h"
#include "reshard/specs/model/language_model.h"
#include "support/random.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

using Names = std::vector<std::string>;

struct Sizes {
  std::string model_type = "llama";
  std::uint64_t hidden = 64, intermediate = 96, vocab = 128, layers = 2, heads = 8, kv_heads = 4, head_dim = 8;
  bool tied = false, attention_bias = false, mlp_bias = false;
};

Model model_of(const Sizes& s) {
  const Json json = {
      {"hidden_size", s.hidden},       {"intermediate_size", s.intermediate}, {"vocab_size", s.vocab},
      {"num_hidden_layers", s.layers}, {"num_attention_heads", s.heads},      {"num_key_value_heads", s.kv_heads},
      {"head_dim", s.head_dim},        {"tie_word_embeddings", s.tied},       {"attention_bias", s.attention_bias},
      {"mlp_bias", s.mlp_bias}};
  // Numbers as a parser types them.
  const ModelConfig config{"m/config.json", std::make_shared<const Json>(Json::parse(json.dump())), s.model_type};
  return instantiate(config);
}

bool none(const std::string&) {
  return false;
}

std::vector<StagePlan> plan(const Sizes& sizes, std::uint32_t tp, const Mesh& mesh = {},
                            const PartitionOptions& options = {}) {
  return plan_stages(model_of(sizes), tp, partition_evenly(sizes.layers, mesh), options, none);
}

Names names_of(const StagePlan& stage) {
  Names names;
  for (const ParallelParameter& p : stage.metadata.parameters) names.push_back(p.name);
  return names;
}

const ParallelParameter& parameter(const StagePlan& stage, const std::string& name) {
  for (const ParallelParameter& p : stage.metadata.parameters)
    if (p.name == name) return p;
  FAIL("no parameter " << name);
  throw std::logic_error("unreachable");
}

/// The conditions of the layouts, computed from the sizes alone.
bool may_split(const Sizes& s, std::uint64_t tp, std::optional<std::uint64_t> multiplier) {
  if (s.vocab % tp || s.intermediate % tp || s.heads * s.head_dim % tp) return false;
  if (s.kv_heads >= tp && s.kv_heads % tp == 0) return true;
  const auto works = [&](std::uint64_t m) {
    return m > 0 && tp % m == 0 && s.kv_heads * m % tp == 0 && s.heads / s.kv_heads % m == 0;
  };
  if (multiplier) return works(*multiplier);
  for (std::uint64_t m = 1; m <= tp; ++m)
    if (works(m)) return true;
  return false;
}

TEST_CASE("Where sizes are padded, the degrees that work are those that leave nothing else in the way") {
  const Model model = model_of({.intermediate = 10, .vocab = 7});
  PartitionOptions options;
  options.separate = true;
  CHECK(legal_tp_degrees(model, options) == std::vector<std::uint64_t>{1});
  options.pad = true;
  CHECK(legal_tp_degrees(model, options).size() == 512);
  CHECK_FALSE(tensor_parallel_problem(model, 509, options));
}

constexpr PartitionOptions kFusing{AttentionForm::kFused, {}};

TEST_CASE("Attention takes the form that heads, ranks and the form asked for call for") {
  struct Row {
    std::uint64_t kv_heads, tp;
    PartitionOptions options;
    AttentionForm form;
  };
  for (const Row& row : {Row{4, 1, {}, AttentionForm::kSeparate},
                         {4, 4, kFusing, AttentionForm::kSeparate},
                         {4, 8, {}, AttentionForm::kGroupedQuery},
                         {4, 8, kFusing, AttentionForm::kFusedGroupedQuery},
                         {4, 3, {}, AttentionForm::kGroupedQuery},
                         {8, 4, {}, AttentionForm::kSeparate},
                         {8, 4, kFusing, AttentionForm::kFused},
                         {8, 16, kFusing, AttentionForm::kFusedGroupedQuery}}) {
    CAPTURE(row.kv_heads, row.tp);
    CHECK(attention_form(model_of({.kv_heads = row.kv_heads}), row.tp, row.options) == row.form);
  }
  for (const AttentionForm form : {AttentionForm::kGroupedQuery, AttentionForm::kFusedGroupedQuery})
    for (const std::uint64_t kv_heads : {4, 8})
      for (const std::uint64_t tp : {1, 2, 8})
        CHECK(attention_form(model_of({.kv_heads = kv_heads}), tp, {form, {}}) == form);
}

TEST_CASE("The legal degrees are those that divide every size, for random models") {
  std::size_t legal_in_all = 0;
  for (const std::uint64_t seed : seeds(40)) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](std::vector<std::uint64_t> of) { return of[random() % of.size()]; };
    Sizes s;
    s.vocab = pick({48, 96, 128, 384, 1000});
    s.intermediate = pick({48, 96, 192, 384});
    s.kv_heads = pick({1, 2, 3, 4, 8});
    s.heads = s.kv_heads * pick({1, 2, 3, 4, 8});
    s.head_dim = pick({2, 6, 8, 64});
    PartitionOptions options{attention_form_of(false, random() % 2 == 0), {}};
    if (random() % 2) options.kv_size_multiplier = pick({0, 1, 2, 3, 4, 8});
    const Model model = model_of(s);
    std::vector<std::uint64_t> expected;
    for (std::uint64_t tp = 1; tp <= 512; ++tp) {
      const bool legal = may_split(s, tp, options.kv_size_multiplier);
      if (legal) expected.push_back(tp);
      INFO("tp " << tp);
      CHECK(tensor_parallel_problem(model, tp, options).has_value() != legal);
    }
    CHECK(legal_tp_degrees(model, options) == expected);
    legal_in_all += expected.size();
  }
  if (has_all_seeds()) CHECK(legal_in_all > 100);
}

/// The problem with `tp` ranks is the ranks' number, and is told as `refusal` has it.
void check_problem(const Sizes& sizes, std::uint64_t tp, const PartitionOptions& options, Refusal refusal) {
  refusal.kind = ErrorKind::kUsage;
  const auto problem = tensor_parallel_problem(model_of(sizes), tp, options);
  REQUIRE(problem);
  check_error(*problem, refusal);
}

TEST_CASE("The first tensor that the ranks do not divide is named with dim and sizes") {
  check_problem({.vocab = 130}, 4, {},
                {.tensor = "model.embed_tokens.weight", .says = "dim 0 has 130 elements, which 4 ranks do not divide"});
  check_problem(
      {.intermediate = 98}, 4, {},
      {.tensor = "model.layers.0.mlp.gate_proj.weight", .says = "dim 0 has 98 elements, which 4 ranks do not divide"});
}

TEST_CASE("Heads that cannot be placed are named with the multipliers that would do") {
  const Sizes sizes{.vocab = 96, .heads = 24, .kv_heads = 4};
  const auto with = [](std::uint64_t multiplier) { return PartitionOptions{AttentionForm::kSeparate, multiplier}; };
  for (const std::uint64_t multiplier : {std::uint64_t{1}, std::uint64_t{0}, std::uint64_t{5}, UINT64_MAX})
    check_problem(sizes, 6, with(multiplier),
                  {.says = "(24 query, 4 key/value) cannot be placed on 6 ranks with a key/value multiplier of " +
                           std::to_string(multiplier),
                   .hint_end = "multipliers that work for `tp` 6: 3, 6"});
  CHECK_FALSE(tensor_parallel_problem(model_of(sizes), 6, with(3)));
}

TEST_CASE("The smallest multiplier that places whole heads is chosen, also where the usual one does not") {
  const Sizes sizes{.heads = 12, .kv_heads = 6};
  CHECK_FALSE(tensor_parallel_problem(model_of(sizes), 4, {}));
  CHECK(gqa_spec(model_of(sizes), 4, {}).kv_size_multiplier == 2);
  CHECK(gqa_spec(model_of({.heads = 12, .kv_heads = 2}), 4, {}).kv_size_multiplier == 2);  // the usual one
  check_problem({.heads = 12, .kv_heads = 12}, 8, {}, {.says = "(12 query, 12 key/value) cannot be placed on 8 ranks"});
}

TEST_CASE("The options of stages are read back from their specs") {
  for (const std::uint64_t kv_heads : {2, 8})
    for (const AttentionForm form : {AttentionForm::kSeparate, AttentionForm::kFused, AttentionForm::kGroupedQuery,
                                     AttentionForm::kFusedGroupedQuery})
      for (const std::uint32_t tp : {2u, 4u}) {
        CAPTURE(kv_heads, tp);
        const Sizes sizes{.kv_heads = kv_heads};
        const Model model = model_of(sizes);
        const PartitionOptions options{form, {}};
        std::vector<StageMetadata> metadata;
        for (StagePlan& stage : plan(sizes, tp, {}, options)) metadata.push_back(std::move(stage.metadata));
        const PartitionOptions recorded = recorded_options(metadata, model);
        CHECK(recorded.attention == attention_form(model, tp, options));
        CHECK(recorded.kv_size_multiplier.has_value() == is_grouped_query(recorded.attention));
        if (recorded.kv_size_multiplier) CHECK(*recorded.kv_size_multiplier == usual_multiplier(kv_heads, tp));
      }
}

TEST_CASE("Planning for an illegal degree is refused with the degrees that work") {
  check_refused([] { plan({}, 6); },
                {.kind = ErrorKind::kUsage, .hint = "TP degrees that work for this model: 1, 2, 4, 8"});
  const Error prime = check_refused([] { plan({.vocab = 131}, 2); },
                                    {.kind = ErrorKind::kUsage, .tensor = "model.embed_tokens.weight"});
  CHECK(prime.hint() == "TP degrees that work for this model: 1");
  Model quantized = model_of({.intermediate = 97});
  quantized.quant_method = "mxfp4";
  for (ModelParameter& parameter : quantized.parameters)
    if (parameter.name.find(".mlp.") != std::string::npos) parameter.experts = 1;
  check_refused([&] { validate_split(quantized, 2, {}); },
                {.kind = ErrorKind::kUsage, .hint = "1; for more, set `dtype` to bfloat16, which dequantises"});
}

TEST_CASE("A grouped-query spec has the sizes of one rank") {
  CHECK(gqa_spec(model_of({}), 8, kFusing) == GQAQKVColumnParallelLinearSpec{"qkv_proj", "q_proj", "k_proj", "v_proj",
                                                                             "o_proj", 8, 4, 2, 8, 8, true, false, 8});
  const auto more = gqa_spec(model_of({.kv_heads = 2}), 4, {AttentionForm::kSeparate, 4});
  CHECK(more == GQAQKVColumnParallelLinearSpec{"qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", 8, 2, 4, 16, 16,
                                               false, false, 4});
  CHECK(more.slots_per_rank() == 2);
}

TEST_CASE("Biases follow their weights, but those of row-parallel layers are whole") {
  const auto stages = plan({.layers = 1, .kv_heads = 8, .attention_bias = true, .mlp_bias = true}, 2, {}, kFusing);
  const std::string layer = "model.layers.0.";
  const StagePlan& stage = stages.at(0);
  CHECK(parameter(stage, layer + "self_attn.qkv_proj.bias") ==
        ParallelParameter{layer + "self_attn.qkv_proj.bias", true, 0, 3, 2});
  CHECK(parameter(stage, layer + "mlp.gate_up_proj.bias") ==
        ParallelParameter{layer + "mlp.gate_up_proj.bias", true, 0, 2, 2});
  CHECK_FALSE(parameter(stage, layer + "self_attn.o_proj.bias").tensor_model_parallel);
  CHECK_FALSE(parameter(stage, layer + "mlp.down_proj.bias").tensor_model_parallel);
  std::size_t biased = 0;
  for (const ModuleSpecs& module : stage.metadata.modules)
    for (const TransformationSpec& spec : module.specs) biased += std::get<FusedLinearsSpec>(spec).bias;
  CHECK(biased == 2);
}

TEST_CASE("Grouped queries give weight and bias a letter each, or one name for all three") {
  const Sizes sizes{.model_type = "qwen2", .layers = 1};
  const std::string module = "model.layers.0.self_attn.qkv_proj.";
  const auto count = [&](const StagePlan& stage) {
    const Names names = names_of(stage);
    return std::count_if(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(module); });
  };
  const auto apart = plan(sizes, 8);
  for (const char* name : {"weight_q", "weight_k", "weight_v", "bias_q", "bias_k", "bias_v"})
    CHECK(parameter(apart.at(0), module + name) == ParallelParameter{module + name, true, 0, 1, 8});
  CHECK(count(apart.at(0)) == 6);
  const auto fused = plan(sizes, 8, {}, kFusing);
  for (const char* name : {"weight_qkv", "bias_qkv"})
    CHECK_FALSE(parameter(fused.at(0), module + name).tensor_model_parallel);
  CHECK(count(fused.at(0)) == 2);
  for (const auto& stages : {apart, fused}) {
    const auto& specs = stages.at(0).metadata.modules.at(0).specs;
    REQUIRE(specs.size() == 1);
    CHECK(std::get<GQAQKVColumnParallelLinearSpec>(specs[0]).bias);
  }
}

TEST_CASE("An optional buffer is planned, whole, only where the checkpoint has it") {
  const std::string name = "model.layers.1.self_attn.rotary_emb.inv_freq";
  const auto holds = [&](const std::string& asked) { return asked == name; };
  const auto stages = plan_stages(model_of({}), 2, partition_evenly(2, {}), {}, holds);
  CHECK_FALSE(parameter(stages.at(0), name).tensor_model_parallel);
  const Names names = names_of(stages[0]);
  CHECK(std::count_if(names.begin(), names.end(), [](const auto& n) { return n.ends_with("inv_freq"); }) == 1);
}

}  // namespace
}  // namespace reshard::test
