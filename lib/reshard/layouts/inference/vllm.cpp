// What vLLM and SGLang load with --load-format sharded_state: model-rank-R-part-P.safetensors in the model's directory,
// the state dict of each tensor-parallel rank's model object before its weights are processed (vLLM's
// sharded_state_loader.py). Loading is strict, so that files fit the versions alone whose parameters have these names.
#include "reshard/layouts/inference/vllm.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/hf/hf.h"
#include "reshard/layouts/map/placed_rules.h"
#include "reshard/layouts/ranks/rank_layout.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/training/training_layout.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

using Table = std::shared_ptr<const Placement>;
using Part = PartitionRule::Part;

constexpr std::string_view kLmHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::uint64_t kVocabularyMultiple = 64;  // vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE
constexpr std::uint64_t kOneF32 = 0x3F80'0000;

using namespace vllm;

const Architecture& architecture_of(const Model& model) {
  const std::string& type = model.family->model_type;
  const auto found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                  [&](const Architecture& one) { return type == one.model_type; });
  if (found != std::end(kArchitectures)) return *found;
  std::vector<std::string> names;
  for (const Architecture& one : kArchitectures) names.emplace_back(one.model_type);
  throw Error(ErrorKind::kUnsupported, fmt::format("vLLM's names for {} are unknown", printable(type)))
      .hint("known are " + join(names, ", ") + "; vLLM itself loads the Hugging Face directory of any model it serves");
}

void validate_model(const Model& model, const Form& form) {
  const Architecture& architecture = architecture_of(model);
  constexpr const char* kWhole = "SGLang itself loads the Hugging Face directory";
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw Error(ErrorKind::kUnsupported, what).hint(hint);
  };
  const auto known = builtin_family(architecture.model_type);
  if (known == nullptr || model.family->json_text != known->json_text)
    refuse(fmt::format("vLLM's names for {} are known for the built-in description alone", architecture.model_type),
           "leave out `spec`");
  if (model.is_part || model.renamed)
    refuse("vLLM's names for models of several parts, or of other names or heads, are unknown",
           "vLLM itself loads the Hugging Face directory");
  if (!model.quant_method.empty())
    refuse(fmt::format("the model is quantised ({}), and vLLM stores quantised weights in forms of its own",
                       printable(model.quant_method)),
           "vLLM loads the Hugging Face directory of a quantised model itself");
  if (form.version->is_sglang && !architecture.in_sglang)
    refuse(fmt::format("SGLang's tensors of {} are unknown", model.family->model_type), kWhole);
  if (form.version->is_sglang && form.expert_parallel)
    refuse("`enable-expert-parallel` is not supported for SGLang", "leave out `enable-expert-parallel`");
  const bool mlp_bias = std::any_of(model.parameters.begin(), model.parameters.end(), [](const ModelParameter& p) {
    return p.is_bias && p.module.find(".mlp.") != std::string::npos;
  });
  if (form.version->is_sglang && mlp_bias) refuse("SGLang has no place for biases of the MLP", kWhole);
  if (form.expert_parallel && !architecture.takes_experts)
    refuse(fmt::format("`enable-expert-parallel` is not supported for {}", model.family->model_type),
           "leave out `enable-expert-parallel`");
}

