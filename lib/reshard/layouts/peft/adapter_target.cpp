#include "reshard/layouts/peft/adapter_target.h"

#include <utility>

#include "reshard/base/error.h"
#include "reshard/layouts/peft/adapter_folders.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {

namespace fs = std::filesystem;

void validate_adapter_request(const TargetRequest& request) {
  if (request.format == Format::kSafetensors)
    throw Error(ErrorKind::kUsage, "sharded adapters do not support `format` safetensors")
        .hint("choose pytorch or xser");
  mesh_of(request);
  if (request.ep.value_or(1) != 1)
    throw Error(ErrorKind::kUsage, "`ep`: adapters are not spread over expert-parallel ranks");
  validate_request(request);
}

AdapterBase plan_adapter_base(const TargetRequest& request, const Model& model) {
  AdapterBase base;
  plan_mesh(base.mesh, request, model);
  base.stages = plan_stages(model, base.mesh.mesh.tp, *base.mesh.partition, optimum_options(request.options, {}),
                            [](const std::string&) { return false; });
  return base;
}

TargetMap adapter_target_map(const std::string& name, const std::vector<StageMetadata>& stages,
                             const std::vector<std::string>& metadata, std::uint32_t tp,
                             std::span<const LogicalTensor> logical, Format format) {
  std::vector<StagePlan> plans;
  for (const StageMetadata& stage : stages) plans.push_back({stage, {}});
  TargetMap map = sharded_target_map(plans, tp, logical, {&adapter_layout(), format});
  for (std::size_t i = 0; i < map.logical.size(); ++i)
    if (map.pieces[i].empty())
      throw Error(ErrorKind::kUnsupported, "has no place in the ranks of this model").tensor(map.logical[i].name);
  const fs::path folder = adapter_folder(name) / kAdapterShardsFolder;
  const char* const shards = adapter_layout().traits().folder;
  const auto move = [&](fs::path& path) { path = folder / path.lexically_relative(shards); };
  for (TargetFile& file : map.files) move(file.path);
  for (TextFile& file : marked_metadata_files(shards, plans)) {
    const auto pp_rank = metadata_pp_rank(file.path.filename().string());
    if (pp_rank && metadata.empty()) continue;
    if (pp_rank) file.text = metadata[*pp_rank];
    map.text_files.push_back(std::move(file));
  }
  for (TextFile& file : map.text_files) move(file.path);
  return map;
}

}  // namespace reshard
