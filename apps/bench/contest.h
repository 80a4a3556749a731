#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "machine.h"
#include "process.h"

namespace reshard::bench {

/// One row of the table: a command of reshard with `threads` threads, compared with two ways to copy its input.
struct Row {
  std::string name;
  unsigned threads = 1;
  std::uint64_t input_bytes = 0;
  std::vector<std::string> argv;
  std::vector<std::string> cp_argv;
  std::vector<std::string> copy_argv;
  // One a round. Those of one round were run one after another, in any order, so that what else the machine does meets
  // all alike. Rows of one contest share the runs of cp.
  std::vector<Run> runs;
  std::vector<Run> cp_runs;
  std::vector<Run> copy_runs;
  std::string baseline = "cp -r";  // what cp_argv is
};

/// Rows with the same input, measured together.
struct Contest {
  std::string name;
  std::filesystem::path input;
  std::vector<Row> rows;
};

struct Settings {
  unsigned rounds = 5;
  bool cold = false;  // drop the page cache before each run; else read the input first, and leave out the first round
  std::function<void(const std::string&)> log;
};

/// Runs every command of `contest`, round after round. Each writes to `output`, which is emptied and moved away after
/// it.
void measure(Contest& contest, const std::filesystem::path& output, const WorkDir& work, const Settings& settings);

/// The middle one, or the mean of the middle two. `values` is not empty.
double median(std::vector<double> values);
/// The median of a figure of all runs.
double median_of(const std::vector<Run>& runs, const std::function<double(const Run&)>& figure);
/// The median of the rounds' ratios of time, `numerator` / `denominator`.
double median_ratio(const std::vector<Run>& numerator, const std::vector<Run>& denominator);
/// The largest of a figure.
std::uint64_t most(const std::vector<Run>& runs, std::uint64_t Run::*figure);

}  // namespace reshard::bench
