// Checkpoints that vLLM and SGLang load with --load-format sharded_state: model-rank-R-part-P.safetensors in the
// model's directory, with the state dict of each tensor-parallel rank's model before its weights are processed (vLLM's
// sharded_state_loader.py). Loading is strict, so files only work with versions whose parameters have the same names.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/rules/fit_form.h"
#include "reshard/layouts/rules/rank_rules.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/specs/model/quantization.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kProgram = "vllm";
constexpr std::string_view kSglang = "sglang-";        // prefix of SGLang's versions
constexpr std::uint64_t kVllmVocabularyMultiple = 64;  // vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE

/// Returns the versions whose names are known, newest first.
std::span<const char* const> versions() {
  static const std::vector<const char*> kVersions = [] {
    std::vector<const char*> labels;
    for (const auto& scheme : builtin_schemes())
      if (scheme->program == kProgram && labels.empty())
        for (const std::string& label : scheme->versions) labels.push_back(label.c_str());
    return labels;
  }();
  return kVersions;
}

bool is_sglang(std::size_t version) {
  return std::string_view(versions()[version]).starts_with(kSglang);
}

const LayoutOption& version_option() {
  static const LayoutOption kOption{"vllm-version", LayoutOption::Type::kChoice,
                                    "Version of vLLM or SGLang that loads the files", versions(), versions()[0]};
  return kOption;
}

constexpr LayoutOption kExpertParallel{"enable-expert-parallel", LayoutOption::Type::kFlag,
                                       "Give each rank whole experts, for vLLM run with the same option"};

/// Properties of the class of a model_type.
struct Architecture {
  const char* model_type;
  bool has_head = true;        // has an lm_head, which is stored instead of a tied embedding
  bool takes_f16 = true;       // vLLM supports it in float16
  bool in_sglang = false;      // SGLang's class has the same tensors
  bool takes_experts = false;  // supports expert parallelism
};

constexpr Architecture kArchitectures[] = {
    {"gemma", false},
    {"gemma2", false, false},
    {"gemma3_text", true, false},
    {"gpt_oss"},
    {"granite"},
    {"llama", true, true, true},
    {"mistral", true, true, true},
    {"mixtral", true, true, true, true},
    {"phi3", true, true, true},
    {"qwen2", true, true, true},
    {"qwen2_moe", true, true, true, true},
    {"qwen3", true, true, true},
    {"qwen3_moe", true, true, true, true},
};

/// Returns the version in the form of a checkpoint, as an index into versions().
std::size_t version_in(const OptionValues& form) {
  const auto version = std::find(versions().begin(), versions().end(), form.choice(version_option()));
  return static_cast<std::size_t>(version - versions().begin());
}

OptionValues with_version(std::size_t version) {
  OptionValues form;
  form.set(version_option().name, versions()[version]);
  return form;
}

bool is_expert_parallel(const OptionValues& form) {
  return form.flag(kExpertParallel.name);
}

const Architecture& architecture_of(const Model& model) {
  const std::string& type = model.family->model_type;
  const auto found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                  [&](const Architecture& one) { return type == one.model_type; });
  if (found != std::end(kArchitectures)) return *found;
  std::vector<std::string> names;
  for (const Architecture& one : kArchitectures) names.emplace_back(one.model_type);
  throw Error(ErrorKind::kUnsupported, fmt::format("vLLM's names for {} are unknown", printable(type)))
      .hint("supported are " + join(names, ", ") +
            "; vLLM itself loads the Hugging Face directory of any model it serves");
}

