#include "reshard/layouts/optimizer/optimizer_beside.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/files.h"
#include "reshard/layouts/contents/number_reader.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/optimizer/older_optimizer.h"
#include "reshard/layouts/optimizer/optimizer_groups.h"
#include "reshard/layouts/optimizer/optimizer_ids.h"
#include "reshard/layouts/optimizer/optimizer_join.h"
#include "reshard/layouts/optimizer/optimizer_listing.h"
#include "reshard/layouts/states/optimizer_summary.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/tensor/cast/cast.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Reads the largest step of a stage's entries; std::nullopt if no entry has a step.
std::optional<double> last_step(Files& files, std::span<const SourceFile> in_files, const OptimizerStage& stage) {
  std::optional<double> last;
  const auto add = [&](const PlainValue& value) {
    if (const auto step = real_of(value)) last = std::max(last.value_or(*step), *step);
  };
  for (const OptimizerEntry& entry : stage.entries)
    for (const auto& [name, value] : entry.numbers)
      if (name == kStep) add(value);
  NumberReader reader(files, in_files);
  for (const StateShard& shard : stage.of_rank(0))
    if (const TensorEntry& step = shard.tensor;
        step.name == kStep && NumberReader::can_read({step.name, step.dtype, step.shape, {}}))
      add(reader.read({step.name, step.dtype, step.shape, step.file, step.offset_bytes}));
  return last;
}

/// Summarizes `optimizer`. Reads only the step from the files.
/// \throws Error kIo.
OptimizerSummary summarize_optimizer(Files& files, const OptimizerFiles& optimizer) {
  OptimizerSummary summary;
  summary.is_sharded = optimizer.form() == OptimizerStage::Form::kZero1 && !optimizer.is_full;
  summary.dp = optimizer.dp;
  summary.files = optimizer.file_count;
  summary.has_masters = optimizer.has_masters;
  summary.incomplete = optimizer.incomplete;
  summary.incomplete_hint = optimizer.incomplete_hint;
  StateCounts states;
  for (const OptimizerStage& stage : optimizer.stages) {
    std::vector<std::uint64_t> bytes(optimizer.ranks());  // by rank
    for (const StateShard& shard : stage.shards) {
      states.add(shard.state(), shard.tensor.dtype, shard.tensor.size_bytes);
      bytes[shard.rank] += shard.tensor.size_bytes;
    }
    for (const std::uint64_t of_rank : bytes) {
      summary.bytes += of_rank;
      summary.most_rank_bytes = std::max(summary.most_rank_bytes, of_rank);
    }
    if (!summary.step) summary.step = last_step(files, optimizer.files, stage);
  }
  summary.states = states.take();
  for (std::size_t g = 0; g < optimizer.stages.front().groups.size(); ++g) {
    OptimizerSummary::Group& group = summary.groups.emplace_back();
    group.values = optimizer.stages.front().groups[g].values;
    for (const OptimizerStage& stage : optimizer.stages) group.parameters += stage.groups[g].count;
  }
  return summary;
}

/// Validates that trained parameters have the same step on all pipeline stages. Reads the steps of one rank per stage.
/// \throws Error kBadInput, naming two files and their steps; kIo.
void validate_steps(Files& files, std::span<const SourceFile> in_files, const OptimizerFiles& optimizer) {
  const OptimizerStage* first = nullptr;
  std::optional<double> of_first;
  if (optimizer.pp == 1) return;
  for (const OptimizerStage& stage : optimizer.stages) {
    const auto step = last_step(files, in_files, stage);
    if (!step) continue;
    if (first == nullptr) {
      first = &stage;
      of_first = step;
    } else if (*step != *of_first) {
      throw Error(ErrorKind::kBadInput,
                  fmt::format("its parameters are at step {}, but those of an earlier stage at {}, in {}", *step,
                              *of_first, first->path.filename().string()))
          .in(stage.path)
          .hint("the files come from two saves of one run");
    }
  }
}

