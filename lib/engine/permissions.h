#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>

#include "reshard/plan/job.h"

namespace reshard {

/// The permissions that a job's outputs get: what is private stays private. No output lets a group or others do more
/// than its inputs do, or than the umask leaves; the owner may read and write whatever the run makes. Special bits are
/// not taken over.
class Permissions {
 public:
  /// Asks the file system for the modes of the inputs, and of the output directory if it exists. Inputs that cannot be
  /// asked for count as private.
  explicit Permissions(const Job& job);

  /// Of a directory that the run makes; `relative` to the output directory, which is "". As the directories that the
  /// weights come from let, and the model's own folder of that name.
  mode_t directory(const std::filesystem::path& relative = {}) const;
  /// Of a file of weights: as all files of the input's weights let.
  mode_t weights() const { return weights_; }
  /// Of a text that the run makes: the same, and as the model's file of that name lets, if there is one.
  mode_t text(const std::filesystem::path& relative) const;
  /// Of a copy: its own, with the owner's bits as they are.
  mode_t copy(const CopiedFile& file) const;

 private:
  void look_at_folders(const Job& job);
  void look_at_output(const Job& job);

  std::filesystem::path model_directory_;
  mode_t umask_left_;                                // the bits that it leaves
  mode_t directories_ = 0777;                        // those that all input directories have
  mode_t weights_ = 0666;                            // those that all files of weights have
  mode_t shown_ = 0777;                              // those that files may have where the output directory stands
  std::map<std::filesystem::path, mode_t> folders_;  // of the model's, by their relative path
};

/// Gives a file or directory that the run has made these permissions, if it has others; special bits stay. A file system
/// that knows no permissions is left alone.
/// \throws Error kIo.
void set_permissions(const std::filesystem::path& path, mode_t mode);

/// Makes a directory with these permissions. \returns whether it was not there.
/// \throws Error kIo.
bool make_directory(const std::filesystem::path& path, mode_t mode);

}  // namespace reshard
