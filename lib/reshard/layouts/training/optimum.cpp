// What optimum-neuron writes today: shards/model/dp_rank_00_tp_rank_XX_pp_rank_YY.pt, with metadata and marker files in
// shards/ and trn_config.json in the checkpoint's directory.
#include "reshard/base/json.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/ranks/master_weights.h"
#include "reshard/layouts/training/training_layout.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptimumFolder = "model";
constexpr const char* kTrainingConfigFile = "trn_config.json";
constexpr Format kOptimumFormats[] = {Format::kPytorch, Format::kXser};

LayoutTraits optimum_traits() {
  LayoutTraits traits{"optimum", "optimum", "optimum-neuron's training checkpoints", "shards", kOptimumFormats};
  traits.has_ranks = traits.has_stages = traits.has_experts = traits.whole_folder = traits.holds_adapters = true;
  traits.reads_states = traits.writes_states = traits.writes_groups = true;
  return traits;
}

/// `trn_config.json`, as optimum-neuron saves it beside its shards (TrainingNeuronConfig, which has no word for
/// expert-parallel ranks).
std::string training_config_text(const TargetPlan& plan, const TargetRequest& request) {
  const Mesh& mesh = plan.mesh;
  const auto& attention = plan.attention;
  OrderedJson json;
  json["tensor_parallel_size"] = mesh.tp;
  json["pipeline_parallel_size"] = mesh.pp;
  json["virtual_pipeline_parallel_size"] = mesh.vpp;
  json["kv_size_multiplier"] = nullptr;
  if (const auto multiplier = request.options.number(kKvSizeMultiplier))
    json["kv_size_multiplier"] = *multiplier;
  else if (attention && is_grouped_query(attention->form) &&
           attention->copies != usual_multiplier(attention->kv_heads, mesh.tp))
    json["kv_size_multiplier"] = attention->copies;
  json["fuse_qkv"] = request.options.flag(kFuseQkv.name) || (attention && is_fused(attention->form));
  json["use_xser"] = format_of(request) == Format::kXser;
  json["sequence_parallel_enabled"] = false;
  return json.dump(4);
}

class OptimumLayout final : public TrainingLayout {
 public:
  const LayoutTraits& traits() const override {
    static const LayoutTraits kTraits = optimum_traits();
    return kTraits;
  }

  std::vector<const LayoutOption*> options() const override {
    return {&kFuseQkv, &kKvSizeMultiplier, &kDataParallel, &kWeights, &kOptimizerGroups, &kSourceOptimizerGroups};
  }

  fs::path rank_path(Format, RankId rank) const override {
    return fs::path(traits().folder) / kOptimumFolder / (rank_name(rank, true) + ".pt");
  }
  std::string name_of(RankId rank) const override { return rank_name(rank, true); }
  fs::path weights_folder(const fs::path& shards) const override { return shards / kOptimumFolder; }
  std::optional<fs::path> optimizer_folder(const fs::path& shards) const override { return shards / kOptimizerFolder; }

  bool is_rank_name(const fs::path& name) const override {
    return name.extension() == ".pt" && rank_of_name(name.stem().string()).has_value();
  }

  std::optional<RankFile> rank_file(Files& files, const fs::path& folder, const DirectoryEntry& entry) const override {
    const fs::path path = folder / entry.name;
    if (entry.kind != FileKind::kFile || !is_rank_name(entry.name)) return std::nullopt;
    return RankFile{*rank_of_name(path.stem().string()), path, torch_format_of(files, path)};
  }

  std::vector<TextFile> stage_files(const std::vector<StagePlan>& plans) const override {
    std::vector<TextFile> files = metadata_files(traits().folder, plans);
    for (const char* marker : {kCheckpointMarker, kDoneMarker})
      files.push_back({fs::path(traits().folder) / marker, "1"});
    return files;
  }

  std::vector<TextFile> description_files(const TargetRequest& request, const TargetPlan& plan) const override {
    return {{kTrainingConfigFile, training_config_text(plan, request)}};
  }

  bool owns_folder_name(std::string_view name) const override { return name == traits().folder; }

  /// The trainer has GQAQKVColumnParallelLinear only where the ranks do not divide the heads.
  PartitionOptions options_of(const OptionValues& values, const PartitionOptions& source) const override {
    PartitionOptions options = TrainingLayout::options_of(values, source);
    options.attention = attention_form_of(false, is_fused(options.attention));
    return options;
  }
  bool owns(Files&, const fs::path&, const std::string& name) const override { return name == kTrainingConfigFile; }

 protected:
  std::string loaded_by(const TargetRequest&, const TargetPlan&, const std::vector<StagePlan>&) const override {
    return "optimum-neuron 0.2.0 and later reads these files";
  }
  bool fits(const ShardedCheckpoint& shards) const override { return !shards.metadata.empty(); }
};

}  // namespace

const Layout& optimum_layout() {
  static const OptimumLayout kLayout;
  return kLayout;
}

}  // namespace reshard
