#include "reshard/layouts/ranks/read_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/layouts/contents/equal_pieces.h"
#include "reshard/layouts/contents/equal_ranks.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/config_model.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/core/strangers.h"
#include "reshard/layouts/core/tied_tensors.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/layouts/ranks/adapter_ranks.h"
#include "reshard/layouts/ranks/inferred_stages.h"
#include "reshard/layouts/ranks/other_stages.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/saved_metadata.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/model.h"
#include "reshard/specs/model/planned_sizes.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {
namespace {

constexpr const char* kByMetadata =
    "the metadata defines how its tensors are split in these files, and the plan in config.json (base_model_tp_plan) "
    "how they are split elsewhere";

/// Adds the logical tensors of an expert-parallel rank of a stage, according to its metadata; the files of its other
/// tensor-parallel ranks are equivalent. Tensors that are not listed or whose sizes are not divisible are reported
/// later.
void add_wholes(const ShardedCheckpoint& shards, std::uint32_t pp_rank, std::uint32_t ep_rank,
                std::vector<WholeTensor>& tensors) {
  const Container& file = shards.files[pp_rank][std::size_t{ep_rank} * shards.tp];
  const std::vector<PartitionRule> rules = rules_of_stage(shards, pp_rank);
  std::unordered_map<std::string_view, const PartitionRule*> by_name;
  for (const PartitionRule& rule : rules) by_name.emplace(rule.stored_name, &rule);
  for (const TensorEntry& tensor : file.tensors) {
    const auto rule = by_name.find(tensor.name);
    if (rule == by_name.end()) continue;
    const auto shapes = logical_shapes(*rule->second, ep_rank * shards.tp, tensor.shape);
    if (!shapes) continue;
    for (std::size_t i = 0; i < shapes->size(); ++i)
      tensors.push_back({rule->second->parts[i].logical_name, (*shapes)[i]});
  }
}

/// Returns the model of shards that only the plan in config.json describes. The whole tensors are known from metadata,
/// or from the plan if there is no metadata.
/// \param notes receives information for the user, in whole sentences.
/// \throws as ConfigPlan.
Model planned_model(const ModelConfig& config, const ShardedCheckpoint& shards, Notes& notes) {
  std::vector<WholeTensor> tensors;
  const bool has_metadata = !shards.metadata.empty();
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank) {
    if (has_metadata)
      for (std::uint32_t ep_rank = 0; ep_rank < shards.ep; ++ep_rank) add_wholes(shards, pp_rank, ep_rank, tensors);
    else
      for (const TensorEntry& tensor : shards.files[pp_rank].front().tensors)
        tensors.push_back({tensor.name, tensor.shape});
  }
  const ConfigPlan plan = plan_for(config, tensors, has_metadata ? kByMetadata : kByPlan, notes);
  const OriginalShapes recorded = shards.record ? *shards.record->originals : OriginalShapes{};
  if (!has_metadata)
    for (WholeTensor& tensor : tensors) {
      const auto filled = recorded.find(tensor.name);
      tensor.shape = filled == recorded.end() ? plan.whole_shape(tensor.name, tensor.shape, shards.tp) : filled->second;
    }
  return plan.model(std::move(tensors));
}

/// Validates that the metadata's attention specs have the numbers of heads in config.json. Sizes alone would not show a
/// difference: twice the heads of half the size fit the same files in another order.
void validate_heads(const ShardedCheckpoint& checkpoint, const Model& model) {
  if (checkpoint.metadata.empty()) return;
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    for (const ModuleSpecs& module : checkpoint.metadata[pp_rank].modules)
      for (const TransformationSpec& spec : module.specs) {
        const auto* gqa = std::get_if<GQAQKVColumnParallelLinearSpec>(&spec);
        if (gqa == nullptr || (gqa->num_attention_heads == model.heads && gqa->num_key_value_heads == model.kv_heads))
          continue;
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("the attention spec of {} is for {} query and {} key/value heads, but config.json says {} "
                        "and {}",
                        printable(module.module_fully_qualified_name), gqa->num_attention_heads,
                        gqa->num_key_value_heads, model.heads, model.kv_heads))
            .in(metadata_path(checkpoint, pp_rank));
      }
}

