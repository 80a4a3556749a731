// The layout that NxD's training converter writes and its trainer saves: model/dp_rank_00_tp_rank_XX_pp_rank_YY.pt
// without metadata. The partition of parameters is inferred from config.json and the shapes.
#include <fmt/format.h>

#include <algorithm>

#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/optimizer/optimizer_beside.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"
#include "reshard/layouts/ranks/adapter_ranks.h"
#include "reshard/layouts/ranks/inferred_stages.h"
#include "reshard/layouts/ranks/master_weights.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/specs/peft/lora_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFolder = "model";
constexpr const char* kSavedFolder = "shards";  // folder in which optimum-neuron saves such ranks
constexpr Format kNxdFormats[] = {Format::kPytorch, Format::kXser};

std::string why_source_padding_idle(const Checkpoint& checkpoint) {
  return checkpoint.map.is_padded() ? "" : "no heads are padded";
}

constexpr LayoutOption kMultiplier{.name = kKvSizeMultiplier.name,
                                   .type = LayoutOption::Type::kDegree,
                                   .help = kKvSizeMultiplier.help,
                                   .of_source = true,
                                   .source_help = "Replicas of each key/value head (default: inferred from the shapes)",
                                   .why_idle = why_multiplier_idle};
constexpr const char* kQkvLinears[] = {"auto", "on", "off"};
constexpr LayoutOption kQkvLinear{"qkv-linear", LayoutOption::Type::kChoice,
                                  "The trainer's qkv_linear setting to store attention for: auto (as in the source; on "
                                  "with kv-size-multiplier), on or off",
                                  kQkvLinears};
constexpr LayoutOption kPadSourceHeads{
    .name = kPadHeads.name,
    .type = LayoutOption::Type::kFlag,
    .help = kPadHeads.help,
    .of_source = true,
    .source_help = "The source has padding heads (default: inferred from the shapes)",
    .why_idle = why_padding_idle,
    .why_source_idle = why_source_padding_idle};

constexpr LayoutTraits kNxdTraits = [] {
  LayoutTraits traits{"nxd", "nxd", "NxD's training checkpoints", kModelFolder, kNxdFormats};
  traits.axes = {MeshAxis::kTensor, MeshAxis::kPipeline, MeshAxis::kExpert};
  traits.reads = traits.writes = {Contents::kStates, Contents::kGroups, Contents::kAdapters};
  traits.whole_folder = true;
  return traits;
}();

PartitionOptions nxd_options(const OptionValues& values, const PartitionOptions& source) {
  PartitionOptions kept = source;
  const std::string qkv_linear = values.choice(kQkvLinear);
  const bool is_auto = qkv_linear == kQkvLinears[0];
  if (!is_auto) kept.attention = AttentionForm::kSeparate;
  PartitionOptions options = given_or_kept(values, kept);
  const bool grouped = is_auto ? is_grouped_query(kept.attention) || values.has(kMultiplier.name) : qkv_linear == "on";
  options.attention = attention_form_of(grouped, is_fused(options.attention));
  options.replication = kept.replication;
  if (values.has(kKvReplication.name)) options.replication = replication_of(values);
  options.pad_heads = values.flag(kPadHeads.name) || kept.pad_heads;
  return options;
}

/// NxD has its own modules for experts, whose names and shapes differ from Hugging Face's.
void validate_experts_known(const Model& model, const OptionValues& form) {
  if (module_scheme(model, form)) return;
  const auto expert = std::find_if(model.parameters.begin(), model.parameters.end(), [&](const ModelParameter& p) {
    // A plan in config.json does not contain the number of experts, but names their module like Hugging Face.
    return p.experts != 0 || (model.by_config_plan && p.name.find(".experts.") != std::string::npos);
  });
  if (expert == model.parameters.end()) return;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("NxD's names and shapes for the experts of {} are unknown", model.family->model_type))
      .tensor(expert->name)
      .hint("known are those of " + families_with_modules(form) +
            "; layouts that keep the names of the checkpoint: " + layout_names([](const Layout& layout) {
              return layout.traits().has_experts() && layout.traits().name != std::string_view(kNxdTraits.name);
            }));
}

