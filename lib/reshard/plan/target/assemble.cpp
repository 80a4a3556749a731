#include "reshard/plan/target/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/files.h"
#include "reshard/layouts/optimizer/optimizer_ids.h"
#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Whether it is a tied copy in the source; of those of several ranks, the first.
bool is_tied_once(const Job& job, const StoredTensor& tensor) {
  return tensor.tied && job.source.files[tensor.file].tp_rank == 0 && job.source.files[tensor.file].ep_rank == 0;
}

/// A second name of a tensor in the source's files is compared with it. Hugging Face's files do not have it.
void note_tied(Job& job) {
  std::set<std::string> noted;  // it may be stored in many chunks
  for (std::size_t l = 0; l < job.source.pieces.size(); ++l)
    for (const Piece& piece : job.source.pieces[l]) {
      const StoredTensor& tensor = job.source.stored[piece.stored];
      if (!is_tied_once(job, tensor)) continue;
      const std::string name = printable(tensor.name.text());
      if (!noted.insert(name).second) continue;
      job.notes.push_back(fmt::format(
          "{} is tied to {}: the two are compared, and {}", name, printable(job.source.logical[l].name),
          job.layout->traits().has_ranks() ? "the replica in the files is left out when they are consolidated"
                                           : "it is left out, as Hugging Face's file has it once"));
    }
}

/// Whether a found checkpoint of ranks has no optimizer next to its weights, so that these alone can be hidden.
bool is_model_alone(Files& files, const FoundLayout& found) {
  const RankFormat* const ranks = found.layout->ranks();
  if (ranks == nullptr) return false;
  const auto optimizer = ranks->optimizer_in(found.path);
  return !optimizer || *optimizer == found.path || !files.exists(*optimizer);
}

/// The folder that contains the weights of a found checkpoint.
fs::path weights_folder_of(const FoundLayout& found) {
  return found.layout->ranks() == nullptr ? found.path : ranks_of(found).weights_in(found.path);
}

/// Whether a checkpoint in that layout is given by the path of its output directory, not by that of a folder in it.
bool is_output_itself(const Layout& layout) {
  const std::string_view folder = layout.traits().folder;
  return folder.empty() || (layout.ranks() != nullptr && layout.ranks()->weights_folder == folder);
}

/// If the old ranks or the new ones are the output directory itself, no path would name these alone. Whole weights may
/// join a model's ranks: they are the same model.
void validate_alone(Files& files, const Layout& target, const TargetPlan& plan, const fs::path& output_directory) {
  const auto replaces = [&](const fs::path& folder) {
    return folder != output_directory &&
           std::any_of(plan.map.files.begin(), plan.map.files.end(),
                       [&](const TargetFile& file) { return lies_inside(output_directory / file.path, folder); });
  };
  if (!files.is_directory(output_directory)) return;
  const bool is_itself = target.traits().has_ranks() && is_output_itself(target);
  try {
    for (const Layout* layout : layouts()) {
      const LayoutTraits& traits = layout->traits();
      if (layout == &target || !traits.has_ranks()) continue;
      for (const FoundLayout& found : layout->recognise(files, output_directory))
        if ((is_itself || found.path == output_directory) && !found.is_empty && !replaces(weights_folder_of(found)) &&
            (target.traits().has_ranks() || !is_model_alone(files, found)))
          throw Error(ErrorKind::kBadInput, fmt::format("holds a sharded checkpoint in layout {}, which could not be "
                                                        "read with another beside it",
                                                        traits.name))
              .in(output_directory)
              .hint("move its files away or choose another output directory");
    }
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;  // what may be written to need not be readable
  }
}

/// Whole weights that stay in the output directory are what its path names, whatever ranks join them. If they are
/// the source, they are the same model, and there is nothing to note.
void note_whole_weights(Files& files, Job& job) {
  const fs::path output = files.resolve(job.output_directory);
  if (!job.layout->traits().has_ranks() || !files.is_directory(output)) return;
  if (lies_inside(files.resolve(job.source_directory), output)) return;
  try {
    for (const Layout* layout : layouts()) {
      if (layout->traits().has_ranks()) continue;
      for (const FoundLayout& found : layout->recognise(files, output))
        if (found.path == output && !found.is_empty)
          job.notes.push_back(fmt::format(
              "{0} contains other weights, in layout {1}, which stay; commands that are given {0} read those{2}",
              job.output_directory.string(), layout->traits().name,
              is_output_itself(*job.layout)
                  ? ": move them away to have the new ones read"
                  : fmt::format(", and those that are given {} read the new ones",
                                (job.output_directory / job.layout->traits().folder).string())));
    }
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;  // what may be written to need not be readable
  }
}

