#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// How the tensors of a checkpoint differ from those of a model. Points into both.
struct Misfits {
  struct Shape {
    const LogicalTensor* tensor;
    const ModelParameter* expected;
  };
  std::vector<Shape> shapes;                   // tensors of another shape
  std::vector<const LogicalTensor*> unlisted;  // tensors that the model does not have
  std::vector<std::string> missing;            // names of parameters that it needs
  bool empty() const { return shapes.empty() && unlisted.empty() && missing.empty(); }
};

Misfits find_misfits(std::span<const LogicalTensor> tensors, const Model& model);

/// Holds the logical tensors of `map` against what the model's config.json asks for, and puts them in state-dict
/// order.
/// \throws Error kBadInput for a tensor that is missing, that the config does not explain, or that has another shape;
/// of a family that was chosen, with the first misfits of several kinds; kUnsupported for a quantised model whose
/// tensors are unknown, or for one with names of another system (strangers.h). `where` is the checkpoint's directory; `hint` is what else to try, where the family is that of
/// config.json.
void validate_against_model(SourceMap& map, const Model& model, const std::filesystem::path& where,
                            const std::string& hint = {});

/// The same, or the next, by whether tensors that the model does not have are refused.
void validate_against_model(std::vector<LogicalTensor>& tensors, const Model& model, const std::filesystem::path& where,
                            ExtraTensors extra);
void validate_against_model(SourceMap& map, const Model& model, const std::filesystem::path& where, ExtraTensors extra);

/// The same for what a trainer has written, which may have tensors besides: buffers, or a head of its own. Where others
/// are missing, the error names these, each with the nearest name that the model has.
/// \returns the names of those that the config does not explain.
std::vector<std::string> validate_trained_against_model(SourceMap& map, const Model& model,
                                                        const std::filesystem::path& where);

}  // namespace reshard