std::string describe_split(const ParallelParameter& parameter) {
  return fmt::format("dim {} {}", parameter.partition_dim,
                     parameter.packed.empty() ? fmt::format("with a stride of {}", parameter.partition_stride)
                                              : fmt::format("as {} packed matrices", parameter.packed.size()));
}

/// Validates that the metadata's entries have the strides and packed matrices of the family's plan. Sizes alone would
/// not show another order of elements. The dim may differ, as sizes show that.
void validate_strides(const ShardedCheckpoint& checkpoint, const Model& model) {
  if (checkpoint.described_in.empty() || checkpoint.tp == 1 || model.by_config_plan) return;
  std::unordered_map<std::string_view, const ModelParameter*> planned;
  for (const ModelParameter& parameter : model.parameters)
    if (parameter.split_dim) planned.emplace(parameter.name, &parameter);
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank)
    for (const ParallelParameter& entry : checkpoint.metadata[pp_rank].parameters) {
      const auto found = planned.find(entry.name);
      if (found == planned.end() || !entry.tensor_model_parallel) continue;
      ParallelParameter expected = own_parameter(*found->second, checkpoint.tp, checkpoint.ep);
      if (expected.partition_dim != entry.partition_dim) expected = {entry.name, true, entry.partition_dim};
      if (entry.partition_stride == expected.partition_stride && entry.packed == expected.packed) continue;
      throw Error(ErrorKind::kBadInput,
                  fmt::format("the metadata splits {}, but family {} splits {}", describe_split(entry),
                              printable(model.family->model_type), describe_split(expected)))
          .in(metadata_path(checkpoint, pp_rank))
          .tensor(entry.name)
          .hint(
              "the metadata is damaged, or config.json belongs to another model; if this model packs its matrices as "
              "in the metadata, describe it with `spec`");
    }
}

/// \throws Error kBadInput, for a module of this stage.
[[noreturn]] void refuse_order(const ShardedCheckpoint& checkpoint, std::uint32_t pp_rank, const std::string& module,
                               const std::vector<std::string>& found, const std::vector<std::string>& expected,
                               const Model& model) {
  throw Error(ErrorKind::kBadInput,
              fmt::format("the metadata fuses {} as {}, but family {} as {}", printable(module), join(found, ", "),
                          printable(model.family->model_type), join(expected, ", ")))
      .in(metadata_path(checkpoint, pp_rank))
      .hint("the metadata is damaged; if this trainer fuses them in this order, describe the model with `spec`");
}

/// Validates that the metadata fuses linears in the order of the family, and projections as the family names them.
/// Sizes alone would not show that two linears are swapped.
void validate_fused_order(const ShardedCheckpoint& checkpoint, const Model& model) {
  const auto& attention = model.family->attention;
  const auto has_same = [](std::vector<std::string> a, std::vector<std::string> b) {
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    return a == b;
  };
  std::vector<std::vector<std::string>> known;
  for (const Family::Fused& fused : model.family->fused) known.push_back(fused.linears);
  if (attention) known.push_back({attention->query, attention->key, attention->value});
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.metadata.size(); ++pp_rank)
    for (const ModuleSpecs& module : checkpoint.metadata[pp_rank].modules)
      for (const TransformationSpec& spec : module.specs) {
        const auto* gqa = std::get_if<GQAQKVColumnParallelLinearSpec>(&spec);
        const std::vector<std::string> found =
            gqa != nullptr
                ? std::vector{gqa->query_projection_name, gqa->key_projection_name, gqa->value_projection_name}
                : std::get<FusedLinearsSpec>(spec).linear_names;
        for (const std::vector<std::string>& expected : known)
          if (found != expected && has_same(found, expected))
            refuse_order(checkpoint, pp_rank, module.module_fully_qualified_name, found, expected, model);
      }
}

