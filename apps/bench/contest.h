#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "machine.h"
#include "process.h"

namespace reshard::bench {

/// One row of the table: a reshard command with `threads` threads, compared with two ways to copy its input.
struct Row {
  std::string name;
  unsigned threads = 1;
  std::uint64_t input_bytes = 0;
  std::vector<std::string> argv;
  std::vector<std::string> cp_argv;
  std::vector<std::string> copy_argv;
  // One run per round. The runs of a round follow one another in random order, so that other load on the machine
  // affects all of them. Rows of one contest share the runs of cp.
  std::vector<Run> runs;
  std::vector<Run> cp_runs;
  std::vector<Run> copy_runs;
  std::string baseline = "cp -r";  // name of cp_argv
};

/// Rows with the same input, measured together.
struct Contest {
  std::string name;
  std::filesystem::path input;
  std::vector<Row> rows;
};

struct Settings {
  unsigned rounds = 5;
  bool cold = false;  // drop the page cache before each run; otherwise read the input first and discard the first round
  std::function<void(const std::string&)> log;
};

/// Runs every command of `contest` in each round. Each writes to `output`, which is then emptied and moved away.
void measure(Contest& contest, const std::filesystem::path& output, const WorkDir& work, const Settings& settings);

/// Returns the middle value, or the mean of the middle two. `values` is not empty.
double median(std::vector<double> values);
/// Returns the median of a figure over all runs.
double median_of(const std::vector<Run>& runs, const std::function<double(const Run&)>& figure);
/// Returns the median of the rounds' time ratios, `numerator` / `denominator`.
double median_ratio(const std::vector<Run>& numerator, const std::vector<Run>& denominator);
/// Returns the largest value of a figure.
std::uint64_t most(const std::vector<Run>& runs, std::uint64_t Run::*figure);

}  // namespace reshard::bench
