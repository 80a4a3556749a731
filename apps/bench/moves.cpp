#include "moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "reshard/base/strings.h"

namespace reshard::bench {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

struct MeshRow {
  const char* name;
  const char* tp;
  const char* pp;
};
constexpr MeshRow kMeshes[] = {
    {"tp8", "8", "1"}, {"tp8 pp2", "8", "2"}, {"tp32", "32", "1"},  // each of 8 key/value heads is on four ranks
};
constexpr const char* kFormats[] = {"pytorch", "safetensors", "xser"};  // the first is the default of shard
constexpr double kSmallGb = 0.02;
/// Disk space for --dcp, in multiples of the model: the model, its training checkpoint in both forms, and an output;
/// or, for torch's tool, an output with all states but without the first form.
constexpr double kDcpSpace = 8;
/// The same for --zero1: states and checkpoint while the checkpoint is made, then the checkpoint and outputs.
constexpr double kZero1Space = 4;
constexpr double kShortestJournalled = 2;  // seconds: a shorter run might end before its first journal

/// Durability that all programs of a table provide.
enum class Disk {
  kNotAwaited,  // data may still be in memory at the end
  kFlushed,     // data is on disk
};

/// Makes a model with the proportions of Llama-3.1-8B, but a smaller vocabulary and as many layers as needed. Small
/// sizes, for trying out the benchmark itself, have narrow layers.
void make_model(double size_gb, double file_bytes, const fs::path& out_dir, const fs::path& errors,
                double element_bytes = 2, const Arguments& others = {}) {
  const bool narrow = size_gb < 1.4;
  const double hidden = narrow ? 1024 : 4096;
  const double intermediate = hidden * 3.5;
  constexpr double kVocab = 32000;
  const double layer_bytes = element_bytes * (2.5 * hidden * hidden + 3 * hidden * intermediate);
  const double layers = std::max(2.0, std::round((size_gb * 1e9 - 2 * element_bytes * kVocab * hidden) / layer_bytes));
  Arguments command{BENCH_MAKE_MODEL,
                    out_dir,
                    fmt::format("--hidden={}", hidden),
                    fmt::format("--intermediate={}", intermediate),
                    fmt::format("--vocab={}", kVocab),
                    "--heads=32",
                    "--kv-heads=8",
                    fmt::format("--layers={}", layers),
                    fmt::format("--max-file-size={:.0f}", file_bytes)};
  command.insert(command.end(), others.begin(), others.end());
  run_program(command, errors);
}

/// Makes a model with the proportions of Qwen3-30B-A3B, but a smaller vocabulary and as many layers as needed. Small
/// sizes have fewer experts.
void make_experts(double size_gb, double file_bytes, const fs::path& out_dir, const fs::path& errors) {
  constexpr double kHidden = 2048, kExpertSize = 768, kElementBytes = 2;
  const double experts = size_gb < 1.4 ? 16 : 128;
  const double layer_bytes = kElementBytes * 3 * experts * kHidden * kExpertSize;
  const double layers = std::max(1.0, std::round(size_gb * 1e9 / layer_bytes));
  run_program({BENCH_MAKE_MODEL, out_dir, "--family=qwen3_moe", fmt::format("--hidden={}", kHidden), "--vocab=32000",
               "--heads=32", "--kv-heads=4", "--head-dim=128", fmt::format("--layers={}", layers),
               fmt::format("--set=num_experts={}", experts), fmt::format("--set=moe_intermediate_size={}", kExpertSize),
               fmt::format("--max-file-size={:.0f}", file_bytes)},
              errors);
}

class Moves {
 public:
  Moves(const Options& options, const WorkDir& work, std::function<void(const std::string&)> log)
      : options_(options),
        work_(work),
        shards_(work / "shards"),
        output_(work / "output"),
        file_bytes_(std::min(5e9, options.size_gb * 1e9 / 5)),
        settings_{options.runs, options.cold, std::move(log)} {
    const std::string script = R"("$1" shard --help | grep -q -e --no-sync)";
    knows_no_sync_ =
        run_program({"sh", "-c", script, "sh", options.reshard}, work / "errors.txt", {0, 1}).exit_code == 0;
    if (!knows_no_sync_) settings_.log("this build of reshard has no --no-sync: it always waits for the disk");
  }