/// \throws Error kBadInput for a head that the metadata lists and the files lack, unless config.json ties it.
void validate_head_saved(const ShardedCheckpoint& shards, const Checkpoint& checkpoint) {
  if (!checkpoint.model || !checkpoint.model->tied_by_files.value_or(false)) return;
  for (const TiedParameter& one : tied_parameters(checkpoint.model))
    if (std::find(shards.not_saved.begin(), shards.not_saved.end(), one.name) != shards.not_saved.end())
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is in no file, although the metadata lists it and config.json does not tie it to {}",
                              one.source))
          .in(shards.folder.path)
          .tensor(one.name)
          .hint(
              "the checkpoint is incomplete; if the two are tied, config.json must say \"tie_word_embeddings\": true");
}

void note_left_out(const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  if (shards.not_saved.empty()) return;
  const bool one = shards.not_saved.size() == 1;
  checkpoint.notes
      .left_out(fmt::format("{} that the metadata lists {} not in the files and left out: {}",
                            one ? "a parameter" : "parameters", one ? "is" : "are", list_names(shards.not_saved)))
      .of(shards.not_saved);
}

/// Metadata that torch saved does not contain the number of ranks. Uses config.json to detect that the last ones are
/// missing.
void validate_all_ranks_are_there(const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const bool known_family = checkpoint.model && !checkpoint.model->by_config_plan;
  if (!shards.has_old_metadata || shards.record || known_family) return;
  const ModelConfig& config = checkpoint.language_model.config;
  if (config.json) return validate_stated_sizes(checkpoint.map, config, shards.folder.path);
  checkpoint.notes.assumed(
      fmt::format("neither the rank files nor a config.json record the number of tensor-parallel ranks: there are {}, "
                  "and missing last ranks cannot be detected",
                  shards.tp));
}

constexpr std::string_view kTiedHint =
    "the metadata does not split it, as that of optimum-neuron before 0.0.21 does not split key/value heads that the "
    "ranks do not divide: such ranks contain different heads and cannot be consolidated; otherwise the ranks come from "
    "different checkpoints (`replicas` first has no effect)";

/// Metadata that torch saved may list matrices as equal on every rank although they are not. Norms may drift, but
/// matrices must agree.
void distrust_replicated_matrices(SourceMap& map) {
  for (std::size_t i = 0; i < map.logical.size(); ++i) {
    if (map.logical[i].shape.size() < 2 || map.pieces[i].empty()) continue;
    if (map.stored[map.pieces[i].front().stored].label == PartitionLabel::kReplicated)
      map.logical[i].unconfirmed_hint = kTiedHint;
  }
}

bool is_listed(const ShardedCheckpoint& shards, const std::string& name) {
  for (const std::vector<PartitionRule>& stage : shards.rules)
    for (const PartitionRule& rule : stage)
      if (!rule.parts.empty() && rule.parts.front().logical_name == name) return true;
  return std::any_of(shards.metadata.begin(), shards.metadata.end(), [&](const StageMetadata& stage) {
    return std::any_of(stage.parameters.begin(), stage.parameters.end(),
                       [&](const ParallelParameter& parameter) { return parameter.name == name; });
  });
}

/// Ties the tensors that the files contain but the metadata does not list, regardless of config.json: they can only be
/// aliases of parameters. The tie is refuted if their bytes differ.
void tie_unlisted(const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  for (const TiedParameter& one : possible_ties(checkpoint.model))
    if (!is_listed(shards, one.name) && checkpoint.map.find_logical(one.name))
      for (ModelParameter& parameter : checkpoint.model->parameters)
        if (parameter.name == one.name) parameter.tied_to = one.source;
}

