#include "planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "contest.h"

namespace reshard::bench {
namespace {

using Arguments = std::vector<std::string>;

constexpr double kPlanningBarSeconds = 2;
/// For rows that only show that no cost grows faster than the model.
constexpr double kNoBarSeconds = std::numeric_limits<double>::infinity();
constexpr double kStartBarSeconds = 0.02;
constexpr unsigned kStartRuns = 20;
/// A dry run exits with 5 if the output does not fit on the disk; no disk has room for these.
const std::vector<int> kGoodExits = {0, 5};

class Planning {
 public:
  Planning(const Options& options, const WorkDir& work, std::function<void(const std::string&)> log)
      : options_(options), work_(work), log_(std::move(log)) {}

  std::vector<PlanningRow> all() {
    make_inputs();
    add("405B: shard --tp 64 --pp 4", {"shard", llama_, output_, "--tp", "64", "--pp", "4", "--dry-run"});
    add("405B: consolidate", {"consolidate", llama_ + "-safetensors", output_, "--dry-run"});
    add("405B: consolidate pytorch", {"consolidate", llama_ + "-pytorch", output_, "--dry-run"});
    add("671B experts: convert", {"convert", experts_, output_, "--dry-run"});
    add("671B experts: convert -f pytorch", {"convert", experts_, output_, "-f", "pytorch", "--dry-run"});
    add("671B experts: shard --tp 8", {"shard", experts_, output_, "--tp", "8", "--dry-run"});
    add("671B experts: shard --layout nxdi --tp 64", {"shard", experts_, output_, "--layout", "nxdi", "--tp", "64",
                                                      "--moe-ep-degree", "16", "--dtype", "bfloat16", "--dry-run"});
    add("671B experts: inspect", {"inspect", experts_});
    add("10 000 layers: shard --tp 8", {"shard", layers_, output_, "--tp", "8", "--dry-run"}, kNoBarSeconds);
    add("10 000 layers: consolidate", {"consolidate", layers_ + "-safetensors", output_, "--dry-run"}, kNoBarSeconds);
    add("one small file: inspect", {"inspect", small_}, kStartBarSeconds, kStartRuns);
    return std::move(rows_);
  }

 private:
  void run(const Arguments& argv) const { run_program(argv, work_ / "errors.txt", kGoodExits); }

  void make_shards(const std::string& model, const std::string& format, const Arguments& mesh) const {
    Arguments argv{BENCH_MAKE_HOLES, "shards", model, model + "-" + format, "--format", format};
    argv.insert(argv.end(), mesh.begin(), mesh.end());
    run(argv);
  }

  void make_inputs() const {
    log_("makes checkpoints of holes");
    run({BENCH_MAKE_MODEL, llama_, "--sparse", "--hidden=16384", "--intermediate=53248", "--heads=128", "--kv-heads=8",
         "--layers=126", "--vocab=128256", "--max-file-size=4.7GB"});
    for (const char* format : {"safetensors", "pytorch"}) make_shards(llama_, format, {"--tp", "64", "--pp", "4"});
    run({BENCH_MAKE_HOLES, "experts", experts_});
    run({BENCH_MAKE_MODEL, layers_, "--sparse", "--hidden=64", "--intermediate=128", "--heads=8", "--layers=10000",
         "--vocab=1024"});
    make_shards(layers_, "safetensors", {"--tp", "8"});
    run({BENCH_MAKE_MODEL, small_, "--hidden=64", "--intermediate=128", "--layers=2", "--vocab=256"});
  }

  void add(const std::string& name, const Arguments& arguments, double bar_seconds = kPlanningBarSeconds,
           unsigned runs = 0) {
    if (!wanted(options_, name)) return;
    PlanningRow row{name, {options_.reshard}, bar_seconds, {}};
    row.argv.insert(row.argv.end(), arguments.begin(), arguments.end());
    run(row.argv);  // warm
    for (unsigned i = 0; i < std::max(options_.runs, runs); ++i)
      row.runs.push_back(run_program(row.argv, work_ / "errors.txt", kGoodExits));
    log_(fmt::format("{}: {:.3f} s", name, median_of(row.runs, [](const Run& r) { return r.seconds; })));
    rows_.push_back(std::move(row));
  }

  const Options& options_;
  const WorkDir& work_;
  std::function<void(const std::string&)> log_;
  const std::string llama_ = work_ / "llama-405b";
  const std::string experts_ = work_ / "experts-671b";
  const std::string layers_ = work_ / "layers-10000";
  const std::string small_ = work_ / "small";
  const std::string output_ = work_ / "output";
  std::vector<PlanningRow> rows_;
};

}  // namespace

std::vector<PlanningRow> measure_planning(const Options& options, const WorkDir& work,
                                          const std::function<void(const std::string&)>& log) {
  return Planning(options, work, log).all();
}

}  // namespace reshard::bench
