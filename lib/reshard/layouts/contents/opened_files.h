#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Opens files of a source map for small reads during planning. Decodes compressed files, and keeps a few files open.
class OpenedFiles {
 public:
  /// Borrows both.
  OpenedFiles(Files& files, std::span<const SourceFile> in_files) : files_(files), in_files_(in_files) {}

  /// Returns a file that stays valid until the next call.
  /// \param file  Index into the files of the map.
  /// \throws Error kIo; kBadInput if the file no longer exists.
  const Source& at(std::uint32_t file);
  const SourceFile& described(std::uint32_t file) const { return in_files_[file]; }

 private:
  Files& files_;
  std::span<const SourceFile> in_files_;
  std::map<std::uint32_t, std::unique_ptr<Source>> sources_;
};

}  // namespace reshard