/// Builds the model's map of the shards, whose partition is known.
void read_map(Files& files, ShardedCheckpoint& shards, const ReadContext& context, Checkpoint& checkpoint) {
  shards.other_stages += remove_other_stages(shards, tied_parameters(checkpoint.model));
  std::vector<TiedParameter> tied = possible_ties(checkpoint.model);
  const std::vector<TiedParameter> unlisted =
      list_omitted_tensors(files, shards, checkpoint.model ? tied : std::vector<TiedParameter>{});
  // Without a model, ties are a guess. It is refuted if the metadata lists the tensor or if the bytes differ.
  if (!checkpoint.model) std::erase_if(tied, [&](const TiedParameter& one) { return is_listed(shards, one.name); });
  if (const auto note = other_stages_note(shards)) checkpoint.notes.left_out(*note);
  checkpoint.map = sharded_source_map(shards, tied, unlisted);
  if (checkpoint.model && !shards.metadata.empty()) tie_unlisted(shards, checkpoint);
  if (checkpoint.model)
    settle_ties(files, checkpoint);
  else
    join_tied(files, checkpoint.map, tied);
  if (shards.has_old_metadata) distrust_replicated_matrices(checkpoint.map);
  if (checkpoint.model && (context.use != ConfigUse::kLenient || shards.has_old_metadata)) {
    validate_heads(shards, *checkpoint.model);
    validate_strides(shards, *checkpoint.model);
    validate_fused_order(shards, *checkpoint.model);
    // Metadata defines the partition of tensors of any name.
    const bool may_be_other = context.use == ConfigUse::kRenamed && !shards.metadata.empty();
    if (shards.allows_extra && !may_be_other)
      validate_trained_against_model(checkpoint.map, *checkpoint.model, shards.folder.path);
    else if (!may_be_other)
      validate_against_model(checkpoint.map, *checkpoint.model, shards.folder.path, kSameFamily);
  }
  validate_all_ranks_are_there(shards, checkpoint);
}

/// \throws Error kUnsupported if a name in the files shows that another system than the layout's wrote them.
void refuse_strangers_in(const ShardedCheckpoint& shards, const std::optional<Model>& model) {
  const RankFormat& format = ranks_of(shards.folder);
  for (const auto& of_stage : shards.files) {
    std::vector<std::string_view> names;
    for (const TensorEntry& tensor : of_stage.front().tensors)
      if (format.has_own_name == nullptr || !format.has_own_name(tensor.name)) names.push_back(tensor.name);
    std::unordered_set<std::string_view> explained;
    for (const std::vector<PartitionRule>& rules : shards.rules)
      for (const PartitionRule& rule : rules) explained.insert(rule.stored_name);
    if (auto stranger = stranger_among(names, model ? &*model : nullptr, std::move(explained)))
      throw stranger->in(of_stage.front().path);
  }
}

/// Hint for tensors that count as whole only because the plan does not name them.
constexpr std::string_view kUnplannedHint =
    "the plan in config.json does not name it, so each rank's tensor was assumed to be a replica; if it is split, name "
    "its module in base_model_tp_plan (_tp_plan for a head), as \"colwise\" or \"rowwise\"; otherwise the ranks come "
    "from different checkpoints (`replicas` first has no effect: \"replicate\" in the plan confirms that every rank "
    "has the whole tensor)";

/// Compares the shapes that a plan alone gives with the sizes in config.json.
void validate_plan(Files& files, const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const ModelConfig& text = checkpoint.language_model.config;
  const ModelConfig& outer = read_config(files, checkpoint);
  validate_planned_sizes(*checkpoint.model, text, outer, shards.tp, shards.folder.path);
  const std::set<std::uint64_t> norms = stated_vector_sizes(text, outer);
  for (LogicalTensor& tensor : checkpoint.map.logical) {
    const bool is_norm = tensor.shape.size() == 1 && norms.count(tensor.shape[0]) > 0;
    if (!is_norm && checkpoint.model->assumed_whole.count(tensor.name)) tensor.unconfirmed_hint = kUnplannedHint;
  }
}

