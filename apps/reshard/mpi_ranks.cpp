#include "mpi_ranks.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

#include "print.h"
#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kStopLimitSeconds = 5;
constexpr double kShortestNapSeconds = 0.0002;
constexpr double kLongestNapSeconds = 0.005;
constexpr std::int64_t kRoundBytes = std::int64_t{1} << 30;  // MPI counts in int

/// Ends the process after a time limit: MPI calls that wait for other processes have none.
class Watchdog {
 public:
  Watchdog(double limit_s, std::string message, int exit_code)
      : thread_([this, limit_s, exit_code, message = std::move(message)] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, Seconds(limit_s), [this] { return is_done_; })) return;
          set_muted(false);  // the rank that reports for all may be the missing one
          print_message(message);
          ::_exit(exit_code);
        }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;  // last: it uses the others
};

/// Sleeps and time limit of a wait for other processes.
class Patience {
 public:
  Patience(double limit_s, const std::atomic<bool>* stop, double longest_nap_s)
      : limit_s_(limit_s), stop_(stop), longest_nap_s_(longest_nap_s) {}

  /// A ReshardMpiWait; `context` is a Patience.
  static int nap(void* context) { return static_cast<Patience*>(context)->nap() ? 0 : 1; }

  double waited_s() const { return waited_s_; }
  bool is_stopped() const { return is_stopped_; }

 private:
  /// \returns whether to go on waiting.
  bool nap() {
    if (!is_stopped_ && stop_ != nullptr && *stop_) {
      is_stopped_ = true;
      limit_s_ = std::min(limit_s_, waited_s_ + kStopLimitSeconds);
    }
    if (waited_s_ >= limit_s_) return false;
    // A twentieth of the time waited: a collective takes several tests on each rank, and most complete in a moment.
    std::this_thread::sleep_for(Seconds(std::clamp(waited_s_ / 20, kShortestNapSeconds, longest_nap_s_)));
    // Time during which the whole job is suspended, as by Slurm, does not count: the others may not have run either.
    const Clock::time_point now = Clock::now();
    waited_s_ += std::min(Seconds(now - last_).count(), kLongestStepSeconds);
    last_ = now;
    return true;
  }

  static constexpr double kLongestStepSeconds = 1;

  double limit_s_;
  const std::atomic<bool>* stop_;
  double longest_nap_s_;
  bool is_stopped_ = false;
  double waited_s_ = 0;
  Clock::time_point last_ = Clock::now();
};

struct Plugin {
  std::string family;  // empty for a plug-in given by RESHARD_MPI_PLUGIN
  fs::path path;
};

/// The families of lib/mpi/CMakeLists.txt, and how to start a process under each. MPICH comes first: if the launcher is
/// unknown, it starts as a single process and leaves the message to this program, whereas Open MPI 4 ends it with its
/// own.
struct MpiFamily {
  const char* name;
  const char* mpirun;
  const char* srun;
};
constexpr std::array kMpiFamilies = {
    MpiFamily{"mpich", "MPICH's mpirun (Debian: mpirun.mpich)", "srun --mpi=pmi2"},
    MpiFamily{"openmpi", "Open MPI's mpirun (Debian: mpirun.openmpi)", "srun --mpi=pmix"}};

std::vector<fs::path> plugin_directories() {
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure).parent_path();
  return {program, (program / ".." / RESHARD_LIBDIR / "reshard").lexically_normal()};
}

/// Returns possible paths of the plug-in, best first.
std::vector<Plugin> plugin_places(const Launcher& launcher, const Environment& environment) {
  const char* named = environment("RESHARD_MPI_PLUGIN");
  if (named != nullptr && *named != '\0') return {{"", fs::absolute(named)}};
  std::array families = kMpiFamilies;
  std::stable_partition(families.begin(), families.end(),
                        [&](const MpiFamily& f) { return f.name == launcher.family; });
  std::vector<Plugin> places;
  for (const MpiFamily& family : families)
    for (const fs::path& directory : plugin_directories())
      places.push_back({family.name, directory / fmt::format("libreshard_mpi_{}.so", family.name)});
  return places;
}

std::string started(const Launcher& launcher) {
  if (launcher.size == 0) return fmt::format("{} started this process, perhaps with others", launcher.name);
  return fmt::format("{} started {} processes", launcher.name, launcher.size);
}

constexpr const char* kSeparateRuns = "--mpi no makes each process a separate run";

