#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "launcher.h"
#include "mpi/mpi_plugin.h"
#include "reshard/base/error.h"
#include "reshard/engine/ranks/peers.h"

namespace reshard::cli {

/// Time limits of waits for other processes, in seconds.
struct MpiLimits {
  double start_s = 60;
  double gather_s = 600;
};

/// The processes of a launcher, through an MPI plug-in. At most one exists, and only the thread that created it uses
/// it.
class MpiRanks : public Peers {
 public:
  /// `plugin` has been started; it and its library are never unloaded.
  MpiRanks(const ReshardMpi* plugin, const ReshardMpiWorld& world, const MpiLimits& limits);
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;
  /// Does not finalize MPI, since that waits for all ranks; see finish().
  ~MpiRanks() override = default;

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return size_; }
  /// \throws RankLost also if MPI reports an error.
  std::vector<std::string> gather(const std::string& mine) override;

  /// Once `stop` is set, gather waits at most 5 s more: the launcher may have sent a signal because another rank died.
  /// `stop` is borrowed; null resets it.
  void mind_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  /// Whether gather threw. Then MPI cannot be finalized: exit with _exit, without destructors.
  bool broken() const { return is_broken_; }

  /// Finalizes MPI. All ranks must call it, after equally many gathers; not if broken(). Ends the process with
  /// `exit_code` if the others do not call it within the start limit: by then they have agreed on everything.
  void finish(int exit_code);

  /// "MPICH Version: 4.0.2".
  const std::string& library() const { return library_; }

 private:
  std::vector<std::string> gather_all(const std::string& mine);

  const ReshardMpi* plugin_;
  std::uint32_t rank_;
  std::uint32_t size_;
  std::string library_;
  MpiLimits limits_;
  const std::atomic<bool>* stop_ = nullptr;
  bool is_broken_ = false;
};

/// Returns the limits in RESHARD_MPI_START_TIMEOUT and RESHARD_MPI_TIMEOUT.
/// \throws Error kUsage if one is not a positive number.
MpiLimits mpi_limits(const Environment& environment);

/// \returns the table of the plug-in at `path`, or null; then `why` explains. Never unloads it: MPI leaves threads and
/// handlers behind.
/// \param scope  RTLD_GLOBAL to start it: some builds of Open MPI load components that look up MPI symbols in the program.
using OpenPlugin = const ReshardMpi*(const std::filesystem::path& path, std::string& why, int scope);
/// By dlopen. In a source of its own, which the static program does not link.
OpenPlugin open_plugin;

inline constexpr const char* kNoMpi = "this build of reshard is static and has no MPI";
inline constexpr const char* kBuildsWithMpi = "use the archive whose name ends in -mpi, or a build from source";
/// The error of a build without MPI; `why_asked` begins the message.
Error no_mpi(const std::string& why_asked);

/// Joins the processes of `launcher`, through the plug-in in RESHARD_MPI_PLUGIN, or else one next to the program or in
/// CMAKE_INSTALL_LIBDIR/reshard, preferably of the launcher's family. `open` is null in a build without MPI.
///
/// Ends the process with a message and the exit code of kUsage if the others do not arrive in time. Without this limit,
/// a process would wait forever if a script runs reshard in only one of the launcher's processes.
/// \throws Error kUsage if there is no plug-in, or if its MPI is not the launcher's: it sees another number of
/// processes, or only one if the launcher may have started several. Usually all processes throw this, and none can ask
/// the others (word.h).
std::unique_ptr<MpiRanks> start_mpi(const Launcher& launcher, const MpiLimits& limits, const Environment& environment,
                                    OpenPlugin* open = open_plugin);

/// A path where start_mpi looks for a plug-in, and what is there: "works", "not there", or why it cannot be loaded.
struct MpiPluginPlace {
  std::string path;
  std::string state;
};
/// Does not start MPI.
std::vector<MpiPluginPlace> find_mpi_plugins(const Environment& environment, OpenPlugin* open);

/// Name of this machine: "node17".
std::string host_name();

}  // namespace reshard::cli
