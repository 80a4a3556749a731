#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/container.h"

namespace reshard {

/// Original tensors with their shapes, by name.
using OriginalShapes = std::map<std::string, Dims>;

/// What a rank's file of weights for inference says of itself, in the `__metadata__` of safetensors: which rank it is
/// of, and the shapes of the originals of which the ranks together have more than they are: heads that are repeated,
/// and what was filled up. NxD and NxD Inference write no metadata and do not look at any; the keys are our own.
struct RankRecord {
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_degree = 1;
  std::shared_ptr<const OriginalShapes> originals;  // never null; ranks share it
};

/// The record as keys and values of safetensors' metadata.
/// \throws Error kUnsupported for a name that is not UTF-8.
std::vector<std::pair<std::string, std::string>> record_metadata(const RankRecord& record);

/// The record in a file's metadata; nothing if it has none.
/// \throws Error kBadInput for one that makes no sense.
std::optional<RankRecord> read_record(const Container& file);

}  // namespace reshard
