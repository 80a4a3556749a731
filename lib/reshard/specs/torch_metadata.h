#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "reshard/io/files.h"
#include "reshard/specs/transformation_specs.h"
#include "reshard/tensor/shape.h"

namespace reshard {

/// Reads `mp_metadata_pp_rank_Y.pt`, the metadata file of optimum-neuron before it wrote JSON: a torch.save of a dict
/// whose "sharded_metadata" says along which dim each parameter is split, and whose "gqa_qkv_metadata" tells
/// grouped-query attention. What it does not say is taken from the shards: the number `tp` of ranks, and the shapes of
/// the parameters in a rank's file (nothing for a parameter that is not in it).
/// \throws Error kBadInput if it is not such a file or contradicts the shards; as read_torch_file does.
StageMetadata read_torch_metadata(Files& files, const std::filesystem::path& path, std::uint32_t tp,
                                  const std::function<std::optional<Dims>(const std::string& name)>& stored_shape);

}  // namespace reshard
