#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// How `request` is read for a target of layout `target`.
ReadContext context_of(const SourceRequest& request, ConfigUse use, const Layout* target = nullptr);

/// A job that reads `checkpoint`, whose map and notes it takes over.
std::unique_ptr<Job> start_job(std::string command, Checkpoint& checkpoint, std::filesystem::path output_directory,
                               bool force);

/// An option of the request that is about states of the optimizer, which go along where it is given; empty if none is.
std::string state_option(const TargetRequest& target);

/// An option of the request that is about ranks; empty if none is.
std::string rank_option(const TargetRequest& target);

/// What is wrong with `with_optimizer` for the target's layout, and for what was read.
/// \throws Error kUsage if the layout has no place for states, or the source's none that are read; kBadInput if there are
/// none.
void validate_takes_states(const SourceRequest& source, const Layout& target);
void validate_has_states(const SourceRequest& request, const Checkpoint& checkpoint);
/// \throws Error kBadInput if `source`, the map of `checkpoint`, has no tensors of a model.
void validate_has_tensors(const TensorMap& source, const Checkpoint& checkpoint);
/// \throws Error kBadInput if the source's tensors have another program's names, and the target's are the model's own.
void validate_names(const Checkpoint& checkpoint, const Layout& target);
/// Notes that a target that could have the optimizer's states does not get them.
void note_states_left(Job& job, const Checkpoint& checkpoint, const Layout& target);

/// Makes `job.target` the checkpoint of `logical` that the request asks for, with the `states` of a training run, if they
/// are not null. `model` is that of a target of ranks, and may be null for others.
/// \returns the tensors of the source that checkpoints of this layout do not have.
/// \throws Error kUsage, with what would work; kBadInput if other weights stand in the output directory.
std::vector<std::string> plan_target(Files& files, Job& job, const TargetRequest& request, const Model* model,
                                     const std::vector<LogicalTensor>& logical, const TrainingStates* states = nullptr);

/// Gives tensors the dtype that the request asks for, else the one of the model or of the target's layout.
/// \throws Error as cast_tensors and take_config_dtype.
void take_dtypes(Files& files, Job& job, const Checkpoint& source, const Layout& target, std::optional<DType> dtype,
                 std::vector<LogicalTensor>& logical);

/// Gives tensors the dtype that the model has them in (LogicalTensor::model_dtype), and notes it.
void take_model_dtypes(Job& job, std::vector<LogicalTensor>& logical);

/// Gives the floating tensors of 16 and 32 bits the dtype that `config` says, where the layout asks for it, and notes
/// it.
/// \throws Error kBadInput, naming the key, if what it says is no dtype.
void take_config_dtype(Files& files, Job& job, const Layout& layout, const std::filesystem::path& config,
                       std::vector<LogicalTensor>& logical);

/// Notes that tensors are float32 though config.json says another dtype, and how to cast them. Of a checkpoint that no
/// training program saved, only if all its floats are.
void note_config_dtype(Files& files, Job& job, const Checkpoint& source, const std::vector<LogicalTensor>& logical);

/// The outputs do not go into the shards folder that is read.
/// \throws Error kUsage.
void validate_outside(Files& files, const std::filesystem::path& output_directory, const Checkpoint& source);

/// Whether `config` is the config.json of the output directory, where it stays as it is.
bool is_in_place(Files& files, const std::filesystem::path& config, const std::filesystem::path& output_directory);

/// Takes the other files of a checkpoint's directory along, unless the outputs go into it, and its config.json from
/// wherever it is.
void carry_companions(Files& files, Job& job, const Checkpoint& source,
                      const std::vector<std::filesystem::path>& left_out);

}  // namespace reshard