void validate_model(const Model& model, const OptionValues& form) {
  const Architecture& architecture = architecture_of(model);
  constexpr const char* kWhole = "SGLang itself loads the Hugging Face directory";
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw Error(ErrorKind::kUnsupported, what).hint(hint);
  };
  const auto known = builtin_family(architecture.model_type);
  if (known == nullptr || model.family->json_text != known->json_text)
    refuse(fmt::format("vLLM's names for {} are known only for the built-in description", architecture.model_type),
           "leave out `spec` if config.json describes the same model; vLLM itself loads the Hugging Face directory");
  if (model.is_part || model.renamed)
    refuse("vLLM's names for models of several parts, or of other names or heads, are unknown",
           "vLLM itself loads the Hugging Face directory");
  if (!model.quant_method.empty())
    refuse(fmt::format("the model is quantised ({}), and vLLM stores quantised weights in its own formats",
                       printable(model.quant_method)),
           fmt::format("vLLM loads the Hugging Face directory of a quantised model itself{}",
                       is_dequantized(model.quant_method) ? "; or dequantise it: set `dtype` to bfloat16" : ""));
  if (is_sglang(version_in(form)) && !architecture.in_sglang)
    refuse(fmt::format("SGLang's tensors of {} are unknown", model.family->model_type), kWhole);
  if (is_sglang(version_in(form)) && is_expert_parallel(form))
    refuse("`enable-expert-parallel` is not supported for SGLang", "leave out `enable-expert-parallel`");
  const bool mlp_bias = std::any_of(model.parameters.begin(), model.parameters.end(), [](const ModelParameter& p) {
    return p.is_bias && p.module.find(".mlp.") != std::string::npos;
  });
  if (is_sglang(version_in(form)) && mlp_bias) refuse("SGLang has no place for biases of the MLP", kWhole);
  if (is_expert_parallel(form) && !architecture.takes_experts)
    refuse(fmt::format("`enable-expert-parallel` is not supported for {}", model.family->model_type),
           "leave out `enable-expert-parallel`");
}

