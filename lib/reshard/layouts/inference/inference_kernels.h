#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/ranks/sharded_checkpoint.h"

namespace reshard {

/// The kernels of NxD Inference for which the model's matrices are stored transposed: "qkv", "out-proj", "mlp".
using Kernels = std::set<std::string_view>;

inline constexpr const char* kFusedQkvName = "qkv_proj.Wqkv";

inline constexpr LayoutOption kKernels{
    "kernels",
    LayoutOption::Type::kText,
    "Store weights transposed for a model compiled with NxD Inference's kernels: a list of qkv, out-proj, mlp",
    {},
    "",
    true,
    "Weights stored transposed for NxD Inference's kernels: none, or a list of qkv, out-proj, mlp (default: from "
    "neuron_config.json or the shapes)"};

/// Returns the kernels that `values` names; std::nullopt if the option was not given.
/// \param prefix  Precedes the option's name in errors.
/// \throws Error kUsage for a kernel that does not exist.
std::optional<Kernels> kernels_of(const OptionValues& values, const std::string& prefix = "");

/// Form of the stored weights according to neuron_config.json.
struct CompiledForm {
  std::filesystem::path file;
  std::optional<std::uint64_t> tp;  // std::nullopt if not declared
  bool fuse_qkv = false;
  bool vocab_parallel = false;
  Kernels kernels;
};

/// Returns the value of kKernels for these kernels, such as "mlp,out-proj" or "none".
std::string kernels_text(const Kernels& kernels);

/// Reads the neuron_config.json in `directory`; std::nullopt if the file does not exist.
/// \throws Error kBadInput for an invalid file; kUnsupported for settings that change the weights' values or store them
/// twice.
std::optional<CompiledForm> read_compiled_form(Files& files, const std::filesystem::path& directory);

/// Returns the kernel that uses a stored matrix; empty if the matrix is never transposed.
std::string_view kernel_of(std::string_view stored_name, PartitionLabel label);

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