Error no_plugin(const Launcher& launcher, const std::vector<Plugin>& places, const std::vector<std::string>& failures) {
  std::vector<std::string> where;
  for (const Plugin& place : places) {
    std::string text = printable((place.family.empty() ? place.path : place.path.parent_path()).string());
    if (std::find(where.begin(), where.end(), text) == where.end()) where.push_back(std::move(text));
  }
  std::string message = fmt::format("{}, but there is no plug-in for MPI in {}", started(launcher), join(where, ", "));
  if (!failures.empty())
    message = fmt::format("{}, but no plug-in for MPI can be loaded: {}", started(launcher), join(failures, "; "));
  const char* what =
      places.front().family.empty()
          ? "RESHARD_MPI_PLUGIN names this path: set that of a libreshard_mpi_*.so, or unset it; reshard doctor then "
            "lists "
            "where one is looked for"
          : "a plug-in is built where CMake finds an MPI (its option RESHARD_MPI), and RESHARD_MPI_PLUGIN "
            "names one elsewhere";
  return Error(ErrorKind::kUsage, message).hint(fmt::format("{}; {}", what, kSeparateRuns));
}

/// "Open MPI v4.1.4": omits what follows a comma, such as the package date.
std::string library_of(const ReshardMpiWorld& world) {
  const std::string text = world.library;
  return printable(text.substr(0, text.find(',')));
}

/// Returns "openmpi", "mpich" or "" for the name from MPI_Get_library_version.
std::string family_of(const ReshardMpiWorld& world) {
  const std::string text = world.library;
  if (text.find("Open MPI") != text.npos) return "openmpi";
  for (const char* name : {"MPICH", "MVAPICH", "Intel"})
    if (text.find(name) != text.npos) return "mpich";
  return "";
}

/// `failures`: why earlier plug-ins could not be loaded.
Error wrong_size(const Launcher& launcher, const ReshardMpiWorld& world, const std::vector<std::string>& failures) {
  const std::string family = family_of(world);
  const bool is_srun = launcher.name.starts_with("srun");
  std::string how = "the launcher of that MPI";
  for (const MpiFamily& known : kMpiFamilies)
    if (family == known.name)
      how = is_srun ? fmt::format("{} or {}", known.srun, known.mpirun)
                    : fmt::format("{} or {}", known.mpirun, known.srun);
  if (!launcher.family.empty() && launcher.family != family) how += ", or build the plug-in for the launcher's MPI";
  std::string message =
      fmt::format("{}, but {}, which this process uses, sees {}", started(launcher), library_of(world), world.size);
  if (!failures.empty()) message += fmt::format("; another plug-in does not load: {}", join(failures, "; "));
  return Error(ErrorKind::kUsage, message).hint(fmt::format("start it with {}; {}", how, kSeparateRuns));
}

RankLost mpi_error(const char* error) {
  return RankLost(fmt::format(
      "MPI reports an error: {}; outputs get their names by rank 0 alone, when all have finished", printable(error)));
}

RankLost no_answer(const Patience& patience) {
  const double waited_s = patience.waited_s();
  RankLost lost((patience.is_stopped()
                     ? fmt::format("a signal asked to stop, and at least one of the other processes did not answer "
                                   "within {:.0f} s",
                                   kStopLimitSeconds)
                     : fmt::format("waited {:.{}f} s for the other processes, and at least one did not answer",
                                   waited_s, waited_s < 10 ? 1 : 0)) +
                "; outputs get their names by rank 0 alone, when all have finished");
  lost.hint(
      "its process was killed, or its machine is gone: messages of the launcher and the machine's kernel log may say "
      "why; RESHARD_MPI_TIMEOUT=SECONDS changes how long to wait");
  return lost;
}

}  // namespace

MpiRanks::MpiRanks(const ReshardMpi* plugin, const ReshardMpiWorld& world, const MpiLimits& limits)
    : plugin_(plugin),
      rank_(static_cast<std::uint32_t>(world.rank)),
      size_(static_cast<std::uint32_t>(world.size)),
      library_(library_of(world)),
      limits_(limits) {}

std::vector<std::string> MpiRanks::gather(const std::string& mine) {
  if (is_broken_) throw RankLost("the other processes were lost before");
  is_broken_ = true;  // unless this returns
  std::vector<std::string> all = gather_all(mine);
  is_broken_ = false;
  return all;
}

