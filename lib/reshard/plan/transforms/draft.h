#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/applied.h"

namespace reshard {

/// A checkpoint on its way to a target: what was read, as the transforms leave it.
struct Draft {
  Checkpoint source;                   // its tensors have the names that they are to get
  std::vector<std::string> old_names;  // [i]: what source.map.logical[i] was called when it was read
  std::vector<LogicalTensor> wanted;   // what the target is to hold, in the dtypes that it is to have there
  std::vector<std::string> dropped;    // names of what it is not to hold
  std::optional<Model> model;          // that the target is made for: source.model, with the tensors' new names
  std::optional<DType> config_dtype;   // that config.json is to say
  std::vector<Applied> transforms;     // in this order

  void note(std::string sentence) { source.notes.push_back(std::move(sentence)); }
  const Model* model_or_null() const { return model ? &*model : nullptr; }
};

}  // namespace reshard
