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
#include "reshard/layouts/ranks/record_validation.h"
#include "reshard/specs/peft/adapter_metadata.h"
#include "table.h"

namespace reshard::cli {
namespace {

using Align = Table::Align;

std::string layout_text(const TensorRow& row, const std::string& stored_as) {
  return stored_as.empty() ? std::string(name(row.label)) : fmt::format("{} ({})", name(row.label), stored_as);
}

std::string shape_text(const Dims& shape) {
  constexpr std::size_t kShown = 8;
  if (shape.size() > kShown) return fmt::format("{} dims", shape.size());
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "×"));
}

/// "2 adapters of PEFT (default, other)"
std::string adapters_found(const std::vector<Adapter>& adapters) {
  std::vector<std::string> names;
  for (const Adapter& adapter : adapters) names.push_back(adapter.name);
  return fmt::format("{} adapters of PEFT ({})", names.size(), list_names(names));
}

std::string what_text(const Checkpoint& inspection) {
  std::set<std::string> paths;  // a file may occur several times, once per compressed item
  for (const SourceFile& file : inspection.map.files) paths.insert(file.path.string());
  const std::size_t files = paths.size();
  const std::string_view format = name(inspection.format);
  std::string model =
      inspection.model_type.empty() ? "" : fmt::format(" of a {} model", printable(inspection.model_type));
  if (inspection.model && !inspection.model->quant_method.empty())
    model += fmt::format(" quantised by {}", printable(inspection.model->quant_method));
  for (const SourceFile& file : inspection.map.files)
    if (file.record && !inspection.has_ranks())
      return fmt::format("{} of a sharded checkpoint{}, {} {} file{}", describe_rank(*file.record), model, files,
                         format, files == 1 ? "" : "s");
  if (inspection.layout == nullptr && inspection.adapters.size() > 1)
    return fmt::format("{}, {} {} files", adapters_found(inspection.adapters), files, format);
  if (inspection.layout == nullptr) return fmt::format("{} file", format);
  if (!inspection.has_ranks())
    return fmt::format("Hugging Face checkpoint{}, {} {} file{}", model, files, format, files == 1 ? "" : "s");
  const Mesh& mesh = inspection.mesh;
  const std::uint64_t ranks = std::uint64_t{mesh.tp} * mesh.pp * mesh.ep;
  const std::string what =
      !inspection.adapters.empty() ? "adapter " + printable(inspection.adapters.front().name) : "checkpoint" + model;
  if (!inspection.has_mesh())
    return fmt::format("sharded {} ({}, {}), {} file{}", what, inspection.layout->traits().name, format, files,
                       files == 1 ? "" : "s");
  return fmt::format("sharded {} ({}, {}), tp {} × pp {}{}, {} rank{}", what, inspection.layout->traits().name, format,
                     mesh.tp, mesh.pp, mesh.ep > 1 ? fmt::format(" × ep {}", mesh.ep) : "", ranks,
                     ranks == 1 ? "" : "s");
}

