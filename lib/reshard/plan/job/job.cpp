#include "reshard/plan/job/job.h"

namespace reshard {

std::uint64_t Job::output_bytes() const {
  std::uint64_t bytes = 0;
  for (const TargetFile& file : target.files) bytes += file.size_bytes;
  for (const TextFile& file : text_files) bytes += file.text.size();
  for (const CopiedFile& file : copied_files) bytes += file.size_bytes;
  return bytes;
}

}  // namespace reshard