constexpr std::string_view kExtraHint =
    "config.json does not explain it, so each rank's tensor was assumed to be a replica; it is split, or the ranks "
    "come from different checkpoints (`replicas` first has no effect)";

constexpr std::string_view kSharedHeadsHint =
    "there are more ranks than num_key_value_heads in config.json, so several ranks should have the same heads: "
    "correct "
    "the number if the model has more key/value heads; otherwise rank files were swapped or come from different "
    "checkpoints (`replicas` first has no effect)";

/// Marks the tensors that a request keeps although they are not known to be whole on every rank.
void distrust_extra_tensors(Checkpoint& checkpoint) {
  std::unordered_set<std::string_view> known;
  for (const ModelParameter& parameter : checkpoint.model->parameters) known.insert(parameter.name);
  for (LogicalTensor& tensor : checkpoint.map.logical)
    if (known.count(tensor.name) == 0) tensor.unconfirmed_hint = kExtraHint;
}

/// Marks key and value projections that ranks share only because config.json has few key/value heads: if they differ,
/// the number may be wrong. Layouts with several ways to replicate heads have a hint on these.
void distrust_shared_heads(Checkpoint& checkpoint) {
  for (const LayoutOption* option : checkpoint.layout->options())
    if (option->of_source && std::string_view(option->name).find("kv-replication") != std::string_view::npos) return;
  const Model& model = *checkpoint.model;
  const std::uint32_t tp = checkpoint.mesh.tp;
  if (!model.family->attention || model.by_config_plan || !needs_gqa_qkv(model.kv_heads, tp)) return;
  const Family::Attention& attention = *model.family->attention;
  std::unordered_set<std::string> shared;
  for (const ModelParameter& parameter : model.parameters)
    if (const auto module = module_in(attention.module, parameter.layer))
      if (parameter.module == *module + "." + attention.key || parameter.module == *module + "." + attention.value)
        shared.insert(parameter.name);
  for (LogicalTensor& tensor : checkpoint.map.logical)
    if (shared.count(tensor.name) > 0) tensor.unconfirmed_hint = kSharedHeadsHint;
}

/// Notes that swapped rank files cannot be detected if the files record their ranks neither in metadata nor in a
/// tensor.
void note_unrecorded_ranks(const ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  if (shards.record || shards.tp == 1) return;
  for (const std::vector<PartitionRule>& stage : shards.rules)
    for (const PartitionRule& rule : stage)
      if (rule.constant && rule.constant->is_rank_number) return;
  checkpoint.notes.assumed("rank files carry no rank number: files that were swapped between ranks cannot be detected");
}

/// Returns the layout that `shards` belong to, among those that use these file names.
const Layout& fitting_layout(Files& files, const ShardedCheckpoint& shards) {
  const auto fits = [&](const RankFormat& ranks) { return ranks.fits == nullptr || ranks.fits(shards); };
  const auto is_other = [&](const Layout* layout) {
    return layout->ranks() != nullptr && layout->ranks()->looks_like(files, shards.folder.path) &&
           fits(*layout->ranks());
  };
  const auto other =
      fits(ranks_of(shards.folder)) ? layouts().end() : std::find_if(layouts().begin(), layouts().end(), is_other);
  return other == layouts().end() ? *shards.folder.layout : **other;
}

