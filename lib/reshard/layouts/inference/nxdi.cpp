// Checkpoints that NxD Inference loads (save_sharded_checkpoint): the files of shard_checkpoint with NxD Inference's
// own names, replicated and padded heads, and tensors with each rank's number.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/inference/inference_kernels.h"
#include "reshard/layouts/inference/inference_server.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/specs/parallel/head_slots.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Table = std::shared_ptr<const Placement>;

constexpr std::string_view kBasePrefix = "model.";
constexpr std::string_view kLayers = "layers.";  // other checkpoints have a prefix before it
constexpr const char* kRankName = "rank_util.rank";
constexpr const char* kVocabularyRankName = "embed_tokens.rank_util.rank";

constexpr Format kNxdiFormats[] = {Format::kSafetensors};
constexpr LayoutOption kVocabParallel{"vocab-parallel", LayoutOption::Type::kFlag,
                                      "Split the embedding along the vocabulary instead of its columns"};

std::string always_pads(const TargetPlan&, const Model&) {
  return "layout nxdi always pads";
}

constexpr LayoutOption kOwnPad{
    .name = kPad.name, .type = LayoutOption::Type::kFlag, .help = kPad.help, .why_idle = always_pads};
constexpr LayoutOption kOwnPadHeads{
    .name = kPadHeads.name, .type = LayoutOption::Type::kFlag, .help = kPadHeads.help, .why_idle = always_pads};

LayoutTraits nxdi_traits() {
  LayoutTraits traits{"nxdi", "nxdi", "NxD Inference", kServedFolder, kNxdiFormats};
  traits.axes = {MeshAxis::kTensor};
  traits.casts_to_config_dtype = true;
  return traits;
}

/// Returns the built-in families that declare NxD Inference's names.
std::vector<std::string> inference_families() {
  std::vector<std::string> names = known_model_types();
  std::erase_if(names, [](const std::string& name) { return !builtin_family(name)->inference_names; });
  return names;
}

/// Options that are visible in the tensors' names.
struct NxdiForm {
  bool fuse_qkv = false;        // one projection for q, k and v
  bool vocab_parallel = false;  // the embedding is split along the vocabulary, else along its columns

  void add(std::string_view name) {
    if (name.find(kFusedQkvName) != std::string_view::npos) fuse_qkv = true;
    if (name == kVocabularyRankName) vocab_parallel = true;
  }
};

std::string with_or_without(bool with, const LayoutOption& option) {
  return fmt::format("{} `{}`", with ? "with" : "without", option.name);
}

/// Returns the form of tensors with NxD Inference's names; std::nullopt for other names.
std::optional<NxdiForm> form_of(const std::vector<TensorEntry>& tensors) {
  NxdiForm form;
  bool own = false;
  for (const TensorEntry& tensor : tensors) {
    const std::string& name = tensor.name;
    if (name == kRankName || (name.starts_with(kLayers) && name.find(".qkv_proj.") != std::string::npos)) own = true;
    form.add(name);
  }
  if (!own) return std::nullopt;
  return form;
}

/// Refuses two sets of matrices, which NxD Inference stores for prompts and for tokens with context parallelism or
/// attention data parallelism.
void validate_one_set(const Container& file) {
  for (const TensorEntry& tensor : file.tensors) {
    const std::string& name = tensor.name;
    if (name.find(".cte_") == std::string::npos && name.find(".tkg_") == std::string::npos) continue;
    const bool is_mlp = name.find("_mlp.") != std::string::npos;
    throw Error(ErrorKind::kUnsupported, fmt::format("is one of two sets of matrices that a model compiled with {} has",
                                                     is_mlp ? "mlp_cp_degree" : "cp_degree or attention_dp_degree"))
        .in(file.path)
        .tensor(name)
        .hint("two sets are not supported yet: use the model that it was compiled from");
  }
}

/// Validates that NxD Inference's names for the model are known.
void validate_named(const Model& model) {
  if (!model.family->inference_names || model.heads == 0 || model.kv_heads == 0)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("NxD Inference's names for {} are unknown", model.family->model_type))
        .hint(fmt::format("supported are {}; describe others with `spec` and \"nxd_inference\" in it, or choose a "
                          "layout that keeps the checkpoint's names",
                          fmt::join(inference_families(), ", ")));
  if (model.is_part || model.renamed)
    throw Error(ErrorKind::kUnsupported,
                "NxD Inference's names for models of several parts, with another prefix or head, "
                "are unknown")
        .hint("choose a layout that keeps the checkpoint's names");
  if (model.quantized)
    throw Error(ErrorKind::kUnsupported, "layout nxdi has no place for the scales of quantised linears")
        .hint("choose an inference layout that keeps the checkpoint's names");
}

