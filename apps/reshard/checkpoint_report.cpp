#include "checkpoint_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reshard/base/strings.h"
#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/shape.h"

namespace reshard::cli {
namespace {

/// Returns the last two parts of a stored name ("qkv_proj.weight_q"), or all of it if the tensor is in another module.
std::string short_stored_name(const std::string& stored, const std::string& logical) {
  if (logical.ends_with("." + stored)) return {};  // equal except for the base model's prefix
  const std::size_t last = stored.rfind('.');
  const std::size_t before = last == std::string::npos ? last : stored.rfind('.', last - 1);
  if (before == std::string::npos) return stored;
  // Names in some layouts lack the base model's prefix and have one more part before the last two.
  const std::size_t module = stored.rfind('.', before - 1);
  const auto begins = [&](std::size_t size) {
    const std::string prefix = stored.substr(0, size) + ".";
    return logical.starts_with(prefix) || logical.find("." + prefix) != std::string::npos;
  };
  const bool longer = !begins(before) && module != std::string::npos && begins(module);
  if (!longer && !begins(before)) return stored;
  const std::string tail = stored.substr((longer ? module : before) + 1);
  if (logical.ends_with("." + tail)) return {};
  return tail.ends_with(".weight") || tail.ends_with(".bias") ? tail.substr(0, tail.rfind('.')) : tail;
}

/// Column and row refer to the linear. A quantised linear that is stored as (in, out), as by GPTQ, is split along the
/// other dim.
PartitionLabel label_of(const StoredTensor& stored, const ModelParameter* parameter) {
  const bool split = stored.label == PartitionLabel::kColumn || stored.label == PartitionLabel::kRow;
  if (!split || parameter == nullptr || parameter->linear_size == 0) return stored.label;
  switch (parameter->plan) {
    case TensorParallelPlan::kColwise:
    case TensorParallelPlan::kPackedColwise: return PartitionLabel::kColumn;
    case TensorParallelPlan::kRowwise:
    case TensorParallelPlan::kPackedRowwise: return PartitionLabel::kRow;
    case TensorParallelPlan::kEmbeddingRowwise:
    case TensorParallelPlan::kReplicate: return stored.label;
  }
  return stored.label;
}

/// Returns the first number between dots in a name; std::nullopt if the name has no such number.
std::optional<std::uint64_t> layer_of(const std::string& name) {
  for (const std::string& part : split(name, '.'))
    if (const auto number = parse_unsigned(part)) return number;
  return std::nullopt;
}

std::vector<RankBytes> rank_bytes(const SourceMap& map) {
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint64_t>
      by_rank;  // a rank may have many files
  for (const StoredTensor& tensor : map.stored) {
    const SourceFile& file = map.files[tensor.file];
    by_rank[{file.pp_rank, file.ep_rank, file.tp_rank}] += tensor.size_bytes();
  }
  std::vector<RankBytes> ranks;
  ranks.reserve(by_rank.size());
  for (const auto& [rank, bytes] : by_rank)
    ranks.push_back({std::get<0>(rank), std::get<1>(rank), std::get<2>(rank), bytes});
  return ranks;
}

std::vector<TensorReport> tensors_of(const Checkpoint& checkpoint, const std::vector<std::uint32_t>& wanted) {
  const SourceMap& map = checkpoint.map;
  std::unordered_map<std::string_view, const ModelParameter*> parameters;
  if (checkpoint.model) {
    parameters.reserve(checkpoint.model->parameters.size());
    for (const ModelParameter& parameter : checkpoint.model->parameters) parameters.emplace(parameter.name, &parameter);
  }
  std::vector<TensorReport> tensors;
  tensors.reserve(wanted.size());
  std::vector<std::uint64_t> pp_ranks;
  for (const std::uint32_t index : wanted) {
    const LogicalTensor& logical = map.logical[index];
    const std::string& name = logical.name;
    TensorReport& tensor = tensors.emplace_back(TensorReport{index, name, logical.dtype, logical.shape});
    pp_ranks.clear();
    bool first = true;
    const std::uint32_t held =
        logical.computed ? map.find_logical(logical.computed->inputs.front()).value_or(index) : index;
    for (const Piece& piece : map.pieces[held]) {
      const StoredTensor& stored = map.stored[piece.stored];
      pp_ranks.push_back(map.files[stored.file].pp_rank);
      if (!std::exchange(first, false)) continue;
      const auto parameter = parameters.find(name);
      tensor.label = label_of(stored, parameter == parameters.end() ? nullptr : parameter->second);
      if (stored.name.text() == name) continue;
      // Without a mesh, files contain whole tensors or chunks of them, under other names.
      tensor.stored_as = checkpoint.has_mesh() ? short_stored_name(stored.name, name) : stored.name.text();
    }
    std::sort(pp_ranks.begin(), pp_ranks.end());
    tensor.pp_ranks.assign(pp_ranks.begin(), std::unique(pp_ranks.begin(), pp_ranks.end()));
  }
  return tensors;
}

}  // namespace

void sort_tensors(std::vector<TensorReport>& tensors, TensorOrder order) {
  std::stable_sort(tensors.begin(), tensors.end(), [&](const TensorReport& a, const TensorReport& b) {
    switch (order) {
      case TensorOrder::kStored: return false;
      case TensorOrder::kSize: return a.size_bytes() > b.size_bytes();
      case TensorOrder::kName: return natural_less(a.name, b.name);
      case TensorOrder::kLayer: return layer_of(a.name) < layer_of(b.name);
    }
    return false;
  });
}

void Totals::add(DType dtype, const Dims& shape) {
  ++tensors;
  elems += num_elems(shape).value_or(0);
  bytes += num_bytes(dtype, shape).value_or(0);
}

CheckpointReport report_on(const std::string& path, const Checkpoint& checkpoint,
                           const std::vector<std::uint32_t>& wanted) {
  CheckpointReport report{.path = path, .directory = checkpoint.directory.string(), .kind = "file"};
  if (checkpoint.layout != nullptr) {
    report.kind = checkpoint.layout->traits().reported_as;
    report.layout = checkpoint.layout->traits().name;
  }
  for (const Adapter& adapter : checkpoint.adapters) report.adapters.push_back(adapter.name);
  report.format = checkpoint.format;
  report.model_type = checkpoint.model_type;
  if (checkpoint.model) report.quant_method = checkpoint.model->quant_method;
  report.has_ranks = checkpoint.has_ranks();
  if (checkpoint.has_mesh()) {
    report.mesh = checkpoint.mesh;
    report.ranks = rank_bytes(checkpoint.map);
  }
  report.tensor_count = checkpoint.map.tensor_count();
  report.tensors = tensors_of(checkpoint, wanted);
  for (const TensorReport& tensor : report.tensors) {
    report.totals.add(tensor.dtype, tensor.shape);
    report.by_dtype[tensor.dtype].add(tensor.dtype, tensor.shape);
  }
  report.metadata = checkpoint.file_metadata;
  report.beside_model = checkpoint.beside_model;
  for (const SourceFile& file : checkpoint.map.files) {
    report.files.emplace_back(file.path.string(), file.size_bytes);
    if (file.record && !report.record) report.record = file.record;
  }
  report.notes = checkpoint.notes;
  return report;
}

std::string number_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace reshard::cli
