#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/dcp/dcp_metadata.h"

namespace reshard {

/// Returns the bytes of a `.metadata` file in the form of torch 2.0 to 2.3, which every version since 2.0 reads
/// (torch/distributed/checkpoint/metadata.py, filesystem.py; TensorProperties of
/// torch/distributed/_shard/sharded_tensor/metadata.py). Writes the dtype, shape and chunks of each tensor, and no
/// transforms.
/// \throws Error kUnsupported for a dtype that torch lacks, or a name that is too long; kBadInput for a name that is
///         empty, not UTF-8, or has control characters.
std::string dcp_metadata_file(const DcpMetadata& metadata);

/// Layout of a `.distcp` file: each tensor as torch.save writes it alone, and each object unchanged
/// (TensorEntry::is_object), one after another, at multiples of 64 bytes.
struct DcpItemsPlan {
  ContainerPlan container;       // tensors in the given order
  std::vector<DcpPlace> places;  // items of the tensors, then of `contents`; `file` is 0
};

/// \param crcs      see plan_torch.
/// \param contents  objects whose bytes are known; they are placed last.
/// \throws like plan_torch.
DcpItemsPlan plan_dcp_items(std::vector<TensorEntry> tensors, std::span<const std::uint32_t> crcs = {},
                            std::span<const std::string> contents = {});

}  // namespace reshard
