#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/specs/stages/stage_plan.h"

namespace reshard {

/// A model in ranks, as adapters of it are sharded.
struct AdapterBase {
  TargetPlan mesh;  // mesh, partition and cut names alone
  std::vector<StagePlan> stages;
};

/// Validates everything about a request for shards of adapters that needs no model. Its layout is adapter_layout().
/// \throws Error kUsage.
void validate_adapter_request(const TargetRequest& request);

/// The ranks of the model that the request asks for.
/// \throws Error kUsage.
AdapterBase plan_adapter_base(const TargetRequest& request, const Model& model);

/// The files of one adapter's ranks: adapter_NAME/adapter_shards with metadata and markers, relative to the output
/// directory.
/// \param stages    what the files of each pipeline rank hold.
/// \param metadata  the text of each one's metadata file, which may say more; empty if the caller puts the files there.
/// \throws Error kUnsupported for a tensor of `logical` that no rank has.
TargetMap adapter_target_map(const std::string& name, const std::vector<StageMetadata>& stages,
                             const std::vector<std::string>& metadata, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, Format format);

}  // namespace reshard
