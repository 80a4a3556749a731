// Entry points of the library for checkpoints on the local file system: what plan/, layouts/ and specs/ do with any
// Files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "reshard/io/local_storage.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/source/tags.h"
#include "reshard/specs/family/family_parser.h"

namespace reshard {

inline Checkpoint read_checkpoint(const std::filesystem::path& path, const ReadContext& context) {
  return read_checkpoint(local_storage(), path, context);
}

inline FoundCheckpoint find_checkpoint(const std::filesystem::path& path, const std::optional<std::string>& tag,
                                       SourceKind content = SourceKind::kAny) {
  return find_checkpoint(local_storage(), path, tag, content);
}

inline std::shared_ptr<const Family> read_family(const std::filesystem::path& path) {
  return read_family(local_storage(), path);
}

inline std::unique_ptr<Job> plan_shard(const Request& request) {
  return plan_shard(local_storage(), request);
}

inline std::unique_ptr<Job> plan_consolidate(const Request& request) {
  return plan_consolidate(local_storage(), request);
}

inline std::unique_ptr<Job> plan_convert(const Request& request) {
  return plan_convert(local_storage(), request);
}

}  // namespace reshard
