#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/format.h"
#include "reshard/layouts/layout.h"
#include "reshard/layouts/shards.h"
#include "reshard/specs/mesh.h"

namespace reshard {

/// What stands in a directory, whatever it is, for looking at.
struct Inspection {
  enum class What { kFile, kHuggingFace, kSharded } what = What::kFile;
  ShardsKind shards_kind = ShardsKind::kRanks;
  Format format = Format::kSafetensors;  // of its first file
  std::string model_type;                // empty if unknown
  Layout layout;
  Mesh mesh;
  std::vector<std::pair<std::string, std::string>> file_metadata;
  std::vector<std::string> notes;
};

/// \throws Error kBadInput, kUnsupported or kIo.
std::unique_ptr<Inspection> inspect_path(const std::filesystem::path& path);

}  // namespace reshard