std::vector<std::string> MpiRanks::gather_all(const std::string& mine) {
  struct Buffers {
    std::string mine;
    std::vector<std::int64_t> sizes_bytes;
    std::string all;
  };
  static auto* const kLeft = new std::vector<std::unique_ptr<Buffers>>;  // never freed: MPI may still use them
  auto buffers = std::make_unique<Buffers>(Buffers{mine, std::vector<std::int64_t>(size_), {}});
  Patience coming(limits_.gather_s, stop_, kLongestNapSeconds);
  Patience moving(limits_.gather_s, stop_, kShortestNapSeconds);  // all have arrived; each test moves some bytes
  char error[kReshardMpiTextBytes] = "";
  const auto check = [&](int status, const Patience& patience) {
    if (status == kReshardMpiDone) return;
    kLeft->push_back(std::move(buffers));
    if (status == kReshardMpiFailed) throw mpi_error(error);
    throw no_answer(patience);
  };
  check(plugin_->gather_sizes(static_cast<std::int64_t>(mine.size()), buffers->sizes_bytes.data(), Patience::nap,
                              &coming, error),
        coming);
  std::size_t total_bytes = 0;
  for (const std::int64_t bytes : buffers->sizes_bytes) total_bytes += static_cast<std::size_t>(bytes);
  buffers->all.resize(total_bytes);
  check(plugin_->gather(buffers->mine.data(), buffers->sizes_bytes.data(), kRoundBytes, buffers->all.data(),
                        Patience::nap, &moving, error),
        moving);
  std::vector<std::string> all;
  all.reserve(size_);
  std::size_t begin = 0;
  for (const std::int64_t bytes : buffers->sizes_bytes) {
    all.push_back(buffers->all.substr(begin, static_cast<std::size_t>(bytes)));
    begin += static_cast<std::size_t>(bytes);
  }
  return all;
}

void MpiRanks::finish(int exit_code) {
  const Watchdog watchdog(limits_.start_s, "reshard: note: the other processes do not end MPI; not waiting for them",
                          exit_code);
  char error[kReshardMpiTextBytes] = "";
  if (plugin_->finish(error) != kReshardMpiDone) print_message(fmt::format("reshard: note: {}", printable(error)));
}

MpiLimits mpi_limits(const Environment& environment) {
  const MpiLimits usual;
  return {seconds_of(environment, "RESHARD_MPI_START_TIMEOUT", usual.start_s),
          seconds_of(environment, "RESHARD_MPI_TIMEOUT", usual.gather_s)};
}

Error no_mpi(const std::string& why_asked) {
  return Error(ErrorKind::kUsage, fmt::format("{}, but {}", why_asked, kNoMpi))
      .hint(fmt::format("{}; {}", kBuildsWithMpi, kSeparateRuns));
}

std::unique_ptr<MpiRanks> start_mpi(const Launcher& launcher, const MpiLimits& limits, const Environment& environment,
                                    OpenPlugin* open) {
  if (open == nullptr) throw no_mpi(started(launcher));
  const std::vector<Plugin> places = plugin_places(launcher, environment);
  std::vector<std::string> failures;
  const ReshardMpi* plugin = nullptr;
  for (const Plugin& place : places) {
    std::error_code failure;
    if (!fs::exists(place.path, failure)) continue;
    std::string why;
    plugin = open(place.path, why, RTLD_GLOBAL);
    if (plugin != nullptr) break;
    failures.push_back(std::move(why));
  }
  if (plugin == nullptr) throw no_plugin(launcher, places, failures);

  const Watchdog watchdog(
      limits.start_s,
      fmt::format("reshard: rank {} waited {:.3g} s for the other processes that {} started; one that could not start "
                  "says why; if only this one runs reshard, give --mpi no; RESHARD_MPI_START_TIMEOUT=SECONDS changes "
                  "how long to wait",
                  launcher.rank, limits.start_s, launcher.name),
      describe(ErrorKind::kUsage).exit_code);
  ReshardMpiWorld world{};
  char error[kReshardMpiTextBytes] = "";
  if (plugin->start(&world, error) != kReshardMpiDone)
    throw Error(ErrorKind::kUsage, fmt::format("{}, but MPI does not start: {}", started(launcher), printable(error)))
        .hint(kSeparateRuns);
  const auto seen = static_cast<std::uint32_t>(world.size);
  if (launcher.size == 0 ? seen < 2 : seen != launcher.size) {
    const Error wrong = wrong_size(launcher, world, failures);
    plugin->finish(error);
    throw wrong;
  }
  return std::make_unique<MpiRanks>(plugin, world, limits);
}

std::vector<MpiPluginPlace> find_mpi_plugins(const Environment& environment, OpenPlugin* open) {
  std::vector<MpiPluginPlace> found;
  for (const Plugin& place : plugin_places(Launcher(), environment)) {
    std::string why = "works";
    std::error_code failure;
    if (!fs::exists(place.path, failure))
      why = "not there";
    else
      open(place.path, why, RTLD_LOCAL);  // several are opened, and none is started
    found.push_back({place.path.string(), why});
  }
  return found;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0 || *name == '\0') return "localhost";
  return name;
}

}  // namespace reshard::cli
