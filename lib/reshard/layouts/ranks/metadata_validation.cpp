#include "reshard/layouts/ranks/metadata_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/rules/metadata_rules.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Returns the tensor-parallel degree of a stage's metadata; std::nullopt if it splits no tensor. All its entries must
/// agree.
std::optional<std::uint32_t> tp_of_metadata(const StageMetadata& metadata, const fs::path& path) {
  std::optional<std::uint32_t> tp;
  const auto see = [&](std::uint32_t value, const std::string& what) {
    if (tp && *tp != value)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("contradicts itself: {} is for {} ranks, others are for {}", printable(what), value, *tp))
          .in(path);
    tp = value;
  };
  for (const ParallelParameter& parameter : metadata.parameters)
    if (parameter.tensor_model_parallel) see(parameter.num_partitions, parameter.name);
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      see(std::visit([](const auto& s) { return s.tp_size; }, spec), module.module_fully_qualified_name);
  return tp;
}

/// Validates that the parameters that the specs refer to are listed.
void validate_specs_fit(const StageMetadata& metadata, const fs::path& path) {
  std::unordered_set<std::string> listed;
  for (const ParallelParameter& parameter : metadata.parameters) listed.insert(parameter.name);
  const auto require = [&](const std::string& module, const char* leaf, const char* alternative) {
    const std::string name = module + leaf;
    const auto is_listed = [&](const char* ending) {  // in the model, or wrapped for adapters
      return listed.count(module + ending) || listed.count(module + ".base_layer" + ending);
    };
    if (!is_listed(leaf) && !is_listed(alternative))
      throw Error(ErrorKind::kBadInput, "a transformation spec lists it, but it is not among the parameters")
          .in(path)
          .tensor(name);
  };
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs) {
      const std::string prefix = module.module_fully_qualified_name + ".";
      if (const auto* fused = std::get_if<FusedLinearsSpec>(&spec)) {
        require(prefix + fused->fused_linear_name, ".weight", ".weight");
      } else {
        const auto& gqa = std::get<GQAQKVColumnParallelLinearSpec>(spec);
        require(prefix + gqa.gqa_qkv_projection_name, ".weight_q", ".weight_qkv");
        require(prefix + gqa.output_projection_name, ".weight", ".weight");
      }
    }
}

/// Validates that parameters with a spec are split as the spec requires.
void validate_entries_fit(const StageMetadata& metadata, const fs::path& path) {
  std::unordered_map<std::string_view, const ParallelParameter*> entries;
  for (const ParallelParameter& parameter : metadata.parameters) entries.emplace(parameter.name, &parameter);
  for (const RequiredSplit& expected : required_splits(metadata)) {
    const ParallelParameter& parameter = *entries.at(expected.name);
    if (!expected.is_split) {
      if (parameter.tensor_model_parallel)
        throw Error(ErrorKind::kBadInput, "is shared by the fused layers, but its entry declares it split")
            .in(path)
            .tensor(parameter.name);
    } else if (!parameter.tensor_model_parallel || parameter.partition_dim != expected.dim ||
               parameter.partition_stride != expected.stride) {
      throw Error(ErrorKind::kBadInput,
                  fmt::format("its entry contradicts its transformation spec, which splits dim {} with a stride of {}",
                              expected.dim, expected.stride))
          .in(path)
          .tensor(parameter.name);
    }
  }
}

}  // namespace

std::uint32_t validate_metadata(const StageMetadata& metadata, const fs::path& path, std::uint32_t ranks_present) {
  validate_specs_fit(metadata, path);
  validate_entries_fit(metadata, path);
  const auto tp = tp_of_metadata(metadata, path);
  if (tp && *tp < ranks_present)
    throw Error(ErrorKind::kBadInput,
                fmt::format("is for {} tensor-parallel ranks, but the folder contains {}", *tp, ranks_present))
        .in(path)
        .hint("ranks of two checkpoints are mixed in one folder");
  return std::max(ranks_present, tp.value_or(1));
}

void validate_spec_sizes(const StageMetadata& metadata, const fs::path& path, const Container& file) {
  std::unordered_map<std::string, const TensorEntry*> held;
  for (const TensorEntry& tensor : file.tensors) held.emplace(tensor.name, &tensor);
  const auto check = [&](const std::string& stored_name, std::uint64_t rows) {
    const auto found = held.find(stored_name);
    if (found == held.end() || found->second->shape.empty() || found->second->shape[0] == rows) return;
    throw Error(ErrorKind::kBadInput, fmt::format("has {} rows in {}, but the metadata's spec has {}",
                                                  found->second->shape[0], file.path.string(), rows))
        .in(path)
        .tensor(stored_name);
  };
  for (const ModuleSpecs& module : metadata.modules)
    for (const TransformationSpec& spec : module.specs)
      if (const auto* gqa = std::get_if<GQAQKVColumnParallelLinearSpec>(&spec)) {
        const std::uint64_t q = gqa->q_output_size_per_partition;
        const std::uint64_t kv = gqa->kv_output_size_per_partition;
        for (const char* suffix : {".weight", ".bias", ".lora_B.weight"}) {
          const std::string fused = module.module_fully_qualified_name + "." + gqa->gqa_qkv_projection_name + suffix;
          check(fused + "_q", q);
          check(fused + "_k", kv);
          check(fused + "_v", kv);
          check(fused + "_qkv", q + 2 * kv);
        }
      }
}

void validate_all_stages_present(const ShardedCheckpoint& checkpoint) {
  std::set<std::string> held;  // every prefix of a parameter's name that ends before a dot
  for (const StageMetadata& metadata : checkpoint.metadata)
    for (const ParallelParameter& parameter : metadata.parameters)
      for (std::size_t dot = parameter.name.find('.'); dot != std::string::npos;
           dot = parameter.name.find('.', dot + 1))
        held.insert(parameter.name.substr(0, dot));
  std::vector<std::string> lost;
  std::set<std::string> seen;
  for (const StageMetadata& metadata : checkpoint.metadata)
    for (const ModuleSpecs& module : metadata.modules)
      if (!held.count(module.module_fully_qualified_name) && seen.insert(module.module_fully_qualified_name).second)
        lost.push_back(module.module_fully_qualified_name);
  if (!lost.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("no rank contains parameters of {}, which the metadata lists: the "
                                                  "ranks of a pipeline stage are missing (there are {})",
                                                  list_names(lost), checkpoint.pp))
        .in(checkpoint.folder.path)
        .hint("copy the missing pipeline ranks here");
}

}  // namespace reshard
