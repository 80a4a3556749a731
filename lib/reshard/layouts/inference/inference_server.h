#pragma once

#include <filesystem>
#include <utility>
#include <vector>

#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/rules/placed_rules.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

inline constexpr LayoutOption kPad{.name = "pad",
                                   .type = LayoutOption::Type::kFlag,
                                   .help = "Pad sizes that the ranks do not divide; NxD Inference always pads",
                                   .why_idle = why_padding_idle};

inline constexpr LayoutOption kStartRank{"start-rank", LayoutOption::Type::kRank, "First rank to write (default: 0)"};
inline constexpr LayoutOption kEndRank{"end-rank", LayoutOption::Type::kRank, "Last rank to write (default: TP - 1)"};

/// Folder of the rank files in the output directory.
inline constexpr const char* kServedFolder = "weights";

/// Returns the format of layouts with one safetensors file per rank and no metadata files. See RankFormat for
/// parameters.
RankFormat served_ranks(decltype(RankFormat::explain) explain, decltype(RankFormat::fits) fits, bool keeps_names);

/// How an inference server stores ranks.
struct InferenceServer {
  LayoutTraits traits;
  std::vector<const LayoutOption*> options;
  RankFormat ranks;
  /// Option that pads sizes which the ranks do not divide; nullptr if such sizes are always padded.
  const LayoutOption* padding = nullptr;
  /// Sentence that names the programs that load the files.
  const char* loaded_by;
  /// Validates that the layout supports the model, regardless of the number of ranks; may be null.
  /// \throws Error kUnsupported.
  void (*validate_model)(const Model& model) = nullptr;
  /// Fills plan.map with the ranks that `target` selects.
  void (*plan_ranks)(TargetPlan& plan, const RankTarget& target, const OptionValues& values,
                     const TargetContext& context);
  std::map<std::string, std::string> joined_roles{};  // Layout::joined_roles
  /// Layout::compiled_model; may be null.
  std::optional<CompiledModel> (*compiled_model)(Files& files, const std::filesystem::path& directory) = nullptr;
  /// Layout::validate_compiled; may be null.
  void (*validate_compiled)(Files& files, const TargetPlan& plan, const Model& model,
                            const std::filesystem::path& directory) = nullptr;
};

/// A layout of rank files for an inference server. Several runs may each write some of the ranks.
class ServedLayout final : public Layout {
 public:
  explicit ServedLayout(InferenceServer server) : server_(std::move(server)) {}
  const LayoutTraits& traits() const override { return server_.traits; }
  const RankFormat* ranks() const override { return &server_.ranks; }
  std::vector<const LayoutOption*> options() const override { return server_.options; }
  std::map<std::string, std::string> joined_roles() const override { return server_.joined_roles; }
  std::vector<FoundLayout> recognise(Files& files, const std::filesystem::path& path) const override;
  Checkpoint read(Files& files, const FoundLayout& found, const ReadContext& context) const override;
  TargetPlan plan(const TargetRequest& request, const TargetContext& context) const override;
  void validate_compiled(Files& files, const TargetPlan& plan, const Model& model,
                         const std::filesystem::path& directory) const override {
    if (server_.validate_compiled != nullptr) server_.validate_compiled(files, plan, model, directory);
  }
  std::optional<CompiledModel> compiled_model(Files& files, const std::filesystem::path& directory) const override {
    return server_.compiled_model == nullptr ? std::nullopt : server_.compiled_model(files, directory);
  }
  /// Validates that remaining rank files belong to the same checkpoint as the new files: the number of ranks and the
  /// original shapes must be equal.
  void validate_beside(Files& files, const TargetPlan& plan, const std::filesystem::path& directory) const override;
  /// Returns true for neuron_config.json, which describes the compiled model.
  bool owns(Files& files, const std::filesystem::path& directory, const std::string& name) const override;

 private:
  InferenceServer server_;
};

/// Validates that the model can be split over the ranks of `shards` with padding.
/// \throws Error kBadInput.
void validate_padded_split(const ShardedCheckpoint& shards, const Checkpoint& checkpoint);

}  // namespace reshard
