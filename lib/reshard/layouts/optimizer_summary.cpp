#include "reshard/layouts/optimizer_summary.h"

#include <algorithm>
#include <array>
#include <span>

#include "reshard/layouts/optimizer_files.h"
#include "reshard/layouts/optimizer_states.h"
#include "reshard/tensor/numeric.h"

namespace reshard {
namespace {

void count(OptimizerSummary& summary, const std::string& name, const TensorEntry& tensor) {
  auto state = std::find_if(summary.states.begin(), summary.states.end(),
                            [&](const OptimizerSummary::State& known) { return known.name == name; });
  if (state == summary.states.end()) state = summary.states.insert(state, {name, tensor.dtype});
  ++state->tensors;
  state->bytes += tensor.size_bytes;
}

/// The value of the first "step" in the file, whether it is a number or a tensor.
std::optional<double> step_of(Files& files, const OptimizerFile& file) {
  for (const OptimizerEntry& entry : file.entries) {
    for (const auto& [name, value] : entry.numbers) {
      if (name != "step") continue;
      if (const auto* whole = std::get_if<std::int64_t>(&value.value)) return static_cast<double>(*whole);
      if (const auto* real = std::get_if<double>(&value.value)) return *real;
    }
    for (const TensorEntry& tensor : entry.tensors) {
      std::array<std::byte, 16> bytes;
      if (tensor.name != "step" || !tensor.shape.empty() || tensor.size_bytes > bytes.size()) continue;
      const auto value = std::span(bytes).first(tensor.size_bytes);
      files.open(file.files[tensor.file].path)->read_at(tensor.offset_bytes, value);
      return summarize(tensor.dtype, value).min;
    }
  }
  return std::nullopt;
}

}  // namespace

OptimizerSummary summarize_optimizer(Files& files, const OptimizerFiles& optimizer) {
  OptimizerSummary summary;
  summary.is_sharded = optimizer.form() == OptimizerFile::Form::kZero1 && !optimizer.is_full;
  summary.dp = optimizer.dp;
  summary.files = optimizer.all.size();
  summary.has_masters = optimizer.has_masters;
  summary.incomplete = optimizer.incomplete;
  for (const OptimizerFile& file : optimizer.all) {
    std::uint64_t bytes = 0;
    for (const OptimizerEntry& entry : file.entries) {
      for (const TensorEntry& tensor : entry.tensors) {
        count(summary, tensor.name, tensor);
        bytes += tensor.size_bytes;
      }
      if (!entry.master) continue;
      count(summary, kMasterState, *entry.master);
      bytes += entry.master->size_bytes;
    }
    summary.bytes += bytes;
    summary.most_rank_bytes = std::max(summary.most_rank_bytes, bytes);
    if (!summary.step) summary.step = step_of(files, file);
  }
  for (std::size_t g = 0; g < optimizer.all.front().groups.size(); ++g) {
    OptimizerSummary::Group& group = summary.groups.emplace_back();
    group.values = optimizer.all.front().groups[g].values;
    for (std::uint32_t pp_rank = 0; pp_rank < optimizer.pp; ++pp_rank)
      group.parameters += optimizer.of(pp_rank, 0, 0).groups[g].count;
  }
  return summary;
}

}  // namespace reshard
