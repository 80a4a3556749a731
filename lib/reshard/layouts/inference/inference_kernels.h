#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

/// Kernels of the MLP; the second one is that of quantised matrices.
inline constexpr std::string_view kMlpKernel = "mlp", kQuantizedMlpKernel = "quantized-mlp";

/// The kernels of NxD Inference for which the model's matrices are stored transposed: "qkv", "out-proj", "mlp",
/// "quantized-mlp".
using Kernels = std::set<std::string, std::less<>>;

inline constexpr LayoutOption kKernels{
    "kernels",
    LayoutOption::Type::kText,
    "Store weights transposed for a model compiled with NxD Inference's kernels: a list of qkv, out-proj, mlp, "
    "quantized-mlp",
    {},
    "",
    true,
    "Weights stored transposed for NxD Inference's kernels: none, or a list of qkv, out-proj, mlp, quantized-mlp "
    "(default: from neuron_config.json or the shapes)"};

/// Returns the kernels that `values` names; std::nullopt if the option was not given.
/// \param prefix  Precedes the option's name in errors.
/// \throws Error kUsage for a kernel that does not exist.
std::optional<Kernels> kernels_of(const OptionValues& values, const std::string& prefix = "");

/// Returns the value of kKernels for these kernels, such as "mlp,out-proj" or "none".
std::string kernels_text(const Kernels& kernels);

/// Returns the kernels that the settings of a neuron_config.json enable. `path` is the file.
/// \throws Error kBadInput for an invalid setting.
Kernels enabled_kernels(const Json& settings, const std::filesystem::path& path);

/// Returns the kernels that use no tensor of `rules`.
Kernels idle_kernels(const std::vector<PartitionRule>& rules);

/// Changes the rules of these kernels' matrices to store them transposed.
void transpose_rules(std::vector<PartitionRule>& rules, const Kernels& kernels);

/// Returns the kernels whose matrices are transposed in `shards`, as determined by the shapes, else by `given`, else by
/// the record in the files.
/// \param rules  The rules of `model` without transposed matrices.
/// \throws Error kBadInput if shapes, `given` and the record contradict each other, or if none of them determines
/// whether a square matrix is transposed.
Kernels kernels_in_files(const ShardedCheckpoint& shards, const std::vector<PartitionRule>& rules, const Model& model,
                         const std::optional<Kernels>& given);

}  // namespace reshard
