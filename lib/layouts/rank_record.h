#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/container.h"
#include "reshard/layouts/cut.h"
#include "reshard/layouts/layout.h"

namespace reshard {

/// What a rank's file of weights for inference says of itself, in the `__metadata__` of safetensors: which rank it is
/// of, and what the original tensors were before they were filled up. NxD and NxD Inference write no metadata and do
/// not look at any; the keys are our own.
struct RankRecord {
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_degree = 1;
  std::map<std::string, Dims> filled_up;  // by original name: its own shape

  friend bool operator==(const RankRecord&, const RankRecord&) = default;
};

/// The record as keys and values of safetensors' metadata.
std::vector<std::pair<std::string, std::string>> record_metadata(const RankRecord& record);

/// The record in a file's metadata; nothing if it has none.
/// \throws Error kBadInput for one that makes no sense.
std::optional<RankRecord> read_record(const Container& file);

/// The originals in `layout` of which some rank has filler in place of parts, by the rules of its files.
std::map<std::string, Dims> filled_up(const std::vector<CutRule>& rules, const Layout& layout);

}  // namespace reshard