/// Returns the last part of a dotted name.
std::string_view leaf_of(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

bool is_attention(const ModelParameter& parameter) {
  return parameter.layer && parameter.module.find(".self_attn") != std::string::npos;
}

bool is_vocabulary(const ModelParameter& parameter) {
  return !parameter.layer && parameter.split_dim == 0u && !parameter.is_bias;
}

std::uint64_t padded_vocabulary(std::uint64_t size) {
  return rounded_up(size, kVllmVocabularyMultiple);
}

/// Sizes that the ranks must divide.
struct Sizes {
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t experts = 0;                  // experts per layer
  std::uint64_t expert_size = 0;              // size of an expert's hidden layer
  std::map<std::uint64_t, std::string> even;  // evenly split sizes, each with a tensor that has it
  std::map<std::uint64_t, std::string> of_experts;
  std::map<std::uint64_t, std::string> vocabularies;

  explicit Sizes(const Model& model) : heads(model.heads), kv_heads(model.kv_heads), head_dim(model.head_dim) {
    for (const ModelParameter& parameter : model.parameters) {
      if (!parameter.split_dim) continue;
      const std::uint64_t size = parameter.shape[*parameter.split_dim];
      const std::string_view linear = leaf_of(parameter.module);
      if (is_vocabulary(parameter)) {
        vocabularies.emplace(size, parameter.name);
      } else if (is_attention(parameter)) {
        if (parameter.name.ends_with(".sinks")) heads = size;  // for families that do not declare attention
        if (linear == "qkv_proj" && parameter.heads != 0) {
          kv_heads = parameter.heads;
          head_dim = parameter.packed.at(1).size / kv_heads;
          heads = parameter.packed.at(0).size / head_dim;
        }
        if (linear == "k_proj" && parameter.heads != 0) {
          kv_heads = parameter.heads;
          head_dim = size / kv_heads;
        }
      } else if (parameter.experts != 0) {
        of_experts.emplace(size, parameter.name);
        experts = parameter.experts;
        if (linear == "gate_proj" || linear == "w1") expert_size = size;
      } else {
        even.emplace(parameter.packed.empty() ? size : parameter.packed.front().size, parameter.name);
      }
    }
  }

  /// Returns why the model cannot be split over `tp` ranks; empty if it can.
  std::string problem(std::uint64_t tp, bool expert_parallel) const {
    if (heads % tp != 0) return fmt::format("{} query heads do not divide over {} ranks", heads, tp);
    if (kv_heads % tp != 0 && tp % kv_heads != 0)
      return fmt::format("{} key/value heads neither divide over {} ranks nor divide the number of ranks", kv_heads,
                         tp);
    for (const auto& [size, name] : vocabularies)
      if (padded_vocabulary(size) % tp != 0)
        return fmt::format("{} has {} rows, with vLLM's padding {}, which {} ranks do not divide", name, size,
                           padded_vocabulary(size), tp);
    if (expert_parallel && tp > experts) return fmt::format("{} experts are fewer than {} ranks", experts, tp);
    for (const auto* sizes : {&even, expert_parallel ? &even : &of_experts})
      for (const auto& [size, name] : *sizes)
        if (size % tp != 0) return fmt::format("{} has a size of {}, which {} ranks do not divide", name, size, tp);
    return {};
  }
};

/// Returns vLLM's names of the model's tensors.
WrittenNames names_of(const Model& model, std::size_t version) {
  return {model, builtin_scheme(kProgram, *model.family), version};
}

/// Returns the parameters that vLLM stores: without rotary tables, which it computes, and one of two tied ones.
Model served_model(const Model& model) {
  std::set<std::string> tied_to;
  for (const ModelParameter& parameter : model.parameters) tied_to.insert(parameter.tied_to);
  const bool has_head = architecture_of(model).has_head;
  Model served = model;
  std::erase_if(served.parameters, [&](const ModelParameter& parameter) {
    return parameter.optional || (has_head ? tied_to.count(parameter.name) > 0 : !parameter.tied_to.empty());
  });
  return served;
}

/// Returns how `tp` ranks share a model: equally, or all on the first of ranks that are summed. If there are fewer
/// key/value heads than ranks, neighbouring ranks have the same head.
RankShares shares_of(const Sizes& sizes, std::uint32_t tp, const OptionValues& form) {
  RankShare usual{tp, std::vector<std::uint32_t>(tp), {}}, first{1, std::vector<std::uint32_t>(tp, 1), {}};
  std::iota(usual.of_rank.begin(), usual.of_rank.end(), 0u);
  first.of_rank[0] = 0;
  usual.slots.query.resize(sizes.heads);
  std::iota(usual.slots.query.begin(), usual.slots.query.end(), 0u);
  const std::uint64_t slots = std::max<std::uint64_t>(sizes.kv_heads, tp);
  for (std::uint64_t slot = 0; slot < slots; ++slot)
    usual.slots.key_value.push_back(static_cast<std::uint32_t>(slot / (slots / sizes.kv_heads)));
  RankShares shares;
  shares.usual = {{"", std::move(usual)}, {"first", std::move(first)}};
  shares.experts = {{"", is_expert_parallel(form) ? ExpertShare{1, tp} : ExpertShare{tp, 1}}};
  shares.padded = [](const ModelParameter& parameter, std::uint32_t) {
    const std::uint64_t size = parameter.shape[parameter.split_dim.value_or(0)];
    return is_vocabulary(parameter) ? padded_vocabulary(size) : size;
  };
  return shares;
}

std::vector<PartitionRule> rules_of(const Model& model, const Sizes& sizes, std::uint32_t tp,
                                    const OptionValues& form) {
  const Model served = served_model(model);
  const WrittenNames names = names_of(served, version_in(form));
  const RankShares shares = shares_of(sizes, tp, form);
  std::vector<PartitionRule> rules = RankRules(served, names, shares, tp).run([](const std::string&) { return false; });
  for (PartitionRule& rule : rules) rule.tied = false;  // the other name is not stored
  return rules;
}

constexpr Format kVllmFormats[] = {Format::kSafetensors};
constexpr LayoutTraits kVllmTraits{.name = "vllm",
                                   .reported_as = "vllm",
                                   .meaning = "vLLM's and SGLang's sharded_state",
                                   .folder = "",
                                   .formats = kVllmFormats,
                                   .axes = {MeshAxis::kTensor},
                                   .casts_to_config_dtype = true};

void validate_served_degree(const Sizes& sizes, std::uint32_t tp, const OptionValues& form) {
  const std::string problem = sizes.problem(tp, is_expert_parallel(form));
  if (problem.empty()) return;
  throw Error(ErrorKind::kUsage, problem).hint(describe_degrees([&](std::uint64_t degree) {
    return sizes.problem(degree, is_expert_parallel(form)).empty();
  }));
}

void validate_served_dtypes(const Model& model, std::span<const LogicalTensor> logical) {
  if (architecture_of(model).takes_f16) return;
  for (const LogicalTensor& tensor : logical)
    if (tensor.dtype == DType::kF16)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("vLLM does not serve models of {} in float16", model.family->model_type))
          .tensor(tensor.name)
          .hint("convert to bfloat16");
}

/// Returns the names of rotary tables, which old checkpoints contain.
std::vector<std::string> names_without_place(const Model& model, const HoldsName& holds) {
  std::vector<std::string> names;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.optional && holds(parameter.name)) names.push_back(parameter.name);
  return names;
}

