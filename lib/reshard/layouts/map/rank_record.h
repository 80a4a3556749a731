#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/container_keys.h"

namespace reshard {

/// Original tensors with their shapes, by name.
using OriginalShapes = std::map<std::string, Dims>;

/// What a rank's file says of itself, in the `__metadata__` of safetensors or its equal in torch's archives: which rank
/// it is of, and, of weights for inference, the shapes of the originals of which the ranks together have more than they
/// are: heads that are replicated, and padding. The systems that read and write these layouts look at no such metadata;
/// the keys are our own.
struct RankRecord {
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_degree = 1;
  std::uint32_t pp_rank = 0;  // this and the next are written only where there are several such ranks
  std::uint32_t pp_degree = 1;
  std::uint32_t ep_rank = 0;
  std::uint32_t ep_degree = 1;
  std::shared_ptr<const OriginalShapes> originals;  // never null; ranks share it
  std::set<std::string> transposed{};  // stored tensors with the last two dims swapped; "*" for the number of a layer
};

/// The record as keys and values of a file's metadata.
/// \throws Error kUnsupported for a name that is not UTF-8.
FileMetadata record_metadata(const RankRecord& record);

/// The record in a file's metadata; nothing if it has none.
/// \throws Error kBadInput for one that makes no sense.
std::optional<RankRecord> read_record(const Container& file);

/// "tensor-parallel rank 0 of 2, pipeline rank 1 of 2": the ranks that a file records, of the kinds of which there are
/// several. Empty for the only rank of a checkpoint.
std::string describe_rank(const RankRecord& record);

}  // namespace reshard
