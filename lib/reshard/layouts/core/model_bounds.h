#pragma once

#include <filesystem>
#include <vector>

#include "reshard/io/files.h"
#include "reshard/layouts/core/checkpoint.h"

namespace reshard {

/// The paths that files of a model may resolve to. An untrusted checkpoint may contain links to any file of the user,
/// whose content would then be copied to the output.
class ModelBounds {
 public:
  /// \param paths  Directories of the model, or files that the user named. Empty paths are skipped.
  /// \throws Error kIo.
  ModelBounds(Files& files, const std::vector<std::filesystem::path>& paths);

  /// Whether `path`, with links resolved, is equal to or inside one of the paths, or is a blob in the cache of the
  /// Hugging Face Hub (models--ORG--NAME/snapshots/COMMIT/FILE is a link to models--ORG--NAME/blobs/DIGEST).
  /// \throws Error kIo.
  bool hold(const std::filesystem::path& path) const;

 private:
  Files& files_;
  std::vector<std::filesystem::path> resolved_;
  std::vector<std::filesystem::path> blobs_;  // directories of blobs
};

/// Validates that no file with tensors is a link to a file outside the checkpoint.
/// \throws Error kBadInput that names the link and its target; kIo.
void validate_no_outside_links(Files& files, const Checkpoint& checkpoint);

}  // namespace reshard