  std::vector<Table> all() {
    validate_space();
    make_input();
    const unsigned most_threads = *std::max_element(options_.threads.begin(), options_.threads.end());
    if (options_.cold)
      return {table("Cold cache: reshard --no-sync, cp -r and the copy each begin with an empty page cache",
                    Disk::kNotAwaited, {kMeshes[0]}, {most_threads})};
    return {table("Without waiting for the disk: reshard --no-sync, cp -r and a parallel copy of the same input",
                  Disk::kNotAwaited, {kMeshes[0], kMeshes[1], kMeshes[2]}, options_.threads),
            table("Waiting for the disk: reshard, and cp -r and the copy with an fsync of each file they wrote",
                  Disk::kFlushed, {kMeshes[0]}, {most_threads})};
  }

  /// Ranks have one thread each. A small model shows how long a launcher takes to start and end them.
  std::vector<Beside> ranks() {
    validate_space();
    make_input();
    make_model(kSmallGb, file_bytes_, work_ / "small", work_ / "errors.txt");
    std::vector<Beside> rows;
    for (const std::string launcher : {"mpirun.openmpi", "mpirun.mpich"}) {
      const std::string find = R"(command -v "$1" >/dev/null)";
      if (run_program({"sh", "-c", find, "sh", launcher}, work_ / "errors.txt", {0, 127, 1}).exit_code != 0) {
        settings_.log(launcher + " is not installed");
        continue;
      }
      const std::string ranks = fmt::format("{} ranks of {}", options_.ranks, launcher);
      rows.push_back({by_ranks(launcher, fmt::format("a small model, {}", ranks), work_ / "small")});
      rows.push_back({by_ranks(launcher, fmt::format("shard tp8 {} fsync, {}", kFormats[0], ranks), model_), 1.05});
    }
    return rows;
  }

  MovesBeside dcp() {
    validate_space(kDcpSpace);
    model_ = work_ / "model";
    settings_.log("makes the model, and a training checkpoint of it");
    const Arguments fp32{"--dtype=F32"}, adam{"--dtype=F32", "--adam"};
    make_model(options_.size_gb, file_bytes_, model_, work_ / "errors.txt", 4, fp32);
    const fs::path training = work_ / "training", weights = work_ / "weights";
    make_model(options_.size_gb, file_bytes_, training, work_ / "errors.txt", 4, adam);
    run_program({options_.reshard, "convert", training, shards_, "--to", "dcp", "--fsdp", "2", "--quiet"},
                work_ / "errors.txt");
    work_.retire(training);
    fs::copy(model_ / "config.json", shards_);
    MovesBeside moves{{"torch.distributed.checkpoint in fp32, by two ranks of FSDP: read (with Adam's states in the "
                       "files) and written",
                       false,
                       {}},
                      {}};
    const Arguments consolidate{options_.reshard, "consolidate",      shards_.string(),
                                "--quiet",        "--max-shard-size", fmt::format("{:.0f}", file_bytes_)};
    Contest reading = contest("consolidate dcp", model_, consolidate, Disk::kNotAwaited, options_.threads);
    if (wanted(options_, reading.name)) run(moves.table, reading);
    const Arguments shard{options_.reshard, "shard", model_.string(), "--layout", "dcp", "--fsdp", "2", "--quiet"};
    Contest writing = contest("shard dcp", model_, shard, Disk::kNotAwaited, options_.threads);
    if (wanted(options_, writing.name)) run(moves.table, writing);
    if (options_.torch.empty()) return moves;
    run_program({options_.reshard, "shard", model_, weights, "--layout", "dcp", "--fsdp", "2", "--quiet"},
                work_ / "errors.txt");
    moves.beside.push_back(beside_torch("consolidate, the weights alone", weights, consolidate));
    moves.beside.push_back(beside_torch("consolidate, with Adam's states in the files", shards_, consolidate));
    return moves;
  }

