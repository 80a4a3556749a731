#include "reshard/layouts/optimizer/optimizer_beside.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/optimizer/compare_masters.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_ids.h"
#include "reshard/layouts/optimizer/optimizer_states.h"
#include "reshard/layouts/optimizer/summarize_optimizer.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Why the entries of the optimizer have no names; empty if they have.
std::string problem_of_names(const OptimizerFiles& optimizer, const ShardedCheckpoint& shards,
                             const OptionValues& options, const Checkpoint& checkpoint) {
  try {
    name_entries(optimizer, shards, checkpoint, options);
    return keeps_ids(options) ? "`from-optimizer-groups` ids leaves it open" : "";
  } catch (const Error& error) {
    return error.with_hint();
  }
}

/// Whether there is an optimizer in its folder; what is wrong with its files is no error here.
bool has_optimizer(Files& files, const fs::path& folder, const ShardedCheckpoint& shards) {
  return folder == shards.folder.path ? has_optimizer_files(files, folder) : files.is_directory(folder);
}

/// What the optimizer's files hold, for who looks at the checkpoint; what is wrong with them is no error here.
void look_at_optimizer(Files& files, const fs::path& folder, const ShardedCheckpoint& shards,
                       const OptionValues& options, Checkpoint& checkpoint) {
  try {
    const std::optional<OptimizerFiles> optimizer = read_optimizer(files, folder, shards);
    if (!optimizer) return;
    BesideModel& beside = checkpoint.beside_model.emplace();
    beside.summary = summarize_optimizer(files, *optimizer);
    for (const OptimizerSummary::State& state : beside.summary->states) {
      beside.optimizer.tensors += state.tensors;
      beside.optimizer.bytes += state.bytes;
    }
    if (optimizer->incomplete.empty())
      beside.summary->unnamed = problem_of_names(*optimizer, shards, options, checkpoint);
  } catch (const Error& error) {
    if (!checkpoint.beside_model) checkpoint.beside_model.emplace();
    checkpoint.beside_model->unreadable = error.with_hint();
  }
}

}  // namespace

void read_optimizer_beside(Files& files, const fs::path& folder, const ShardedCheckpoint& shards,
                           const ReadContext& context, Checkpoint& checkpoint) {
  const bool masters = wants_master_weights(context.options) || shards.lacks_weights;
  checkpoint.leaves_states = !context.with_optimizer && has_optimizer(files, folder, shards);
  if (context.looks_at_optimizer) look_at_optimizer(files, folder, shards, context.options, checkpoint);
  if (!masters && !context.with_optimizer) {
    if (context.options.has(kSourceOptimizerGroups.name) && !context.looks_at_optimizer)
      checkpoint.notes.push_back(
          fmt::format("`from-{}` has no effect: the optimizer is not read", kSourceOptimizerGroups.name));
    return;
  }
  const bool by_id = keeps_ids(context.options);
  if (by_id && masters)
    throw Error(ErrorKind::kUsage,
                shards.lacks_weights ? "the model's weights are the optimizer's master weights, whose names are wanted"
                                     : "the optimizer's master weights cannot be the model's without names")
        .in(shards.folder.path)
        .hint("say by which rule parameters were grouped: `from-optimizer-groups`");
  const ShardedOptimizer optimizer = read_sharded_optimizer(files, folder, shards, checkpoint, context.options);
  validate_steps(files, optimizer.files);
  if (!shards.lacks_weights && !by_id) compare_masters(files, optimizer, checkpoint.map);
  if (by_id)
    checkpoint.notes.push_back(
        "ids of the optimizer's parameters stay as they are, and only their shapes are compared with the model: files "
        "of another save or of swapped ranks would go unnoticed");
  const bool unrecorded = !by_id && !optimizer.files.has_masters && optimizer.files.all.size() > 1;
  const bool lost = optimizer.files.lost_masters && !masters;
  if (!checkpoint.beside_model) checkpoint.beside_model.emplace();
  if (lost)
    checkpoint.notes.push_back(fmt::format(
        "master weights of some parameters were lost by NxD's converter, which made the files full_…: none are read, "
        "and where master weights are written they are made of the weights{}",
        unrecorded ? "; so nothing would show files that were swapped between ranks" : ""));
  else if (unrecorded)
    checkpoint.notes.push_back(
        "the optimizer's files record neither their ranks nor their save, and have no master weights that could be "
        "compared with the model's: files that were swapped between ranks would go unnoticed");
  if (context.with_optimizer) {
    checkpoint.states = by_id ? states_by_id(optimizer) : sharded_states(optimizer, checkpoint.map);
    if (optimizer.files.form() == OptimizerFile::Form::kZero1) checkpoint.mesh.dp = optimizer.files.dp;
  }
  if (!masters) return;
  const bool as_model = !wants_master_weights(context.options);
  const std::size_t others = take_master_weights(optimizer, checkpoint.map, {as_model, shards.lacks_weights});
  if (shards.lacks_weights)
    checkpoint.notes.push_back(
        "the checkpoint holds its weights as the optimizer's fp32 master weights alone "
        "(avoid_saving_lower_precision_weights): these are read");
  else if (others > 0)
    checkpoint.notes.push_back(fmt::format("{} tensor{} that the optimizer does not train {} the model's own", others,
                                           others == 1 ? "" : "s", others == 1 ? "is" : "are"));
}

void hint_at_lost_ranks(Files& files, const fs::path& folder, const ShardedCheckpoint& shards, Error& error) {
  if (folder == shards.folder.path) return;
  std::uint32_t tp = 0, pp = 0;
  try {
    for (const OptimizerFileName& name : list_optimizer_files(files, folder)) {
      tp = std::max(tp, name.rank.tp_rank + 1);
      pp = std::max(pp, name.rank.pp_rank + 1);
    }
  } catch (const Error&) {  // the model's own error says more
  }
  if (tp <= shards.tp && pp <= shards.pp) return;
  error.hint(
      fmt::format("the model's files are of tp {} × pp {} ranks, but the optimizer's of tp {} × pp {}: copy the "
                  "model's other ranks here, too{}",
                  shards.tp, shards.pp, tp, pp, error.hint().empty() ? "" : "; else " + error.hint()));
}

}  // namespace reshard
