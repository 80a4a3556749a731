#include "reshard/layouts/core/file_warnings.h"

#include <fmt/format.h>

namespace reshard {

void FileWarnings::add(const std::string& file, const std::vector<std::string>& warnings) {
  for (const std::string& text : warnings) {
    const auto [known, is_new] = places_.emplace(text, all_.size());
    if (is_new)
      all_.push_back({text, file});
    else
      ++all_[known->second].other_files;
  }
}

void FileWarnings::note(Notes& notes) const {
  for (const Warning& warning : all_) {
    const std::size_t others = warning.other_files;
    notes.mismatch(fmt::format("{}{}: {}", warning.first_file,
                               others == 0 ? "" : fmt::format(" and {} other file{}", others, others == 1 ? "" : "s"),
                               warning.text));
  }
}

}  // namespace reshard
