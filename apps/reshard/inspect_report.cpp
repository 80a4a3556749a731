#include "inspect_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "fold.h"
#include "option_names.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/peft/sharded_adapter.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "table.h"

namespace reshard::cli {
namespace {

using Align = Table::Align;

std::string layout_text(PartitionLabel label, const std::string& stored_as) {
  return stored_as.empty() ? std::string(name(label)) : fmt::format("{} ({})", name(label), stored_as);
}

std::string shape_text(const Dims& shape) {
  constexpr std::size_t kShownDims = 8;
  if (shape.size() > kShownDims) return fmt::format("{} dims", shape.size());
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "×"));
}

std::string what_text(const CheckpointReport& report) {
  std::set<std::string> paths;  // a file may occur several times, once per compressed item
  for (const auto& [path, bytes] : report.files) paths.insert(path);
  const std::string_view format = name(report.format);
  const std::string files = plural(paths.size(), fmt::format("{} file", format));
  std::string model = report.model_type.empty() ? "" : fmt::format(" of a {} model", printable(report.model_type));
  if (!report.quant_method.empty()) model += fmt::format(" quantised by {}", printable(report.quant_method));
  if (report.record && !report.has_ranks)
    return fmt::format("{} of a sharded checkpoint{}, {}", describe_rank(*report.record), model, files);
  if (report.layout.empty() && report.adapters.size() > 1)
    return fmt::format("{} adapters of PEFT ({}), {} {} files", report.adapters.size(), list_names(report.adapters),
                       paths.size(), format);
  if (report.layout.empty()) return fmt::format("{} file", format);
  if (!report.has_ranks) return fmt::format("Hugging Face checkpoint{}, {}", model, files);
  const std::string what =
      !report.adapters.empty() ? "adapter " + printable(report.adapters.front()) : "checkpoint" + model;
  if (!report.mesh)
    return fmt::format("sharded {} ({}, {}), {}", what, report.layout, format, plural(paths.size(), "file"));
  const Mesh& mesh = *report.mesh;
  const std::uint64_t ranks = std::uint64_t{mesh.tp} * mesh.pp * mesh.ep;
  return fmt::format("sharded {} ({}, {}), tp {} × pp {}{}, {}", what, report.layout, format, mesh.tp, mesh.pp,
                     mesh.ep > 1 ? fmt::format(" × ep {}", mesh.ep) : "", plural(ranks, "rank"));
}

/// "in addition to the model: 63 optimizer tensors, 197 kB; 13 objects, 2.10 kB"
std::string beside_text(const BesideModel& beside) {
  std::vector<std::string> parts;
  const auto add = [&](std::uint64_t count, const char* one, std::uint64_t bytes) {
    if (count > 0) parts.push_back(plural(count, one) + ", " + format_bytes(bytes));
  };
  add(beside.optimizer.tensors, "optimizer tensor", beside.optimizer.bytes);
  add(beside.other.tensors, "other tensor", beside.other.bytes);
  add(beside.objects, "object", beside.object_bytes);
  add(beside.files, "optimizer or trainer file", beside.file_bytes);
  return "in addition to the model: " + join(parts, "; ");
}

/// "optimizer: exp_avg F32 (98.6 kB), step F32 (84 B)"
std::string states_text(const std::vector<OptimizerSummary::State>& all) {
  std::vector<std::string> states;
  for (const OptimizerSummary::State& state : all)
    states.push_back(fmt::format("{} {} ({})", printable(state.name), name(state.dtype), format_bytes(state.bytes)));
  return "optimizer: " + (states.empty() ? std::string("no states yet") : join(states, ", "));
}

/// One line per group: "  group 0: 14 parameters; lr 0.001, weight_decay 0.1"
std::string groups_text(const std::vector<OptimizerSummary::Group>& groups) {
  std::string text;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::string> values;
    for (const auto& [key, value] : groups[g].values)
      values.push_back(fmt::format("{} {}", printable(key), to_string(value)));
    const std::string parameters = plural(groups[g].parameters, "parameter");
    text += wrap(fmt::format("  group {}: {}; {}", g, parameters, join(values, ", ")), 4) + "\n";
  }
  return text;
}