void validate_nxd_model(const Model& model, std::uint32_t tp, const OptionValues& values) {
  const OptionValues form = requested_form(values);
  validate_experts_known(model, form);
  if (values.choice(kModelSource) != kModelSources[0] && !module_scheme(model, form))
    throw Error(ErrorKind::kUnsupported, fmt::format("NxD Training's names for {} with `model-source` {} are unknown",
                                                     model.family->model_type, values.choice(kModelSource)))
        .hint("leave out `model-source`; known are those of " + families_with_modules(form));
  if (values.choice(kQkvLinear) == "off" && model.family->attention && needs_gqa_qkv(model.kv_heads, tp))
    throw Error(
        ErrorKind::kUsage,
        fmt::format("`qkv-linear` off: {} ranks do not divide {} key/value heads, which must then be replicated", tp,
                    model.kv_heads))
        .hint("leave out `qkv-linear`, or choose a `tp` that divides the key/value heads");
}

std::string nxd_settings(const AttentionReport& attention, std::uint32_t) {
  if (is_grouped_query(attention.form))
    return fmt::format("qkv_linear=1, fuse_qkv={:d}, kv_replicator={}", is_fused(attention.form), attention.copies);
  if (attention.heads != attention.kv_heads) return "qkv_linear=0";
  return fmt::format("qkv_linear=0, fuse_qkv={:d}", is_fused(attention.form));
}

void explain_nxd(Files&, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const PartitionOptions heads = nxd_options(options, {});
  (void)options.choice(kRowOrder, "from-");  // an error in it is the user's
  explain_modules(shards, checkpoint, options);
  if (checkpoint.path.filename() == kSavedFolder)  // NxD has no metadata files, but optimum-neuron saves them
    checkpoint.notes.assumed(
        "there are no metadata files, so the partition of the parameters is inferred from config.json");
  infer_stages(shards, *checkpoint.model, heads);
}

constexpr const char* kAdaptersFolder = "lora_adapter";  // the default of LoraConfig.lora_save_dir
constexpr const char* kAdapterTag = "lora";              // in NxD's own scripts

constexpr AdapterForm kNxdAdapters{
    .folder =
        [](const std::string& adapter) {
          return fs::path(kAdaptersFolder) / (adapter == kDefaultAdapter ? kAdapterTag : adapter);
        },
    .omitted = kPeftPrefix,
    .fuse = LoraFuse::kSame,
    .settings = lora_config_value,
    .loaded_by =
        "NxD loads these files with load_lora_from_ckpt, with the folder lora_adapter as lora_save_dir and "
        "the folder in it as lora_load_tag"};

constexpr Trainer kNxdTrainer{
    .options_of = nxd_options,
    .padding = &kPadHeads,
    .names_modules = true,
    .adapters = &kNxdAdapters,
    .validate_model = validate_nxd_model,
    .attention_settings = nxd_settings,
    .text_files = [](const TargetRequest&, const TargetPlan&,
                     const std::vector<StagePlan>&) { return marker_files({}); },
    .loaded_by = [](const TargetRequest&, const TargetPlan&, const std::vector<StagePlan>&) -> std::string {
      return "NxD 0.6.0 and later loads these files: trainer.load_checkpoint, with the output directory as tag";
    }};

constexpr const char* kNxdFolders[] = {kSavedFolder};

constexpr RankFormat kNxdRanks{
    .name = kDpRankName,
    .ending = NumberedName(".pt"),
    .read = kRankFileName,
    .shards_folders = kNxdFolders,
    .weights_folder = kModelFolder,
    .optimizer = optimizer_in(kOptimizerFolder),
    .has_own_name = has_module_name,
    .fits = [](const ShardedCheckpoint& shards) { return shards.metadata.empty(); },
    .explain = explain_nxd,
    .hint_for_replicas =
        "there is no metadata, and the ranks do not fit the inferred partition: rank files were swapped or come from "
        "two checkpoints, config.json belongs to another model, or heads are placed differently "
        "(`from-kv-replication`, `from-kv-size-multiplier`, `from-pad-attn-heads`), or num_key_value_heads in "
        "config.json "
        "is wrong"};

class NxdLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kNxdTraits; }
  const RankFormat* ranks() const override { return &kNxdRanks; }
  std::vector<const LayoutOption*> options() const override {
    return {&kFuseQkv,      &kQkvLinear, &kMultiplier,         &kKvReplication,        &kPadSourceHeads,
            &kModelSource,  &kRowOrder,  &kVocabularyMultiple, &kRoundFactor,          &kLoraPart,
            &kDataParallel, &kWeights,   &kOptimizerGroups,    &kSourceOptimizerGroups};
  }
  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    return recognise_ranks(files, *this, path);
  }
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    return read_ranks(files, found, context);
  }
  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    return plan_training(*this, kNxdTrainer, request, context);
  }

  std::optional<Error> explain_missing(Files& files, const fs::path& path) const override {
    if (own_name(files, path) == kOptimizerFolder && has_optimizer_files(files, path))
      return Error(ErrorKind::kBadInput, "contains an optimizer, but no model")
          .in(path)
          .hint("give the parent directory, which contains both: " + directory_above(files, path).string());
    const fs::path above = directory_above(files, path);
    if (own_name(files, above) == kOptimizerFolder && kRankFileName.matches(path.filename().string()))
      return Error(ErrorKind::kBadInput, "is an optimizer file without model tensors")
          .in(path)
          .hint("give the directory that contains both: " + directory_above(files, above).string());
    for (const fs::path& folder : {path, path / kSavedFolder})
      if (has_optimizer_files(files, folder / kOptimizerFolder))
        return Error(ErrorKind::kBadInput,
                     fmt::format("contains an optimizer in {}/, but no model in {}/", kOptimizerFolder, kModelFolder))
            .in(folder)
            .hint(fmt::format("copy the folder {} here too: it defines the parameters that the states belong to",
                              kModelFolder));
    return std::nullopt;
  }

  /// NxD resumes with the master weights of any optimizer that is next to the model.
  void validate_beside(Files& files, const TargetPlan& plan, const fs::path& output_directory) const override {
    const bool has_own = std::find(plan.whole_folders.begin(), plan.whole_folders.end(), fs::path(kOptimizerFolder)) !=
                         plan.whole_folders.end();
    if (has_own || !files.exists(output_directory / kOptimizerFolder)) return;
    throw Error(ErrorKind::kBadInput,
                "is the optimizer of another save, whose master weights NxD would load for these weights")
        .in(output_directory / kOptimizerFolder)
        .hint("write the optimizer too (`with-optimizer`), move it away, or choose another output directory");
  }

  /// NxD stores the ranks of a step directly in the step's folder. If this folder also contained Hugging Face weights,
  /// it would be read as Hugging Face.
  std::optional<fs::path> default_output(Files& files, const FoundLayout& found) const override {
    if (own_name(files, found.path) == kSavedFolder) return found.directory;
    return std::nullopt;
  }

  bool owns(Files& files, const fs::path& directory, const std::string& name) const override {
    return (name == kCheckpointMarker || name == kDoneMarker || name == kOptimizerFolder) &&
           files.is_directory(directory / kModelFolder);
  }

  bool is_checkpoint(const std::set<std::string>& files, const std::set<std::string>& folders) const override {
    const bool model = folders.count(kModelFolder) > 0, optimizer = folders.count(kOptimizerFolder) > 0;
    const bool marker = files.count(kCheckpointMarker) > 0 || files.count(kDoneMarker) > 0;
    return (model && optimizer) || (marker && (model || optimizer));
  }
};

}  // namespace

const Layout& nxd_layout() {
  static const NxdLayout kLayout;
  return kLayout;
}

}  // namespace reshard
