#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/applied.h"
#include "reshard/plan/transforms/kept_layers.h"

namespace reshard {

/// A checkpoint being transformed for a target.
struct Draft {
  Checkpoint source;                   // its tensors have their new names
  std::vector<std::string> old_names;  // original names of source.map.logical, up to those that transforms add
  std::vector<LogicalTensor> wanted;   // the target's tensors, with their target dtypes
  std::vector<std::string> dropped;    // names of tensors that the target omits
  std::optional<Model> model;          // the target's model: source.model, with the tensors' new names
  std::optional<DType> config_dtype;   // dtype to write to config.json
  std::optional<KeptLayers> layers;    // layers to write to config.json, if they are fewer than the source's
  std::vector<Applied> transforms;     // in order of application

  /// Whether a transform has been applied to any tensor.
  bool was(Applied::Transform transform) const {
    return std::any_of(transforms.begin(), transforms.end(),
                       [&](const Applied& one) { return one.transform == transform; });
  }
  const Model* model_or_null() const { return model ? &*model : nullptr; }
};

}  // namespace reshard
