#include "reshard/layouts/contents/opened_files.h"

#include <utility>

#include "reshard/io/zstd_source.h"

namespace reshard {

const Source& OpenedFiles::at(std::uint32_t file) {
  constexpr std::size_t kMaxOpen = 16;
  if (sources_.size() >= kMaxOpen && !sources_.contains(file)) sources_.clear();
  std::unique_ptr<Source>& source = sources_[file];
  if (source) return *source;
  const SourceFile& described = in_files_[file];
  source = files_.open(described.path);
  if (described.frame) source = open_zstd(std::move(source), *described.frame, described.size_bytes, described.path);
  return *source;
}

}  // namespace reshard