/// Describes the states from metadata, with the step and the groups.
std::string metadata_text(const BesideModel& beside) {
  const std::string step = beside.step ? fmt::format("; step {}", *beside.step) : "";
  return wrap(states_text(beside.states) + step, 2) + "\n" + groups_text(beside.groups);
}

/// Describes the optimizer's files: states, ranks, step, groups with their hyperparameters.
std::string optimizer_text(const OptimizerSummary& optimizer) {
  std::string text = states_text(optimizer.states);
  text += optimizer.is_sharded ? "; ZeRO-1 over " + plural(optimizer.dp, "data-parallel rank")
                               : "; not split over data-parallel ranks";
  text += fmt::format("; {}, at most {} of states per rank", plural(optimizer.files, "file"),
                      format_bytes(optimizer.most_rank_bytes));
  if (optimizer.step) text += fmt::format("; step {}", *optimizer.step);
  text += optimizer.has_masters ? "" : "; no master weights";
  std::string all = wrap(text, 2) + "\n" + groups_text(optimizer.groups);
  if (!optimizer.incomplete.empty())
    all += wrap(fmt::format("  the states cannot be restored: {}; {}", optimizer.incomplete,
                            with_options(optimizer.incomplete_hint)),
                4) +
           "\n";
  if (!optimizer.unnamed.empty())
    all += wrap("  which parameters these are is not known: " + with_options(optimizer.unnamed), 4) + "\n";
  return all;
}

/// The merged tensors of one line of the table.
struct Line {
  std::string name;
  Totals totals;
  std::vector<std::uint64_t> pp_ranks;
  std::optional<ValueSummary> values;
  const TensorReport* first = nullptr;
  std::string stored_as = {};  // with stars for the numbers in which the tensors differ
};

Line make_line(const std::vector<TensorReport>& tensors, const Folded& folded) {
  Line line{folded.name, {}, {}, {}, &tensors[folded.members.front()]};
  line.stored_as = folded.members.size() > 1 ? without_numbers(line.first->stored_as) : line.first->stored_as;
  std::set<std::uint64_t> pp_ranks;
  for (const std::uint32_t member : folded.members) {
    const TensorReport& tensor = tensors[member];
    line.totals.add(tensor.dtype, tensor.shape);
    pp_ranks.insert(tensor.pp_ranks.begin(), tensor.pp_ranks.end());
    if (!tensor.values) continue;
    if (!line.values) line.values.emplace();
    line.values->append(*tensor.values);
  }
  line.pp_ranks.assign(pp_ranks.begin(), pp_ranks.end());
  return line;
}

/// Returns the lines of the table, in the order of the view. Does not apply its limit.
std::vector<Line> make_lines(const std::vector<TensorReport>& tensors, const TensorView& view) {
  std::vector<Foldable> items;
  for (const TensorReport& tensor : tensors) {
    const std::string key = view.each ? std::to_string(tensor.logical)
                                      : fmt::format("{} {} {}", name(tensor.dtype), to_string(tensor.shape),
                                                    layout_text(tensor.label, without_numbers(tensor.stored_as)));
    items.push_back({tensor.name, key});
  }
  std::vector<Line> lines;
  for (const Folded& folded : fold(items)) lines.push_back(make_line(tensors, folded));
  if (view.order == TensorOrder::kSize)
    std::stable_sort(lines.begin(), lines.end(),
                     [](const Line& a, const Line& b) { return a.totals.bytes > b.totals.bytes; });
  return lines;
}

/// Returns the line that counts those that a limit leaves out.
std::string more_lines(std::size_t count) {
  return "… and " + plural(count, "more line") + "\n";
}

/// Applies the limit of the view. \returns the line that counts the others, or nothing.
std::string cut(std::vector<Line>& lines, const TensorView& view) {
  if (lines.size() <= view.limit) return {};
  const std::size_t left = lines.size() - view.limit;
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(view.limit), lines.end());
  return more_lines(left);
}

