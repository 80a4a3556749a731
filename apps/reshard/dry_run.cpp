#include "dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "fold.h"
#include "reshard/base/strings.h"
#include "reshard/plan/proof/manifest.h"
#include "table.h"

namespace reshard::cli {
namespace {

constexpr std::size_t kLabel = 10;
constexpr std::uint32_t kShownRanks = 16;  // in the head placement; --json lists all

/// \param indent of the lines after the first.
std::string line(const std::string& label, const std::string& text, std::size_t indent = kLabel) {
  const std::string padded = fmt::format("{:<{}}", label, kLabel);
  return wrap((label.size() < kLabel ? padded : label + " ") + text, indent) + "\n";
}

std::string stages_text(const JobReport& report) {
  std::string text;
  for (const auto& [stage, pp_rank, first, last] : report.stages) {
    const std::string layers =
        first == last ? fmt::format("layer {}", first) : fmt::format("layers {}-{}", first, last);
    text += line(stage == 0 ? "stages" : "", fmt::format("{:>3}  pp rank {:<3} {}", stage, pp_rank, layers));
  }
  for (std::size_t pp_rank = 0; pp_rank < report.outside_layers.size(); ++pp_rank) {
    const std::vector<std::string>& names = report.outside_layers[pp_rank];
    const std::string head = fmt::format("     pp rank {:<3} ", pp_rank);
    if (!names.empty()) text += line("", head + list_names(names), kLabel + head.size());
  }
  if (!report.cut_names.empty()) text += line("cuts", join(report.cut_names, " "));
  return text;
}

std::string numbers_text(const std::vector<std::uint32_t>& numbers) {
  const std::vector<std::uint64_t> wide(numbers.begin(), numbers.end());
  return std::is_sorted(wide.begin(), wide.end()) ? list_ranges(wide) : list_numbers(wide, 64);
}

/// Formats a list of heads. Numbers from `heads` on are heads of zeros.
std::string slots_text(std::vector<std::uint32_t> slots, std::uint64_t heads) {
  const std::size_t zeros = std::erase_if(slots, [&](std::uint32_t head) { return head >= heads; });
  if (zeros == 0) return numbers_text(slots);
  const std::string added = fmt::format("{} of zeros", zeros);
  return slots.empty() ? added : numbers_text(slots) + " + " + added;
}

std::string heads_text(const AttentionReport& report, std::uint32_t tp) {
  const std::string counts =
      fmt::format("{} query, {} key/value, of {} elements: ", report.heads, report.kv_heads, report.head_dim);
  const std::string share = fmt::format("a rank has {} query and {} key/value heads", report.heads / tp,
                                        std::max<std::uint64_t>(1, report.kv_heads / tp));
  const std::string fused = is_fused(report.form) ? "q, k and v fused" : "q, k and v separate";
  if (report.ranks.empty()) return line("heads", counts + fused + ", " + share);
  std::string text =
      line("heads", fmt::format("{}grouped query, each key/value head {}, {}", counts,
                                report.copies == 1 ? "once" : fmt::format("{} times", report.copies), fused));
  for (std::uint32_t r = 0; r < std::min(tp, kShownRanks); ++r)
    text += line("", fmt::format("tp rank {:<3} key/value {:<8} query {}", r,
                                 slots_text(report.ranks[r].key_value, report.kv_heads),
                                 slots_text(report.ranks[r].query, report.heads)));
  if (tp > kShownRanks) text += line("", fmt::format("… and {} ranks more (all with --json)", tp - kShownRanks));
  return text;
}

/// A row of the table of files: equal files of several tensor-parallel ranks, or the many files in one xser folder.
struct FileRow {
  std::string path;  // without the number of the tensor-parallel rank
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::uint64_t files = 0;
  std::vector<std::uint64_t> tp_ranks = {};
  std::size_t number_at = 0;  // position of that number in `path`; 0 if it has none
  int digits = 0;             // minimum number of digits
};

/// A number in a path, possibly the tensor-parallel rank.
struct NumberInPath {
  std::size_t begin = 0;
  std::size_t size = 0;
};

std::vector<NumberInPath> numbers_in(const std::string& path) {
  constexpr const char* kDigits = "0123456789";
  std::vector<NumberInPath> numbers;
  for (std::size_t begin = path.find_first_of(kDigits); begin != std::string::npos;) {
    const std::size_t end = std::min(path.find_first_not_of(kDigits, begin), path.size());
    numbers.push_back({begin, end - begin});
    begin = path.find_first_of(kDigits, end);
  }
  return numbers;
}

/// Returns the numbers in the path of a rank's weights that equal the rank.
std::vector<NumberInPath> rank_numbers_in(const FileRow& row) {
  std::vector<NumberInPath> numbers = numbers_in(row.path);
  std::erase_if(numbers, [&](NumberInPath number) {
    return parse_unsigned(row.path.substr(number.begin, number.size)) != row.tp_ranks.front();
  });
  return numbers;
}

std::string without(const std::string& path, NumberInPath number) {
  return path.substr(0, number.begin) + '\0' + path.substr(number.begin + number.size);
}

std::string up_to(const std::string& path, NumberInPath number) {
  return path.substr(0, number.begin + number.size);
}

void take_out(FileRow& row, NumberInPath number) {
  row.number_at = number.begin;
  row.digits = static_cast<int>(number.size);
  row.path.erase(number.begin, number.size);
}

/// Removes the tensor-parallel rank from the paths. If several numbers in a path equal the rank, removes the one
/// without which most ranks' paths are equal. A text file next to a rank's weights also belongs to the rank.
void take_ranks(std::vector<FileRow>& rows) {
  std::map<std::string, std::size_t> paths;
  for (const FileRow& row : rows)
    if (!row.tp_ranks.empty())
      for (const NumberInPath number : rank_numbers_in(row)) ++paths[without(row.path, number)];
  std::map<std::string, std::uint64_t> ranks;  // keyed by the beginning of the rank's paths
  for (FileRow& row : rows) {
    if (row.tp_ranks.empty()) continue;
    std::size_t most = 1;  // a unique path keeps its number
    std::optional<NumberInPath> best;
    for (const NumberInPath number : rank_numbers_in(row))
      if (const std::size_t count = paths.at(without(row.path, number)); count > most) most = count, best = number;
    if (best) {
      ranks.emplace(up_to(row.path, *best), row.tp_ranks.front());
      take_out(row, *best);
    } else {
      row.tp_ranks.clear();
    }
  }
  for (FileRow& row : rows) {
    if (!row.tp_ranks.empty()) continue;
    for (const NumberInPath number : numbers_in(row.path)) {
      const auto rank = ranks.find(up_to(row.path, number));
      if (rank == ranks.end()) continue;
      row.tp_ranks = {rank->second};
      take_out(row, number);
      break;
    }
  }
}

/// Returns a row for every output file of weights or text, and one for each rank's xser folder.
std::vector<FileRow> file_rows(const JobReport& report) {
  std::vector<FileRow> rows;
  for (const JobReport::File& file : report.files) {
    if (file.kind == JobReport::File::Kind::kCopied) continue;
    const std::string path =
        file.is_one_tensor ? std::filesystem::path(file.path).parent_path().string() + "/" : file.path;
    if (!file.is_one_tensor || rows.empty() || rows.back().path != path) {
      rows.push_back({path});
      if (file.tp_rank) rows.back().tp_ranks = {*file.tp_rank};
    }
    rows.back().tensors += file.tensors;
    rows.back().bytes += file.size_bytes;
    ++rows.back().files;
  }
  return rows;
}

/// Builds the table of files, with one row for all ranks that have equal files. `folders` shows the names of the
/// outermost folders.
Table file_table(const JobReport& report, bool folders) {
  Table table({{"file", Table::Align::kLeft}, {"tensors", Table::Align::kRight}, {"bytes", Table::Align::kRight}});
  std::vector<FileRow> folded;
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, std::size_t> by_pattern;
  std::vector<FileRow> rows = file_rows(report);
  take_ranks(rows);
  for (FileRow& row : rows) {
    const auto [found, is_new] = by_pattern.emplace(std::tuple(row.path, row.bytes, row.files), folded.size());
    if (is_new)
      folded.push_back(std::move(row));
    else if (!row.tp_ranks.empty())
      folded[found->second].tp_ranks.push_back(row.tp_ranks.front());
  }
  for (FileRow& row : folded) {
    std::sort(row.tp_ranks.begin(), row.tp_ranks.end());
    const std::size_t count = std::max<std::size_t>(1, row.tp_ranks.size());
    std::string path = row.path;
    if (row.number_at != 0) path.insert(row.number_at, number_set(row.tp_ranks, row.digits));
    if (const std::size_t slash = path.find('/'); !folders && slash != std::string::npos && row.tensors != 0)
      path.replace(0, slash, "…");
    if (row.files > 1) path += fmt::format(" ({} files)", row.files);
    const std::string bytes = format_bytes(row.bytes);
    table.add({path, row.tensors ? std::to_string(row.tensors) : "",
               count > 1 ? fmt::format("{} × {}", count, bytes) : bytes});
  }
  for (const JobReport::File& file : report.files)
    if (file.kind == JobReport::File::Kind::kCopied)
      table.add({file.path + " (copied)", "", format_bytes(file.size_bytes)});
  if (report.manifest)
    for (const char* name : {kManifestFile, kSha256SumsFile}) table.add({name, "", ""});
  return table;
}

std::string mesh_text(const Mesh& mesh) {
  if (mesh.fsdp) return fmt::format("fsdp {}{}", *mesh.fsdp, mesh.tp > 1 ? fmt::format(" × tp {}", mesh.tp) : "");
  const std::string dp = mesh.dp ? fmt::format("dp {} × ", *mesh.dp) : "";
  return fmt::format("{}tp {} × pp {}{}{}", dp, mesh.tp, mesh.pp, mesh.ep > 1 ? fmt::format(" × ep {}", mesh.ep) : "",
                     mesh.vpp > 1 ? fmt::format(" × {} virtual stages", mesh.vpp) : "");
}

}  // namespace

std::string read_text(const JobReport& report) {
  const std::string all = format_bytes(report.read_bytes + report.check_bytes);
  std::vector<std::string> parts;
  if (report.check_bytes) parts.push_back(format_bytes(report.check_bytes) + " of replicas compared");
  if (report.skipped_bytes) parts.push_back(format_bytes(report.skipped_bytes) + " of replicas not read");
  if (report.dropped_bytes) parts.push_back(format_bytes(report.dropped_bytes) + " dropped");
  return parts.empty() ? all
                       : fmt::format("{} ({} placed, {})", all, format_bytes(report.read_bytes), join(parts, ", "));
}

std::string dry_run_text(const JobReport& report) {
  std::string text = fmt::format("{} (dry run: nothing is written)\n\n", report.command);
  text += line("from", report.source);
  text += line("", fmt::format("{}{}, {} parameters, {} in {}", report.family.empty() ? "" : report.family + ", ",
                               plural(report.tensors, "tensor"), format_count(report.parameters),
                               format_bytes(report.source_bytes), plural(report.source_files, "file")));
  if (report.source_states > 0)
    text += line("", fmt::format("with {} of the training run", plural(report.source_states, "entry", "entries")));
  const std::string mesh = line("mesh", mesh_text(report.mesh));
  if (!report.has_ranks && report.mesh.tp * report.mesh.pp * report.mesh.ep > 1) text += mesh;
  for (const Applied& one : report.transforms)
    text += line(name(one.transform),
                 plural(one.tensors, "tensor") + (one.dtype ? fmt::format(" to {}", name(*one.dtype)) : ""));
  text += line("to", report.output);
  if (report.has_ranks) text += mesh;
  if (!report.stages.empty()) text += stages_text(report);
  if (report.attention) text += heads_text(*report.attention, report.mesh.tp);
  text += "\n";
  const Table files = file_table(report, true);
  text += (files.fits() ? files : file_table(report, false)).text() + "\n";
  text += line("reads", read_text(report));
  text += line("writes", fmt::format("{} in {}; {} free on {}", format_bytes(report.written_bytes),
                                     plural(report.written_files, "file"), format_bytes(report.space.free_bytes),
                                     report.space.file_system.string()));
  return text;
}

}  // namespace reshard::cli
