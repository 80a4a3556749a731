#include "job_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshard/base/strings.h"
#include "reshard/plan/proof/job_manifest.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "reshard/tensor/recipes/mean.h"
#include "table.h"

namespace reshard::cli {
namespace {

void count_source(JobReport& report, const SourceMap& source) {
  report.tensors = source.tensor_count();
  for (const LogicalTensor& tensor : source.state_dict())
    if (tensor.role == TensorRole::kParameter) report.parameters += num_elems(tensor.shape).value_or(0);
  for (const LogicalTensor& tensor : source.logical)
    if (tensor.role != TensorRole::kParameter && tensor.role != TensorRole::kPart) ++report.source_states;
  report.source_files = source.files.size();
  for (const SourceFile& file : source.files) report.source_bytes += file.size_bytes;
}

bool has_layer_number(const std::string& name) {
  const std::vector<std::string> parts = split(name, '.');
  return std::any_of(parts.begin(), parts.end(),
                     [](const std::string& part) { return parse_unsigned(part).has_value(); });
}

/// Adds the stages, and each pipeline rank's tensors that belong to no layer.
void add_stages(JobReport& report, const Job& job) {
  const PipelinePartition& partition = *job.partition;
  for (std::uint32_t s = 0; s < partition.stages(); ++s)
    report.stages.push_back({s, partition.rank_of_stage(s), partition.first[s], partition.first[s + 1] - 1});
  report.outside_layers.resize(job.mesh.pp);
  for (const StoredTensor& tensor : job.target.stored) {
    const TargetFile& file = job.target.files[tensor.file];
    if (file.tp_rank == 0 && file.ep_rank == 0 && !has_layer_number(tensor.name))
      report.outside_layers[file.pp_rank].push_back(tensor.name);
  }
}

void add_files(JobReport& report, const Job& job) {
  using Kind = JobReport::File::Kind;
  for (const TargetFile& file : job.target.files) {
    report.files.push_back({file.path.string(), file.size_bytes, Kind::kWeights});
    if (report.has_ranks) report.files.back().tp_rank = file.tp_rank;
    report.files.back().is_one_tensor = file.encoding == TargetFile::Encoding::kTorchTensor;
  }
  for (const StoredTensor& tensor : job.target.stored) ++report.files[tensor.file].tensors;
  for (const TextFile& file : job.text_files)
    report.files.push_back({file.path.string(), file.text.size(), Kind::kMetadata});
  for (const CopiedFile& file : job.copied_files)
    report.files.push_back({file.path.string(), file.size_bytes, Kind::kCopied});
  report.written_files = output_files(job).size();
  report.written_bytes = job.output_bytes();
}

Notes mean_notes(const Job& job, const RunResult* result) {
  std::vector<std::string> tensors;
  const auto is_mean = [](const LogicalTensor& tensor) {
    return tensor.computed && tensor.computed->recipe->key() == kMeanKey && tensor.computed->inputs.size() > 1;
  };
  std::set<std::string_view> inexact;
  if (result != nullptr) inexact.insert(result->inexact.begin(), result->inexact.end());
  for (const LogicalTensor& tensor : job.source.logical)
    if (is_mean(tensor) && (result == nullptr || inexact.count(tensor.name) > 0)) tensors.push_back(tensor.name);
  if (tensors.empty()) return {};
  std::vector<std::string> linears;
  for (const std::string& tensor : tensors) {
    const auto lora = lora_name(tensor);
    std::string linear = lora ? lora->module : tensor;
    if (const auto at = linear.find(kPeftPrefix); at != std::string::npos) linear.erase(at, kPeftPrefix.size());
    linears.push_back(std::move(linear));
  }
  const bool one = linears.size() == 1;
  return Note{NoteKind::kChanged,
              fmt::format("{} {} (--lora-fuse exact keeps it): {}", plural(linears.size(), "fused linear"),
                          result != nullptr ? "had lora_A that differ and got their mean, which changes the adapter"
                          : one ? "gets the mean of its lora_A, which changes the adapter unless they are equal"
                                : "get the mean of their lora_A, which changes the adapter unless they are equal",
                          list_names(linears)),
              tensors};
}

Notes loss_notes(const RunResult& result) {
  Notes notes;
  const auto note = [&](const std::vector<std::pair<std::string, std::uint64_t>>& lost, const char* what,
                        const char* advice) {
    std::uint64_t values = 0;
    std::vector<std::string> tensors;
    for (const auto& [tensor, count] : lost) {
      values += count;
      tensors.push_back(tensor);
    }
    if (!tensors.empty())
      notes
          .changed(fmt::format("{} of {} {} {}: {}{}", plural(values, "value"), plural(tensors.size(), "tensor"),
                               values == 1 ? "was" : "were", what, list_names(tensors), advice))
          .of(tensors);
  };
  note(result.saturated, "beyond the range of the new dtype and replaced by its largest finite value",
       ". --overflow error stops at the first one");
  note(result.zeroed, "too small for the new dtype and became 0", "");
  return notes;
}

}  // namespace

JobReport report_on(const Job& job, const OutputSpace& space, const RunResult* result) {
  JobReport report{
      .command = job.command, .source = job.source_directory.string(), .output = job.output_directory.string()};
  report.family = job.family;
  report.layout = job.layout->traits().name;
  report.has_ranks = job.layout->traits().has_ranks();
  for (const LayoutOption* option : job.layout->options())
    if (auto value = given_option(job, *option)) report.options.emplace_back(option->name, std::move(*value));
  report.mesh = job.mesh;
  if (job.partition) add_stages(report, job);
  report.cut_names = job.cut_names;
  report.attention = job.attention;
  count_source(report, job.source);
  report.transforms = job.transforms;
  for (const LogicalTensor& tensor : job.target.logical) {
    if (tensor.constant() || tensor.role == TensorRole::kParameter) continue;
    ++report.states;
    report.state_bytes += num_bytes(tensor.dtype, tensor.shape).value_or(0);
  }
  add_files(report, job);
  report.manifest = job.manifest;
  report.read_bytes = job.program.read_bytes;
  report.check_bytes = job.program.check_bytes;
  report.skipped_bytes = job.program.skipped_bytes;
  report.dropped_bytes = job.program.dropped_bytes;
  report.space = space;
  report.notes = job.notes;
  report.notes.add(run_notes(job, result));
  report.result = result;
  return report;
}

double bytes_per_second(const RunResult& result) {
  const std::uint64_t written = result.written_bytes - std::min(result.written_bytes, result.resumed_bytes);
  return result.seconds > 0 ? static_cast<double>(written) / result.seconds : 0;
}

Notes run_notes(const Job& job, const RunResult* result) {
  Notes notes = mean_notes(job, result);
  if (result == nullptr) return notes;
  for (const Notes& some : {divergent_notes(result->divergent), loss_notes(*result), result->notes}) notes.add(some);
  return notes;
}

Notes divergent_notes(const std::vector<Divergence>& divergent) {
  constexpr std::size_t kShownNotes = 10;
  Notes notes;
  std::set<std::string> drifted;
  const Divergence *farthest = nullptr, *largest = nullptr;
  std::size_t others = 0;
  for (const Divergence& one : divergent) {
    if (!one.is_drift) {
      if (++others <= kShownNotes) notes.replicas(one.text).of({one.tensor});
      continue;
    }
    drifted.insert(one.tensor);
    const auto is_more = [&](double Divergence::*what, const Divergence* other) {
      return other == nullptr || one.*what > other->*what || (one.*what == other->*what && one.text < other->text);
    };
    if (is_more(&Divergence::relative, farthest)) farthest = &one;
    if (is_more(&Divergence::max_abs, largest)) largest = &one;
  }
  if (others > kShownNotes)
    notes.replicas(fmt::format("… and {} more that differ (all with --json)", others - kShownNotes));
  if (farthest != nullptr)
    notes
        .replicas(fmt::format(
            "{} drifted apart between ranks in training: using the first rank's values. Largest relative "
            "difference {:.2g} (of {}), largest absolute difference {:.2g} (of {}). A rank of another step "
            "can look the "
            "same; --replicas exact makes this an error",
            plural(drifted.size(), "tensor"), farthest->relative, farthest->tensor, largest->max_abs, largest->tensor))
        .of({drifted.begin(), drifted.end()});
  return notes;
}

}  // namespace reshard::cli
