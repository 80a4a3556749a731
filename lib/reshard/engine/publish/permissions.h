#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>

#include "reshard/io/open_store.h"
#include "reshard/plan/job/job.h"

namespace reshard {

/// The permission bits that an output may have. A group may do more than others only if it is the inputs' group: a new
/// file's group is often another one, of the user or of the directory.
struct AllowedMode {
  std::uint32_t bits = 0777;
  std::set<std::uint32_t> groups;  // groups of the inputs whose group may do more than others
  std::uint32_t kept = 0777;       // applies to the result, as a umask does

  AllowedMode& operator&=(const AllowedMode& other);
  /// Returns the mode for a file or directory of this group.
  std::uint32_t for_group(std::uint32_t group) const;
  /// Returns the mode if the group is unknown: the group may not do more than others.
  std::uint32_t for_any_group() const;
};

/// Permissions of a job's outputs, which keep private data private. No output lets a group or others do more than its
/// inputs and the umask allow. The owner may read and write everything that the run creates. Special bits are not
/// copied.
class Permissions {
 public:
  /// Reads the modes of the inputs, and of the output directory if it exists. Inputs whose mode is unknown count as
  /// private. The stores are borrowed.
  Permissions(const Job& job, const Stores& stores);

  /// Returns the mode of a directory that the run creates; `relative` to the output directory, which is "". Limited by
  /// the directories of the inputs, and by the model's own folder of that name.
  AllowedMode directory(const std::filesystem::path& relative = {}) const;
  /// Returns the mode of a weights file, limited by all weights files of the input.
  const AllowedMode& weights() const { return weights_; }
  /// Returns the mode of a text file that the run creates: that of a weights file, also limited by the file that it was
  /// created from. If it names no such file, limited by the model's file of the same name, if that exists.
  AllowedMode text(const TextFile& file) const;
  /// Returns the mode of a copied file: the original's, with the owner's bits unchanged.
  AllowedMode copy(const CopiedFile& file) const;

 private:
  AllowedMode allowed_by(const std::filesystem::path& path) const;
  void look_at_directories(const Job& job);
  void look_at_folders(const Job& job);
  void look_at_output(const Job& job);

  Stores stores_;
  std::filesystem::path model_directory_;
  std::uint32_t umask_left_;                              // bits that the umask permits
  AllowedMode directories_;                               // limit from all input directories
  AllowedMode weights_{0666, {}, 0777};                   // limit from all weights files
  AllowedMode shown_;                                     // limit on files from an existing output directory's mode
  std::map<std::filesystem::path, AllowedMode> folders_;  // limits from the model's folders, by relative path
};

/// Sets the permissions of a file or directory that the run created, according to its group. Special bits stay.
/// \throws Error kIo.
void set_permissions(Directories& directories, const std::filesystem::path& path, const AllowedMode& allowed);

/// Creates a directory with permissions according to its group. \returns whether it is new.
/// \throws Error kIo.
bool make_directory(Directories& directories, const std::filesystem::path& path, const AllowedMode& allowed);

}  // namespace reshard