constexpr std::uint64_t kElems = 256;       // compared elements per tensor
constexpr std::size_t kTensorsPerFile = 8;  // compared tensors per file, at least

using Bytes = std::vector<std::byte>;

Bytes cast(DType from, const Bytes& in, DType to) {
  Bytes out(in.size() / (bits(from) / 8) * (bits(to) / 8));
  cast_elements(from, in, to, out, Overflow::kSaturate);
  return out;
}

std::vector<double> values(DType dtype, const Bytes& bytes) {
  const Bytes wide = cast(dtype, bytes, DType::kF64);
  std::vector<double> values(wide.size() / sizeof(double));
  std::memcpy(values.data(), wide.data(), wide.size());
  return values;
}

Bytes read(const Source& source, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  Bytes bytes(size_bytes);
  source.read_at(offset_bytes, bytes);
  return bytes;
}

bool is_comparable(DType dtype) {
  return describe(dtype).kind == DTypeClass::kFloat && bits(dtype) >= 16;
}

/// Number of explicit significand bits.
int significand_bits(DType dtype) {
  if (dtype == DType::kBF16) return 7;
  if (dtype == DType::kF16) return 10;
  return dtype == DType::kF32 ? 23 : 52;
}

/// Whether `weight` is `master` rounded to `dtype`, up or down. Trainium rounds stochastically if
/// NEURON_RT_STOCHASTIC_ROUNDING_EN is set, and flushes subnormal numbers to zero.
bool is_rounded(double weight, double master, DType dtype) {
  if (weight == master || (std::isnan(weight) && std::isnan(master))) return true;
  if (!std::isfinite(master) || !std::isfinite(weight)) return false;
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const double distance = std::abs(weight - master);
  if (std::abs(master) < kSmallest) return distance <= kSmallest;
  return distance < std::ldexp(1.0, std::ilogb(master) - significand_bits(dtype));
}

bool is_bf16(double value) {
  const auto single = static_cast<float>(value);
  return static_cast<double>(single) == value && (std::bit_cast<std::uint32_t>(single) & 0xFFFFu) == 0;
}

/// Compares some elements. \returns false if no elements can be compared.
bool compare(OpenedFiles& files, const StatePart& part, const SourceMap& model) {
  const StoredTensor& weight = model.stored[part.local];
  const TensorEntry& master = part.shard->tensor;
  if (!master.strides.empty() || !is_comparable(weight.dtype) || !is_comparable(master.dtype)) return false;
  const std::uint64_t size = bits(weight.dtype) / 8, elems = weight.size_bytes() / size;
  const Dims in_file = weight.file_shape();
  const std::uint64_t begin = in_file.empty() || in_file[0] == 0 ? 0 : part.shard->begin_row * (elems / in_file[0]);
  if (begin >= elems) return false;  // only padding
  const std::uint64_t master_size = bits(master.dtype) / 8;
  const std::uint64_t count = std::min({kElems, elems - begin, master.size_bytes / master_size});
  const Bytes own = read(files.at(master.file), master.offset_bytes, count * master_size);
  const std::vector<double> weights =
      values(weight.dtype, read(files.at(weight.file), weight.offset_bytes + begin * size, count * size));
  const std::vector<double> masters = values(master.dtype, own);
  const std::vector<double> as_weights = values(weight.dtype, cast(master.dtype, own, weight.dtype));
  for (std::uint64_t i = 0; i < count; ++i) {
    // With XLA_DOWNCAST_BF16, weights are float32 tensors of bfloat16 values.
    if (weights[i] == as_weights[i] || is_rounded(weights[i], masters[i], weight.dtype) ||
        (is_bf16(weights[i]) && is_rounded(weights[i], masters[i], DType::kBF16)))
      continue;
    throw Error(ErrorKind::kBadInput,
                fmt::format("differs from the model's parameter {} in {}: {} and {} at element {}",
                            printable(weight.name.text()), model.files[weight.file].path.string(), masters[i],
                            weights[i], begin + i))
        .in(model.files[master.file].path)
        .tensor(part.name.text())
        .hint(
            "the optimizer and the model come from two saves, or rank files were swapped; the model's weights can be "
            "converted without the optimizer");
  }
  return count > 0;
}

