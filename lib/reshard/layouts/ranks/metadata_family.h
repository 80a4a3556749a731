#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// A model as the metadata of its ranks describes it.
struct MetadataFamily {
  std::string description;        // text in the form of family.schema.json
  std::vector<std::string> cuts;  // the last layer of each pipeline stage except the last; empty for virtual stages
};

/// Describes the tensors of `map`, which `stages` (by pipeline rank) distribute over `tp` ranks. All shapes are
/// numbers; fused linears and grouped heads follow the transformation specs. `config` provides what metadata does not
/// record: the model_type, and the number of heads of projections that are not grouped.
/// \throws Error kUnsupported, naming the tensor or module, for anything that a description cannot express.
MetadataFamily describe_metadata(const std::vector<StageMetadata>& stages, std::uint32_t tp, const SourceMap& map,
                                 const ModelConfig& config);

}  // namespace reshard
