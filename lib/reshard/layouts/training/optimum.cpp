// The layout that optimum-neuron writes today: shards/model/dp_rank_00_tp_rank_XX_pp_rank_YY.pt, with metadata and
// marker files in shards/ and trn_config.json in the checkpoint's directory.
#include "reshard/base/json.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/optimizer/optimizer_beside.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/layouts/ranks/master_weights.h"
#include "reshard/layouts/training/trainer.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptimumShards = "shards";
constexpr const char* kTrainingConfigFile = "trn_config.json";
constexpr Format kOptimumFormats[] = {Format::kPytorch, Format::kXser};

constexpr LayoutTraits kOptimumTraits = [] {
  LayoutTraits traits{"optimum", "optimum", "optimum-neuron's training checkpoints", kOptimumShards, kOptimumFormats};
  traits.axes = {MeshAxis::kTensor, MeshAxis::kPipeline, MeshAxis::kExpert};
  traits.reads = {Contents::kStates, Contents::kGroups, Contents::kAdapters};
  traits.writes = {Contents::kStates, Contents::kGroups, Contents::kAdapters};
  traits.whole_folder = true;
  return traits;
}();

/// Returns `trn_config.json` as optimum-neuron saves it next to its shards (TrainingNeuronConfig, which has no field
/// for expert-parallel ranks).
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

std::vector<TextFile> optimum_files(const TargetRequest& request, const TargetPlan& plan,
                                    const std::vector<StagePlan>& stages) {
  std::vector<TextFile> files = marked_metadata_files(kOptimumShards, stages);
  files.push_back({kTrainingConfigFile, training_config_text(plan, request)});
  return files;
}

constexpr AdapterForm kOptimumAdapters{
    .folder = [](const std::string& adapter) { return adapter_folder(adapter) / kAdapterShardsFolder; }};

constexpr Trainer kOptimumTrainer{
    .options_of = optimum_options,
    .adapters = &kOptimumAdapters,
    .text_files = optimum_files,
    .loaded_by = [](const TargetRequest&, const TargetPlan&, const std::vector<StagePlan>&) -> std::string {
      return "optimum-cli neuron consolidate of optimum-neuron 0.2.0 and later reads these files; its trainer takes "
             "the Hugging Face model";
    }};

constexpr const char* kOptimumFolders[] = {kOptimumShards};

constexpr RankFormat kOptimumRanks{.name = kDpRankName,
                                   .ending = NumberedName(".pt"),
                                   .read = kRankFileName,
                                   .shards_folders = kOptimumFolders,
                                   .weights_folder = "model",
                                   .own_folder = kOptimumShards,
                                   .optimizer = optimizer_in(kOptimizerFolder),
                                   .fits = [](const ShardedCheckpoint& shards) { return !shards.metadata.empty(); }};

class OptimumLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kOptimumTraits; }
  const RankFormat* ranks() const override { return &kOptimumRanks; }
  std::vector<const LayoutOption*> options() const override {
    return {&kFuseQkv, &kKvSizeMultiplier, &kDataParallel, &kWeights, &kOptimizerGroups, &kSourceOptimizerGroups};
  }
  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    return recognise_ranks(files, *this, path);
  }
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    return read_ranks(files, found, context);
  }
  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    return plan_training(*this, kOptimumTrainer, request, context);
  }
  bool owns(Files&, const fs::path&, const std::string& name) const override { return name == kTrainingConfigFile; }
};

}  // namespace

const Layout& optimum_layout() {
  static const OptimumLayout kLayout;
  return kLayout;
}

}  // namespace reshard
