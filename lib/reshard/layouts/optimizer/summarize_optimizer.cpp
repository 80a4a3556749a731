#include "reshard/layouts/optimizer/summarize_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "reshard/base/error.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/states/training_states.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {
namespace {

/// Reads the steps of an optimizer's entries; a file is opened once for those in it.
class StepReader {
 public:
  StepReader(Files& files, const OptimizerFiles& optimizer) : opened_(files), optimizer_(optimizer) {}

  /// The largest of its entries; nothing where none has one.
  std::optional<double> last_of(const OptimizerFile& file) {
    std::optional<double> last;
    for (const OptimizerEntry& entry : file.entries)
      if (const auto step = step_of(file, entry)) last = std::max(last.value_or(*step), *step);
    return last;
  }

 private:
  std::optional<double> step_of(const OptimizerFile& file, const OptimizerEntry& entry) {
    for (const auto& [name, value] : entry.numbers) {
      if (name != kStep) continue;
      if (const auto real = real_of(value)) return real;
    }
    for (const TensorEntry& tensor : entry.tensors) {
      std::array<std::byte, 16> bytes;
      if (tensor.name != kStep || !tensor.shape.empty() || tensor.size_bytes > bytes.size()) continue;
      const auto value = std::span(bytes).first(tensor.size_bytes);
      opened_.at(optimizer_.files_of(file)[tensor.file].path).read_at(tensor.offset_bytes, value);
      return summarize(tensor.dtype, value).min;
    }
    return std::nullopt;
  }

  LastOpened opened_;
  const OptimizerFiles& optimizer_;
};

}  // namespace

OptimizerSummary summarize_optimizer(Files& files, const OptimizerFiles& optimizer) {
  OptimizerSummary summary;
  summary.is_sharded = optimizer.form() == OptimizerFile::Form::kZero1 && !optimizer.is_full;
  summary.dp = optimizer.dp;
  summary.files = optimizer.is_dcp ? optimizer.items.size() : optimizer.all.size();
  summary.has_masters = optimizer.has_masters;
  summary.incomplete = optimizer.incomplete;
  summary.incomplete_hint = optimizer.incomplete_hint;
  StateCounts states;
  StepReader steps(files, optimizer);
  for (const OptimizerFile& file : optimizer.all) {
    std::uint64_t bytes = 0;
    for (const OptimizerEntry& entry : file.entries) {
      for (const TensorEntry& tensor : entry.tensors) {
        states.add(tensor.name, tensor.dtype, tensor.size_bytes);
        bytes += tensor.size_bytes;
      }
      if (!entry.master) continue;
      states.add(kMasterState, entry.master->dtype, entry.master->size_bytes);
      bytes += entry.master->size_bytes;
    }
    summary.bytes += bytes;
    summary.most_rank_bytes = std::max(summary.most_rank_bytes, bytes);
    if (!summary.step) summary.step = steps.last_of(file);
  }
  summary.states = states.take();
  for (std::size_t g = 0; g < optimizer.all.front().groups.size(); ++g) {
    OptimizerSummary::Group& group = summary.groups.emplace_back();
    group.values = optimizer.all.front().groups[g].values;
    for (std::uint32_t pp_rank = 0; pp_rank < optimizer.pp; ++pp_rank)
      group.parameters += optimizer.of(pp_rank, 0, 0).groups[g].count;
  }
  return summary;
}

void validate_steps(Files& files, const OptimizerFiles& optimizer) {
  StepReader steps(files, optimizer);
  const OptimizerFile* first = nullptr;
  std::optional<double> of_first;
  for (std::uint32_t pp_rank = 0; pp_rank < optimizer.pp && optimizer.pp > 1; ++pp_rank) {
    const OptimizerFile& file = optimizer.of(pp_rank, 0, 0);
    const auto step = steps.last_of(file);
    if (!step) continue;
    if (first == nullptr) {
      first = &file;
      of_first = step;
    } else if (*step != *of_first) {
      throw Error(ErrorKind::kBadInput,
                  fmt::format("its parameters are at step {}, but those of an earlier stage at {}, in {}", *step,
                              *of_first, first->path.filename().string()))
          .in(file.path)
          .hint("the files come from two saves of a run");
    }
  }
}

}  // namespace reshard
