// The C interface between the program and its MPI plug-ins. The program does not link MPI: it loads the plug-in for the
// launcher's MPI. The program sets all time limits; the plug-in only polls and calls `wait`.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

inline constexpr int kReshardMpiAbi = 1;
inline constexpr std::size_t kReshardMpiTextBytes = 512;

/// Called between two tests of a request. Sleeps, then returns 0 to continue waiting or any other value to give up.
/// Must not throw.
using ReshardMpiWait = int (*)(void* context);

/// Return values of the functions below.
enum ReshardMpiStatus : int {
  kReshardMpiDone = 0,
  kReshardMpiGaveUp = 1,  // `wait` returned non-zero
  kReshardMpiFailed = 2,  // `error` contains the reason
};

struct ReshardMpiWorld {
  int rank;
  int size;
  char library[kReshardMpiTextBytes];  // first line of MPI_Get_library_version
};

/// All functions must be called from one thread. `error` has room for kReshardMpiTextBytes and is written if a call
/// fails. After a call that gave up or failed, no further call is allowed, and its arguments must stay valid until the
/// process ends: MPI may still access them.
struct ReshardMpi {
  int abi;  // kReshardMpiAbi; the first member in every version of the interface

  /// Initializes MPI. Blocks until all processes of the launcher have called it.
  int (*start)(ReshardMpiWorld* world, char* error);

  /// Collective.
  /// \param mine_bytes  number of bytes that this rank will pass to gather.
  /// \param all_bytes   receives the number of bytes of each rank, by rank.
  int (*gather_sizes)(std::int64_t mine_bytes, std::int64_t* all_bytes, ReshardMpiWait wait, void* context,
                      char* error);

  /// Collective. Call gather_sizes first.
  /// \param all_bytes    the sizes from gather_sizes.
  /// \param round_bytes  most bytes moved by one MPI call, for all ranks together; the same on all ranks.
  /// \param all          receives the bytes of each rank, by rank, without gaps; must not overlap `mine`.
  int (*gather)(const char* mine, const std::int64_t* all_bytes, std::int64_t round_bytes, char* all,
                ReshardMpiWait wait, void* context, char* error);

  /// Finalizes MPI. Blocks until all processes have called it.
  int (*finish)(char* error);
};

/// The only exported symbol of a plug-in. The table lives as long as the plug-in.
const ReshardMpi* reshard_mpi();
using ReshardMpiEntry = const ReshardMpi* (*)();

}  // extern "C"
