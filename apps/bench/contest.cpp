#include "contest.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;

class Rounds {
 public:
  Rounds(Contest& contest, const fs::path& output, const WorkDir& work, const Settings& settings)
      : contest_(contest), output_(output), work_(work), settings_(settings), filler_(work.path()) {}

  void run_all() {
    if (!settings_.cold) {
      read_tree(contest_.input);
      round(true);
    }
    for (unsigned i = 0; i < settings_.rounds; ++i) round(false);
  }

 private:
  /// Shuffles the order in each round, since what one command leaves in memory may help or slow down the next.
  void round(bool warm_up) {
    std::vector<std::function<void()>> turns;
    turns.push_back([&] {
      const Run cp = run(contest_.rows.front().cp_argv);
      for (Row& row : contest_.rows) row.cp_runs.push_back(cp);
    });
    for (Row& row : contest_.rows) {
      turns.push_back([&] { row.copy_runs.push_back(run(row.copy_argv)); });
      turns.push_back([&] { row.runs.push_back(run(row.argv)); });
    }
    std::shuffle(turns.begin(), turns.end(), random_);
    for (const auto& turn : turns) turn();
    if (!warm_up) return;
    for (Row& row : contest_.rows)
      for (std::vector<Run>* runs : {&row.cp_runs, &row.copy_runs, &row.runs}) runs->clear();
  }

  Run run(const std::vector<std::string>& argv) {
    settle(work_.path());
    if (settings_.cold)
      drop_caches();
    else
      filler_.fill();
    const Run run = run_program(argv, work_ / "errors.txt");
    work_.retire(output_);
    return run;
  }

  Contest& contest_;
  const fs::path& output_;
  const WorkDir& work_;
  const Settings& settings_;
  MemoryFiller filler_;
  std::mt19937 random_{1};
};

}  // namespace

void measure(Contest& contest, const fs::path& output, const WorkDir& work, const Settings& settings) {
  const std::uint64_t input_bytes = tree_bytes(contest.input);
  for (Row& row : contest.rows) row.input_bytes = input_bytes;
  Rounds(contest, output, work, settings).run_all();
  for (const Row& row : contest.rows)
    settings.log(fmt::format("{}, {} thread{}: {:.2f} s; {} takes {:.2f} × as long, the copy {:.2f} ×", row.name,
                             row.threads, row.threads == 1 ? "" : "s",
                             median_of(row.runs, [](const Run& run) { return run.seconds; }), row.baseline,
                             median_ratio(row.cp_runs, row.runs), median_ratio(row.copy_runs, row.runs)));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

double median_of(const std::vector<Run>& runs, const std::function<double(const Run&)>& figure) {
  std::vector<double> values;
  values.reserve(runs.size());
  for (const Run& run : runs) values.push_back(figure(run));
  return median(std::move(values));
}

double median_ratio(const std::vector<Run>& numerator, const std::vector<Run>& denominator) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < numerator.size(); ++i) ratios.push_back(numerator[i].seconds / denominator[i].seconds);
  return median(std::move(ratios));
}

std::uint64_t most(const std::vector<Run>& runs, std::uint64_t Run::*figure) {
  std::uint64_t most = 0;
  for (const Run& run : runs) most = std::max(most, run.*figure);
  return most;
}

}  // namespace reshard::bench
