#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/plan/job/request.h"

namespace reshard {

/// One checkpoint of a training run: a folder beside others in the run's directory, such as NxD's `step_3`, a
/// trainer's `checkpoint-10` or DeepSpeed's `global_step10`. The members say what its folder holds, by names alone.
struct Tag {
  std::string name;
  bool has_weights = false;        // of any kind
  bool has_shards = false;         // of a model or an adapter
  const char* lacks = "weights";   // without weights: what it would have to hold
  bool is_done = false;            // every save in it that wrote the marker `checkpoint` also wrote `done`
  bool is_cut_off = false;         // a save in it did not
  bool has_trainer_state = false;  // trainer_state.json, which trainers write last
};

/// transformers and optimum-neuron write it when all else of a checkpoint is there.
inline constexpr const char* kTrainerStateFile = "trainer_state.json";
/// DeepSpeed and others write the name of the newest tag into it.
inline constexpr const char* kLatestFile = "latest";

/// The checkpoints in a run's directory, in natural order of their names. A folder is one if it has the markers of
/// NxD's saves or trainer_state.json, or if its name is made of words such as step and checkpoint and ends in a number.
/// Links to folders beside them are left out.
std::vector<Tag> list_tags(Files& files, const std::filesystem::path& directory);

/// Whether a name is made of words of training and numbers, and ends in a number, or has a step as Lightning writes it:
/// step_3, epoch=1-step=20, 00100, llama--step=10-consumed_samples=320.0.ckpt.
bool is_tag_name(std::string_view name);

/// Whether `directory` is one of those, with weights or cut off.
bool is_tag_folder(Files& files, const std::filesystem::path& directory);

/// Why `tag` does not count as finished, or nothing if it does. A tag that a save of NxD began needs `done`. Where tags
/// whose names differ in numbers alone have `done` or trainer_state.json, it needs one of them, too; else weights
/// suffice.
std::optional<std::string> unfinished_reason(const Tag& tag, const std::vector<Tag>& tags);

/// The name of the tag that is taken, and a note that says why this one.
struct TagChoice {
  std::string name;
  std::string note;  // begins with the name
};

/// The newest finished one of `tags`: the one that `latest` names, else the one with the largest number.
/// \param tags  not empty.
/// \throws Error kBadInput if none is finished; kUsage if names do not tell which is the newest, or if the newest of
/// several has no name like step_3 or checkpoint-10 and `latest` does not name it.
TagChoice choose_tag(const std::vector<Tag>& tags, const std::optional<std::string>& latest);

/// Whether `directory` is a checkpoint itself, by the names in it, and no training run's directory.
/// \throws Error kBadInput if it holds two sharded checkpoints and no Hugging Face files that count.
bool is_checkpoint(Files& files, const std::filesystem::path& directory, SourceKind kind = SourceKind::kAny);

/// One checkpoint, and what the user should know of how it was found, whole sentences.
struct FoundCheckpoint {
  std::filesystem::path path;
  std::vector<std::string> notes;
};

/// The checkpoint that `path` means. Without `tag` that is `path` itself, unless it is a directory that is no
/// checkpoint but holds tags: then the one of choose_tag. With `tag` it is the folder of this name in `path`.
/// \throws Error as choose_tag does; kUsage for a `tag` that is not the name of a folder; kBadInput for a `tag` that
/// `path` does not hold, and for a file `latest` that names none of its folders.
FoundCheckpoint find_checkpoint(Files& files, const std::filesystem::path& path, const std::optional<std::string>& tag,
                                SourceKind kind = SourceKind::kAny);

}  // namespace reshard