/// Reads the adapter in `shards`, whose partition follows from the base model's.
void read_lora(Files& files, ShardedCheckpoint& shards, const ReadContext& context, Checkpoint& checkpoint) {
  if (checkpoint.model->by_config_plan)
    throw Error(ErrorKind::kUnsupported,
                "is a LoRA adapter of a model whose family is unknown, so the trainer's fused linears are unknown")
        .in(checkpoint.path)
        .hint("describe the family, and give the description as `spec`");
  const RankFormat& format = *checkpoint.layout->ranks();
  shards.allows_extra = false;
  format.explain(files, context.options, shards, checkpoint);
  note_unrecorded_ranks(shards, checkpoint);
  checkpoint.partition = chosen_partition(checkpoint, shards.metadata, true);
  finish_lora(files, shards, checkpoint);
  validate_ranks_differ(files, shards, context.use, checkpoint);
  checkpoint.map.inferred_partition_hint = format.hint_for_replicas;
}

/// Fills the map with each rank's tensors as they are stored, since nothing explains how they are split.
void read_as_stored(const ShardedCheckpoint& shards, const Error& why, Checkpoint& checkpoint) {
  for (std::uint32_t pp_rank = 0; pp_rank < shards.pp; ++pp_rank)
    for (std::size_t i = 0; i < shards.files[pp_rank].size(); ++i) {
      const Container& file = shards.files[pp_rank][i];
      const auto tp_rank = static_cast<std::uint32_t>(i % shards.tp),
                 ep_rank = static_cast<std::uint32_t>(i / shards.tp);
      const std::uint32_t first =
          checkpoint.map.add_files(file, {.tp_rank = tp_rank, .pp_rank = pp_rank, .ep_rank = ep_rank});
      const std::string prefix =
          fmt::format("pp.{}.{}tp.{}.", pp_rank, shards.ep > 1 ? fmt::format("ep.{}.", ep_rank) : "", tp_rank);
      for (const TensorEntry& tensor : file.tensors)
        checkpoint.map.add_whole(checkpoint.map.add_stored(tensor, first, PartitionLabel::kUnknown),
                                 prefix + tensor.name);
    }
  checkpoint.notes.assumed(fmt::format(
      "{}: the tensors of each rank are shown as they are stored, with the rank before the name; to convert "
      "them: {}",
      why.what(), why.hint()));
  checkpoint.unexplained = why;
}

/// Returns why ranks without metadata cannot be explained; std::nullopt if their model is known.
std::optional<Error> why_unexplained(const Checkpoint& checkpoint) {
  if (checkpoint.model) return std::nullopt;
  return Error(ErrorKind::kBadInput,
               "has no metadata files (mp_metadata_pp_rank_Y.json) and no config.json of a known family, so its "
               "partition is unknown")
      .in(checkpoint.path)
      .hint(hint_for_model(checkpoint));
}

}  // namespace

PartitionOptions chosen_partition(const Checkpoint& checkpoint, const std::vector<StageMetadata>& stages,
                                  bool inferred) {
  const Model& model = *checkpoint.model;
  PartitionOptions options = recorded_options(stages, model);
  const bool chosen = checkpoint.format != Format::kSafetensors && checkpoint.layout->ranks()->chooses_fused_linears;
  if (!chosen) options.fuse_linears.reset();
  if (!inferred && is_grouped_query(options.attention) && needs_gqa_qkv(model.kv_heads, checkpoint.mesh.tp))
    options.attention = attention_form_of(false, is_fused(options.attention));
  return options;
}

void validate_ranks_differ(Files& files, const ShardedCheckpoint& shards, ConfigUse use, Checkpoint& checkpoint) {
  if (shards.record || shards.tp * shards.ep == 1) return;
  const auto error = find_equal_ranks(files, checkpoint.map, checkpoint.notes);
  if (!error) return;
  if (use != ConfigUse::kLenient) throw Error(*error);
  checkpoint.notes.mismatch(error->with_hint()).in(error->path());
}

void explain_by_config(Files&, const OptionValues&, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  checkpoint.notes.assumed(
      "there are no metadata files, so the partition of the parameters is inferred from config.json");
  infer_stages(shards, *checkpoint.model);
}