  /// Shards for NxD Inference, compared with copies and, for experts, with a plain script.
  MovesBeside nxdi() {
    validate_space();
    settings_.log("makes a model with experts, and one without");
    model_ = work_ / "experts";
    make_experts(options_.size_gb, file_bytes_, model_, work_ / "errors.txt");
    MovesBeside moves{
        {"Pre-sharding for NxD Inference: experts stacked and transposed, kernels' weights transposed", false, {}}, {}};
    const auto command = [&](const fs::path& model, const Arguments& others) {
      Arguments shard{options_.reshard, "shard", model.string(), "--layout", "nxdi", "--tp", "8", "--quiet"};
      shard.insert(shard.end(), others.begin(), others.end());
      return shard;
    };
    const Arguments experts = command(model_, {"--moe-ep-degree", "2"});
    const auto add = [&](const char* name, const fs::path& model, const Arguments& shard) {
      Contest moving = contest(name, model, shard, Disk::kNotAwaited, options_.threads);
      if (wanted(options_, moving.name)) run(moves.table, moving);
    };
    add("shard qwen3_moe tp8 ep2", model_, experts);
    if (!options_.numpy.empty()) moves.beside.push_back(beside_numpy(experts));
    work_.retire(model_);
    model_ = work_ / "model";
    make_model(options_.size_gb, file_bytes_, model_, work_ / "errors.txt");
    add("shard llama tp8", model_, command(model_, {"--fuse-qkv"}));
    add("shard llama tp8 transposed", model_, command(model_, {"--fuse-qkv", "--kernels", "qkv,out-proj,mlp"}));
    return moves;
  }

  Table zero1() {
    validate_space(kZero1Space);
    settings_.log("makes a training checkpoint");
    // Bytes per parameter: two for the model, four for each moment and for the master weights.
    constexpr double kWeights = 2, kAll = 14;
    const double model_gb = options_.size_gb * kWeights / kAll;
    const fs::path training = work_ / "training", config = work_ / "config";
    make_model(model_gb, file_bytes_, training, work_ / "errors.txt", kWeights, {"--adam"});
    make_model(model_gb, file_bytes_, config, work_ / "errors.txt", kWeights, {"--sparse"});
    run_program({BENCH_MAKE_TRAINING, training, config, shards_, "--tp", "8", "--dp", "2"}, work_ / "errors.txt");
    work_.retire(training);
    Table table{
        "ZeRO-1 in NxD's files, tp8 dp2: model, moments and master weights to other ranks, and cp -r", false, {}};
    const auto add = [&](const char* name, const Arguments& others) {
      Arguments command{options_.reshard, "convert", shards_.string(), "--quiet"};
      command.insert(command.end(), others.begin(), others.end());
      Contest moving = contest(name, shards_, command, Disk::kNotAwaited, options_.threads);
      if (wanted(options_, moving.name)) run(table, moving);
    };
    add("convert dp2 to dp4", {"--dp", "4"});
    add("convert tp8 dp2 to tp4 pp2 dp3", {"--tp", "4", "--pp", "2", "--dp", "3"});
    add("convert to dcp", {"--to", "dcp", "--fsdp", "8", "--with-optimizer"});
    return table;
  }

  /// Compares a journal every second, ten times the default rate, with none.
  Row journal() {
    validate_space();
    make_input();
    const std::string threads = std::to_string(options_.threads.back());
    const auto with_interval = [&](const char* seconds) {
      return Arguments{"env",
                       fmt::format("RESHARD_JOURNAL_INTERVAL={}", seconds),
                       options_.reshard,
                       "shard",
                       model_.string(),
                       output_.string(),
                       "--tp",
                       "8",
                       "--quiet",
                       "--threads",
                       threads};
    };
    Row row{fmt::format("shard tp8 {} fsync, {} threads, a journal every second", kFormats[0], threads),
            options_.threads.back(),
            0,
            with_interval("1"),
            with_interval("1000000"),
            {BENCH_COPY_FILES, model_, output_, threads, "--sync"},
            {},
            {},
            {},
            "a run without"};
    Contest contest{row.name, model_, {std::move(row)}};
    measure(contest, output_, work_, settings_);
    const double seconds = median_of(contest.rows.front().cp_runs, [](const Run& run) { return run.seconds; });
    if (seconds < kShortestJournalled)
      throw std::runtime_error(
          fmt::format("a run takes {:.2f} s, too short for a journal every second: see --size", seconds));
    return std::move(contest.rows.front());
  }

