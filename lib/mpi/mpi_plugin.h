// The C interface between the program and its plug-ins for MPI. The program links nothing of MPI: it opens the plug-in
// of the MPI that its launcher belongs to. All time limits are the program's; the plug-in only tests and asks.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

inline constexpr int kReshardMpiAbi = 1;
inline constexpr std::size_t kReshardMpiTextBytes = 512;

/// Called between two tests of a request. Sleeps, then returns 0 to go on waiting, anything else to give up. Must not
/// throw.
using ReshardMpiWait = int (*)(void* context);

/// What the functions below return.
enum ReshardMpiStatus : int {
  kReshardMpiDone = 0,
  kReshardMpiGaveUp = 1,  // `wait` returned non-zero
  kReshardMpiFailed = 2,  // `error` says why
};

struct ReshardMpiWorld {
  int rank;
  int size;
  char library[kReshardMpiTextBytes];  // first line of MPI_Get_library_version
};

/// One thread calls all functions. `error` has room for kReshardMpiTextBytes and is written if a call fails. After a
/// call that gave up or failed, none may follow, and its arguments must stay as they are until the process ends: MPI may
/// still read and write them.
struct ReshardMpi {
  int abi;  // kReshardMpiAbi; the first member in every version

  /// Starts MPI. Blocks until all processes of the launcher have called it.
  int (*start)(ReshardMpiWorld* world, char* error);

  /// \param mine_bytes  what this rank will give to gather.
  /// \param all_bytes  gets the number of each rank, by rank.
  int (*gather_sizes)(std::int64_t mine_bytes, std::int64_t* all_bytes, ReshardMpiWait wait, void* context,
                      char* error);

  /// Collective, as gather_sizes, which comes before it.
  /// \param all_bytes  what gather_sizes returned.
  /// \param round_bytes  most bytes that one call of MPI moves, all ranks together; the same on all ranks.
  /// \param all  gets what each rank gave, by rank, without gaps; does not overlap `mine`.
  int (*gather)(const char* mine, const std::int64_t* all_bytes, std::int64_t round_bytes, char* all,
                ReshardMpiWait wait, void* context, char* error);

  /// Finalizes MPI. Blocks until all processes have called it.
  int (*finish)(char* error);
};

/// The one symbol of a plug-in. The table lives as long as the plug-in.
const ReshardMpi* reshard_mpi();
using ReshardMpiEntry = const ReshardMpi* (*)();

}  // extern "C"