/// Returns the table of tensors. `ranks` adds the columns of a sharded checkpoint, `full` those that may not fit a
/// narrow terminal.
Table tensor_table(const std::vector<Line>& lines, bool ranks, bool full) {
  std::vector<std::pair<std::string, Align>> columns{{"tensor", Align::kLeft}};
  if (full) columns.push_back({"dtype", Align::kLeft});
  columns.push_back({"shape", Align::kLeft});
  if (ranks) columns.insert(columns.end(), {{"partition", Align::kLeft}, {"pp", Align::kLeft}});
  columns.push_back({"bytes", Align::kRight});
  Table table(std::move(columns));
  for (const Line& line : lines) {
    std::vector<std::string> cells{printable(line.name)};
    if (full) cells.push_back(std::string(name(line.first->dtype)));
    cells.push_back(shape_text(line.first->shape));
    if (ranks) cells.push_back(full ? layout_text(line.first->label, line.stored_as) : name(line.first->label));
    if (ranks) cells.push_back(list_ranges(line.pp_ranks));
    cells.push_back(format_bytes(line.totals.bytes));
    table.add(std::move(cells));
  }
  return table;
}

/// Describes the ranks' fused tensors: "gate_up_proj: gate_proj, up_proj".
std::string joined_text(const std::vector<TensorReport>& tensors) {
  std::map<std::string, std::vector<std::string>> parts_of;
  for (const TensorReport& tensor : tensors) {
    const auto lora = lora_name(tensor.name);  // an adapter's tensors are one level below the linear
    const std::vector<std::string> path = split(lora ? lora->module + ".weight" : tensor.name, '.');
    if (tensor.stored_as.empty() || path.size() < 2) continue;
    std::vector<std::string>& parts = parts_of[tensor.stored_as];
    if (std::find(parts.begin(), parts.end(), path[path.size() - 2]) == parts.end())
      parts.push_back(path[path.size() - 2]);
  }
  std::string text;
  for (const auto& [stored_as, parts] : parts_of)
    text += fmt::format("{} {}: {}", text.empty() ? "stored as" : ";", stored_as, join(parts, ", "));
  return text.empty() ? "" : wrap(text, 2) + "\n";
}

/// Returns the full table if it fits. Otherwise omits a dtype that all tensors share (it is shown above the table), and
/// then the tensors' names on the ranks.
std::string fitting_tensor_table(const CheckpointReport& report, const TensorView& view) {
  std::vector<Line> lines = make_lines(report.tensors, view);
  const std::string rest = cut(lines, view);
  const bool ranks = report.mesh.has_value();
  const Table full = tensor_table(lines, ranks, true);
  const bool one_dtype = std::all_of(report.tensors.begin(), report.tensors.end(), [&](const TensorReport& tensor) {
    return tensor.dtype == report.tensors.front().dtype;
  });
  if (full.fits() || !one_dtype) return full.text() + rest;
  return tensor_table(lines, ranks, false).text() + rest + (ranks ? joined_text(report.tensors) : std::string());
}

std::string stats_table(const CheckpointReport& report, const TensorView& view) {
  Table table({{"tensor", Align::kLeft},
               {"dtype", Align::kLeft},
               {"min", Align::kRight},
               {"max", Align::kRight},
               {"mean", Align::kRight},
               {"nan", Align::kRight},
               {"inf", Align::kRight}});
  std::vector<Line> lines = make_lines(report.tensors, view);
  const std::string rest = cut(lines, view);
  for (const Line& line : lines) {
    const ValueSummary& v = *line.values;
    const bool any = v.count > v.nan_count;
    table.add({printable(line.name), std::string(name(line.first->dtype)), any ? number_text(v.min) : "-",
               any ? number_text(v.max) : "-", v.finite_count ? number_text(v.mean()) : "-",
               std::to_string(v.nan_count), std::to_string(v.inf_count)});
  }
  return table.text() + rest;
}

/// Sorted by name unless the view has another order, so that `diff` can compare two of these tables.
std::string digest_table(std::vector<TensorReport> tensors, const TensorView& view) {
  if (view.order == TensorOrder::kStored) sort_tensors(tensors, TensorOrder::kName);
  std::string text;
  for (const TensorReport& tensor : tensors)
    text += fmt::format("{}  {} {} {}\n", to_hex(tensor.digest->digest), printable(tensor.name), name(tensor.dtype),
                        to_string(tensor.shape));
  return text;
}

