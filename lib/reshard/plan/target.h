#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layouts/sharded_layout.h"
#include "reshard/plan/checkpoint.h"
#include "reshard/plan/job.h"
#include "reshard/specs/family.h"

namespace reshard {

/// A job that reads `checkpoint`, whose layout and notes it takes over.
std::unique_ptr<Job> start_job(std::string command, Checkpoint& checkpoint, std::filesystem::path output_directory,
                               bool force);

/// The mesh that it asks for.
/// \throws Error kUsage.
Mesh mesh_of(const ShardingRequest& request);

/// The options fit the layout that is asked for.
/// \throws Error kUsage.
void prove_sharding_options(const ShardingRequest& request);

/// Sets the mesh of `job` and its stages.
/// \throws Error kUsage.
void plan_mesh(Job& job, const ShardingRequest& request, const Model& model);

/// Makes `job.target` the shards of `logical`, which are `model`'s, with its metadata, markers and reports.
/// \throws Error kUsage, with the degrees that work, if the model cannot be split so.
void plan_sharded_target(Job& job, const ShardingRequest& request, const Model& model,
                         const std::vector<LogicalTensor>& logical);

/// Gives the floating tensors of 16 and 32 bits the dtype that `config` says, as NxD Inference does,
/// and notes it.
/// \throws Error kBadInput, naming the key, if what it says is no dtype.
void take_config_dtype(Job& job, const std::filesystem::path& config, std::vector<LogicalTensor>& logical);

/// Makes `job.target` a Hugging Face checkpoint of `logical`.
/// \throws Error kBadInput if weights of another checkpoint stand in the output directory.
void plan_hf_target(Job& job, Format format, std::uint64_t max_shard_bytes, const std::vector<LogicalTensor>& logical);

/// The outputs do not go into the shards folder that is read.
/// \throws Error kUsage.
void prove_outside(const std::filesystem::path& output_directory, const Checkpoint& source);

/// Whether `config` is the config.json of the output directory, where it stays as it is.
bool is_in_place(const std::filesystem::path& config, const std::filesystem::path& output_directory);

/// Takes the other files of a checkpoint's directory along, unless the outputs go into it, and its config.json from
/// wherever it is.
void carry_companions(Job& job, const Checkpoint& source, const std::vector<std::filesystem::path>& left_out);

}  // namespace reshard