/// Returns a version in words: "vLLM 0.11.0".
std::string describe_version(std::size_t version) {
  const std::string_view label = versions()[version];
  return is_sglang(version) ? fmt::format("SGLang {}", label.substr(kSglang.size())) : fmt::format("vLLM {}", label);
}

/// Returns the version of SGLang that has the same names as an older vLLM, as an addition to its name; empty if none.
std::string describe_same_names(const Model& model, const Sizes& sizes, std::uint32_t tp, const OptionValues& form) {
  const std::size_t own = version_in(form);
  if (is_sglang(own) || own == 0 || is_expert_parallel(form)) return {};
  if (!architecture_of(model).in_sglang) return {};
  const auto stored_names = [&](std::size_t version) {
    std::set<std::string> names;
    for (const PartitionRule& rule : rules_of(model, sizes, tp, with_version(version))) names.insert(rule.stored_name);
    return names;
  };
  for (std::size_t version = own + 1; version < versions().size(); ++version)
    if (is_sglang(version) && stored_names(version) == stored_names(own))
      return fmt::format(" or {}, which has the same names,", describe_version(version));
  return {};
}

void note_served(TargetPlan& plan, const Model& model, const Sizes& sizes, const OptionValues& form) {
  if (!plan.without_place.empty())
    plan.notes.left_out("left out, as vLLM computes them: " + list_names(plan.without_place)).of(plan.without_place);
  for (const auto& [size, name] : sizes.vocabularies)
    if (padded_vocabulary(size) != size)
      plan.notes.changed(fmt::format("padded the vocabulary from {} to {} with zeros, as vLLM requires", size,
                                     padded_vocabulary(size)));
  plan.notes.hint(fmt::format(
      "the files are for {}{} and its tensor-parallel size of {}{}: {} does not check the size, and "
      "refuses other names",
      describe_version(version_in(form)), describe_same_names(model, sizes, plan.mesh.tp, form), plan.mesh.tp,
      is_expert_parallel(form) ? " with expert parallelism" : "", is_sglang(version_in(form)) ? "SGLang" : "vLLM"));
}

/// Returns the names of the embedding and the head, which are equal in all versions.
std::set<std::string> vocabulary_names(const Model& model) {
  std::set<std::string> vocabulary, names;
  for (const ModelParameter& parameter : model.parameters)
    if (is_vocabulary(parameter)) vocabulary.insert(parameter.name);
  const WrittenNames all = names_of(model, 0);
  for (const WrittenNames::Entry& entry : all.entries())
    if (entry.constant == nullptr && vocabulary.count(entry.tensors.front()) > 0) names.insert(entry.name);
  return names;
}

/// Validates the number of ranks by the vocabulary's rows, since each rank has an equal part of them.
void validate_served_ranks(const Model& model, const Sizes& sizes, const ShardedCheckpoint& shards) {
  const Container& first = shards.files.front().front();
  if (sizes.vocabularies.empty()) return;
  const std::uint64_t rows = padded_vocabulary(sizes.vocabularies.begin()->first);
  const std::set<std::string> names = vocabulary_names(model);
  for (const TensorEntry& tensor : first.tensors) {
    if (names.count(tensor.name) == 0) continue;
    const std::uint64_t own = tensor.shape.empty() ? 0 : tensor.shape[0];
    if (own * shards.tp == rows) return;
    if (own != 0 && rows % own == 0)
      throw Error(
          ErrorKind::kBadInput,
          fmt::format("belongs to one of {} ranks: it contains {} of {} rows (with padding), but there {}", rows / own,
                      own, rows, shards.tp == 1 ? "is one rank" : fmt::format("are {} ranks", shards.tp)))
          .in(first.path)
          .tensor(tensor.name)
          .hint("copy the files of all ranks here; or config.json belongs to another model");
    return;  // another check reports the size
  }
}

