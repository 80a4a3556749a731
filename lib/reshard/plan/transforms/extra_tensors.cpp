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

/// Whether a target can contain tensors that the model does not have. Inference engines, whose layouts cast, load only
/// tensors of their own model; padded ranks are read by the model's sizes.
bool has_place(const TargetRequest& target) {
  return !target.layout->traits().casts_to_config_dtype && !target.options.flag(kPad.name);
}

}  // namespace

void apply_extra_tensors(Draft& draft, ExtraTensors extra, const TargetRequest& target) {
  if (extra == ExtraTensors::kRefuse) return;
  if (!draft.model) return draft.note("`extra-tensors` has no effect: there is no config.json of a known family");
  std::unordered_set<std::string> own;
  for (const ModelParameter& parameter : draft.model->parameters) own.insert(parameter.name);
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : draft.wanted) {
    if (own.count(tensor.name) > 0) continue;
    names.push_back(tensor.name);
    if (extra == ExtraTensors::kKeep) draft.model->parameters.push_back(whole_parameter(tensor, *draft.model));
  }
  if (names.empty()) return draft.note("`extra-tensors` has no effect: config.json explains every tensor");
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
    return draft.note("kept, though config.json does not explain them: " + list_names(names));
  }
  draft.note("left out, as config.json does not explain them: " + list_names(names));
  draft.transforms.push_back({Applied::Transform::kDrop, names.size()});
  std::erase_if(draft.wanted, [&](const LogicalTensor& tensor) { return own.count(tensor.name) == 0; });
  for (std::string& name : names) draft.dropped.push_back(std::move(name));
}

}  // namespace reshard
