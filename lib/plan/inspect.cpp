#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/formats/hf_index.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/layouts/sharded_layout.h"
#include "reshard/plan/inspection.h"

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

void inspect_shards(const ShardsFolder& shards, Inspection& inspection) {
  inspection.what = Inspection::What::kSharded;
  inspection.shards_kind = shards.kind;
  inspection.format = list_rank_files(shards).front().format;
  ShardedCheckpoint checkpoint = read_sharded_checkpoint(shards);
  inspection.mesh = {checkpoint.tp, checkpoint.pp, 1};
  inspection.notes = checkpoint.warnings;
  const auto model = known_model(shards.parent, inspection);
  if (checkpoint.metadata.empty()) {
    if (!model)
      throw Error(ErrorKind::kBadInput,
                  "has no metadata files, and no config.json of a known family beside it, so how "
                  "the parameters are laid out is not known")
          .in(shards.path)
          .hint("inspect one rank's file, or copy the model's config.json into " + shards.parent.string());
    derive_metadata(checkpoint, *model);
  }
  inspection.layout = sharded_source_layout(checkpoint, tied_parameters(model));
  if (model) order_by_model(inspection.layout, *model);
}

std::unique_ptr<Inspection> look_at(const fs::path& path) {
  auto inspection = std::make_unique<Inspection>();
  if (!path_exists(path)) throw Error(ErrorKind::kBadInput, "no such file or directory").in(path);
  if (!fs::is_directory(path)) {
    inspection->format = format_of_file(path);
    inspect_containers({read_container(path, inspection->format)}, *inspection);
    return inspection;
  }
  const auto format = hf_format(path);
  const auto shards = find_shards_folder(path);
  if (shards && format) inspection->notes.push_back("there is also a sharded checkpoint in " + shards->path.string());
  if (shards && !format) {
    inspect_shards(*shards, *inspection);
    return inspection;
  }
  inspection->what = Inspection::What::kHuggingFace;
  inspection->format = format.value_or(Format::kSafetensors);
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
