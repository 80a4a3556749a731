#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/dcp/dcp_metadata.h"

namespace reshard {

/// The bytes of a `.metadata` in the form of torch 2.0 to 2.3, which every torch from 2.0 on reads
/// (torch/distributed/checkpoint/metadata.py, filesystem.py; TensorProperties of
/// torch/distributed/_shard/sharded_tensor/metadata.py). Of each tensor the dtype, shape and chunks are written, and no
/// transforms.
/// \throws Error kUnsupported for a dtype that torch does not have, or a name that is too long; kBadInput for a name
///         that is empty, not UTF-8, or has control characters.
std::string dcp_metadata_file(const DcpMetadata& metadata);

/// What a writer wants in a `.distcp` file: each tensor as torch.save writes it alone, and each object as it is
/// (TensorEntry::is_object), one after another, each at a multiple of 64 bytes.
struct DcpItemsPlan {
  ContainerPlan container;       // its tensors in the order given
  std::vector<DcpPlace> places;  // of each tensor's item, then of each of `contents`; `file` is 0
};

/// \param crcs      as of plan_torch.
/// \param contents  objects whose bytes are known; they come last.
/// \throws as plan_torch.
DcpItemsPlan plan_dcp_items(std::vector<TensorEntry> tensors, std::span<const std::uint32_t> crcs = {},
                            std::span<const std::string> contents = {});

}  // namespace reshard