/// Compares the first elements of some master weights in each file, and of each local parameter on at least one
/// data-parallel rank, with the model's files in `model`. After each step, the model's weights are the master weights,
/// rounded up or down. The optimizer's files do not prove which save, rank or parameter they belong to.
/// \throws Error kBadInput, naming the file, the id and both values, if they differ because rank files were swapped or
/// the optimizer and the model come from two saves; kIo.
void compare_masters(Files& files, const ShardedOptimizer& optimizer, const SourceMap& model) {
  const std::vector<StatePart> parts = master_parts(optimizer, model);
  OpenedFiles opened(files, model.files);
  std::vector<bool> compared(model.stored.size());
  for (auto first = parts.begin(); first != parts.end();) {
    const auto end = std::find_if(first, parts.end(), [&](const StatePart& part) {
      return part.pp_rank != first->pp_rank || part.shard->rank != first->shard->rank;
    });
    const auto count = static_cast<std::size_t>(end - first);
    const std::size_t step = std::max<std::size_t>(1, count / kTensorsPerFile);
    for (std::size_t i = 0; i < count; i += step) {
      const StatePart& part = *(first + static_cast<std::ptrdiff_t>(i));
      if (compare(opened, part, model)) compared[part.local] = true;
    }
    first = end;
  }
  for (const StatePart& part : parts)
    if (!compared[part.local]) compared[part.local] = compare(opened, part, model);
}

/// Returns why the optimizer's entries have no names; empty if they have names.
std::string problem_of_names(const OptimizerFiles& optimizer, const ShardedCheckpoint& shards,
                             const OptionValues& options, const Checkpoint& checkpoint) {
  try {
    name_entries(optimizer, shards, checkpoint, options);
    return keeps_ids(options) ? "`from-optimizer-groups` ids does not determine it" : "";
  } catch (const Error& error) {
    return error.with_hint();
  }
}

/// Whether the folder contains an optimizer. Ignores errors in its files.
bool has_optimizer(Files& files, const fs::path& folder, const ShardedCheckpoint& shards) {
  return folder == shards.folder.path ? has_optimizer_files(files, folder) : files.is_directory(folder);
}

/// Counts the optimizer's files. Opens none, and ignores errors. Does not count files that also contain the weights, nor
/// the bytes of xser files, which are many per rank.
void count_files(Files& files, const fs::path& folder, const ShardedCheckpoint& shards, BesideModel& beside) {
  const bool is_own = folder != shards.folder.path;
  try {
    const std::vector<DirectoryEntry> entries = files.list(folder);
    const bool is_xser = is_own && std::any_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
                           return entry.kind == FileKind::kDirectory;
                         });
    for (const DirectoryEntry& entry : entries) {
      if (entry.kind != FileKind::kFile || (!is_own && !is_older_optimizer_name(entry.name))) continue;
      ++beside.files;
      if (!is_xser) beside.file_bytes += files.size_bytes(folder / entry.name);
    }
  } catch (const Error&) {  // a run that reads the optimizer reports it
  }
}

/// Counts the states, without master weights, and notes that they are left out.
void leave_out_states(const OptimizerFiles& optimizer, Checkpoint& checkpoint) {
  BesideModel& beside = checkpoint.beside_model.emplace();
  for (const OptimizerStage& stage : optimizer.stages)
    for (const StateShard& shard : stage.shards) {
      if (shard.is_master()) continue;
      ++beside.optimizer.tensors;
      beside.optimizer.bytes += shard.tensor.size_bytes;
    }
  if (beside.optimizer.tensors > 0) checkpoint.notes.left_out(left_states_text(beside.optimizer));
}

