#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "table.h"

namespace reshard::bench {
namespace {

using cli::wrap;
using Align = cli::Table::Align;
using Columns = std::vector<std::pair<std::string, Align>>;

double seconds_of(const Run& run) {
  return run.seconds;
}

double cpu_seconds_of(const Run& run) {
  return run.user_seconds + run.system_seconds;
}

std::string mebibytes(std::uint64_t bytes) {
  return fmt::format("{:.0f}", static_cast<double>(bytes) / (1 << 20));
}

/// Input bytes per second, in GB.
std::string rate(const Row& row, const std::vector<Run>& runs) {
  return fmt::format("{:.2f}", static_cast<double>(row.input_bytes) / 1e9 / median_of(runs, seconds_of));
}

/// Half the range of times, relative to the median.
std::string spread(const std::vector<Run>& runs) {
  const auto [least, most] =
      std::minmax_element(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.seconds < b.seconds; });
  return fmt::format("{:.0f}%", 50 * (most->seconds - least->seconds) / median_of(runs, seconds_of));
}

/// Bytes read from the device, as a multiple of the input.
std::string amplification(const Row& row) {
  const double bytes = median_of(row.runs, [](const Run& run) { return static_cast<double>(run.device_read_bytes); });
  return fmt::format("{:.3f}", bytes / static_cast<double>(row.input_bytes));
}

constexpr std::uint64_t kMemoryBarBytes = std::uint64_t{256} << 20;

/// Whether speed and memory meet their targets.
const char* verdict(const Row& row) {
  const double to_cp = median_ratio(row.cp_runs, row.runs);
  const double to_copy = median_ratio(row.copy_runs, row.runs);
  if (most(row.runs, &Run::peak_bytes) > kMemoryBarBytes) return "missed";
  return (row.threads == 1 ? to_cp >= 0.85 : to_cp >= 1 && to_copy >= 0.8) ? "met" : "missed";
}

std::string table_text(const Table& table) {
  Columns columns{{"", Align::kLeft},       {"thr", Align::kRight}, {"s", Align::kRight},    {"±", Align::kRight},
                  {"GB/s", Align::kRight},  {"cp", Align::kRight},  {"copy", Align::kRight}, {"×cp", Align::kRight},
                  {"×copy", Align::kRight}, {"cpu", Align::kRight}, {"RSS", Align::kRight},  {"anon", Align::kRight},
                  {"bar", Align::kLeft}};
  if (table.cold) {
    columns[3] = {"read", Align::kRight};
    columns.back().first.clear();
  }
  cli::Table out(columns);
  for (const Row& row : table.rows)
    out.add({row.name, std::to_string(row.threads), fmt::format("{:.2f}", median_of(row.runs, seconds_of)),
             table.cold ? amplification(row) : spread(row.runs), rate(row, row.runs), rate(row, row.cp_runs),
             rate(row, row.copy_runs), fmt::format("{:.2f}", median_ratio(row.cp_runs, row.runs)),
             fmt::format("{:.2f}", median_ratio(row.copy_runs, row.runs)),
             fmt::format("{:.1f}", median_of(row.runs, cpu_seconds_of)), mebibytes(most(row.runs, &Run::peak_bytes)),
             mebibytes(most(row.runs, &Run::peak_anonymous_bytes)), table.cold ? "" : verdict(row)});
  return wrap(table.title, 0) + "\n\n" + out.text();
}

std::string planning_text(const std::vector<PlanningRow>& rows) {
  cli::Table out({{"headers alone", Align::kLeft},
                  {"s", Align::kRight},
                  {"±", Align::kRight},
                  {"cpu", Align::kRight},
                  {"RSS", Align::kRight},
                  {"bar", Align::kLeft},
                  {"", Align::kLeft}});
  for (const PlanningRow& row : rows) {
    const double seconds = median_of(row.runs, seconds_of);
    const std::uint64_t peak = most(row.runs, &Run::peak_bytes);
    const bool bounded = std::isfinite(row.bar_seconds);
    const bool met = seconds < row.bar_seconds && peak < kPlanningBarBytes;
    out.add({row.name, fmt::format("{:.3f}", seconds), spread(row.runs),
             fmt::format("{:.2f}", median_of(row.runs, cpu_seconds_of)), mebibytes(peak),
             bounded ? fmt::format("{} s, {} MiB", row.bar_seconds, kPlanningBarBytes >> 20) : "",
             !bounded ? ""
             : met    ? "met"
                      : "missed"});
  }
  return out.text();
}

std::string head(const Report& report, const Options& options) {
  const std::string input =
      report.tables.empty() || report.tables.front().rows.empty()
          ? ""
          : fmt::format(" Models of {}.", format_bytes(report.tables.front().rows.front().input_bytes));
  return wrap(fmt::format("reshard {}{}, {}. {}, {} core{}, {} of memory, {}, {}.{} Medians of {} runs.",
                          options.revision, options.with.empty() ? "" : " " + options.with, report.machine.date,
                          report.machine.cpu, report.machine.cores, report.machine.cores == 1 ? "" : "s",
                          format_memory(report.machine.memory_bytes), report.machine.kernel, report.machine.file_system,
                          input, options.runs),
              0);
}

constexpr const char* kLegend =
    "s: wall time; ±: half of the spread of all runs; cpu: user and system seconds. "
    "GB/s, and those of cp -r and of the parallel copy_file_range with as many threads: bytes of the input a second. "
    "×cp, ×copy: their time over reshard's, the median of each round's; 1 is as fast, more is faster. RSS: the most "
    "MiB resident, pages of mapped files included; anon: without them (sampled).";
constexpr const char* kBarLegend =
    " bar: with one thread at least 0.85 of cp's speed; with more, cp's, and 0.8 of the copy's; and at most 256 MiB "
    "resident.";
constexpr const char* kColdLegend = " read: bytes that came from the device over those of the input.";

Json json_of(const std::vector<Run>& runs) {
  Json out = Json::array();
  for (const Run& run : runs)
    out.push_back({{"seconds", run.seconds},
                   {"user_seconds", run.user_seconds},
                   {"system_seconds", run.system_seconds},
                   {"peak_bytes", run.peak_bytes},
                   {"peak_anonymous_bytes", run.peak_anonymous_bytes},
                   {"device_read_bytes", run.device_read_bytes}});
  return out;
}

Json json_of(const Row& row) {
  const auto contender = [](const std::vector<std::string>& argv, const std::vector<Run>& runs) {
    return Json{
        {"command", command_line(argv)}, {"median_seconds", median_of(runs, seconds_of)}, {"runs", json_of(runs)}};
  };
  return {{"name", row.name},
          {"threads", row.threads},
          {"input_bytes", row.input_bytes},
          {"ratio_to_cp", median_ratio(row.cp_runs, row.runs)},
          {"ratio_to_copy", median_ratio(row.copy_runs, row.runs)},
          {"reshard", contender(row.argv, row.runs)},
          {"cp", contender(row.cp_argv, row.cp_runs)},
          {"copy", contender(row.copy_argv, row.copy_runs)}};
}

Json json_of(const PlanningRow& row) {
  return {{"name", row.name},
          {"command", command_line(row.argv)},
          {"median_seconds", median_of(row.runs, seconds_of)},
          {"bar_seconds", row.bar_seconds},
          {"bar_bytes", kPlanningBarBytes},
          {"runs", json_of(row.runs)}};
}

}  // namespace

std::string report_text(const Report& report, const Options& options) {
  std::string text = head(report, options) + "\n";
  for (const Table& table : report.tables)
    if (!table.rows.empty()) text += "\n" + table_text(table);
  if (!report.planning.empty()) return text + "\n" + planning_text(report.planning);
  return text + "\n" + wrap(std::string(kLegend) + (options.cold ? kColdLegend : kBarLegend), 0) + "\n";
}

std::string report_json(const Report& report, const Options& options) {
  Json document{{"revision", options.revision},
                {"date", report.machine.date},
                {"machine",
                 {{"cpu", report.machine.cpu},
                  {"cores", report.machine.cores},
                  {"memory_bytes", report.machine.memory_bytes},
                  {"kernel", report.machine.kernel},
                  {"file_system", report.machine.file_system}}},
                {"tables", Json::array()},
                {"planning", Json::array()}};
  for (const Table& table : report.tables) {
    Json rows = Json::array();
    for (const Row& row : table.rows) rows.push_back(json_of(row));
    document["tables"].push_back({{"title", table.title}, {"rows", rows}});
  }
  for (const PlanningRow& row : report.planning) document["planning"].push_back(json_of(row));
  return document.dump(2) + "\n";
}

}  // namespace reshard::bench
