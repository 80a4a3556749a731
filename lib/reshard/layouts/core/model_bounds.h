#pragma once

#include <filesystem>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"

namespace reshard {

/// Where the files of a model may be. A checkpoint from a stranger may contain links to any file of the user, whose
/// content would then be in the output.
class ModelBounds {
 public:
  /// \param paths  directories of the model, or files that the user named; empty ones are skipped.
  /// \throws Error kIo.
  ModelBounds(Files& files, const std::vector<std::filesystem::path>& paths);

  /// Whether `path`, links resolved, is one of the paths or inside one, or is a blob of the hub's cache
  /// (models--ORG--NAME/snapshots/COMMIT/FILE is a link to models--ORG--NAME/blobs/DIGEST).
  /// \throws Error kIo.
  bool hold(const std::filesystem::path& path) const;

 private:
  Files& files_;
  std::vector<std::filesystem::path> resolved_;
  std::vector<std::filesystem::path> blobs_;  // directories
};

/// Validates that no file with tensors is itself a link that leads out of the checkpoint.
/// \throws Error kBadInput that names the link and where it leads; kIo.
void validate_no_outside_links(Files& files, const Checkpoint& checkpoint);

}  // namespace reshard
