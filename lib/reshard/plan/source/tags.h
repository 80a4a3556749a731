#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/found.h"

namespace reshard {

/// One checkpoint of a training run: a folder in the run's directory, such as NxD's `step_3`, a trainer's
/// `checkpoint-10` or DeepSpeed's `global_step10`. The members describe its contents, judged by file names alone.
struct Tag {
  std::string name;
  bool has_weights = false;        // of any kind, in the folder or below it (step_models.h)
  bool has_shards = false;         // sharded model or adapter
  const char* lacks = "weights";   // missing files, if has_weights is false
  bool is_done = false;            // has a marker `done`, and no save in it lacks one; see is_cut_off
  bool is_cut_off = false;         // a save in it wrote the marker `checkpoint`, but not `done`
  bool has_trainer_state = false;  // trainer_state.json, which trainers write last
};

/// transformers and optimum-neuron write it after all other files of a checkpoint.
inline constexpr const char* kTrainerStateFile = "trainer_state.json";
/// Contains the name of the newest tag. DeepSpeed and others write it.
inline constexpr const char* kLatestFile = "latest";

/// Lists the checkpoints in a run's directory, in natural order of their names. A folder is a checkpoint if it contains
/// the markers of NxD's saves or trainer_state.json, or if its name consists of words such as step and checkpoint and
/// ends in a number. Links to sibling folders are omitted.
std::vector<Tag> list_tags(Files& files, const std::filesystem::path& directory);

/// Whether a name consists of training words and numbers and ends in a number, or contains a step as Lightning writes
/// it: step_3, epoch=1-step=20, 00100, llama--step=10-consumed_samples=320.0.ckpt.
bool is_tag_name(std::string_view name);

/// Whether `directory` is a checkpoint in the sense of list_tags that has weights or was cut off.
bool is_tag_folder(Files& files, const std::filesystem::path& directory);

/// Why `tag` is not finished; std::nullopt if it is. A tag with NxD's marker `checkpoint` needs `done`. If tags whose
/// names differ only in numbers have `done` or trainer_state.json, it needs one of these, too; otherwise weights
/// suffice.
std::optional<std::string> unfinished_reason(const Tag& tag, const std::vector<Tag>& tags);

/// The name of the chosen tag, and a note that explains the choice.
struct TagChoice {
  std::string name;
  std::string note;  // begins with the name
};

/// The tag that a file in the run's directory names as the newest.
struct LatestTag {
  std::string name;
  std::string file;  // its name
};

/// Chooses the newest finished tag: the one that `latest` names, or else the one with the largest number.
/// \param tags  not empty.
/// \throws Error kBadInput if none is finished; kUsage if the names do not determine the newest, or if the newest of
/// several has no name like step_3 or checkpoint-10 and `latest` is not its.
TagChoice choose_tag(const std::vector<Tag>& tags, const std::optional<LatestTag>& latest);

/// Finds the checkpoint that `path` refers to. Without `tag`, that is `path` itself, or choose_tag's choice if `path`
/// is a directory that contains tags but is not a checkpoint. With `tag`, it is the folder of this name in `path`. Tags
/// may also be in a folder `checkpoints` of `path`. Of a tag that is no checkpoint, it is the only model below it.
/// \throws Error as choose_tag does; kUsage if `tag` is not the name of a folder; kBadInput if `path` does not contain
/// `tag`, or if a file `latest` names none of its folders.
FoundCheckpoint find_checkpoint(Files& files, const std::filesystem::path& path, const std::optional<std::string>& tag,
                                SourceKind kind = SourceKind::kAny);

}  // namespace reshard
