// Checkpoints of NxD's shard_checkpoint for inference: weights/tpR_sharded_checkpoint.safetensors with the checkpoint's
// own names. Every parameter is split separately.
#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/inference/inference_server.h"
#include "reshard/layouts/ranks/inferred_stages.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/rules/fit_form.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/layouts/training/training_notes.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPresharded = "presharded";
constexpr Format kPreshardedFormats[] = {Format::kSafetensors};

LayoutTraits presharded_traits() {
  LayoutTraits traits{kPresharded, kPresharded, "NxD's shard_checkpoint, for inference", kServedFolder,
                      kPreshardedFormats};
  traits.axes = {MeshAxis::kTensor};
  return traits;
}

/// Returns the rules of padded parameters.
std::vector<PartitionRule> padded_rules(const Model& model, std::uint32_t tp, const HoldsName& holds) {
  PlacedRules rules(tp);
  for (const ModelParameter& parameter : model.parameters) {
    if (parameter.optional && !holds(parameter.name)) continue;
    if (!parameter.tied_to.empty()) continue;  // tied by the loader
    rules.add(parameter, parameter.name, parameter.split_dim,
              parameter.split_dim ? padded_size(model, parameter, tp) : 0);
  }
  return std::move(rules).take();
}

void plan_presharded(TargetPlan& plan, const RankTarget& target, const OptionValues& values,
                     const TargetContext& context) {
  const std::uint32_t tp = plan.mesh.tp;
  const HoldsName holds = names_in(context.logical);
  plan.notes.add(split_heads_notes(*context.model, tp));
  if (values.flag(kPad.name)) {
    plan.map = sharded_target_map(padded_rules(*context.model, tp, holds), tp, context.logical, target);
    return;
  }
  PartitionOptions options;
  options.separate = true;
  plan.map =
      sharded_target_map(plan_stages(*context.model, tp, *plan.partition, options, holds), tp, context.logical, target);
}

void explain_presharded(Files&, const OptionValues&, ShardedCheckpoint& shards, Checkpoint& checkpoint) {
  const Model& model = *checkpoint.model;
  const bool padded =
      std::any_of(model.parameters.begin(), model.parameters.end(), [&](const ModelParameter& parameter) {
        return can_pad(parameter) && split_problem(parameter, shards.tp, false).has_value();
      });
  if (padded) {
    validate_padded_split(shards, checkpoint);
    const HeldTensors held(shards.files.front().front());
    shards.rules = {padded_rules(model, shards.tp, [&](const std::string& name) { return held.has(name); })};
    return;
  }
  if (model.by_config_plan && !shards.record)
    checkpoint.notes.assumed(
        "the files do not record the original shapes: padding is kept, because a plan in config.json has no sizes");
  infer_stages(shards, model);
}

/// Refuses the directory of a compiled model, which loads another layout.
void refuse_compiled(Files& files, const TargetPlan&, const Model&, const fs::path& directory) {
  for (const Layout* layout : layouts())
    if (const auto compiled = layout->compiled_model(files, directory))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("belongs to a compiled model, which does not load layout {}", kPresharded))
          .in(compiled->file)
          .hint(fmt::format("choose layout {}, or another output directory", layout->traits().name));
}

}  // namespace

const Layout& presharded_layout() {
  static const ServedLayout kLayout(
      {.traits = presharded_traits(),
       .options = {&kStartRank, &kEndRank, &kPad},
       .ranks = served_ranks(explain_presharded, nullptr, true),
       .padding = &kPad,
       .loaded_by =
           "NxD 0.9.0 and later loads the files in weights/ like those of its shard_checkpoint, which writes them "
           "into serialize_path itself",
       .validate_model = [](const Model& model) { validate_no_inference_scales(model, kPresharded); },
       .plan_ranks = plan_presharded,
       .validate_compiled = refuse_compiled});
  return kLayout;
}

}  // namespace reshard