/// "in addition to the model: 63 optimizer tensors, 197 kB"
std::string beside_text(const BesideModel& beside) {
  std::vector<std::string> parts;
  const auto add = [&](std::uint64_t count, const char* one, std::uint64_t bytes) {
    if (count > 0) parts.push_back(fmt::format("{} {}{}, {}", count, one, count == 1 ? "" : "s", format_bytes(bytes)));
  };
  add(beside.optimizer.tensors, "optimizer tensor", beside.optimizer.bytes);
  add(beside.other.tensors, "other tensor", beside.other.bytes);
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
    const std::uint64_t parameters = groups[g].parameters;
    text += wrap(fmt::format("  group {}: {} parameter{}; {}", g, parameters, parameters == 1 ? "" : "s",
                             join(values, ", ")),
                 4) +
            "\n";
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
  text += optimizer.is_sharded
              ? fmt::format("; ZeRO-1 over {} data-parallel rank{}", optimizer.dp, optimizer.dp == 1 ? "" : "s")
              : "; not split over data-parallel ranks";
  text += fmt::format("; {} file{}, at most {} of states per rank", optimizer.files, optimizer.files == 1 ? "" : "s",
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

/// The merged rows of one line of the table.
struct Line {
  std::string name;
  Totals totals;
  std::vector<std::uint64_t> pp_ranks;
  std::optional<ValueSummary> values;
  const TensorRow* first = nullptr;
  std::string stored_as = {};  // with stars for the numbers in which the rows differ
};

Line make_line(const SourceMap& map, const std::vector<TensorRow>& rows, const Folded& folded) {
  Line line{folded.name, {}, {}, {}, &rows[folded.members.front()]};
  line.stored_as = folded.members.size() > 1 ? without_numbers(line.first->stored_as) : line.first->stored_as;
  std::set<std::uint64_t> pp_ranks;
  for (const std::uint32_t member : folded.members) {
    const TensorRow& row = rows[member];
    line.totals.add(map.logical[row.logical]);
    pp_ranks.insert(row.pp_ranks.begin(), row.pp_ranks.end());
    if (!row.values) continue;
    if (!line.values) line.values.emplace();
    line.values->append(*row.values);
  }
  line.pp_ranks.assign(pp_ranks.begin(), pp_ranks.end());
  return line;
}

/// Returns the lines of the table, in the order of the view. Does not apply its limit.
std::vector<Line> make_lines(const SourceMap& map, const std::vector<TensorRow>& rows, const TensorView& view) {
  std::vector<Foldable> items;
  for (const TensorRow& row : rows) {
    const LogicalTensor& tensor = map.logical[row.logical];
    const std::string key = view.each ? std::to_string(row.logical)
                                      : fmt::format("{} {} {}", name(tensor.dtype), to_string(tensor.shape),
                                                    layout_text(row, without_numbers(row.stored_as)));
    items.push_back({tensor.name, key});
  }
  std::vector<Line> lines;
  for (const Folded& folded : fold(items)) lines.push_back(make_line(map, rows, folded));
  if (view.order == TensorOrder::kSize)
    std::stable_sort(lines.begin(), lines.end(),
                     [](const Line& a, const Line& b) { return a.totals.bytes > b.totals.bytes; });
  return lines;
}

/// Returns the line that stands for those that a limit leaves out.
std::string more_lines(std::size_t count) {
  return fmt::format("… and {} more line{}\n", count, count == 1 ? "" : "s");
}

/// Applies the limit of the view. \returns the line that stands for the others, or nothing.
std::string cut(std::vector<Line>& lines, const TensorView& view) {
  if (lines.size() <= view.limit) return {};
  const std::size_t left = lines.size() - view.limit;
  lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(view.limit), lines.end());
  return more_lines(left);
}

/// Returns the table of tensors. `full` adds columns that may not fit a narrow terminal.
Table tensor_table(const Checkpoint& inspection, const std::vector<Line>& lines, bool full) {
  const bool ranks = inspection.has_mesh();
  std::vector<std::pair<std::string, Align>> columns{{"tensor", Align::kLeft}};
  if (full) columns.push_back({"dtype", Align::kLeft});
  columns.push_back({"shape", Align::kLeft});
  if (ranks) columns.insert(columns.end(), {{"partition", Align::kLeft}, {"pp", Align::kLeft}});
  columns.push_back({"bytes", Align::kRight});
  Table table(std::move(columns));
  for (const Line& line : lines) {
    const LogicalTensor& tensor = inspection.map.logical[line.first->logical];
    std::vector<std::string> cells{printable(line.name)};
    if (full) cells.push_back(std::string(name(tensor.dtype)));
    cells.push_back(shape_text(tensor.shape));
    if (ranks) cells.push_back(full ? layout_text(*line.first, line.stored_as) : name(line.first->label));
    if (ranks) cells.push_back(list_ranges(line.pp_ranks));
    cells.push_back(format_bytes(line.totals.bytes));
    table.add(std::move(cells));
  }
  return table;
}

/// Describes the ranks' fused tensors: "gate_up_proj: gate_proj, up_proj".
std::string joined_text(const SourceMap& map, const std::vector<TensorRow>& rows) {
  std::map<std::string, std::vector<std::string>> parts_of;
  for (const TensorRow& row : rows) {
    const std::string& name = map.logical[row.logical].name;
    const auto lora = lora_name(name);  // an adapter's tensors are one level below the linear
    const std::vector<std::string> path = split(lora ? lora->module + ".weight" : name, '.');
    if (row.stored_as.empty() || path.size() < 2) continue;
    std::vector<std::string>& parts = parts_of[row.stored_as];
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
std::string fitting_tensor_table(const Checkpoint& inspection, const std::vector<TensorRow>& rows,
                                 const TensorView& view) {
  std::vector<Line> lines = make_lines(inspection.map, rows, view);
  const std::string rest = cut(lines, view);
  const Table full = tensor_table(inspection, lines, true);
  const bool one_dtype = totals_by_dtype(inspection.map, rows).size() == 1;
  if (full.fits() || !one_dtype) return full.text() + rest;
  return tensor_table(inspection, lines, false).text() + rest +
         (inspection.has_mesh() ? joined_text(inspection.map, rows) : std::string());
}

std::string stats_table(const Checkpoint& inspection, const std::vector<TensorRow>& rows, const TensorView& view) {
  Table table({{"tensor", Align::kLeft},
               {"dtype", Align::kLeft},
               {"min", Align::kRight},
               {"max", Align::kRight},
               {"mean", Align::kRight},
               {"nan", Align::kRight},
               {"inf", Align::kRight}});
  std::vector<Line> lines = make_lines(inspection.map, rows, view);
  const std::string rest = cut(lines, view);
  for (const Line& line : lines) {
    const LogicalTensor& tensor = inspection.map.logical[line.first->logical];
    const ValueSummary& v = *line.values;
    const bool any = v.count > v.nan_count;
    table.add({printable(line.name), std::string(name(tensor.dtype)), any ? number_text(v.min) : "-",
               any ? number_text(v.max) : "-", v.finite_count ? number_text(v.mean()) : "-",
               std::to_string(v.nan_count), std::to_string(v.inf_count)});
  }
  return table.text() + rest;
}

/// Sorted by name unless the view has another order, so that `diff` can compare two of these tables.
std::string digest_table(const Checkpoint& inspection, std::vector<TensorRow> rows, const TensorView& view) {
  if (view.order == TensorOrder::kStored) sort_rows(inspection.map, rows, TensorOrder::kName);
  std::string text;
  for (const TensorRow& row : rows) {
    const LogicalTensor& tensor = inspection.map.logical[row.logical];
    text += fmt::format("{}  {} {} {}\n", to_hex(row.digest->digest), printable(tensor.name), name(tensor.dtype),
                        to_string(tensor.shape));
  }
  return text;
}

/// One line per pipeline rank: the size of its ranks and their balance.
std::string ranks_table(const Checkpoint& inspection) {
  const std::vector<RankBytes> ranks = rank_bytes(inspection.map);
  Table table({{"pp rank", Align::kLeft},
               {"ranks", Align::kRight},
               {"least", Align::kRight},
               {"most", Align::kRight},
               {"all", Align::kRight}});
  const auto add = [&](const std::string& label, const auto& belongs) {
    std::uint64_t least = UINT64_MAX, most = 0, all = 0, count = 0;
    for (const RankBytes& rank : ranks) {
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
  for (std::uint32_t p = 0; p < inspection.mesh.pp; ++p)
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

std::string adapters_text(const std::string& path, const std::vector<Checkpoint>& adapters) {
  Table table({{"adapter", Align::kLeft},
               {"folder", Align::kLeft},
               {"format", Align::kLeft},
               {"tp", Align::kRight},
               {"pp", Align::kRight},
               {"tensors", Align::kRight},
               {"bytes", Align::kRight}});
  for (const Checkpoint& adapter : adapters) {
    const Totals totals = totals_of(adapter.map);
    table.add({printable(adapter.adapters.front().name), printable(adapter.directory.filename().string()),
               std::string(name(adapter.format)), std::to_string(adapter.mesh.tp), std::to_string(adapter.mesh.pp),
               std::to_string(totals.tensors), format_bytes(totals.bytes)});
  }
  return fmt::format("{}: {} sharded adapters; give the folder of one to see what it contains\n\n", printable(path),
                     adapters.size()) +
         table.text();
}

std::string inspect_text(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& all,
                         const std::vector<TensorRow>& rows, const TensorView& view) {
  // Without other output, so that the digests of two checkpoints can be compared with diff.
  if (!rows.empty() && rows.front().digest && !rows.front().values) return digest_table(inspection, rows, view);
  const Totals totals = totals_of(inspection.map, all);
  std::string text = fmt::format("{}: {}\n", printable(path), what_text(inspection));
  text += fmt::format(
      "{} tensor{}{}, {} parameters, {}\n", totals.tensors, totals.tensors == 1 ? "" : "s",
      all.size() == inspection.map.tensor_count() ? "" : fmt::format(" of {}", inspection.map.tensor_count()),
      format_count(totals.elems), format_bytes(totals.bytes));
  for (const auto& [dtype, part] : totals_by_dtype(inspection.map, all))
    text += fmt::format("  {:<12} {:>7} tensor{}  {:>8} parameters  {:>8}\n", name(dtype), part.tensors,
                        part.tensors == 1 ? " " : "s", format_count(part.elems), format_bytes(part.bytes));
  if (inspection.beside_model && !inspection.beside_model->empty())
    text += wrap(beside_text(*inspection.beside_model), 2) + "\n";
  if (inspection.beside_model && !inspection.beside_model->states.empty())
    text += metadata_text(*inspection.beside_model);
  if (inspection.beside_model && inspection.beside_model->summary)
    text += optimizer_text(*inspection.beside_model->summary);
  if (inspection.beside_model && !inspection.beside_model->unreadable.empty())
    text += wrap("the optimizer cannot be read: " + with_options(inspection.beside_model->unreadable), 2) + "\n";
  for (const auto& [key, value] : inspection.file_metadata)
    text += wrap(fmt::format("  metadata {}: {}", printable(key), printable(value)), 4) + "\n";
  if (!rows.empty() && rows.front().digest) text += "\n" + digest_table(inspection, rows, view);
  if (!rows.empty() && (rows.front().values || !rows.front().digest))
    text += "\n" +
            (rows.front().values ? stats_table(inspection, rows, view) : fitting_tensor_table(inspection, rows, view));
  if (all.size() > rows.size()) text += more_lines(all.size() - rows.size());
  if (inspection.has_mesh()) text += "\n" + ranks_table(inspection);
  return text;
}

}  // namespace reshard::cli
