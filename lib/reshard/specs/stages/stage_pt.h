#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/io/files.h"
#include "reshard/specs/parallel/transformation_specs.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// Reads the metadata that optimum-neuron saved with torch before it wrote JSON: a dict whose "sharded_metadata" says
/// along which dim each parameter is split, and whose "gqa_qkv_metadata" describes grouped-query attention. It is in a
/// file per pipeline rank, `mp_metadata_pp_rank_Y.pt` (from 0.0.22), or next to "model" in every rank file (0.0.15 to
/// 0.0.21; only 0.0.21 has "gqa_qkv_metadata"). The shards state the rest: the number `tp` of ranks, and the shapes of
/// the parameters in a rank file (std::nullopt for a parameter that is not in it).
/// \throws Error kBadInput if it is not such a file or contradicts the shards; as read_torch_file does.
StageMetadata read_stage_pt(Files& files, const std::filesystem::path& path, std::uint32_t tp,
                            const std::function<std::optional<Dims>(const std::string& name)>& stored_shape);

/// The same metadata to be written: "sharded_metadata" and "gqa_qkv_metadata" of a stage. std::nullopt if they cannot
/// express its partition: fused linears, strides, packed matrices, spread experts, padded heads. The names of output
/// projections are a list, where optimum-neuron has a set: it only asks whether a name is in it.
std::optional<PlainValue::Dict> stage_pt_value(const StageMetadata& stage);

/// Whether `path`, a metadata file of a pipeline rank, is one that torch saved.
inline bool is_stage_pt(const std::filesystem::path& path) {
  return path.extension() == ".pt";
}

}  // namespace reshard
