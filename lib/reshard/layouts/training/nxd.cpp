// What NxD's training converter writes and its trainer saves: model/dp_rank_00_tp_rank_XX_pp_rank_YY.pt without
// metadata; config.json and the shapes say how parameters are partitioned.
#include <fmt/format.h>

#include <algorithm>

#include "reshard/layouts/core/attention_report.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"
#include "reshard/layouts/ranks/inferred_stages.h"
#include "reshard/layouts/ranks/master_weights.h"
#include "reshard/layouts/training/training_layout.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFolder = "model";
constexpr const char* kSavedFolder = "shards";  // that optimum-neuron saves such ranks in
constexpr Format kNxdFormats[] = {Format::kPytorch, Format::kXser};

std::string why_order_idle(const Checkpoint& checkpoint) {
  if (!checkpoint.model) return "the metadata says the order";
  return checkpoint.partition.kv_size_multiplier.value_or(1) > 1 ? "" : "key/value heads are not replicated";
}

std::string why_source_padding_idle(const Checkpoint& checkpoint) {
  return checkpoint.map.is_padded() ? "" : "no heads are padded";
}

constexpr const char* kOrders[] = {"tiled", "adjacent"};
constexpr LayoutOption kKvReplication{
    .name = "kv-replication",
    .type = LayoutOption::Type::kChoice,
    .help = "Order of replicated key/value heads: tiled (K0 K1 K0 K1, trn1) or adjacent (K0 K0 K1 K1, trn2)",
    .choices = kOrders,
    .default_value = "tiled",
    .of_source = true,
    .source_help = "Order of replicated key/value heads: tiled or adjacent",
    .why_idle = why_replication_idle,
    .why_source_idle = why_order_idle};
constexpr LayoutOption kMultiplier{.name = kKvSizeMultiplier.name,
                                   .type = LayoutOption::Type::kCount,
                                   .help = kKvSizeMultiplier.help,
                                   .of_source = true,
                                   .source_help = "Replicas of each key/value head (default: inferred from the shapes)",
                                   .why_idle = why_multiplier_idle};
constexpr const char* kQkvLinears[] = {"auto", "on", "off"};
constexpr LayoutOption kQkvLinear{
    "qkv-linear", LayoutOption::Type::kChoice,
    "The trainer's qkv_linear that attention is stored for: auto (as in the source; on with kv-size-multiplier), "
    "on or off",
    kQkvLinears};
constexpr LayoutOption kPadSourceHeads{
    .name = kPadHeads.name,
    .type = LayoutOption::Type::kFlag,
    .help = kPadHeads.help,
    .of_source = true,
    .source_help = "The source has padding heads (default: inferred from the shapes)",
    .why_idle = why_padding_idle,
    .why_source_idle = why_source_padding_idle};

LayoutTraits nxd_traits() {
  LayoutTraits traits{"nxd", "nxd", "NxD's training checkpoints", kModelFolder, kNxdFormats};
  traits.has_ranks = traits.has_stages = traits.whole_folder = traits.reads_states = true;
  traits.writes_states = traits.writes_groups = true;
  return traits;
}

/// NxD has modules of its own for experts, whose names and shapes are not those of Hugging Face.
void validate_no_experts(const Model& model) {
  const auto expert = std::find_if(model.parameters.begin(), model.parameters.end(), [&](const ModelParameter& p) {
    // A plan in config.json does not count experts, but names their module as Hugging Face does.
    return p.experts != 0 || (model.by_config_plan && p.name.find(".experts.") != std::string::npos);
  });
  if (expert == model.parameters.end()) return;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("NxD's names and shapes for the experts of {} are unknown", model.family->model_type))
      .tensor(expert->name)
      .hint("known are models without experts; layouts that keep the names of the checkpoint: " +
            layout_names([](const Layout& layout) { return layout.traits().has_experts; }));
}

class NxdLayout final : public TrainingLayout {
 public:
  const LayoutTraits& traits() const override {
    static const LayoutTraits kTraits = nxd_traits();
    return kTraits;
  }
  std::vector<const LayoutOption*> options() const override {
    return {&kFuseQkv,      &kQkvLinear, &kMultiplier,      &kKvReplication,        &kPadSourceHeads,
            &kDataParallel, &kWeights,   &kOptimizerGroups, &kSourceOptimizerGroups};
  }

  fs::path rank_path(Format, RankId rank) const override {
    return fs::path(traits().folder) / (rank_name(rank, true) + ".pt");
  }
  std::string name_of(RankId rank) const override { return rank_name(rank, true); }
  std::vector<fs::path> shards_folders(const fs::path& directory) const override { return {directory / kSavedFolder}; }
  std::string usual_folder() const override { return kSavedFolder; }
  fs::path weights_folder(const fs::path& shards) const override { return shards / kModelFolder; }
  std::optional<fs::path> optimizer_folder(const fs::path& shards) const override { return shards / kOptimizerFolder; }

  bool is_rank_name(const fs::path& name) const override {
    return name.extension() == ".pt" && rank_of_name(name.stem().string()).has_value();
  }

  std::optional<RankFile> rank_file(Files& files, const fs::path& folder, const DirectoryEntry& entry) const override {
    const fs::path path = folder / entry.name;
    if (entry.kind != FileKind::kFile || !is_rank_name(entry.name)) return std::nullopt;
    return RankFile{*rank_of_name(path.stem().string()), path, torch_format_of(files, path)};
  }