Checkpoint read_ranks(Files& files, const FoundLayout& found, const ReadContext& context) {
  Checkpoint checkpoint;
  checkpoint.layout = found.layout;
  checkpoint.path = found.path;
  checkpoint.directory = found.directory;
  find_config(files, checkpoint, context.config);
  LanguageModel described;
  ShardedCheckpoint shards =
      read_sharded_checkpoint(files, found, {}, nullptr, known_model(files, checkpoint, context, described));
  checkpoint.old_names = std::move(shards.old_names);
  checkpoint.layout = &fitting_layout(files, shards);
  const RankFormat& format = *checkpoint.layout->ranks();
  checkpoint.format = shards.format;
  checkpoint.mesh = {shards.tp, shards.pp, 1, shards.ep};
  checkpoint.notes = shards.warnings;
  checkpoint.index_metadata = read_kept_index_metadata(files, checkpoint.directory);
  const bool inferred = shards.metadata.empty();
  if (inferred && checkpoint.layout->traits().holds_adapters()) choose_lora_part(files, context, shards, checkpoint);
  const bool is_adapter = !checkpoint.adapters.empty();
  std::unordered_set<std::string_view> names;
  for (const auto& ranks : shards.files)
    for (std::size_t i = 0; i < ranks.size() && format.keeps_names && !is_adapter; i += shards.tp)
      for (const TensorEntry& tensor : ranks[i].tensors)
        if (format.has_own_name == nullptr || !format.has_own_name(tensor.name)) names.insert(tensor.name);
  read_model(files, checkpoint, context, names,
             [&](const ModelConfig& config, Notes& notes) { return planned_model(config, shards, notes); });
  const bool planned = inferred && checkpoint.model && checkpoint.model->by_config_plan;
  shards.allows_extra = context.extra != ExtraTensors::kRefuse;
  if (inferred && !is_adapter && (!checkpoint.model || checkpoint.model->by_config_plan || shards.allows_extra))
    refuse_strangers_in(shards, checkpoint.model);
  if (const auto why = inferred ? why_unexplained(checkpoint) : std::nullopt) {
    if (context.use != ConfigUse::kLenient) throw Error(*why);
    read_as_stored(shards, *why, checkpoint);
    return checkpoint;
  }
  if (is_adapter) {
    read_lora(files, shards, context, checkpoint);
    return checkpoint;
  }
  try {
    if (inferred) format.explain(files, context.options, shards, checkpoint);
    note_unrecorded_ranks(shards, checkpoint);
    read_map(files, shards, context, checkpoint);
    if (planned) validate_plan(files, shards, checkpoint);
    if (inferred && shards.allows_extra) distrust_extra_tensors(checkpoint);
    if (inferred) distrust_shared_heads(checkpoint);
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kBadInput) refuse_strangers_in(shards, checkpoint.model);
    if (inferred && error.kind() == ErrorKind::kBadInput && format.optimizer)
      format.optimizer->explain_misfit(files, *format.optimizer_in(shards.folder.path), shards, error);
    throw;
  }
  if (checkpoint.model) checkpoint.partition = chosen_partition(checkpoint, shards.metadata, inferred);
  if (inferred) checkpoint.map.inferred_partition_hint = format.hint_for_replicas;
  if (format.optimizer)
    format.optimizer->read(files, *format.optimizer_in(shards.folder.path), shards, context, checkpoint);
  validate_ranks_differ(files, shards, context.use, checkpoint);
  if (planned)
    validate_pieces_differ(files, checkpoint.map);
  else if (inferred && !context.options.has(kKvSizeMultiplier.name))  // the replicated tensors are not declared
    validate_heads_differ(files, checkpoint.map, *checkpoint.model);
  order_tensors(checkpoint);
  if (context.use != ConfigUse::kLenient) validate_head_saved(shards, checkpoint);
  note_left_out(shards, checkpoint);
  if (!inferred) checkpoint.metadata = std::move(shards.metadata);
  return checkpoint;
}

}  // namespace reshard
