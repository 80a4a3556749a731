// NeuronX Distributed's first layout, as optimum-neuron wrote it: tensor_parallel_shards/tp_rank_XX_pp_rank_YY/… with
// mp_metadata_pp_rank_Y.json next to the ranks. Trainers of that time save the optimizer in each rank's file or in the
// same folder. This program reads it there, but does not write it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/optimizer/older_optimizer.h"
#include "reshard/layouts/optimizer/optimizer_beside.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/specs/stages/stage_pt.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRanksFolder = "tensor_parallel_shards";
constexpr Format kRankFormats[] = {Format::kPytorch, Format::kSafetensors, Format::kXser};

constexpr LayoutTraits kRanksTraits = [] {
  LayoutTraits traits{"ranks", "ranks", "optimum-neuron's shards, and NxD's older ones", kRanksFolder, kRankFormats};
  traits.axes = {MeshAxis::kTensor, MeshAxis::kPipeline, MeshAxis::kExpert};
  traits.reads = {Contents::kStates, Contents::kGroups};
  traits.whole_folder = true;
  return traits;
}();

/// Returns the structure that parallel_layers.save writes: the state dict under "model", and next to it the keys that
/// optimum-neuron added.
std::shared_ptr<const SavedValue> saved_ranks(Format format, const StageMetadata& stage,
                                              const std::vector<std::string>& tensors,
                                              const std::vector<TensorAlias>& aliases) {
  if (format == Format::kSafetensors) return nullptr;
  SavedValue::Dict model;
  std::unordered_map<std::string_view, std::uint32_t> numbers;
  for (std::uint32_t number = 0; number < tensors.size(); ++number) {
    numbers.emplace(tensors[number], number);
    model.push_back({tensors[number], {SavedValue::Tensor{number}}});
  }
  for (const TensorAlias& alias : aliases)
    model.push_back({alias.name, {SavedValue::Tensor{numbers.at(alias.source)}}});
  for (const SavedValue::Item& item : model) validate_name_length(std::get<std::string>(item.key));
  SavedValue::Dict root{{"model", {std::move(model)}}};
  if (auto metadata = stage_pt_value(stage))
    for (auto& [key, value] : *metadata) root.push_back({key, {std::move(value)}});
  return std::make_shared<const SavedValue>(SavedValue{std::move(root)});
}

std::string ranks_loaded_by(const TargetRequest& request, const TargetPlan& plan,
                            const std::vector<StagePlan>& stages) {
  const Format format = format_of(request);
  if (format == Format::kSafetensors)
    return "only reshard reads rank files in safetensors; trainers load those of `format` pytorch and xser";
  const bool xser = format == Format::kXser;
  std::string text = fmt::format("NxD's parallel_layers.load loads these files{}", xser ? " with load_xser=True" : "");
  const bool whole = request.options.flag(kWholeEmbeddings.name);
  if (!std::all_of(stages.begin(), stages.end(),
                   [](const StagePlan& stage) { return stage_pt_value(stage.metadata).has_value(); }))
    return text + fmt::format(", into a model with the same fused linears{}", whole ? " and whole embeddings" : "");
  const bool grouped = plan.attention && !plan.attention->ranks.empty();
  if (xser)
    text += grouped ? ", and optimum-neuron 0.0.21" : ", and optimum-neuron 0.0.18 to 0.0.21";
  else if (!grouped && plan.mesh.pp == 1)
    text += ", and optimum-neuron 0.0.15 to 0.0.17";
  return text + (whole ? ", into a model with whole embeddings (disable_embedding_parallelization)" : "");
}

bool fuses_ranks_linears(const TargetRequest& request, const PartitionOptions& source) {
  return format_of(request) == Format::kSafetensors || request.options.flag(kFuseLinears.name) ||
         source.fuse_linears.value_or(false);
}

constexpr Trainer kRanksTrainer{
    .fuses_linears = fuses_ranks_linears,
    .text_files = [](const TargetRequest&, const TargetPlan&,
                     const std::vector<StagePlan>& stages) { return metadata_files(kRanksFolder, stages); },
    .loaded_by = ranks_loaded_by};

constexpr const char* kRanksFolders[] = {kRanksFolder, "shards"};  // NxD's documentation also uses shards/
constexpr const char* kFilesInRanks[] = {kSafetensorsFile, kRankCheckpointFile};

/// NxD's Lightning strategy saves experts in such folders, too.
void explain_ranks(Files& files, const OptionValues& options, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  explain_modules(shards, checkpoint);
  explain_by_config(files, options, shards, checkpoint);
}

constexpr RankFormat kRanksFormat{
    .name = NumberedName("[ep_rank_{ep:2}_]tp_rank_{tp:2}_pp_rank_{pp:2}"),
    .ending = NumberedName(""),
    .read = kRankName,
    .shards_folders = kRanksFolders,
    .own_folder = kRanksFolder,
    .files_in_folder = kFilesInRanks,
    .optimizer = optimizer_in(""),
    .has_xser_info = false,  // optimum-neuron reads every file called tp_rank_… as a rank's
    .has_own_name = has_module_name,
    .chooses_fused_linears = true,
    .saved_form = saved_ranks,
    .explain = explain_ranks};

class RanksLayout final : public Layout {
 public:
  const LayoutTraits& traits() const override { return kRanksTraits; }
  const RankFormat* ranks() const override { return &kRanksFormat; }
  std::vector<const LayoutOption*> options() const override {
    return {&kFuseQkv, &kKvSizeMultiplier, &kFuseLinears, &kWholeEmbeddings, &kWeights, &kSourceOptimizerGroups};
  }
  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    std::vector<FoundLayout> found = recognise_ranks(files, *this, path);
    const fs::path empty = path / kRanksFolder;
    if (found.empty() && files.is_directory(empty)) found.push_back({this, empty, path, true});
    return found;
  }
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override {
    return read_ranks(files, found, context);
  }
  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override {
    return plan_training(*this, kRanksTrainer, request, context);
  }

  /// Files of NxD's older folders, which may contain config.json: metadata, xser ranks, the optimizer.
  bool owns(Files& files, const fs::path& directory, const std::string& name) const override {
    return metadata_pp_rank(name) || is_older_optimizer_name(name) ||
           (kRankName.matches(name) && !files.is_directory(directory / name));
  }
};

}  // namespace

const Layout& ranks_layout() {
  static const RanksLayout kLayout;
  return kLayout;
}

}  // namespace reshard