  std::optional<Error> explain_missing(Files& files, const fs::path& path) const override {
    if (own_name(files, path) == kOptimizerFolder && has_optimizer_files(files, path))
      return Error(ErrorKind::kBadInput, "holds the optimizer of a checkpoint, and no model")
          .in(path)
          .hint("give the directory above, which holds both: " + directory_above(files, path).string());
    const fs::path above = directory_above(files, path);
    if (own_name(files, above) == kOptimizerFolder && is_rank_name(path.filename()))
      return Error(ErrorKind::kBadInput, "is a file of an optimizer, and holds no tensors of a model")
          .in(path)
          .hint("give the directory that holds both: " + directory_above(files, above).string());
    for (const fs::path& folder : {path, path / kSavedFolder})
      if (has_optimizer_files(files, folder / kOptimizerFolder))
        return Error(ErrorKind::kBadInput,
                     fmt::format("holds an optimizer in {}/, but no model in {}/", kOptimizerFolder, kModelFolder))
            .in(folder)
            .hint(
                fmt::format("copy the folder {} here, too: it says which parameters the states are of", kModelFolder));
    return std::nullopt;
  }

  std::vector<TextFile> stage_files(const std::vector<StagePlan>&) const override { return {}; }

  /// NxD resumes with the master weights of whatever optimizer lies beside the model.
  void validate_beside(Files& files, const TargetPlan& plan, const fs::path& output_directory) const override {
    const bool has_own = std::find(plan.whole_folders.begin(), plan.whole_folders.end(), fs::path(kOptimizerFolder)) !=
                         plan.whole_folders.end();
    if (has_own || !files.exists(output_directory / kOptimizerFolder)) return;
    throw Error(ErrorKind::kBadInput,
                "is the optimizer of another save, whose master weights NxD would take for these weights")
        .in(output_directory / kOptimizerFolder)
        .hint("write the optimizer, too (`with-optimizer`), move it away, or choose another output directory");
  }

  /// NxD has the ranks of a step in the step's folder itself: with weights of Hugging Face in it, it would be read as
  /// these.
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

  PartitionOptions options_of(const OptionValues& values, const PartitionOptions& source) const override {
    PartitionOptions kept = source;
    const std::string qkv_linear = values.choice(kQkvLinear);
    const bool is_auto = qkv_linear == kQkvLinears[0];
    if (!is_auto) kept.attention = AttentionForm::kSeparate;
    PartitionOptions options = TrainingLayout::options_of(values, kept);
    const bool grouped =
        is_auto ? is_grouped_query(kept.attention) || values.has(kMultiplier.name) : qkv_linear == "on";
    options.attention = attention_form_of(grouped, is_fused(options.attention));
    options.replication = kept.replication;
    if (values.has(kKvReplication.name))
      options.replication =
          values.choice(kKvReplication) == "adjacent" ? KvReplication::kAdjacent : KvReplication::kTiled;
    options.pad_heads = values.flag(kPadHeads.name) || kept.pad_heads;
    return options;
  }

 protected:
  void validate_model(const Model& model, std::uint32_t tp, const OptionValues& values) const override {
    validate_no_experts(model);
    if (values.choice(kQkvLinear) == "off" && model.family->attention && needs_gqa_qkv(model.kv_heads, tp))
      throw Error(ErrorKind::kUsage,
                  fmt::format("`qkv-linear` off: {} ranks do not divide {} key/value heads, which then have to be "
                              "replicated",
                              tp, model.kv_heads))
          .hint("leave out `qkv-linear`, or choose a `tp` that divides the key/value heads");
  }

  std::string attention_settings(const AttentionReport& attention, std::uint32_t) const override {
    if (is_grouped_query(attention.form))
      return fmt::format("qkv_linear=1, fuse_qkv={:d}, kv_replicator={}", is_fused(attention.form), attention.copies);
    if (attention.heads != attention.kv_heads) return "qkv_linear=0";
    return fmt::format("qkv_linear=0, fuse_qkv={:d}", is_fused(attention.form));
  }

  std::string loaded_by(const TargetRequest&, const TargetPlan&, const std::vector<StagePlan>&) const override {
    return "NxD 0.6.0 and later loads these files: trainer.load_checkpoint, with the output directory as tag";
  }

  const LayoutOption* padding_option() const override { return &kPadHeads; }
  PartitionOptions padded(PartitionOptions options) const override {
    options.pad_heads = true;
    return options;
  }

  bool fits(const ShardedCheckpoint& shards) const override { return shards.metadata.empty(); }

  void explain(ShardedCheckpoint& shards, Checkpoint& checkpoint, const OptionValues& values) const override {
    if (checkpoint.path.filename() == kSavedFolder)  // NxD has no metadata files, but optimum-neuron saves them
      checkpoint.notes.push_back(
          "there are no metadata files, so the partition of the parameters is inferred from config.json");
    infer_stages(shards, *checkpoint.model, options_of(values, {}));
  }

  std::string hint_for_replicas() const override {
    return "there is no metadata, and the ranks do not fit the inferred partition: files of ranks were swapped or "
           "come from two checkpoints, config.json belongs to another model, or heads are placed in another way "
           "(`from-kv-replication`, `from-kv-size-multiplier`, `from-pad-attn-heads`)";
  }
};

}  // namespace

const Layout& nxd_layout() {
  static const NxdLayout kLayout;
  return kLayout;
}

}  // namespace reshard