/// The last part of a dotted name.
std::string_view leaf_of(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

std::string_view without_leaf(std::string_view name) {
  return name.substr(0, name.rfind('.'));
}

bool is_attention(const ModelParameter& parameter) {
  return parameter.layer && parameter.module.find(".self_attn") != std::string::npos;
}

bool is_vocabulary(const ModelParameter& parameter) {
  return !parameter.layer && parameter.split_dim == 0u && !parameter.is_bias;
}

std::uint64_t padded_vocabulary(std::uint64_t size) {
  return (size + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
}

/// The sizes that the ranks have to divide.
struct Sizes {
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t experts = 0;                  // of a layer
  std::uint64_t expert_size = 0;              // of an expert's hidden layer
  std::map<std::uint64_t, std::string> even;  // sizes that are split evenly, with a tensor that has each
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
        if (parameter.name.ends_with(".sinks")) heads = size;  // of families that do not say how attention is made
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

  /// Why so many ranks cannot have the model; empty if they can.
  std::string problem(std::uint64_t tp, bool expert_parallel) const {
    if (heads % tp != 0) return fmt::format("{} query heads do not divide over {} ranks", heads, tp);
    if (kv_heads % tp != 0 && tp % kv_heads != 0)
      return fmt::format("{} key/value heads neither divide over {} ranks nor divide their number", kv_heads, tp);
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

/// Makes the rules of one model.
class Rules {
 public:
  Rules(const Model& model, const Sizes& sizes, std::uint32_t tp, const Form& form)
      : model_(model),
        architecture_(architecture_of(model)),
        sizes_(sizes),
        tp_(tp),
        form_(form),
        version_(*form.version),
        is_gpt_oss_(model.family->model_type == "gpt_oss"),
        rules_(tp) {
    query_ = table(sizes.heads, sizes.head_dim, [&](std::uint32_t rank) { return equal_share(sizes.heads, rank); });
    key_value_ = table(sizes.kv_heads, sizes.head_dim, [&](std::uint32_t rank) { return kv_heads_of(rank); });
    for (const ModelParameter& parameter : model.parameters) by_name_.emplace(parameter.name, &parameter);
  }

  std::vector<PartitionRule> run() && {
    for (const ModelParameter& parameter : model_.parameters)
      if (!parameter.optional) add(parameter);  // rotary tables, which vLLM computes
    return std::move(rules_).take();
  }

 private:
  void add(const ModelParameter& parameter) {
    if (!parameter.tied_to.empty()) {
      if (architecture_.has_head) add_vocabulary(*by_name_.at(parameter.tied_to), parameter.name);
      return;
    }
    if (is_vocabulary(parameter)) {
      const bool is_stored_as_head = architecture_.has_head && tied_to(parameter.name);
      if (is_stored_as_head) return;  // of two names of one tensor the first in the alphabet is kept
      return add_vocabulary(parameter,
                            is_gpt_oss_ && parameter.name == kEmbedding ? "model.embedding.weight" : parameter.name);
    }
    if (is_attention(parameter) && add_attention(parameter)) return;
    if (parameter.expert) return add_expert(parameter);
    if (parameter.experts != 0) return add_stacked_experts(parameter);
    add_other(parameter);
  }

  bool tied_to(const std::string& name) const {
    return std::any_of(model_.parameters.begin(), model_.parameters.end(),
                       [&](const ModelParameter& parameter) { return parameter.tied_to == name; });
  }

  // Tables.

  template <typename Taken>
  Table table(std::uint64_t units, std::uint64_t unit_elems, Taken&& taken) const {
    Placement placement{units, unit_elems, {}};
    for (std::uint32_t rank = 0; rank < tp_; ++rank) placement.taken.push_back(taken(rank));
    return std::make_shared<const Placement>(std::move(placement));
  }

  static std::vector<std::uint32_t> range(std::uint64_t begin, std::uint64_t count) {
    std::vector<std::uint32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), static_cast<std::uint32_t>(begin));
    return numbers;
  }

  std::vector<std::uint32_t> equal_share(std::uint64_t heads, std::uint32_t rank) const {
    return range(heads / tp_ * rank, heads / tp_);
  }

  /// Fewer heads than ranks are on neighbouring ones.
  std::vector<std::uint32_t> kv_heads_of(std::uint32_t rank) const {
    if (sizes_.kv_heads >= tp_) return equal_share(sizes_.kv_heads, rank);
    return {static_cast<std::uint32_t>(rank / (tp_ / sizes_.kv_heads))};
  }

  /// One of equal parts for each rank.
  Table even(const ModelParameter& parameter, std::uint32_t dim) {
    return rules_.evenly(parameter, dim, parameter.shape[dim]);
  }

  /// All of it on one rank, nothing of it on others.
  Table all_on(std::uint32_t owner, std::uint64_t size) const {
    return table(1, size, [&](std::uint32_t rank) {
      return rank == owner ? std::vector<std::uint32_t>{0} : std::vector<std::uint32_t>{};
    });
  }

  /// The rank that has an expert: neighbours, one more on the first ranks where they do not divide.
  std::uint32_t rank_of_expert(std::uint64_t expert) const {
    const std::uint64_t each = sizes_.experts / tp_, more = sizes_.experts % tp_;
    const std::uint64_t rank = expert < more * (each + 1) ? expert / (each + 1) : (expert - more) / each;
    return static_cast<std::uint32_t>(rank);
  }

  // Modules.

  void add_vocabulary(const ModelParameter& parameter, const std::string& name) {
    const Table rows = rules_.evenly(parameter, 0, padded_vocabulary(parameter.shape[0]));
    rules_.add_placed(name, PartitionLabel::kColumn, 0, {{parameter.name, rows}});
  }

  /// \returns false for what is stored as it is.
  bool add_attention(const ModelParameter& parameter) {
    const std::string module(parameter.name.substr(0, parameter.name.find(".self_attn.") + 10));
    const std::string prefix = (is_gpt_oss_ ? std::string(without_leaf(module)) + ".attn" : module) + ".";
    const std::string qkv = prefix + (is_gpt_oss_ ? version_.gpt_oss_qkv : "qkv_proj");
    const std::string_view linear = leaf_of(parameter.module);
    const std::string leaf = parameter.name.substr(parameter.module.size());
    if (linear == "q_proj") {
      rules_.add_placed(
          qkv + leaf, PartitionLabel::kGroupedQuery, 0,
          {{parameter.name, query_}, {module + ".k_proj" + leaf, key_value_}, {module + ".v_proj" + leaf, key_value_}});
    } else if (linear == "k_proj" || linear == "v_proj") {
      return true;
    } else if (linear == "qkv_proj") {
      const std::uint64_t n = sizes_.heads, k = sizes_.kv_heads;
      const Table packed = table(n + 2 * k, sizes_.head_dim, [&](std::uint32_t rank) {
        std::vector<std::uint32_t> taken = equal_share(n, rank);
        for (const std::uint64_t first : {n, n + k})
          for (const std::uint32_t head : kv_heads_of(rank)) taken.push_back(static_cast<std::uint32_t>(first + head));
        return taken;
      });
      rules_.add_placed(qkv + leaf, PartitionLabel::kGroupedQuery, 0, {{parameter.name, packed}});
    } else if (linear == "o_proj") {
      add_row(parameter, prefix + "o_proj" + leaf);
      if (!parameter.is_bias && version_.has_scales)
        for (const char* scale : {"_k_scale", "_v_scale", "_q_scale", "_prob_scale"})
          rules_.add_constant(prefix + "attn." + scale, DType::kF32, {}, {{kOneF32}});
    } else if (leaf == ".sinks") {
      rules_.add(parameter, prefix + "sinks", 0);
    } else {
      return false;
    }
    return true;
  }

  /// A linear that is split along its inputs.
  void add_row(const ModelParameter& parameter, const std::string& name) {
    rules_.add(parameter, name, parameter.is_bias ? std::nullopt : std::optional<std::uint32_t>(1));
  }

  /// MLPs, shared experts, routers, norms.
  void add_other(const ModelParameter& parameter) {
    const std::string linear(leaf_of(parameter.module));
    const std::string above(without_leaf(parameter.module));
    const std::string leaf = parameter.name.substr(parameter.module.size());
    const std::string name = stored_module(above, linear) + leaf;
    if (linear == "gate_proj") {
      const std::string up = above + ".up_proj" + leaf;
      const Table rows = even(parameter, 0);
      rules_.add_placed(stored_module(above, "gate_up_proj") + leaf, PartitionLabel::kFused, 0,
                        {{parameter.name, rows}, {up, rows}});
    } else if (linear == "up_proj") {
      return;
    } else if (linear == "gate_up_proj") {
      rules_.add(parameter, name, 0);
    } else if (linear == "down_proj") {
      add_row(parameter, name);
    } else if (!parameter.split_dim) {
      rules_.add_whole(name, parameter.name);
    } else {
      throw Error(ErrorKind::kUnsupported, "how vLLM splits it is not known").tensor(parameter.name);
    }
  }

  /// What the version calls a module outside the attention.
  std::string stored_module(const std::string& above, const std::string& linear) const {
    constexpr std::string_view kShared = ".shared_expert";
    if (above.ends_with(kShared))
      return above.substr(0, above.size() - kShared.size() + 1) + version_.shared_expert + "." + linear;
    if (linear == "shared_expert_gate") return above + "." + version_.shared_expert_gate;
    if (linear == "gate" && model_.family->model_type == "qwen3_moe") return above + "." + version_.qwen3_router;
    return above + "." + linear;
  }

  /// Single experts, all of a layer at the first of them.
  void add_expert(const ModelParameter& parameter) {
    if (*parameter.expert != 0) return;
    const std::string_view linear = leaf_of(parameter.module);
    const bool is_mixtral = linear.starts_with('w');
    if (linear != "gate_proj" && linear != "w1") return;
    const std::string layer = parameter.name.substr(0, parameter.name.find(".experts."));
    const std::string stored = layer + "." + version_.experts;
    const auto name_of = [&](std::uint64_t expert, const char* name) {
      return fmt::format("{}.experts.{}.{}.weight", layer, expert, name);
    };
    const std::uint64_t inner = parameter.shape[0], hidden = parameter.shape[1];
    std::vector<Part> gate_up, down;
    for (std::uint64_t expert = 0; expert < parameter.experts; ++expert) {
      const std::uint32_t owner = form_.expert_parallel ? rank_of_expert(expert) : 0;
      const Table rows = form_.expert_parallel ? all_on(owner, inner) : even(parameter, 0);
      const Table columns = form_.expert_parallel ? all_on(owner, hidden) : rows;
      gate_up.push_back({name_of(expert, is_mixtral ? "w1" : "gate_proj"), rows});
      gate_up.push_back({name_of(expert, is_mixtral ? "w3" : "up_proj"), rows});
      down.push_back({name_of(expert, is_mixtral ? "w2" : "down_proj"), columns});
    }
    rules_.add_placed(stored + ".w13_weight", PartitionLabel::kFused, 0, std::move(gate_up)).parts_per_slice = 2;
    PartitionRule& w2 =
        rules_.add_placed(stored + ".w2_weight", PartitionLabel::kRow, form_.expert_parallel ? 0 : 1, std::move(down));
    w2.stack_dim = 0;
    w2.parts_per_slice = 1;
    if (form_.expert_parallel && version_.expert_map != nullptr) add_expert_map(layer + "." + version_.expert_map);
  }

  /// The place of each expert on the rank; -1 where another has it.
  void add_expert_map(const std::string& name) {
    constexpr std::uint64_t kElsewhere = 0xFFFF'FFFF;
    std::vector<std::vector<std::uint64_t>> places(tp_, std::vector<std::uint64_t>(sizes_.experts, kElsewhere));
    std::vector<std::uint64_t> count(tp_);
    for (std::uint64_t expert = 0; expert < sizes_.experts; ++expert) {
      const std::uint32_t rank = rank_of_expert(expert);
      places[rank][expert] = count[rank]++;
    }
    rules_.add_constant(name, DType::kI32, {sizes_.experts}, std::move(places));
  }

  /// gpt_oss's experts, stacked in dim 0. The matrices are stored the other way round.
  void add_stacked_experts(const ModelParameter& parameter) {
    const std::string layer(without_leaf(parameter.module));
    const std::string stored = layer + "." + version_.experts + ".";
    const std::string_view leaf = leaf_of(parameter.name);
    if (leaf == "gate_up_proj") {
      rules_.add_placed(stored + "w13_weight", PartitionLabel::kColumn, 2, {{parameter.name, even(parameter, 2)}})
          .transposed = true;
    } else if (leaf == "gate_up_proj_bias") {
      rules_.add_placed(stored + "w13_bias", PartitionLabel::kColumn, 1, {{parameter.name, even(parameter, 1)}});
    } else if (leaf == "down_proj") {
      rules_.add_placed(stored + "w2_weight", PartitionLabel::kRow, 1, {{parameter.name, even(parameter, 1)}})
          .transposed = true;
    } else if (leaf == "down_proj_bias") {  // added on the first rank alone
      const Table first = table(1, parameter.shape[0],
                                [](std::uint32_t rank) { return std::vector<std::uint32_t>{rank == 0 ? 0u : 1u}; });
      rules_.add_placed(stored + "w2_bias", PartitionLabel::kRow, 0, {{parameter.name, first}});
    } else {
      throw Error(ErrorKind::kUnsupported, "how vLLM stores it is not known").tensor(parameter.name);
    }
  }

  const Model& model_;
  const Architecture& architecture_;
  const Sizes& sizes_;
  std::uint32_t tp_;
  Form form_;
  const Version& version_;
  bool is_gpt_oss_;
  PlacedRules rules_;
  Table query_;
  Table key_value_;
  std::unordered_map<std::string_view, const ModelParameter*> by_name_;
};

/// The numbers in "model-rank-0-part-12.safetensors"; nothing for any other name.
struct FileNumbers {
  std::uint32_t rank = 0;
  std::uint32_t part = 0;
};

std::optional<FileNumbers> numbers_of(std::string_view name) {
  constexpr std::string_view kBegin = "model-rank-", kMiddle = "-part-", kEnd = ".safetensors";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(std::min(kEnd.size(), name.size()));
  const std::size_t middle = name.find(kMiddle);
  if (middle == std::string_view::npos) return std::nullopt;
  const auto rank = parse_unsigned(name.substr(0, middle), kMaxParallelDegree - 1);
  const auto part = parse_unsigned(name.substr(middle + kMiddle.size()), UINT32_MAX - 1);
  if (!rank || !part) return std::nullopt;
  return FileNumbers{static_cast<std::uint32_t>(*rank), static_cast<std::uint32_t>(*part)};
}

constexpr Format kVllmFormats[] = {Format::kSafetensors};
constexpr LayoutTraits kVllmTraits{.name = "vllm",
                                   .reported_as = "vllm",
                                   .meaning = "vLLM's and SGLang's sharded_state",
                                   .folder = "",
                                   .formats = kVllmFormats,
                                   .has_ranks = true,
                                   .casts_to_config_dtype = true};

class VllmLayout final : public RankLayout {
 public:
  const LayoutTraits& traits() const override { return kVllmTraits; }
  std::vector<const LayoutOption*> options() const override { return {&kVersion, &kExpertParallel, &kMaxShardSize}; }

  fs::path part_path(Format, RankId rank, std::uint32_t part) const override {
    return fmt::format("model-rank-{}-part-{}.safetensors", rank.tp_rank, part);
  }
  fs::path rank_path(Format format, RankId rank) const override { return part_path(format, rank, 0); }
  std::string name_of(RankId rank) const override { return fmt::format("model-rank-{}", rank.tp_rank); }
  bool is_rank_name(const fs::path& name) const override { return numbers_of(name.string()).has_value(); }
  std::optional<RankFile> rank_file(Files&, const fs::path& folder, const DirectoryEntry& entry) const override {
    const auto numbers = numbers_of(entry.name);
    if (!numbers || entry.kind != FileKind::kFile) return std::nullopt;
    return RankFile{{numbers->rank}, folder / entry.name, Format::kSafetensors, numbers->part, {}};
  }
  std::vector<fs::path> shards_folders(const fs::path&) const override { return {}; }
  bool keeps_names() const override { return false; }
  bool ranks_are_alike() const override { return false; }  // experts may not divide over ranks

  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    validate_request(request);
    const Model& model = *context.model;
    Form form = form_of(request.options);
    validate_model(model, form);
    TargetPlan plan;
    plan_mesh(plan, request, model);
    if (plan.mesh.tp == 1) form.expert_parallel = false;  // vLLM spreads nothing over one rank
    plan.partition.reset();                               // there are no stages
    plan.cut_names.clear();
    const Sizes sizes(model);
    validate_degree(sizes, plan.mesh.tp, form);
    validate_dtypes(model, context.logical);
    RankTarget target{this, format_of(request)};
    target.max_part_bytes = request.options.number(kMaxShardSize).value();
    const std::vector<PartitionRule> rules = Rules(model, sizes, plan.mesh.tp, form).run();
    plan.without_place = without_place(model, names_in(context.logical));
    plan.map = sharded_target_map(rules, plan.mesh.tp, context.logical, target);
    add_notes(plan, sizes, form);
    return plan;
  }

  /// Loaders read every file of these names: none of another checkpoint may stay beside those that are written.
  void validate_beside(Files& files, const TargetPlan& plan, const fs::path& output_directory) const override {
    validate_no_leftovers(
        files, plan, output_directory, [&](const std::string& name) { return is_rank_name(name); }, "files of ranks");
  }

 protected:
  void explain(ShardedCheckpoint& shards, Checkpoint& checkpoint, const OptionValues&) const override {
    note_unrecorded_ranks(shards, checkpoint);
    const Model& model = *checkpoint.model;
    try {
      Form form;
      validate_model(model, form);
      const Sizes sizes(model);
      validate_ranks(sizes, shards);
      form.expert_parallel = holds_whole_experts(sizes, shards);
      if (const std::string problem = sizes.problem(shards.tp, form.expert_parallel); !problem.empty())
        throw Error(ErrorKind::kBadInput, "by config.json, " + problem)
            .hint("the last ranks are missing, or config.json belongs to another model");
      shards.rules = rules_by_names(model, sizes, shards, form);
    } catch (Error& error) {
      throw error.path().empty() ? error.in(checkpoint.path) : error;
    }
  }

  std::string hint_for_replicas() const override {
    return "files of ranks were swapped or come from different checkpoints, or config.json belongs to another model; "
           "`replicas` first has no effect, as nothing else shows how the parameters are partitioned";
  }

 private:
  static Form form_of(const OptionValues& values) {
    const std::string name = values.choice(kVersion);
    const auto version =
        std::find_if(std::begin(kVersions), std::end(kVersions), [&](const Version& one) { return name == one.name; });
    return {&*version, values.flag(kExpertParallel.name)};
  }

  static void validate_degree(const Sizes& sizes, std::uint32_t tp, const Form& form) {
    const std::string problem = sizes.problem(tp, form.expert_parallel);
    if (problem.empty()) return;
    throw Error(ErrorKind::kUsage, problem).hint(describe_degrees([&](std::uint64_t degree) {
      return sizes.problem(degree, form.expert_parallel).empty();
    }));
  }

  static void validate_dtypes(const Model& model, std::span<const LogicalTensor> logical) {
    if (architecture_of(model).takes_f16) return;
    for (const LogicalTensor& tensor : logical)
      if (tensor.dtype == DType::kF16)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("vLLM does not serve models of {} in float16", model.family->model_type))
            .tensor(tensor.name)
            .hint("convert to bfloat16");
  }

  /// Rotary tables of old checkpoints.
  static std::vector<std::string> without_place(const Model& model, const HoldsName& holds) {
    std::vector<std::string> names;
    for (const ModelParameter& parameter : model.parameters)
      if (parameter.optional && holds(parameter.name)) names.push_back(parameter.name);
    return names;
  }

  static void add_notes(TargetPlan& plan, const Sizes& sizes, const Form& form) {
    if (!plan.without_place.empty())
      plan.notes.push_back("left out, as vLLM computes them: " + list_names(plan.without_place));
    for (const auto& [size, name] : sizes.vocabularies)
      if (padded_vocabulary(size) != size)
        plan.notes.push_back(fmt::format("the vocabulary of {} is padded with zeros to {}, as vLLM has it", size,
                                         padded_vocabulary(size)));
    const std::string version = form.version->name;
    plan.notes.push_back(fmt::format(
        "the files are for {} and its tensor-parallel size of {}{}: {} does not check the size, and refuses other "
        "names",
        form.version->is_sglang ? "SGLang " + version.substr(version.find('-') + 1) : "vLLM " + version, plan.mesh.tp,
        form.expert_parallel ? " with expert parallelism" : "", form.version->is_sglang ? "SGLang" : "vLLM"));
  }

  /// The ranks are as many as the files were made for: each has an equal part of the vocabulary.
  static void validate_ranks(const Sizes& sizes, const ShardedCheckpoint& shards) {
    const Container& first = shards.files.front().front();
    if (sizes.vocabularies.empty()) return;
    const std::uint64_t rows = padded_vocabulary(sizes.vocabularies.begin()->first);
    for (const TensorEntry& tensor : first.tensors) {
      if (tensor.name != kLmHead && tensor.name != kEmbedding && tensor.name != "model.embedding.weight") continue;
      const std::uint64_t own = tensor.shape.empty() ? 0 : tensor.shape[0];
      if (own * shards.tp == rows) return;
      if (own != 0 && rows % own == 0)
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("is of one of {} ranks: it holds {} of {} rows (with padding), but there {}", rows / own, own,
                        rows, shards.tp == 1 ? "is one rank" : fmt::format("are {} ranks", shards.tp)))
            .in(first.path)
            .tensor(tensor.name)
            .hint("copy the files of all ranks here; or config.json belongs to another model");
      return;  // an error about its size comes later
    }
  }

  /// Whether each rank has whole experts, rather than a part of each.
  static bool holds_whole_experts(const Sizes& sizes, const ShardedCheckpoint& shards) {
    if (sizes.experts == 0 || shards.tp == 1) return false;
    const auto& tensors = shards.files.front().front().tensors;
    return std::any_of(tensors.begin(), tensors.end(), [&](const TensorEntry& tensor) {
      return tensor.name.ends_with(".w13_weight") && tensor.shape.size() == 3 &&
             tensor.shape[1] == 2 * sizes.expert_size;
    });
  }

  /// The rules of the newest version whose names are those in the files.
  static std::vector<PartitionRule> rules_by_names(const Model& model, const Sizes& sizes,
                                                   const ShardedCheckpoint& shards, Form form) {
    const Container& file = shards.files.front().front();
    std::set<std::string_view> held;
    for (const TensorEntry& tensor : file.tensors) held.insert(tensor.name);
    const auto is_strange = [&](const PartitionRule& rule) { return held.count(rule.stored_name) == 0; };
    for (const Version& version : kVersions) {
      if (version.is_sglang) continue;  // whose names an older vLLM has, too
      form.version = &version;
      std::vector<PartitionRule> rules = Rules(model, sizes, shards.tp, form).run();
      if (rules.size() == held.size() && std::none_of(rules.begin(), rules.end(), is_strange)) return rules;
    }
    form.version = &kVersions[0];
    std::unordered_set<std::string> known;
    std::string missing;
    for (const PartitionRule& rule : Rules(model, sizes, shards.tp, form).run()) {
      known.insert(rule.stored_name);
      if (missing.empty() && is_strange(rule)) missing = rule.stored_name;
    }
    const auto strange = std::find_if(file.tensors.begin(), file.tensors.end(),
                                      [&](const TensorEntry& tensor) { return known.count(tensor.name) == 0; });
    const bool has_strange = strange != file.tensors.end();
    throw Error(ErrorKind::kBadInput, has_strange
                                          ? "is not a parameter of the model in any known version of vLLM or SGLang"
                                          : "is missing: every known version of vLLM has it")
        .in(file.path)
        .tensor(has_strange ? strange->name : missing)
        .hint(fmt::format("known are {}; config.json may belong to another model, or a file of the rank is missing",
                          fmt::join(kVersionNames, ", ")));
  }
};

}  // namespace

const Layout& vllm_layout() {
  static const VllmLayout kLayout;
  return kLayout;
}

}  // namespace reshard
