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

/// Reads the metadata that optimum-neuron saved with torch before it wrote JSON: a dict with "sharded_metadata", the
/// split dim of each parameter, and "gqa_qkv_metadata", a description of grouped-query attention. It is stored in a
/// file per pipeline rank, `mp_metadata_pp_rank_Y.pt` (from 0.0.22), or next to "model" in every rank file (0.0.15 to
/// 0.0.21; only 0.0.21 has "gqa_qkv_metadata"). The shards provide the rest: the number of ranks `tp`, and the
/// shapes of the parameters in a rank file (std::nullopt for absent parameters).
/// \throws Error kBadInput if it is not a valid metadata file or contradicts the shards; others like read_torch_file.
StageMetadata read_stage_pt(Files& files, const std::filesystem::path& path, std::uint32_t tp,
                            const std::function<std::optional<Dims>(const std::string& name)>& stored_shape);

/// Returns the same metadata to be written: "sharded_metadata" and "gqa_qkv_metadata" of a stage. Returns std::nullopt
/// if they cannot express its partition: fused linears, strides, packed matrices, distributed experts, padded heads.
/// The names of output projections are a list, while optimum-neuron uses a set: it only tests membership.
std::optional<PlainValue::Dict> stage_pt_value(const StageMetadata& stage);

/// Whether `path`, a metadata file of a pipeline rank, was saved by torch.
inline bool is_stage_pt(const std::filesystem::path& path) {
  return path.extension() == ".pt";
}

}  // namespace reshard
