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
  std::set<std::uint32_t> groups;  // of the inputs whose group may do more than others
  std::uint32_t kept = 0777;       // applies to the result, as a umask does

  AllowedMode& operator&=(const AllowedMode& other);
  /// For a file or directory of this group.
  std::uint32_t for_group(std::uint32_t group) const;
  /// For one whose group is not known: its group may do what others may.
  std::uint32_t for_any_group() const;
};

/// The permissions that a job's outputs get: what is private stays private. No output lets a group or others do more
/// than its inputs do, or than the umask leaves; the owner may read and write whatever the run makes. Special bits are
/// not taken over.
class Permissions {
 public:
  /// Asks the file system for the modes of the inputs, and of the output directory if it exists. Inputs that cannot be
  /// asked for count as private. The stores are borrowed.
  Permissions(const Job& job, const Stores& stores);

  /// For a directory that the run makes; `relative` to the output directory, which is "". Limited by the directories
  /// that the inputs come from, and by the model's own folder of that name.
  AllowedMode directory(const std::filesystem::path& relative = {}) const;
  /// For a file of weights: limited by all files of the input's weights.
  const AllowedMode& weights() const { return weights_; }
  /// For a text that the run makes: the same, and limited by the file it is made from; where it names none, by the
  /// model's file of the same name, if there is one.
  AllowedMode text(const TextFile& file) const;
  /// For a copy: its own mode, with the owner's bits as they are.
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
