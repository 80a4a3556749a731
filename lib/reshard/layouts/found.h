#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/note.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/peft/adapter_folders.h"

namespace reshard {

/// Which checkpoints a reader accepts.
enum class SourceKind : std::uint8_t {
  kAny,
  kShards,  // only shards of a model or of adapters, or a file with a whole model
  kWhole,   // only whole tensors, with the config.json of a model, or shards that are read as such
};

/// What a path refers to, recognised once, by names of files alone. A file has none of the optional parts.
struct FoundCheckpoint {
  std::filesystem::path path;
  SourceKind kind = SourceKind::kAny;  // which the caller accepts
  std::optional<FoundLayout> whole{};  // whole tensors in the directory
  std::optional<FoundLayout>
      shards{};  // the directory itself, or a folder in it; not looked for if kWhole finds whole tensors
  std::filesystem::path adapter_file{};         // weights of an adapter that PEFT saved there; may be empty
  std::vector<AdapterFolder> adapter_shards{};  // the adapters, if the path refers to those rather than to a model
  Notes notes{};                                // how it was found, for the user
  std::optional<Error> ambiguity{};             // of the shards next to finished weights, which reading throws

  /// Whether the directory is itself a checkpoint, and not that of a training run.
  bool is_checkpoint() const;
  /// Whether it has the weights of a finished model or adapter.
  bool is_finished() const { return whole || !adapter_file.empty(); }
  /// Returns the adapter that PEFT saved in the folder of a step, next to the training state in `shards`; empty if
  /// there is no such pair. The adapter is the checkpoint: the training state has the same adapter, or the base model
  /// with it.
  std::filesystem::path adapter_beside_state(Files& files) const;
  /// Returns the layout as which read_checkpoint would read it; nullptr for a file, and if nothing was found. Some
  /// trainers are distinguished only by what the files contain.
  const Layout* layout(Files& files) const;
};

/// \throws Error kBadInput as find_shards, unless finished weights are next to the shards and may be read.
FoundCheckpoint found_at(Files& files, const std::filesystem::path& path, SourceKind kind = SourceKind::kAny);

/// Returns the sharded checkpoint that `path` refers to: `path` itself, or a directory in it; std::nullopt if not
/// found.
/// \throws Error kBadInput if there are two.
std::optional<FoundLayout> find_shards(Files& files, const std::filesystem::path& path);
/// Returns the checkpoint of whole tensors in the directory `path`; std::nullopt if not found.
std::optional<FoundLayout> find_whole(Files& files, const std::filesystem::path& path);
/// Returns the adapters that `path` refers to: one adapter if `path` is adapter_NAME or adapter_shards, otherwise those
/// in all its adapter_NAME folders, sorted by name. Empty if there are no adapters.
std::vector<AdapterFolder> find_adapter_folders(Files& files, const std::filesystem::path& path);

/// Returns the weights file of the adapter that PEFT saved in `directory`; empty if it does not exist.
std::filesystem::path peft_file_in(Files& files, const std::filesystem::path& directory);

/// Folders with adapters in the directory of an adapter that PEFT saved.
struct PeftFolders {
  std::vector<std::string> adapters;    // in which PEFT saves all but the first
  std::vector<std::string> steps;       // that a training run saved
  std::vector<std::string> incomplete;  // with an adapter's config alone
  bool has_shards = false;              // folders with shards are left out
};

PeftFolders peft_folders_in(Files& files, const std::filesystem::path& directory);
std::string note_on_steps(const std::vector<std::string>& folders);

/// An adapter that PEFT saved.
struct PeftDirectory {
  std::string name;
  std::filesystem::path path;
};

/// Returns the adapters that PEFT saved in `directories`. The first directory's own adapter is named "default", the
/// others are named after their directories, and adapters in folders after these folders. Adds to `notes`.
/// \throws Error kBadInput for a directory without an adapter; kUsage for two adapters of the same name.
std::vector<PeftDirectory> find_peft_adapters(Files& files, const std::vector<std::filesystem::path>& directories,
                                              Notes& notes);

}  // namespace reshard