/// Returns the form of the files, of the newest version whose names they have.
OptionValues served_form(const Model& model, const Sizes& sizes, const ShardedCheckpoint& shards) {
  const Container& file = shards.files.front().front();
  const RuleShapes shapes(model);
  std::vector<Unknown> unknowns{{&version_option(), {}}, {&kExpertParallel, {""}}};
  for (std::size_t version = 0; version < versions().size(); ++version)
    if (!is_sglang(version))
      unknowns.front().values.emplace_back(versions()[version]);  // which has names of an older vLLM
  if (sizes.experts != 0 && shards.tp > 1) unknowns.back().values.emplace_back("true");
  const auto misfits_with = [&](const OptionValues& form) {
    if (const std::string problem = sizes.problem(shards.tp, is_expert_parallel(form)); !problem.empty())
      throw Error(ErrorKind::kUsage, problem);
    return file_misfits(file, rules_of(model, sizes, shards.tp, form), shapes);
  };
  OptionValues form;
  if (fit_form(form, unknowns, [&](const OptionValues& tried) { return misfits_with(tried).count; })) return form;
  try {
    const FileMisfits misfits = misfits_with(form);
    if (misfits.strange.empty() && misfits.missing.empty()) return form;  // another check reports the shape
    const bool has_strange = !misfits.strange.empty();
    throw Error(ErrorKind::kBadInput, has_strange
                                          ? "is not a parameter of the model in any known version of vLLM or SGLang"
                                          : "is missing: every known version of vLLM has it")
        .in(file.path)
        .tensor(has_strange ? misfits.strange : misfits.missing)
        .hint(fmt::format("supported are {}; config.json may belong to another model, or a file of the rank is missing",
                          fmt::join(versions(), ", ")));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw;
    throw Error(ErrorKind::kBadInput, "according to config.json, " + error.message())
        .hint("the last ranks are missing, or config.json belongs to another model");
  }
}

void explain_vllm(Files&, const OptionValues&, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const Model& model = *checkpoint.model;
  try {
    validate_model(model, {});
    const Sizes sizes(model);
    validate_served_ranks(model, sizes, shards);
    checkpoint.form = served_form(model, sizes, shards);
    shards.rules = {rules_of(model, sizes, shards.tp, checkpoint.form)};
  } catch (Error& error) {
    throw error.path().empty() ? error.in(checkpoint.path) : error;
  }
}

constexpr RankFormat kVllmRanks{
    .name = NumberedName("model-rank-{tp}"),
    .ending = NumberedName("-part-{part}.safetensors"),
    .read = NumberedName("model-rank-{tp}-part-{part}.safetensors", UINT32_MAX - 1),
    .keeps_names = false,
    .ranks_are_alike = false,  // ranks may have different numbers of experts
    .explain = explain_vllm,
    .hint_for_replicas =
        "rank files were swapped or come from different checkpoints, or config.json belongs to another model; "
        "`replicas` first has no effect, as nothing else shows how the parameters are partitioned"};

class VllmLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kVllmTraits; }
  const RankFormat* ranks() const override { return &kVllmRanks; }
  std::vector<const LayoutOption*> options() const override {
    return {&version_option(), &kExpertParallel, &kMaxShardSize};
  }
  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    return recognise_ranks(files, *this, path);
  }
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    return read_ranks(files, found, context);
  }

  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    const Model& model = *context.model;
    OptionValues form = request.options;
    validate_model(model, form);
    TargetPlan plan;
    plan_mesh(plan, request, model);
    if (plan.mesh.tp == 1) form.erase(kExpertParallel.name);  // vLLM does not distribute experts over one rank
    plan.partition.reset();                                   // there are no stages
    plan.cut_names.clear();
    const Sizes sizes(model);
    validate_served_degree(sizes, plan.mesh.tp, form);
    validate_served_dtypes(model, context.logical);
    RankTarget target{this, format_of(request)};
    target.max_part_bytes = request.options.number(kMaxShardSize).value();
    const std::vector<PartitionRule> rules = rules_of(model, sizes, plan.mesh.tp, form);
    plan.without_place = names_without_place(model, names_in(context.logical));
    plan.map = sharded_target_map(rules, plan.mesh.tp, context.logical, target);
    note_served(plan, model, sizes, form);
    return plan;
  }

  /// Refuses rank files of another checkpoint, since loaders read all files with these names.
  void validate_beside(Files& files, const TargetPlan& plan, const fs::path& output_directory) const override {
    validate_no_leftovers(
        files, plan, output_directory, [](const std::string& name) { return kVllmRanks.numbers(name).has_value(); },
        "files of ranks");
  }
};

}  // namespace

const Layout& vllm_layout() {
  static const VllmLayout kLayout;
  return kLayout;
}

}  // namespace reshard
