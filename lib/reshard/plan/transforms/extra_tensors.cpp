#include "reshard/plan/transforms/extra_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/inference/inference_server.h"

namespace reshard {
namespace {

/// Returns a parameter that is replicated on every rank of its stage.
ModelParameter whole_parameter(const LogicalTensor& tensor, const Model& model) {
  ModelParameter parameter;
  parameter.name = tensor.name;
  parameter.module = tensor.name.substr(0, tensor.name.rfind('.'));
  parameter.shape = tensor.shape;
  const std::string layers = model.family->layers + ".";
  if (tensor.name.starts_with(layers)) {
    const std::string_view rest = std::string_view(tensor.name).substr(layers.size());
    parameter.layer = parse_unsigned(rest.substr(0, rest.find('.')), kMaxLayers - 1);
    if (parameter.layer && *parameter.layer >= model.layers) parameter.layer.reset();
  }
  return parameter;
}

/// Whether readers of rank files without metadata take a tensor of this name for several fused weights, or for the
/// number of the rank.
bool is_name_in_ranks(const std::string& name, const Family& family) {
  const std::string starred = with_stars(name);
  const auto is_in = [&](const std::string& module, const std::string& fused) {
    return !fused.empty() && starred.starts_with(module + "." + fused + ".");
  };
  return ("." + name).ends_with(".rank_util.rank") ||
         (family.attention && is_in(family.attention->module, family.attention->fused)) ||
         std::any_of(family.fused.begin(), family.fused.end(),
                     [&](const Family::Fused& fused) { return is_in(fused.module, fused.name); });
}

/// Whether a target can contain tensors that the model does not have. Inference engines, whose layouts cast, load only
/// tensors of their own model; padded ranks are read by the model's sizes.
bool has_place(const TargetRequest& target) {
  return !target.layout->traits().casts_to_config_dtype && !target.options.flag(kPad.name);
}

}  // namespace

void apply_extra_tensors(Draft& draft, ExtraTensors extra, const TargetRequest& target) {
  if (extra == ExtraTensors::kRefuse) return;
  if (!draft.model) {
    draft.source.notes.no_effect("`extra-tensors` has no effect: there is no config.json of a known family");
    return;
  }
  std::unordered_set<std::string> own;
  for (const ModelParameter& parameter : draft.model->parameters) own.insert(parameter.name);
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : draft.wanted) {
    if (own.count(tensor.name) > 0) continue;
    names.push_back(tensor.name);
    if (extra == ExtraTensors::kKeep) draft.model->parameters.push_back(whole_parameter(tensor, *draft.model));
  }
  if (names.empty()) {
    draft.source.notes.no_effect("`extra-tensors` has no effect: config.json explains every tensor");
    return;
  }
  if (extra == ExtraTensors::kKeep) {
    if (!has_place(target))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("layout {}{} has no place for tensors that config.json does not explain: {}",
                              target.layout->traits().name, target.options.flag(kPad.name) ? ", padded," : "",
                              list_names(names)))
          .in(draft.source.path)
          .hint("`extra-tensors` drop leaves them out");
    if (target.layout->traits().has_ranks() && std::count(names.begin(), names.end(), "") > 0)
      throw Error(ErrorKind::kBadInput, "a tensor has no name: rank files that contain it cannot be read")
          .in(draft.source.path)
          .hint("`extra-tensors` drop leaves it out");
    const LayoutTraits& traits = target.layout->traits();
    const auto taken = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return is_name_in_ranks(name, *draft.model->family);
    });
    if (traits.has_ranks() && !traits.has_stages() && taken != names.end())
      throw Error(
          ErrorKind::kUnsupported,
          fmt::format("has the name of fused weights or of a rank's number in layout {}, whose files could not be "
                      "read",
                      traits.name))
          .in(draft.source.path)
          .tensor(*taken)
          .hint("rename it (`rename`), or leave it out (`extra-tensors` drop)");
    draft.source.notes.mismatch("kept, though config.json does not explain them: " + list_names(names)).of(names);
    return;
  }
  draft.source.notes.left_out("left out, as config.json does not explain them: " + list_names(names)).of(names);
  draft.transforms.push_back({Applied::Transform::kDrop, names.size()});
  std::erase_if(draft.wanted, [&](const LogicalTensor& tensor) { return own.count(tensor.name) == 0; });
  for (std::string& name : names) draft.dropped.push_back(std::move(name));
}

}  // namespace reshard
