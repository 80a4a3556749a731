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

/// Shapes of logical tensors, by name.
using OriginalShapes = std::map<std::string, Dims>;

/// What a rank's file records about itself, in the `__metadata__` of safetensors or its equivalent in torch archives:
/// its rank and, for inference weights, the shapes of logical tensors that are smaller than the ranks' stored tensors
/// together because of replicated heads or padding. The systems that read and write these layouts ignore this metadata;
/// the keys are our own.
struct RankRecord {
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_degree = 1;
  std::uint32_t pp_rank = 0;  // like ep_rank, written only if the degree is above 1
  std::uint32_t pp_degree = 1;
  std::uint32_t ep_rank = 0;
  std::uint32_t ep_degree = 1;
  std::shared_ptr<const OriginalShapes> originals;  // never null; shared by the ranks
  /// Stored tensors with the last two dims swapped, and those multiplied by the weights of a norm; "*" replaces a
  /// layer's number.
  std::set<std::string> transposed{}, scaled{};
};

/// Returns the record as keys and values of a file's metadata.
/// \throws Error kUnsupported if a name is not UTF-8.
FileMetadata record_metadata(const RankRecord& record);

/// Returns the record in a file's metadata; std::nullopt if it has none.
/// \throws Error kBadInput if the record is not valid.
std::optional<RankRecord> read_record(const Container& file);

/// Returns the keys of a file's metadata that are neither part of a record nor written by every program.
FileMetadata further_metadata(const Container& file);

/// Describes the ranks that a file records, for each kind with a degree above 1: "tensor-parallel rank 0 of 2, pipeline
/// rank 1 of 2". Empty for the only rank of a checkpoint.
std::string describe_rank(const RankRecord& record);

}  // namespace reshard
