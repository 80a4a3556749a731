#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/ranks/rank_folder.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

inline constexpr LayoutOption kKvSizeMultiplier{
    .name = "kv-size-multiplier",
    .type = LayoutOption::Type::kCount,
    .help = "Replicas of each key/value head (default: TP / key-value heads, or the fewest that place whole heads)",
    .why_idle = why_multiplier_idle};

/// A layout of files of ranks. What is common: they are found in a folder, listed, their headers and metadata read and
/// held against each other and the model (read). A layout says how files are called, and what explains them.
class RankLayout : public Layout {
 public:
  // Names.
  /// Where a rank's weights go, relative to the output directory.
  virtual std::filesystem::path rank_path(Format format, RankId rank) const = 0;
  /// The same of one of several files of a rank; for layouts that have them.
  virtual std::filesystem::path part_path(Format format, RankId rank, std::uint32_t /*part*/) const {
    return rank_path(format, rank);
  }
  /// A rank as errors name it.
  virtual std::string name_of(RankId rank) const { return rank_name(rank, false); }
  /// The folder that holds the files of ranks, for a shards folder.
  virtual std::filesystem::path weights_folder(const std::filesystem::path& shards) const { return shards; }
  /// The folder of the optimizer's files, as NxD saves them, beside the model's or where the model's are; nothing where
  /// the layout has none.
  virtual std::optional<std::filesystem::path> optimizer_folder(const std::filesystem::path& /*shards*/) const {
    return std::nullopt;
  }
  bool is_rank_name(const std::filesystem::path& name) const override = 0;
  /// The weights that `entry` of the weights folder `folder` is or holds; nothing if it is no rank's.
  /// \throws Error kBadInput.
  virtual std::optional<RankFile> rank_file(Files& files, const std::filesystem::path& folder,
                                            const DirectoryEntry& entry) const = 0;

  /// The folders in a checkpoint's directory that may hold its shards.
  virtual std::vector<std::filesystem::path> shards_folders(const std::filesystem::path& directory) const {
    return {directory / traits().folder};
  }
  /// The name of a shards folder that lies in the checkpoint's directory.
  virtual std::string usual_folder() const { return traits().folder; }

  // What is written.
  /// What a rank file of `stage` contains; nullptr for the state dict alone. `tensors` are its names in the order in
  /// which they are stored, `aliases` further names of some of them.
  virtual std::shared_ptr<const SavedValue> saved_form(Format /*format*/, const StageMetadata& /*stage*/,
                                                       const std::vector<std::string>& /*tensors*/,
                                                       const std::vector<TensorAlias>& /*aliases*/) const {
    return nullptr;
  }
  /// Whether it is a choice to fuse linears in files of `format`, which a conversion keeps.
  virtual bool chooses_fused_linears(Format /*format*/) const { return false; }
  /// Whether xser's rank files have PATH.info.pt next to them.
  virtual bool has_xser_info() const { return true; }

  /// Whether tensors that are not fused have the checkpoint's own names.
  virtual bool keeps_names() const { return true; }

  /// Whether all tensor-parallel ranks of a stage store the same shapes.
  virtual bool ranks_are_alike() const { return true; }

  /// Whether `directory` is a shards folder of this layout, by the names in it.
  bool looks_like(Files& files, const std::filesystem::path& directory) const;

  std::vector<FoundLayout> recognise(Files& files, const std::filesystem::path& path) const override;
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const final;

 protected:
  // What explains a checkpoint, once its headers and metadata are read.
  /// Whether it is of this layout and not of another with the same names.
  virtual bool fits(const ShardedCheckpoint&) const { return true; }
  /// `given`, and the source's options that files next to the weights declare; those given take precedence.
  /// \throws Error kBadInput or kUnsupported.
  virtual OptionValues declared_options(Files& /*files*/, const Checkpoint& /*checkpoint*/, OptionValues given) const {
    return given;
  }
  /// Explains shards without metadata by `checkpoint.model`: fills `shards.metadata` or `shards.rules`.
  /// \throws Error kBadInput if the model does not explain them.
  virtual void explain(ShardedCheckpoint& shards, Checkpoint& checkpoint, const OptionValues& options) const;
  /// Reads what lies beside the weights, such as an optimizer.
  virtual void read_beside(Files& /*files*/, const ShardedCheckpoint& /*shards*/, const ReadContext& /*context*/,
                           Checkpoint& /*checkpoint*/) const {}
  /// Adds to the hint of `error`, that the weights do not fit config.json, what lies beside them and shows why.
  virtual void explain_misfit(Files& /*files*/, const ShardedCheckpoint& /*shards*/, Error& /*error*/) const {}
  /// What to try where replicas differ, and nothing but replicas shows that the partition is right.
  virtual std::string hint_for_replicas() const;

 private:
  /// Of the layouts with such names, the one that `shards` is of.
  const RankLayout& choose(Files& files, const ShardedCheckpoint& shards) const;
};

/// Notes that swapped files of ranks cannot be found, where the files do not record their ranks.
void note_unrecorded_ranks(const ShardedCheckpoint& shards, Checkpoint& checkpoint);

/// The shards folder of a rank layout, which `found.layout` is.
const RankLayout& ranks_of(const FoundLayout& found);

/// How the ranks of `checkpoint`, whose model is known, are partitioned, as far as that was a choice. optimum-neuron,
/// which saves metadata, has grouped query only for heads that the ranks do not divide; NxD, which saves none, has a
/// setting for it.
/// \param inferred  the metadata of `stages` is not the files' own.
PartitionOptions chosen_partition(const Checkpoint& checkpoint, const std::vector<StageMetadata>& stages,
                                  bool inferred);

/// The weights in it, by rank.
/// \throws Error kBadInput for a rank that is there twice, or has no weights.
std::vector<RankFile> list_rank_files(Files& files, const FoundLayout& found);

}  // namespace reshard
