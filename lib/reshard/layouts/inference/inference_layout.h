#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/layouts/map/placed_rules.h"
#include "reshard/layouts/ranks/rank_layout.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// Options that several of these layouts have.
inline constexpr LayoutOption kPad{.name = "pad",
                                   .type = LayoutOption::Type::kFlag,
                                   .help = "Pad sizes that the ranks do not divide; NxD Inference's layout always does",
                                   .why_idle = why_padding_idle};

/// Weights that an inference server loads: one safetensors file per rank, tpR_sharded_checkpoint.safetensors, without
/// metadata files. Several runs may each write some of the ranks.
class InferenceLayout : public RankLayout {
 public:
  std::vector<const LayoutOption*> options() const override;
  std::vector<FoundLayout> recognise(Files& files, const std::filesystem::path& path) const override;
  /// optimum-neuron exports the weights to checkpoint/weights/.
  std::vector<std::filesystem::path> shards_folders(const std::filesystem::path& directory) const override;
  /// neuron_config.json is about the compiled model.
  bool owns(Files& files, const std::filesystem::path& directory, const std::string& name) const override;
  std::filesystem::path rank_path(Format format, RankId rank) const override;
  std::string name_of(RankId rank) const override;
  bool is_rank_name(const std::filesystem::path& name) const override;
  std::optional<RankFile> rank_file(Files& files, const std::filesystem::path& folder,
                                    const DirectoryEntry& entry) const override;

  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override;
  /// The files of ranks that stand in the output directory, and would stay beside those that are written, are of the
  /// same checkpoint: as many ranks, of originals of the same shapes.
  void validate_beside(Files& files, const TargetPlan& plan,
                       const std::filesystem::path& output_directory) const override;

 protected:
  /// That ranks of this layout can hold the model at all, whatever their number.
  /// \throws Error kUnsupported.
  virtual void validate_model(const Model&) const {}
  /// Fills plan.map with the ranks that `target` says.
  virtual void plan_ranks(TargetPlan& plan, const RankTarget& target, const OptionValues& values,
                          const TargetContext& context) const = 0;
  /// The programs that load its files; a sentence.
  virtual const char* loaded_by() const = 0;
  /// The option that pads sizes which the ranks do not divide; null where the layout always does, or never.
  virtual const LayoutOption* padding_option() const { return nullptr; }
  /// Whether sizes that the ranks do not divide are padded.
  virtual bool pads(const OptionValues& values) const = 0;
};

/// So many ranks can have the model, with padding.
/// \throws Error kBadInput.
void validate_padded_split(const ShardedCheckpoint& shards, const Checkpoint& checkpoint);

}  // namespace reshard
