#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "reshard/base/note.h"

namespace reshard {

/// The warnings of a checkpoint's files. Those that several files have become one note.
class FileWarnings {
 public:
  /// \param file  as the note names it.
  void add(const std::string& file, const std::vector<std::string>& warnings);

  /// Appends the notes, such as "a.pt and 3 other files: …", in the order of their first files.
  void note(Notes& notes) const;

 private:
  struct Warning {
    std::string text;
    std::string first_file;
    std::size_t other_files = 0;
  };
  std::vector<Warning> all_;
  std::unordered_map<std::string, std::size_t> places_;  // index in all_ of each text
};

}  // namespace reshard