/// Creates the rules of one model.
class NxdiRules {
 public:
  NxdiRules(const Model& model, std::uint32_t tp, const NxdiForm& form)
      : model_(model), tp_(tp), fuse_qkv_(form.fuse_qkv), vocab_parallel_(form.vocab_parallel), rules_(tp) {
    validate_named(model);
    const auto heads = static_cast<std::uint32_t>(model.heads);
    const auto kv_heads = static_cast<std::uint32_t>(model.kv_heads);
    const HeadSlots slots = inference_head_slots(heads, kv_heads, tp);
    query_ = placement_of(slots.query, heads, model.head_dim, tp);
    key_value_ = placement_of(slots.key_value, kv_heads, model.head_dim, tp);
  }

  std::vector<PartitionRule> run(const HoldsName& holds) && {
    rules_.add_rank_number(kRankName);
    if (vocab_parallel_) rules_.add_rank_number(kVocabularyRankName);
    for (std::uint64_t layer = 0; layer < model_.layers; ++layer)
      rules_.add_rank_number(inference_name(attention_module(layer)) + "." + kRankName);
    for (const ModelParameter& parameter : model_.parameters) {
      if (parameter.optional && !holds(parameter.name) && !holds(inference_name(parameter.name))) continue;
      if (parameter.any_shape) continue;  // a buffer, which is computed
      if (!add_attention(parameter)) add(parameter);
    }
    return std::move(rules_).take();
  }

 private:
  std::string attention_module(std::uint64_t layer) const {
    return expand_layer(model_.family->attention->module, layer);
  }

  static std::string inference_name(const std::string& name) {
    return name.starts_with(kBasePrefix) ? name.substr(kBasePrefix.size()) : name;
  }

  void add(const ModelParameter& parameter) {
    const bool embedding =
        parameter.plan == TensorParallelPlan::kEmbeddingRowwise && !parameter.is_bias && parameter.shape.size() == 2;
    const auto dim = embedding && !vocab_parallel_ ? std::optional<std::uint32_t>(1) : parameter.split_dim;
    const bool is_split_as_planned = dim && dim == parameter.split_dim;
    rules_.add(parameter, inference_name(parameter.name), dim,
               is_split_as_planned ? padded_size(model_, parameter, tp_) : 0);
  }

  /// Adds a parameter of attention: a projection, or a module that NxD Inference renames.
  /// \returns false for other parameters.
  bool add_attention(const ModelParameter& parameter) {
    if (!parameter.layer) return false;
    const Family::Attention& names = *model_.family->attention;
    const std::string module = attention_module(*parameter.layer);
    if (!parameter.module.starts_with(module + ".")) return false;
    const std::string linear = parameter.module.substr(module.size() + 1);
    const std::string prefix = inference_name(module) + ".";
    const std::string leaf = parameter.name.substr(parameter.module.size());
    const bool is_query = linear == names.query;
    if (is_query || linear == names.key || linear == names.value) {
      if (!fuse_qkv_)
        rules_.add_placed(prefix + "qkv_proj." + linear + leaf, PartitionLabel::kGroupedQuery, 0,
                          {{parameter.name, {{0, is_query ? query_ : key_value_}}}});
      else if (is_query)
        rules_.add_placed(prefix + kFusedQkvName + leaf, PartitionLabel::kGroupedQuery, 0,
                          {{parameter.name, {{0, query_}}},
                           {module + "." + names.key + leaf, {{0, key_value_}}},
                           {module + "." + names.value + leaf, {{0, key_value_}}}});
    } else if (linear == names.output) {
      const std::string name = prefix + linear + "." + linear + leaf;
      if (parameter.is_bias)
        rules_.add_whole(name, parameter.name);
      else
        rules_.add_placed(name, PartitionLabel::kGroupedQuery, 1, {{parameter.name, {{1, query_}}}});
    } else if (const auto other = model_.family->inference_names->find(linear);
               other != model_.family->inference_names->end()) {
      rules_.add_whole(prefix + other->second + leaf, parameter.name);
    } else {
      return false;
    }
    return true;
  }

  const Model& model_;
  std::uint32_t tp_;
  bool fuse_qkv_;
  bool vocab_parallel_;
  Table query_;
  Table key_value_;
  PlacedRules rules_;
};

void plan_nxdi(TargetPlan& plan, const RankTarget& target, const OptionValues& values, const TargetContext& context) {
  const Model& model = *context.model;
  const std::uint32_t tp = plan.mesh.tp;
  const NxdiForm form{values.flag(kFuseQkv.name), values.flag(kVocabParallel.name)};
  const HoldsName holds = names_in(context.logical);
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.any_shape && holds(parameter.name)) plan.without_place.push_back(parameter.name);
  if (!plan.without_place.empty())
    plan.notes.push_back("left out, because NxD Inference computes them: " + list_names(plan.without_place));
  const Kernels kernels = kernels_of(values).value_or(Kernels{});
  if (kernels.count("qkv") && !form.fuse_qkv)
    throw Error(ErrorKind::kUsage, fmt::format("`{}` qkv applies only to the fused projection", kKernels.name))
        .hint(fmt::format("add `{}`, or leave out qkv: NxD Inference stores the others unchanged", kFuseQkv.name));
  std::vector<PartitionRule> rules = NxdiRules(model, tp, form).run(holds);
  transpose_rules(rules, kernels);
  plan.map = sharded_target_map(rules, tp, context.logical, target);
  plan.attention = inference_report(model, tp, form.fuse_qkv);
}