/// Describes the contents of the optimizer's files for inspection. Ignores errors in them.
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
  checkpoint.leaves_states = !context.reads_states() && has_optimizer(files, folder, shards);
  if (context.beside == Beside::kLook)
    look_at_optimizer(files, folder, shards, context.options, checkpoint);
  else if (checkpoint.leaves_states)
    count_files(files, folder, shards, checkpoint.beside_model.emplace());
  if (!masters && !context.reads_states()) {
    if (context.options.has(kSourceOptimizerGroups.name) && context.beside != Beside::kLook)
      checkpoint.notes.no_effect(
          fmt::format("`from-{}` has no effect: the optimizer is not read", kSourceOptimizerGroups.name));
    return;
  }
  const bool by_id = keeps_ids(context.options);
  if (by_id && masters)
    throw Error(ErrorKind::kUsage,
                shards.lacks_weights
                    ? "the model's weights are the optimizer's master weights, whose names are required"
                    : "the optimizer's master weights cannot be used as the model's without names")
        .in(shards.folder.path)
        .hint("set `from-optimizer-groups` to the rule by which parameters were grouped");
  const ShardedOptimizer optimizer = read_sharded_optimizer(files, folder, shards, checkpoint, context.options);
  validate_steps(files, checkpoint.map.files, optimizer.files);
  if (!shards.lacks_weights && !by_id) compare_masters(files, optimizer, checkpoint.map);
  if (by_id)
    checkpoint.notes.assumed(
        "the ids of the optimizer's parameters are kept, and only their shapes are compared with the model: files of "
        "another save or of swapped ranks cannot be detected");
  const bool unrecorded = !by_id && !optimizer.files.has_masters && optimizer.files.pp * optimizer.files.ranks() > 1;
  const bool lost = optimizer.files.lost_masters && !masters;
  if (context.beside == Beside::kCount)
    leave_out_states(optimizer.files, checkpoint);
  else if (!checkpoint.beside_model)
    checkpoint.beside_model.emplace();
  if (lost)
    checkpoint.notes.missing(
        fmt::format("NxD's converter, which wrote the files full_…, lost master weights of some parameters: none are "
                    "read, and written master weights are computed from the weights{}",
                    unrecorded ? "; files that were swapped between ranks cannot be detected" : ""));
  else if (unrecorded)
    checkpoint.notes.assumed(
        "the optimizer's files record neither their ranks nor their save, and have no master weights to compare with "
        "the model's: files that were swapped between ranks cannot be detected");
  if (context.reads_states()) {
    checkpoint.states = by_id ? states_by_id(optimizer) : sharded_states(optimizer, checkpoint.map);
    if (optimizer.files.form() == OptimizerStage::Form::kZero1) checkpoint.mesh.dp = optimizer.files.dp;
  }
  if (!masters) return;
  const bool as_model = !wants_master_weights(context.options);
  const std::size_t others = take_master_weights(optimizer, checkpoint.map, {as_model, shards.lacks_weights});
  if (shards.lacks_weights)
    checkpoint.notes.chosen(
        "the checkpoint contains its weights only as the optimizer's fp32 master weights "
        "(avoid_saving_lower_precision_weights): reading these");
  else if (others > 0)
    checkpoint.notes.chosen(fmt::format("{} tensor{} that the optimizer does not train {} the model's own", others,
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
  } catch (const Error&) {  // the model's own error is more specific
  }
  if (tp <= shards.tp && pp <= shards.pp) return;
  error.hint(
      fmt::format("the model's files belong to tp {} × pp {} ranks, but the optimizer's to tp {} × pp {}: copy the "
                  "model's other ranks here too{}",
                  shards.tp, shards.pp, tp, pp, error.hint().empty() ? "" : "; else " + error.hint()));
}

}  // namespace reshard