/// One line per pipeline rank: the size of its ranks and their balance.
std::string ranks_table(const CheckpointReport& report) {
  Table table({{"pp rank", Align::kLeft},
               {"ranks", Align::kRight},
               {"least", Align::kRight},
               {"most", Align::kRight},
               {"all", Align::kRight}});
  const auto add = [&](const std::string& label, const auto& belongs) {
    std::uint64_t least = UINT64_MAX, most = 0, all = 0, count = 0;
    for (const RankBytes& rank : report.ranks) {
      if (!belongs(rank)) continue;
      least = std::min(least, rank.bytes);
      most = std::max(most, rank.bytes);
      all += rank.bytes;
      ++count;
    }
    if (count == 0) least = 0;
    table.add({label, std::to_string(count), format_bytes(least), format_bytes(most), format_bytes(all)});
    return std::array{least, most, all, count};
  };
  for (std::uint32_t p = 0; p < report.mesh->pp; ++p)
    add(std::to_string(p), [p](const RankBytes& rank) { return rank.pp_rank == p; });
  const auto [least, most, all, count] = add("all", [](const RankBytes&) { return true; });
  const double mean = static_cast<double>(all) / static_cast<double>(count);
  std::string text = table.text();
  if (mean > 0)
    text += fmt::format("bytes per rank: mean {}, fullest {:+.1f} %, emptiest {:+.1f} %\n",
                        format_bytes(static_cast<std::uint64_t>(mean)), (static_cast<double>(most) / mean - 1) * 100,
                        (static_cast<double>(least) / mean - 1) * 100);
  return text;
}

}  // namespace

std::string adapters_text(const std::string& path, const std::vector<CheckpointReport>& adapters) {
  Table table({{"adapter", Align::kLeft},
               {"folder", Align::kLeft},
               {"format", Align::kLeft},
               {"tp", Align::kRight},
               {"pp", Align::kRight},
               {"tensors", Align::kRight},
               {"bytes", Align::kRight}});
  for (const CheckpointReport& adapter : adapters)
    table.add({printable(adapter.adapters.front()),
               printable(std::filesystem::path(adapter.directory).filename().string()),
               std::string(name(adapter.format)), std::to_string(adapter.mesh->tp), std::to_string(adapter.mesh->pp),
               std::to_string(adapter.totals.tensors), format_bytes(adapter.totals.bytes)});
  return fmt::format("{}: {} sharded adapters; give the folder of one to see what it contains\n\n", printable(path),
                     adapters.size()) +
         table.text();
}

std::string inspect_text(const CheckpointReport& report, const TensorView& view) {
  const bool has_digests = !report.tensors.empty() && report.tensors.front().digest.has_value();
  const bool has_values = !report.tensors.empty() && report.tensors.front().values.has_value();
  // Without other output, so that the digests of two checkpoints can be compared with diff.
  if (has_digests && !has_values) return digest_table(report.tensors, view);
  const Totals& totals = report.totals;
  std::string text = fmt::format("{}: {}\n", printable(report.path), what_text(report));
  text += fmt::format("{}{}, {} parameters, {}\n", plural(totals.tensors, "tensor"),
                      totals.tensors == report.tensor_count ? "" : fmt::format(" of {}", report.tensor_count),
                      format_count(totals.elems), format_bytes(totals.bytes));
  for (const auto& [dtype, part] : report.by_dtype)
    text += fmt::format("  {:<12} {:>7} tensor{}  {:>8} parameters  {:>8}\n", name(dtype), part.tensors,
                        part.tensors == 1 ? " " : "s", format_count(part.elems), format_bytes(part.bytes));
  if (report.beside_model) {
    const BesideModel& beside = *report.beside_model;
    if (!beside.empty()) text += wrap(beside_text(beside), 2) + "\n";
    if (!beside.states.empty()) text += metadata_text(beside);
    if (beside.summary) text += optimizer_text(*beside.summary);
    if (!beside.unreadable.empty())
      text += wrap("the optimizer cannot be read: " + with_options(beside.unreadable), 2) + "\n";
  }
  for (const auto& [key, value] : report.metadata)
    text += wrap(fmt::format("  metadata {}: {}", printable(key), printable(value)), 4) + "\n";
  if (has_digests) text += "\n" + digest_table(report.tensors, view);
  if (has_values)
    text += "\n" + stats_table(report, view);
  else if (!report.tensors.empty())
    text += "\n" + fitting_tensor_table(report, view);
  if (totals.tensors > report.tensors.size()) text += more_lines(totals.tensors - report.tensors.size());
  if (report.mesh) text += "\n" + ranks_table(report);
  return text;
}

}  // namespace reshard::cli
