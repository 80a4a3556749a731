// Compares the speed of converting checkpoints with that of copying them, and measures the planning of huge ones.
// scripts/bench.sh builds and runs it. Not part of any test, since the figures depend on the machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>

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
  app.add_option("--size", options.size_gb, "size of the generated model, in GB")->check(CLI::Range(0.01, 10000.0));
  app.add_option("--model", options.model, "Hugging Face checkpoint to use instead")->check(CLI::ExistingDirectory);
  app.add_option("--dir", options.dir, "parent of the temporary work directory")->check(CLI::ExistingDirectory);
  app.add_option("--runs", options.runs, "measured runs of each command")->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads, "numbers of threads, such as 1,4 [1 and all cores]")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  app.add_option("--only", options.only, "cases whose name this regular expression matches: 'consolidate tp8 xser'");
  app.add_flag("--cold", options.cold, "empty the page cache before each run (root)");
  app.add_flag("--planning", options.planning, "dry runs of huge models, headers alone, instead");
  app.add_option("--ranks", options.ranks, "compare N ranks of one thread with one process of N threads, instead")
      ->check(CLI::Range(2, 64));
  app.add_flag("--journal", options.journal,
               "compare a journal every second with none, both waiting for the disk, instead");
  app.add_flag(
      "--dcp", options.dcp,
      "checkpoints of torch.distributed.checkpoint with Adam's states, instead; --size is that of the weights, "
      "and eight times that is the space it takes");
  app.add_flag(
      "--zero1", options.zero1,
      "NxD's training checkpoints with ZeRO-1's states, instead; --size is that of the whole checkpoint, and four "
      "times that is the space it takes");
  app.add_flag("--nxdi", options.nxdi, "pre-sharding for NxD Inference, experts and transposed weights, instead");
  app.add_option("--numpy", options.numpy, "with --nxdi: a Python with numpy, to shard experts by a script as well");
  app.add_option("--torch", options.torch,
                 "with --dcp: a Python with torch 2.2 or newer, whose own tool is measured as well");
  app.add_flag("--json", options.json, "one JSON document with every run");
  app.add_option("--with", options.with, "options for all measured runs of reshard: '--threads 4 --max-memory 64MiB'");
  app.add_option("--reshard", options.reshard, "another build of the program");
  app.add_option("--revision", options.revision, "its name in the report");
}

/// Lets mpirun start more ranks than processors, run as root, and leave ranks unbound.
void set_up_launchers() {
  for (const auto& [name, value] : {std::pair("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                                    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                    {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                    {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                    {"PRTE_MCA_hwloc_default_binding_policy", "none"},
                                    {"OMPI_MCA_btl", "self,vader"}})
    ::setenv(name, value, 0);
}

void print_beside(const std::vector<Beside>& all, std::FILE* out = stdout) {
  const auto seconds = [](const Run& run) { return run.seconds; };
  for (const Beside& beside : all) {
    const Row& row = beside.row;
    const double ratio = median_ratio(row.runs, row.cp_runs);
    fmt::print(out, "{}: {:.2f} s; {}: {:.2f} s", row.name, median_of(row.runs, seconds), row.baseline,
               median_of(row.cp_runs, seconds));
    if (beside.most > 0)
      fmt::print(out, "; ratio {:.3f}, {} ({:.2f})", ratio, ratio <= beside.most ? "met" : "missed", beside.most);
    fmt::print(out, "\n");
  }
}

void run(const Options& options) {
  const auto log = [](const std::string& line) { fmt::print(stderr, "bench: {}\n", line); };
  if (options.ranks > 0) {
    set_up_launchers();
    return print_beside(measure_ranks(options, WorkDir(options.dir), log));
  }
  if (options.journal) return print_beside({measure_journal(options, WorkDir(options.dir), log)});
  Report report;
  std::vector<Beside> beside;
  {
    const WorkDir work(options.dir);
    report.machine = machine_facts(work.path());
    if (options.planning) {
      report.planning = measure_planning(options, work, log);
    } else if (options.dcp || options.nxdi) {
      MovesBeside moves = options.dcp ? measure_dcp(options, work, log) : measure_nxdi(options, work, log);
      report.tables.push_back(std::move(moves.table));
      beside = std::move(moves.beside);
    } else if (options.zero1) {
      report.tables.push_back(measure_zero1(options, work, log));
    } else {
      report.tables = measure_moves(options, work, log);
    }
  }
  fmt::print("{}", options.json ? report_json(report, options) : report_text(report, options));
  print_beside(beside, options.json ? stderr : stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CLI::App app{"Compares the speed of shard and consolidate with that of copying the same bytes.", "bench.sh"};
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
