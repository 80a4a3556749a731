// NeuronX Distributed's first form, as optimum-neuron wrote it: tensor_parallel_shards/tp_rank_XX_pp_rank_YY/… with
// mp_metadata_pp_rank_Y.json beside the ranks. Trainers of that time have the optimizer beside the weights, in each rank's
// file or in the same folder; this program reads it there and does not write it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "reshard/base/error.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/optimizer/older_optimizer.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/training/training_layout.h"
#include "reshard/specs/stages/stage_json.h"
#include "reshard/specs/stages/stage_pt.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr Format kRankFormats[] = {Format::kSafetensors, Format::kPytorch, Format::kXser};

LayoutTraits make_traits() {
  LayoutTraits traits{"ranks", "ranks", "optimum-neuron's shards, and NxD's older ones", "tensor_parallel_shards",
                      kRankFormats};
  traits.has_ranks = traits.has_stages = traits.has_experts = traits.whole_folder = traits.reads_states = true;
  return traits;
}

class RanksLayout final : public TrainingLayout {
 public:
  const LayoutTraits& traits() const override {
    static const LayoutTraits kTraits = make_traits();
    return kTraits;
  }

  std::vector<const LayoutOption*> options() const override {
    return {&kFuseQkv, &kKvSizeMultiplier, &kFuseLinears, &kWeights, &kSourceOptimizerGroups};
  }

  fs::path rank_path(Format format, RankId rank) const override {
    const fs::path path = fs::path(traits().folder) / rank_name(rank, false);
    switch (format) {
      case Format::kSafetensors: return path / kSafetensorsFile;
      case Format::kPytorch: return path / kRankCheckpointFile;
      case Format::kXser: return path;
    }
    return {};
  }

  /// NxD's documentation has them in shards/, too.
  std::vector<fs::path> shards_folders(const fs::path& directory) const override {
    return {directory / traits().folder, directory / "shards"};
  }
  std::optional<fs::path> optimizer_folder(const fs::path& shards) const override { return shards; }

  bool is_rank_name(const fs::path& name) const override { return rank_of_name(name.string()).has_value(); }

  std::optional<RankFile> rank_file(Files& files, const fs::path& folder, const DirectoryEntry& entry) const override {
    const auto rank = rank_of_name(entry.name);
    if (!rank) return std::nullopt;
    const fs::path path = folder / entry.name;
    if (entry.kind == FileKind::kFile) return RankFile{*rank, path, torch_format_of(files, path)};
    const fs::path safetensors = path / kSafetensorsFile;
    const fs::path pytorch = path / kRankCheckpointFile;
    if (files.exists(safetensors) && files.exists(pytorch))
      throw Error(ErrorKind::kBadInput, "holds both model.safetensors and checkpoint.pt")
          .in(path)
          .hint("these are two checkpoints in one place; move one away");
    if (files.exists(safetensors)) return RankFile{*rank, safetensors, Format::kSafetensors};
    if (files.exists(pytorch)) return RankFile{*rank, pytorch, torch_format_of(files, pytorch)};
    throw Error(ErrorKind::kBadInput, "holds neither model.safetensors nor checkpoint.pt").in(path);
  }

  std::vector<FoundLayout> recognise(Files& files, const fs::path& path) const override {
    std::vector<FoundLayout> found = RankLayout::recognise(files, path);
    const fs::path empty = path / traits().folder;
    if (found.empty() && files.is_directory(empty)) found.push_back({this, empty, path, true});
    return found;
  }

  /// As parallel_layers.save has it: the state dict under "model", and next to it what optimum-neuron added.
  std::shared_ptr<const SavedValue> saved_form(Format format, const StageMetadata& stage,
                                               const std::vector<std::string>& tensors,
                                               const std::vector<TensorAlias>& aliases) const override {
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
  /// Those in safetensors were not fused for a trainer.
  bool chooses_fused_linears(Format format) const override { return format != Format::kSafetensors; }
  /// optimum-neuron takes every file called tp_rank_… for a rank.
  bool has_xser_info() const override { return false; }

  std::vector<TextFile> stage_files(const std::vector<StagePlan>& plans) const override {
    return metadata_files(traits().folder, plans);
  }

  bool owns_folder_name(std::string_view name) const override { return name == traits().folder; }
  /// Files of NxD's older folders, which may contain config.json: metadata, xser ranks, the optimizer.
  bool owns(Files& files, const fs::path& directory, const std::string& name) const override {
    return metadata_pp_rank(name) || is_older_optimizer_name(name) ||
           (is_rank_name(name) && !files.is_directory(directory / name));
  }

 protected:
  bool fuses_linears(const TargetRequest& request, const PartitionOptions& source) const override {
    return format_of(request) == Format::kSafetensors || request.options.flag(kFuseLinears.name) ||
           source.fuse_linears.value_or(false);
  }

  std::string loaded_by(const TargetRequest& request, const TargetPlan& plan,
                        const std::vector<StagePlan>& stages) const override {
    const Format format = format_of(request);
    if (format == Format::kSafetensors)
      return "only reshard reads rank files in safetensors; trainers load those of `format` pytorch and xser";
    const bool xser = format == Format::kXser;
    std::string text =
        fmt::format("NxD's parallel_layers.load loads these files{}", xser ? " with load_xser=True" : "");
    if (!std::all_of(stages.begin(), stages.end(),
                     [](const StagePlan& stage) { return stage_pt_value(stage.metadata).has_value(); }))
      return text + ", into a model with the same fused linears";
    const bool grouped = plan.attention && !plan.attention->ranks.empty();
    if (xser) return text + (grouped ? ", and optimum-neuron 0.0.21" : ", and optimum-neuron 0.0.18 to 0.0.21");
    return grouped || plan.mesh.pp > 1 ? text : text + ", and optimum-neuron 0.0.15 to 0.0.17";
  }
};

}  // namespace

const Layout& ranks_layout() {
  static const RanksLayout kLayout;
  return kLayout;
}

}  // namespace reshard
