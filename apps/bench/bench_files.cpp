// How fast files are moved, beside copying them; what planning costs for huge ones. scripts/bench.sh builds and runs
// it. No test does: figures depend on the machine, and none of them is right or wrong.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <thread>

#include "machine.h"
#include "moves.h"
#include "options.h"
#include "planning.h"
#include "process.h"
#include "report.h"

namespace {

namespace fs = std::filesystem;
using namespace reshard::bench;

void add_options(CLI::App& app, Options& options) {
  options.dir = fs::temp_directory_path();
  options.threads = {1, std::max(1u, std::thread::hardware_concurrency())};
  if (options.threads[1] == 1) options.threads.pop_back();
  options.reshard = BENCH_RESHARD;
  app.add_option("--size", options.size_gb, "GB of the model that is made")->check(CLI::Range(0.01, 10000.0));
  app.add_option("--model", options.model, "a Hugging Face checkpoint to take instead")->check(CLI::ExistingDirectory);
  app.add_option("--dir", options.dir, "where the work directory is made and removed")->check(CLI::ExistingDirectory);
  app.add_option("--runs", options.runs, "measured runs of each command")->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads, "numbers of threads, such as 1,4 [1 and all cores]")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  app.add_option("--only", options.only, "cases whose name this regular expression matches: 'consolidate tp8 xser'");
  app.add_flag("--cold", options.cold, "empty the page cache before each run (root)");
  app.add_flag("--planning", options.planning, "dry runs of huge models, headers alone, instead");
  app.add_flag("--json", options.json, "one JSON document with every run");
  app.add_option("--with", options.with, "options for all measured runs of reshard: '--io read --max-memory 64MiB'");
  app.add_option("--reshard", options.reshard, "another build of the program");
  app.add_option("--revision", options.revision, "what the report calls it");
}

void run(const Options& options) {
  Report report;
  const auto log = [](const std::string& line) { fmt::print(stderr, "bench: {}\n", line); };
  {
    const WorkDir work(options.dir);
    report.machine = machine_facts(work.path());
    if (options.planning)
      report.planning = measure_planning(options, work, log);
    else
      report.tables = measure_moves(options, work, log);
  }
  fmt::print("{}", options.json ? report_json(report, options) : report_text(report, options));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CLI::App app{"Measures shard and consolidate beside copies of the same bytes.", "bench.sh"};
    app.option_defaults()->always_capture_default();
    Options options;
    add_options(app, options);
    CLI11_PARSE(app, argc, argv);
    catch_signals();
    run(options);
    return 0;
  } catch (const Stopped& stopped) {
    return 128 + stopped.signal_number;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench.sh: {}\n", error.what());
    return 1;
  }
}
