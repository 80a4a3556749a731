#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/inference/inference_kernels.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"
#include "reshard/specs/family/scheme.h"
#include "reshard/specs/model/model.h"
#include "reshard/specs/model/quantization.h"

// NxD Inference's own quantisation: a scale next to the weight of each quantised linear, which ranks split like the
// weight's rows.
namespace reshard {

inline constexpr LayoutOption kQuantization{
    "quantization", LayoutOption::Type::kText,
    "How the weights must be quantised: none, or NxD Inference's quantization_type:quantization_dtype, and after "
    "another colon its modules_to_not_convert, as a list"};

/// Returns the value of kQuantization that the settings of a neuron_config.json mean; std::nullopt if they do not say
/// whether the weights are quantised.
std::optional<std::string> declared_quantization(const Json& settings);

/// Returns the value of kQuantization for the weights of a model.
/// \throws Error as QuantizationEvidence::config.
std::string quantization_of(const Model& model, const QuantizationEvidence& evidence);

/// Validates that the weights next to scales are quantised.
/// \param evidence  of tensors under the model's names.
/// \throws Error kBadInput, naming the weight.
void validate_quantized_weights(const Model& model, const QuantizationEvidence& evidence);

/// Returns why weights do not have the quantisation `wanted`, a value of kQuantization; empty if they have.
/// \param own  quantization_of the same model.
std::string quantization_misfit(const Model& model, const std::string& own, const std::string& wanted);

/// Validates that NxD Inference has this quantisation for a model of these rules, before matrices are transposed.
/// \throws Error kUnsupported.
void validate_quantized_rules(const Model& model, const std::vector<PartitionRule>& rules);

/// Adds the entries of scales to a scheme: each follows from the entry of its weight.
/// \param marker  the last part of a scale's name.
void add_scale_entries(Scheme& scheme, const std::string& marker);

/// Gives the rules of quantised linears and their scales the kernel that stores them, one of `kernels`: none, or that of
/// quantised MLPs, which pads each rank's part, and repeats the scales.
/// \throws Error kUnsupported for one scale per tensor with that kernel.
void set_quantized_kernels(std::vector<PartitionRule>& rules, const Model& model, const Kernels& kernels);

/// Whether tensors of a rank are stored for the kernel of quantised MLPs.
bool has_quantized_mlp_kernel(const std::vector<TensorEntry>& tensors);

/// Replaces the quantisation of the model, as config.json has it, by the one that the tensors of rank files show.
void recognise_rank_quantization(const ShardedCheckpoint& shards, Checkpoint& checkpoint);

/// Adds the scales in rank files to the model of the checkpoint, whose quantisation is known, and validates it against
/// kQuantization in `declared`, if given. Leaves out a quantised head that is tied to the embedding, with a note.
/// \param names  the entries of the model without scales.
/// \returns the stored tensors that it leaves out.
/// \throws Error kBadInput.
std::set<std::string> add_scales_in_files(ShardedCheckpoint& shards, Checkpoint& checkpoint, const WrittenNames& names,
                                          const OptionValues& declared);

}  // namespace reshard
