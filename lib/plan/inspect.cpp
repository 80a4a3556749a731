#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/formats/safetensors.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/layouts/ranks_layout.h"
#include "reshard/plan/job.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The model of a config.json in `directory`, if it is there, readable and known. Looking must not fail for want of it.
std::optional<Model> known_model(const fs::path& directory, Inspection& inspection) {
  if (!path_exists(directory / kConfigFile)) return std::nullopt;
  try {
    const ModelConfig config = read_model_config(directory);
    inspection.model_type = config.model_type;
    return instantiate(find_family(config), config);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) inspection.notes.push_back(error.what());
    return std::nullopt;
  }
}

void order_by_model(Layout& layout, const Model& model) {
  std::vector<std::string> names;
  for (const ModelParameter& parameter : model.parameters) names.push_back(parameter.name);
  layout.order_logical(names);
}

void inspect_containers(const std::vector<Container>& files, Inspection& inspection) {
  inspection.layout = whole_layout(files);
  if (files.size() == 1) inspection.file_metadata = files.front().metadata;
  for (const Container& file : files)
    for (const std::string& warning : file.warnings)
      inspection.notes.push_back(file.path.filename().string() + ": " + warning);
}

void inspect_ranks(const fs::path& path, const fs::path& shards, Inspection& inspection) {
  inspection.what = Inspection::What::kRanks;
  const RanksCheckpoint checkpoint = read_ranks_checkpoint(shards);
  inspection.mesh = {checkpoint.tp, checkpoint.pp, 1};
  const auto model = known_model(parent_of_shards(path, shards), inspection);
  inspection.layout = ranks_source_layout(checkpoint, tied_parameters(model));
  if (model) order_by_model(inspection.layout, *model);
}

std::unique_ptr<Inspection> look_at(const fs::path& path) {
  auto inspection = std::make_unique<Inspection>();
  if (!path_exists(path)) throw Error(ErrorKind::kBadInput, "no such file or directory").in(path);
  if (!fs::is_directory(path)) {
    inspect_containers({read_safetensors(path)}, *inspection);
    return inspection;
  }
  const bool has_weights = path_exists(path / kSafetensorsFile) || path_exists(path / kSafetensorsIndexFile);
  const auto shards = find_shards_folder(path);
  if (shards && has_weights) inspection->notes.push_back("there is also a sharded checkpoint in " + shards->string());
  if (shards && !has_weights) {
    inspect_ranks(path, *shards, *inspection);
    return inspection;
  }
  inspection->what = Inspection::What::kHuggingFace;
  const auto model = known_model(path, *inspection);
  inspect_containers(read_hf_checkpoint(path), *inspection);
  if (model) order_by_model(inspection->layout, *model);
  return inspection;
}

}  // namespace

std::unique_ptr<Inspection> inspect_path(const fs::path& path) {
  return with_file_system_errors([&] { return look_at(path); });
}

}  // namespace reshard
