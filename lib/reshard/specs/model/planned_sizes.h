#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Validates the shapes that a ConfigPlan implies for a model whose tensors are split over `tp` ranks. A plan contains
/// no sizes, so that a wrong dim, a module missing in the plan, or missing last ranks change only the shapes. Compares
/// them with the sizes in config.json (vocabulary, hidden state, MLP, heads) if present. Accepts a padded vocabulary,
/// gated queries, and other sizes that the number of ranks does not explain.
/// \param text   configuration of the language model; its keys override those of `outer`.
/// \param where  path for errors.
/// \throws Error kBadInput, naming the tensor.
void validate_planned_sizes(const Model& model, const ModelConfig& text, const ModelConfig& outer, std::uint32_t tp,
                            const std::filesystem::path& where);

/// Returns the sizes in config.json of vectors that each rank has whole (norms): the hidden state and a head.
std::set<std::uint64_t> stated_vector_sizes(const ModelConfig& text, const ModelConfig& outer);

}  // namespace reshard
