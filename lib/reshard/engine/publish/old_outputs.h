#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/storage.h"

namespace reshard {

/// File in a staging directory that records the OldOutputs of its run.
inline constexpr std::string_view kOldFile = ".old";

/// The files that a run replaces, with their stamps. The run records them before it moves the first one. Later runs can
/// then tell them from files that others created under the same names after a kill, and may delete them.
class OldOutputs {
 public:
  /// None.
  OldOutputs() = default;
  /// The files at and below `entries`, which are relative to `directory`.
  /// \throws Error kIo.
  OldOutputs(Storage& storage, const std::filesystem::path& directory,
             const std::vector<std::filesystem::path>& entries);

  /// Reads kOldFile of a staging directory. \returns none if the file does not exist or is invalid.
  /// \throws Error kIo if the disk fails.
  static OldOutputs read(Storage& storage, const std::filesystem::path& root);
  /// Writes kOldFile; `sync` flushes the file, but not its name.
  /// \throws Error kIo, kNoSpace.
  void write(Storage& storage, const std::filesystem::path& root, bool sync) const;

  /// Whether `entry` of `directory` is one of them, or a folder with at least one of them and no other files. Files that
  /// were written since the record do not count.
  /// \throws Error kIo.
  bool cover(Storage& storage, const std::filesystem::path& directory, const std::filesystem::path& entry) const;
  /// Returns the paths of those that are in `directory` and have not been written since.
  std::set<std::filesystem::path> unchanged_in(Storage& storage, const std::filesystem::path& directory) const;

  friend bool operator==(const OldOutputs&, const OldOutputs&) = default;

 private:
  void add(Storage& storage, const std::filesystem::path& directory, const std::filesystem::path& relative);

  std::map<std::filesystem::path, std::string> stamps_;  // by path relative to the output directory
};

}  // namespace reshard
