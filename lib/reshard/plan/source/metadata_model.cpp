#include "reshard/plan/source/metadata_model.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/ranks/metadata_family.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/model/model.h"

namespace reshard {
namespace {

MetadataFamily described_metadata(const Checkpoint& checkpoint) {
  const ModelConfig config =
      checkpoint.language_model.config.json ? checkpoint.language_model.config : empty_model_config({});
  try {
    return describe_metadata(checkpoint.metadata, checkpoint.mesh.tp, checkpoint.map, config);
  } catch (Error& error) {
    throw error.in(checkpoint.path);
  }
}

/// Metadata of a single stage does not record which modules outside the layers belong to the last stage.
void validate_stages_known(const Checkpoint& checkpoint, const TargetRequest& target) {
  const bool is_cut = target.pp.value_or(1) * target.vpp > 1 || !target.pipeline_cuts.empty();
  if (checkpoint.mesh.pp > 1 || !is_cut) return;
  std::vector<std::string> names;
  for (const ModelParameter& parameter : checkpoint.model->parameters)
    if (!parameter.layer && parameter.stage != OuterStage::kLast) names.push_back(parameter.name);
  if (names.empty()) return;
  throw Error(
      ErrorKind::kBadInput,
      "has metadata of one pipeline stage, which does not record the stages of these tensors: " + list_names(names))
      .in(checkpoint.path)
      .hint("save the output of `print-spec`, add \"stage\" to these modules, and give it with `spec`");
}

}  // namespace

std::string description_of_metadata(const Checkpoint& checkpoint) {
  return described_metadata(checkpoint).description;
}

void take_metadata_model(Checkpoint& checkpoint, TargetRequest& target) {
  const LayoutTraits& traits = target.layout->traits();
  if (checkpoint.model || checkpoint.metadata.empty() || !traits.has_ranks() || traits.needs_no_mesh()) return;
  const MetadataFamily described = described_metadata(checkpoint);
  Family family = parse_family_text(described.description, checkpoint.path);
  if (family.attention && target.tp && *target.tp != checkpoint.mesh.tp) family.attention->kv_size_multiplier.reset();
  if (traits.has_stages() && !target.pp && target.vpp == 1 && target.pipeline_cuts.empty() && checkpoint.mesh.pp > 1) {
    if (described.cuts.size() + 1 != checkpoint.mesh.pp)
      throw Error(ErrorKind::kUsage, "the source has virtual pipeline stages")
          .in(checkpoint.path)
          .hint("give `pp` and `vpp`");
    target.pipeline_cuts = described.cuts;
  }
  const std::string family_type = family.model_type;
  checkpoint.language_model.family = std::make_shared<const Family>(std::move(family));
  checkpoint.language_model.config = empty_model_config(family_type);
  checkpoint.model = instantiate(checkpoint.language_model.family, checkpoint.language_model.config);
  checkpoint.model->family_from = FamilyFrom::kSpec;
  checkpoint.partition = chosen_partition(checkpoint, checkpoint.metadata, false);
  validate_stages_known(checkpoint, target);
}

}  // namespace reshard