 private:
  /// Compares sharding a model with experts with a script that uses numpy.
  Beside beside_numpy(Arguments shard) {
    const std::string threads = std::to_string(options_.threads.back());
    shard.insert(shard.begin() + 3, {output_.string(), "--no-sync", "--threads", threads});
    Row row{"shard qwen3_moe tp8 ep2",
            options_.threads.back(),
            0,
            std::move(shard),
            {options_.numpy, BENCH_PRESHARD, model_, output_, "8", "2"},
            {BENCH_COPY_FILES, model_, output_, threads},
            {},
            {},
            {},
            "a script with numpy"};
    Contest contest{row.name, model_, {std::move(row)}};
    measure(contest, output_, work_, settings_);
    return {std::move(contest.rows.front())};
  }

  /// Compares converting the checkpoint to a Hugging Face directory with torch's own tool, which writes one file for
  /// torch.load.
  Beside beside_torch(const std::string& name, const fs::path& checkpoint, Arguments consolidate) {
    const std::string script =
        "import os, sys; from torch.distributed.checkpoint.format_utils import dcp_to_torch_save; "
        "os.mkdir(sys.argv[2]); "
        "dcp_to_torch_save(sys.argv[1], os.path.join(sys.argv[2], 'model.pt'))";
    const std::string threads = std::to_string(options_.threads.back());
    consolidate[2] = checkpoint;
    consolidate.insert(consolidate.begin() + 3, {output_.string(), "--no-sync", "--threads", threads});
    Row row{name,
            options_.threads.back(),
            0,
            std::move(consolidate),
            {options_.torch, "-c", script, checkpoint, output_},
            {BENCH_COPY_FILES, model_, output_, threads},
            {},
            {},
            {},
            "dcp_to_torch_save"};
    Contest contest{row.name, checkpoint, {std::move(row)}};
    measure(contest, output_, work_, settings_);
    return {std::move(contest.rows.front()), 0.2};
  }

  /// Compares a run by ranks of one thread with a run by one process with as many threads.
  Row by_ranks(const std::string& launcher, const std::string& what, const fs::path& model) {
    const std::string count = std::to_string(options_.ranks);
    const Arguments command{options_.reshard, "shard", model.string(), output_.string(),
                            "--tp",           "8",     "--quiet",      "--threads"};
    Row row{what,    1,
            0,       command,
            command, {BENCH_COPY_FILES, model, output_, count, "--sync"},
            {},      {},
            {},      fmt::format("one process of {} threads", count)};
    row.argv.push_back("1");
    row.cp_argv.push_back(count);
    const Arguments start{launcher, "-n", count};
    row.argv.insert(row.argv.begin(), start.begin(), start.end());
    Contest contest{what, model, {std::move(row)}};
    measure(contest, output_, work_, settings_);
    return std::move(contest.rows.front());
  }

  /// Validates that there is space for the model, its shards and the largest output: `times` the model's bytes. Shards
  /// contain replicas of key/value heads.
  void validate_space(double times = 3.5) const {
    const double model_bytes =
        options_.model ? static_cast<double>(tree_bytes(*options_.model)) : options_.size_gb * 1e9;
    const double needed = model_bytes * (options_.model ? times - 1 : times);
    const auto free = static_cast<double>(free_bytes(work_.path()));
    if (free < needed)
      throw std::runtime_error(fmt::format("{} has {:.1f} GB free, {:.1f} GB are needed: see --dir and --size",
                                           work_.path().parent_path().string(), free / 1e9, needed / 1e9));
  }

  void make_input() {
    model_ = options_.model.value_or(work_ / "model");
    if (!options_.model) {
      settings_.log("makes the model");
      make_model(options_.size_gb, file_bytes_, model_, work_ / "errors.txt");
    }
  }

  Table table(const char* title, Disk disk, const std::vector<MeshRow>& meshes, const std::vector<unsigned>& threads) {
    Table table{title, options_.cold, {}};
    for (const MeshRow& mesh : meshes)
      for (const std::string format : kFormats)
        if (disk == Disk::kNotAwaited || format == kFormats[0]) add(table, disk, mesh, format, threads);
    return table;
  }