/// Returns `given`, or else the kernels that neuron_config.json declares. The file is in the weights' directory or its
/// parent; for optimum-neuron, it is next to config.json, two levels up.
OptionValues declared_options(Files& files, const Checkpoint& checkpoint, OptionValues given) {
  if (given.has(kKernels.name)) return given;
  const fs::path above = directory_above(files, checkpoint.path);
  for (const fs::path& directory : {checkpoint.path, above, checkpoint.directory})
    if (const auto form = read_compiled_form(files, directory)) {
      given.set(kKernels.name, kernels_text(form->kernels));
      break;
    }
  return given;
}

void explain_nxdi(Files& files, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const OptionValues declared = declared_options(files, checkpoint, options);
  validate_one_set(shards.files.front().front());
  validate_padded_split(shards, checkpoint);
  const std::vector<TensorEntry>& tensors = shards.files.front().front().tensors;
  std::set<std::string_view> held;
  for (const TensorEntry& tensor : tensors) held.insert(tensor.name);
  const NxdiForm form = form_of(tensors).value_or(NxdiForm{});
  shards.rules =
      NxdiRules(*checkpoint.model, shards.tp, form).run([&](const std::string& name) { return held.count(name) > 0; });
  const std::optional<Kernels> given = kernels_of(declared, "from-");
  const Kernels kernels = kernels_in_files(shards, shards.rules, *checkpoint.model, given);
  if (!kernels.empty() && !given && !shards.record)
    checkpoint.notes.push_back(
        "the weights are transposed for NxD Inference's kernels; without neuron_config.json it is unknown whether "
        "fused_rmsnorm_skip_gamma changed their values");
  transpose_rules(shards.rules, kernels);
  checkpoint.form.set_flag(kFuseQkv.name, form.fuse_qkv);
  checkpoint.form.set_flag(kVocabParallel.name, form.vocab_parallel);
  if (!kernels.empty()) checkpoint.form.set(kKernels.name, kernels_text(kernels));
}

/// Validates that the compiled model in the output directory loads weights in the planned form.
void validate_compiled_form(Files& files, const TargetPlan& plan, const fs::path& output_directory) {
  const auto compiled = read_compiled_form(files, output_directory);
  if (!compiled) return;
  Kernels kernels;
  NxdiForm form;
  for (const StoredTensor& stored : plan.map.stored) {
    if (!stored.is_c_order()) kernels.insert(kernel_of(stored.name.text(), stored.label));
    form.add(stored.name.text());
  }
  std::vector<std::string> needed;
  if (compiled->tp && *compiled->tp != plan.mesh.tp) needed.push_back(fmt::format("with `tp` {}", *compiled->tp));
  if (compiled->fuse_qkv != form.fuse_qkv) needed.push_back(with_or_without(compiled->fuse_qkv, kFuseQkv));
  if (compiled->vocab_parallel != form.vocab_parallel)
    needed.push_back(with_or_without(compiled->vocab_parallel, kVocabParallel));
  if (compiled->kernels != kernels)
    needed.push_back(compiled->kernels.empty()
                         ? with_or_without(false, kKernels)
                         : fmt::format("with `{}` {}", kKernels.name, fmt::join(compiled->kernels, ",")));
  if (needed.empty()) return;
  throw Error(ErrorKind::kBadInput, "belongs to a model that was compiled for weights in another format")
      .in(compiled->file)
      .hint(fmt::format("write them {}, or choose another output directory", join(needed, " and ")));
}

}  // namespace

const Layout& nxdi_layout() {
  static const ServedLayout kLayout(
      {.traits = nxdi_traits(),
       .options = {&kStartRank, &kEndRank, &kFuseQkv, &kVocabParallel, &kKernels, &kOwnPad, &kOwnPadHeads},
       .ranks = served_ranks(
           explain_nxdi,
           [](const ShardedCheckpoint& shards) { return form_of(shards.files.front().front().tensors).has_value(); },
           false),
       .loaded_by = "NxD Inference loads these files for a model that is compiled with save_sharded_checkpoint=True",
       .validate_model = validate_named,
       .plan_ranks = plan_nxdi,
       .validate_beside = validate_compiled_form});
  return kLayout;
}

}  // namespace reshard
