#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "launcher.h"
#include "mpi/mpi_plugin.h"
#include "reshard/engine/ranks/peers.h"

namespace reshard::cli {

/// The longest waits for other processes, in seconds.
struct MpiLimits {
  double start_s = 60;
  double gather_s = 600;
};

/// The processes of a launcher, over a plug-in for MPI. At most one exists, and only the thread that made it uses it.
class MpiRanks : public Peers {
 public:
  /// `plugin` has started; it and its library stay for ever.
  MpiRanks(const ReshardMpi* plugin, const ReshardMpiWorld& world, const MpiLimits& limits);
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;
  /// Leaves MPI as it is: only finish() ends it, as that waits for all ranks.
  ~MpiRanks() override = default;

  std::uint32_t rank() const override { return rank_; }
  std::uint32_t size() const override { return size_; }
  /// \throws RankLost, too, if MPI reports an error.
  std::vector<std::string> gather(const std::string& mine) override;

  /// Once `stop` is set, gather waits 5 s more at most: it may be the launcher's notice that another rank has died.
  /// `stop` is borrowed; null takes it back.
  void mind_stop(const std::atomic<bool>* stop) { stop_ = stop; }

  /// Whether gather threw. Then MPI cannot be ended: leave by _exit, without destructors.
  bool broken() const { return is_broken_; }

  /// Ends MPI. All ranks have to call it, after the same number of gathers; not if broken(). Ends the process with
  /// `exit_code` if the others do not come in as long as they may take to start: what they had to agree on, they have.
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

/// What RESHARD_MPI_START_TIMEOUT and RESHARD_MPI_TIMEOUT say.
/// \throws Error kUsage if one is not a positive number.
MpiLimits mpi_limits(const Environment& environment);

/// Joins the processes of `launcher`. RESHARD_MPI_PLUGIN names the plug-in; else it is one next to the program or in
/// CMAKE_INSTALL_LIBDIR/reshard, preferably of the launcher's family.
///
/// Ends the process with a message and the exit code of kUsage if the others do not come in time: a script that runs
/// reshard in one of the launcher's processes has them wait for ever.
/// \throws Error kUsage if there is no plug-in, or its MPI is not the launcher's, so that it sees another number of
/// processes, or one where the launcher may have started several. Mostly all processes throw this, and none can ask
/// the others (word.h).
std::unique_ptr<MpiRanks> start_mpi(const Launcher& launcher, const MpiLimits& limits, const Environment& environment);

/// Of this machine: "node17".
std::string host_name();

}  // namespace reshard::cli