  void add(Table& table, Disk disk, const MeshRow& mesh, const std::string& format,
           const std::vector<unsigned>& threads) {
    const std::string what = fmt::format("{} {}{}", mesh.name, format, disk == Disk::kFlushed ? " fsync" : "");
    const Arguments shard{options_.reshard, "shard", model_.string(), "--tp", mesh.tp,
                          "--pp",           mesh.pp, "--format",      format, "--quiet"};
    Contest sharding = contest("shard " + what, model_, shard, disk, threads);
    // PyTorch shards become a model in the same format; there are no models in xser.
    Arguments consolidate{options_.reshard, "consolidate", shards_.string(),
                          "--quiet",        "--format",    format == "pytorch" ? "pytorch" : "safetensors"};
    if (!options_.model)
      consolidate.insert(consolidate.end(), {"--max-shard-size", fmt::format("{:.0f}", file_bytes_)});
    Contest consolidation = contest("consolidate " + what, shards_, consolidate, disk, threads);
    if (wanted(options_, sharding.name)) run(table, sharding);
    if (!wanted(options_, consolidation.name)) return;
    Arguments making = shard;
    making.insert(making.begin() + 3, shards_.string());
    run_program(making, work_ / "errors.txt");
    run(table, consolidation);
    work_.retire(shards_);
  }

  Contest contest(const std::string& name, const fs::path& input, Arguments command, Disk disk,
                  const std::vector<unsigned>& threads) const {
    const bool flushed = disk == Disk::kFlushed;
    const std::string script = R"(cp -r "$1" "$2" && find "$2" -type f -exec sync {} +)";
    const Arguments cp =
        flushed ? Arguments{"sh", "-c", script, "sh", input, output_} : Arguments{"cp", "-r", input, output_};
    if (!flushed && knows_no_sync_) command.push_back("--no-sync");
    if (!options_.with.empty())
      for (std::string& argument : split(options_.with, ' ')) command.push_back(std::move(argument));
    command.insert(command.begin() + 3, output_.string());
    Contest contest{name, input, {}};
    for (const unsigned count : threads) {
      Row row{name, count, 0, command, cp, {BENCH_COPY_FILES, input, output_, std::to_string(count)}, {}, {}, {}};
      row.argv.insert(row.argv.end(), {"--threads", std::to_string(count)});
      if (flushed) row.copy_argv.push_back("--sync");
      contest.rows.push_back(std::move(row));
    }
    return contest;
  }

  void run(Table& table, Contest& contest) {
    measure(contest, output_, work_, settings_);
    std::move(contest.rows.begin(), contest.rows.end(), std::back_inserter(table.rows));
  }

  const Options& options_;
  const WorkDir& work_;
  fs::path model_;
  fs::path shards_;
  fs::path output_;
  double file_bytes_;  // maximum file size: 5 GB, or less, so that small models have several files, too
  Settings settings_;
  bool knows_no_sync_ = false;  // false for builds that predate --no-sync
};

}  // namespace

std::vector<Table> measure_moves(const Options& options, const WorkDir& work,
                                 const std::function<void(const std::string&)>& log) {
  return Moves(options, work, log).all();
}

std::vector<Beside> measure_ranks(const Options& options, const WorkDir& work,
                                  const std::function<void(const std::string&)>& log) {
  return Moves(options, work, log).ranks();
}

MovesBeside measure_dcp(const Options& options, const WorkDir& work,
                        const std::function<void(const std::string&)>& log) {
  return Moves(options, work, log).dcp();
}

MovesBeside measure_nxdi(const Options& options, const WorkDir& work,
                         const std::function<void(const std::string&)>& log) {
  return Moves(options, work, log).nxdi();
}

Table measure_zero1(const Options& options, const WorkDir& work, const std::function<void(const std::string&)>& log) {
  return Moves(options, work, log).zero1();
}

Beside measure_journal(const Options& options, const WorkDir& work,
                       const std::function<void(const std::string&)>& log) {
  return {Moves(options, work, log).journal(), 1.03};
}

}  // namespace reshard::bench
