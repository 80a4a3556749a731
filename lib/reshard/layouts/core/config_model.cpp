#include "reshard/layouts/core/config_model.h"

#include <fmt/format.h>

#include "reshard/base/strings.h"
#include "reshard/layouts/map/whole_map.h"
#include "reshard/specs/model/language_model.h"

namespace reshard {
namespace {

std::vector<std::string> names_of(const std::vector<WholeTensor>& tensors) {
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const WholeTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

}  // namespace

ConfigPlan plan_for(const ModelConfig& config, const std::vector<WholeTensor>& tensors, std::string_view who_says,
                    Notes& notes) {
  ConfigPlan plan(config, names_of(tensors));
  notes.assumed(fmt::format("{}; {}", describe_unknown_type(config), who_says));
  const auto note_idle = [&](const char* what, const std::vector<std::string>& keys) {
    if (!keys.empty())
      notes.mismatch(fmt::format("{} in config.json names modules that do not exist: {}", what, list_names(keys)));
  };
  note_idle("the plan", plan.idle_keys());
  note_idle("base_model_pp_plan", plan.idle_stage_keys());
  return plan;
}

std::vector<WholeTensor> whole_tensors(const std::vector<Container>& files) {
  std::vector<WholeTensor> tensors;
  tensors.reserve(number_of_tensors(files));
  for (const Container& file : files)
    for (const TensorEntry& tensor : file.tensors) tensors.push_back({tensor.name, tensor.shape});
  return tensors;
}

Model planned_model(const ModelConfig& config, const std::vector<WholeTensor>& tensors, Notes& notes) {
  return plan_for(config, tensors, kByPlan, notes).model(tensors);
}

}  // namespace reshard