/// What a target keeps of the source's partition. Replicas and padding of heads belong to one number of ranks.
PartitionOptions kept_partition(const Job& job, const TargetRequest& request) {
  PartitionOptions kept = job.source_partition;
  if (request.tp.value_or(1) == job.mesh.tp) return kept;
  kept.kv_size_multiplier.reset();
  kept.pad_heads = false;
  return kept;
}

}  // namespace

ReadContext context_of(const SourceRequest& request, ConfigUse use, const Layout* target) {
  const bool needs_groups = target != nullptr && target->traits().writes_groups_alone();
  const Beside read = needs_groups ? Beside::kReadGroups : Beside::kRead;
  return {
      use,          request.family, request.options, {request.config}, request.with_optimizer ? read : Beside::kCount,
      request.extra};
}

std::unique_ptr<Job> start_job(std::string command, Checkpoint& checkpoint, fs::path output_directory, bool force) {
  auto job = std::make_unique<Job>();
  job->command = std::move(command);
  job->source_directory = checkpoint.path;
  job->model_directory = checkpoint.directory;
  job->output_directory = std::move(output_directory);
  job->force = force;
  job->family = checkpoint.model_type;
  job->mesh = checkpoint.mesh;
  job->source_partition = checkpoint.partition;
  job->notes = std::move(checkpoint.notes);
  job->index_metadata = std::move(checkpoint.index_metadata);
  job->index_metadata_file = std::move(checkpoint.index_metadata_file);
  job->source = std::move(checkpoint.map);
  return job;
}

std::vector<std::string> plan_target(Files& files, Job& job, const TargetRequest& request, const Model* model,
                                     const std::vector<LogicalTensor>& logical, const TrainingStates* states) {
  const LayoutTraits& traits = request.layout->traits();
  job.layout = request.layout;
  job.options = request.options;
  job.format = format_of(request);
  const bool has_ids = states != nullptr && !states->has_names();
  if (has_ids && !traits.writes_groups_alone())
    throw Error(ErrorKind::kUsage,
                fmt::format("`from-optimizer-groups` ids: layout {} has names, and no ids", traits.name))
        .in(job.model_directory)
        .hint("say by which rule parameters were grouped, or take the source's own layout");
  TargetPlan plan;
  try {
    const TrainingStates* some = states == nullptr || states->empty() ? nullptr : states;
    plan = request.layout->plan(request, {model, logical, job.index_metadata, job.index_metadata_file, some,
                                          job.mesh.dp, kept_partition(job, request)});
  } catch (Error& error) {  // a layout knows the tensor, but not where it is
    const bool is_of_source =
        error.kind() == ErrorKind::kBadInput || (error.kind() == ErrorKind::kUnsupported && !error.tensor().empty());
    if (is_of_source && error.path().empty()) error.in(job.model_directory);
    throw;
  }
  if (has_ids) validate_same_ranks(job.source, plan.map);
  validate_alone(files, *request.layout, plan, job.output_directory);
  request.layout->validate_beside(files, plan, job.output_directory);
  if (traits.has_ranks()) job.mesh = plan.mesh;
  job.partition = std::move(plan.partition);
  job.cut_names = std::move(plan.cut_names);
  job.attention = std::move(plan.attention);
  job.text_files = std::move(plan.map.text_files);
  for (TextFile& file : plan.text_files) job.text_files.push_back(std::move(file));
  if (traits.has_ranks() && !job.index_metadata.empty() && plan.has_first_rank)  // of runs that share it, the first
    job.text_files.push_back(
        {kKeptIndexMetadataFile, kept_index_metadata_text(job.index_metadata), job.index_metadata_file});
  if (traits.whole_folder) job.whole_folders = {traits.folder};
  for (fs::path& folder : plan.whole_folders) job.whole_folders.push_back(std::move(folder));
  job.shares_directory = plan.is_partial;
  if (model != nullptr)  // the last note of a plan names the programs that load the files
    for (std::string& note : idle_option_notes(request, *model, plan)) job.notes.push_back(std::move(note));
  job.notes.insert(job.notes.end(), plan.notes.begin(), plan.notes.end());
  std::map<DType, std::size_t> narrow;  // copies, which are master weights
  for (const TargetPlan::Copy& copy : plan.copies) {
    const std::uint32_t source = job.source.find_logical(copy.of).value();
    job.source.add_copy(source, copy.name, TensorRole::kState);
    if (const DType dtype = job.source.logical[source].dtype; bits(dtype) < bits(DType::kF32)) ++narrow[dtype];
  }
  for (const auto& [dtype, count] : narrow)
    job.notes.push_back(fmt::format("the source has no master weights of {} parameter{}: they are made of {} weights",
                                    count, count == 1 ? "" : "s", name(dtype)));
  job.target = std::move(plan.map);
  job.target.text_files.clear();
  note_tied(job);
  note_whole_weights(files, job);
  return std::move(plan.without_place);
}

}  // namespace reshard
