#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

#include "reshard/specs/config/model_config.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// Validates the shapes that a ConfigPlan gives a model whose tensors are split over `tp` ranks. A plan says no sizes,
/// so a wrong dim, a module that it does not name, or missing last ranks change only the shapes. They are compared with
/// the sizes in config.json (vocabulary, hidden state, MLP, heads) as far as it has them. A padded vocabulary, gated
/// queries and other sizes that the number of ranks does not explain are accepted.
/// \param text   configuration of the language model; its keys override those of `outer`.
/// \param where  path for errors.
/// \throws Error kBadInput, naming the tensor.
void validate_planned_sizes(const Model& model, const ModelConfig& text, const ModelConfig& outer, std::uint32_t tp,
                            const std::filesystem::path& where);

/// Sizes of the vectors that each rank has whole, norms, as far as config.json has them: the hidden state, a head.
std::set<std::uint64_t> stated_vector_sizes(const ModelConfig& text, const ModelConfig& outer);

}  // namespace reshard
