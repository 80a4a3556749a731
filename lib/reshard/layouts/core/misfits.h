#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Differences between the tensors of a checkpoint and those of a model. Points into both.
struct Misfits {
  struct Shape {
    const LogicalTensor* tensor;
    const ModelParameter* expected;
  };
  std::vector<Shape> shapes;                   // tensors with an unexpected shape
  std::vector<const LogicalTensor*> unlisted;  // tensors that the model does not have
  std::vector<std::string> missing;            // names of required parameters that the checkpoint lacks
  bool empty() const { return shapes.empty() && unlisted.empty() && missing.empty(); }
};

/// Returns the parameters that were left empty, with the shape [0], as by ZeRO 3 if it does not gather them before it
/// saves a model. A tensor that config.json itself makes empty is not among them, nor is an empty buffer. Without a
/// model, the names of tensors distinguish parameters from buffers.
/// \param model  May be null.
std::vector<std::string> emptied_parameters(std::span<const LogicalTensor> tensors, const Model* model);
/// Returns the error for the result of emptied_parameters, which must not be empty.
Error emptied_error(const std::vector<std::string>& names);

Misfits find_misfits(std::span<const LogicalTensor> tensors, const Model& model);

/// Returns an error text if a wrong number of layers in config.json explains every misfit; std::nullopt otherwise.
std::optional<std::string> layers_problem(std::span<const LogicalTensor> tensors, const Misfits& misfits,
                                          const Model& model);

/// Validates that an output head that config.json declares does not exist under another name.
/// \throws Error kBadInput if only the head is missing and an extra tensor is at least as large.
void validate_head(std::span<const LogicalTensor> tensors, const Model& model, const Misfits& misfits,
                   const std::filesystem::path& where);

/// Returns a remedy for missing tensors.
std::string hint_for_missing(std::span<const std::string> missing, const Model& model);

/// Validates that the logical tensors of `map` are those of `model`, and sorts them in state-dict order.
/// \param where  The checkpoint's directory, for errors.
/// \param hint   Another remedy for the error's hint; used only if config.json determines the family.
/// \throws Error kBadInput if a tensor is missing, is not part of the model, or has another shape. If the user chose
/// the family, the error lists the first misfits of several kinds. kUnsupported for a quantised model with unknown
/// tensors, and for names of another system (strangers.h).
void validate_against_model(SourceMap& map, const Model& model, const std::filesystem::path& where,
                            const std::string& hint = {});

/// Validates the tensors like the function above, but accepts tensors that the model does not have unless `extra` is
/// kRefuse.
void validate_against_model(std::vector<LogicalTensor>& tensors, const Model& model, const std::filesystem::path& where,
                            ExtraTensors extra);
void validate_against_model(SourceMap& map, const Model& model, const std::filesystem::path& where, ExtraTensors extra);

/// Validates the tensors of a trainer's checkpoint, which may contain extra tensors, such as buffers or another head.
/// If tensors are missing or have another shape, the error also lists the extra tensors, each with the most similar
/// name in the model.
/// \returns the names of the extra tensors.
std::vector<std::string> validate_trained_against_model(SourceMap& map, const Model& model,
                                                        const std::filesystem::path& where);

}  // namespace reshard
