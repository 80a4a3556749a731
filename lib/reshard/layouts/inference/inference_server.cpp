#include "reshard/layouts/inference/inference_server.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/read_container.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/ranks/read_ranks.h"
#include "reshard/layouts/ranks/sharded_map.h"
#include "reshard/layouts/training/trainer.h"
#include "reshard/layouts/training/training_notes.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/specs/config/neuron_config.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr NumberedName kServedName("tp{tp}_sharded_checkpoint.safetensors", kMaxParallelDegree - 1);
constexpr const char* kExportFolder = "checkpoint";  // optimum-neuron's folder, which contains weights/
constexpr const char* kServedFolders[] = {kServedFolder, "checkpoint/weights"};

/// Returns the ranks to write.
RankTarget ranks_to_write(const Layout& layout, const TargetRequest& request, std::uint32_t tp) {
  RankTarget target{&layout, format_of(request)};
  target.stores_tied = false;
  target.first_rank = static_cast<std::uint32_t>(request.options.number(kStartRank).value_or(0));
  target.last_rank = static_cast<std::uint32_t>(request.options.number(kEndRank).value_or(tp - 1));
  if (target.first_rank > target.last_rank && target.last_rank < tp && target.first_rank < tp)
    throw Error(ErrorKind::kUsage, fmt::format("`start-rank` {} is after `end-rank` {}, the last rank to write",
                                               target.first_rank, target.last_rank));
  if (target.last_rank >= tp || target.first_rank > target.last_rank)
    throw Error(ErrorKind::kUsage, fmt::format("`start-rank` {} `end-rank` {}: with `tp` {} the ranks are 0 to {}",
                                               target.first_rank, target.last_rank, tp, tp - 1));
  return target;
}

/// Notes which tensors are padded, one name for all layers.
void note_padding(TargetPlan& plan) {
  std::vector<std::string> names;
  for (std::size_t l = 0; l < plan.map.logical.size(); ++l) {
    if (!plan.map.logical[l].is_padding()) continue;
    const StoredTensor& tensor = plan.map.stored[plan.map.pieces[l].front().stored];
    std::string name = with_stars(tensor.name.text());
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  if (names.empty()) return;
  plan.notes.changed("padded with zeros: " + list_names(names)).of(names);
}

}  // namespace

RankFormat served_ranks(decltype(RankFormat::explain) explain, decltype(RankFormat::fits) fits, bool keeps_names) {
  return {.name = NumberedName("tp{tp}_sharded_checkpoint"),
          .ending = NumberedName(".safetensors"),
          .read = kServedName,
          .shards_folders = kServedFolders,
          .keeps_names = keeps_names,
          .fits = fits,
          .explain = explain};
}

std::vector<FoundLayout> ServedLayout::recognise(Files& files, const fs::path& path) const {
  std::vector<FoundLayout> found = recognise_ranks(files, *this, path);
  for (FoundLayout& one : found) {  // an export's config.json and neuron_config.json are in its parent directory
    if (own_name(files, one.directory) != kExportFolder || find_model_config(files, one.directory)) continue;
    const fs::path above = directory_above(files, one.directory);
    if (find_model_config(files, above) || files.exists(above / kNeuronConfigFile)) one.directory = above;
  }
  return found;
}

Checkpoint ServedLayout::read(Files& files, const FoundLayout& found, const ReadContext& context) const {
  return read_ranks(files, found, context);
}

TargetPlan ServedLayout::plan(const TargetRequest& request, const TargetContext& context) const {
  const Model& model = *context.model;
  if (server_.validate_model != nullptr) server_.validate_model(model);
  TargetPlan plan;
  plan.role = request.role;
  plan_mesh(plan, request, model);
  const RankTarget target = ranks_to_write(*this, request, plan.mesh.tp);
  PartitionOptions options, padded;
  options.separate = padded.separate = padded.pad = true;
  options.pad = server_.padding == nullptr || request.options.flag(server_.padding->name);
  validate_split(model, plan.mesh.tp, options, padded, server_.padding, context.logical);
  server_.plan_ranks(plan, target, request.options, context);
  plan.is_partial = request.options.has(kStartRank.name) || request.options.has(kEndRank.name);
  plan.has_first_rank = target.first_rank == 0;
  plan.partition.reset();  // there are no stages
  plan.cut_names.clear();
  if (context.adapters.empty()) note_padding(plan);
  plan.notes.add(partition_notes(*context.model, plan.mesh.tp));
  plan.loaded_by = server_.loaded_by;
  return plan;
}

void ServedLayout::validate_beside(Files& files, const TargetPlan& plan, const fs::path& directory) const {
  const fs::path folder = directory / kServedFolder;
  const RankRecord& own = *plan.map.files.front().record;
  std::vector<std::string> leftover, others;
  for (const auto& [name, kind, is_link] :
       files.is_directory(folder) ? files.list(folder) : std::vector<DirectoryEntry>{}) {
    const auto numbers = kServedName.parse(name);
    if (!numbers) continue;
    if (rank_of(*numbers).tp_rank >= plan.mesh.tp) leftover.push_back(name);
    const fs::path relative = fs::path(kServedFolder) / name;
    if (std::any_of(plan.map.files.begin(), plan.map.files.end(),
                    [&](const TargetFile& file) { return file.path == relative; }))
      continue;
    const auto record = read_record(read_container(files, folder / name, Format::kSafetensors));
    if (!record || record->tp_degree != plan.mesh.tp || *record->originals != *own.originals ||
        record->transposed != own.transposed || record->scaled != own.scaled)
      others.push_back(name);
  }
  const auto refuse = [&](const std::string& what, std::vector<std::string>& names) {
    if (names.empty()) return;
    std::sort(names.begin(), names.end(), natural_less);
    throw Error(ErrorKind::kBadInput, what + ": " + list_names(names))
        .in(folder)
        .hint("move them away or choose another output directory");
  };
  refuse(fmt::format("contains files of ranks that do not exist with `tp` {}", plan.mesh.tp), leftover);
  refuse("contains ranks of another checkpoint, or of another partition", others);
}

bool ServedLayout::owns(Files&, const fs::path&, const std::string& name) const {
  return name == kNeuronConfigFile;
}

void validate_padded_split(const ShardedCheckpoint& shards, const Checkpoint& checkpoint) {
  PartitionOptions options;
  options.separate = options.pad = true;
  if (const auto problem = tensor_parallel_problem(*checkpoint.model, shards.tp, options))
    throw Error(ErrorKind::kBadInput,
                fmt::format("the model that config.json describes cannot be partitioned over {} ranks: {}", shards.tp,
                            problem->what()))
        .in(checkpoint.path)
        .hint("the last ranks are missing, or config.json belongs to another model");
}

}  // namespace reshard
