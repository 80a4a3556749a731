// The plug-in for one MPI. CMakeLists.txt compiles this file once per MPI.
#include "mpi/mpi_plugin.h"

#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

MPI_Comm comm = MPI_COMM_NULL;
ReshardMpiWorld world{};

void copy_text(const std::string& text, char* target) {
  const std::size_t bytes = std::min(text.size(), kReshardMpiTextBytes - 1);
  std::memcpy(target, text.data(), bytes);
  target[bytes] = '\0';
}

/// \returns kReshardMpiFailed with the text of `code`, or kReshardMpiDone for MPI_SUCCESS.
int status_of(int code, const char* call, char* error) {
  if (code == MPI_SUCCESS) return kReshardMpiDone;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  copy_text(std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)), error);
  return kReshardMpiFailed;
}

/// Converts exceptions to errors: none may cross the C interface.
template <typename Action>
int without_exceptions(char* error, Action&& action) {
  try {
    return action();
  } catch (const std::exception& exception) {
    copy_text(exception.what(), error);
  } catch (...) {
    copy_text("unknown exception", error);
  }
  return kReshardMpiFailed;
}

/// Returns the first line of the library version, with white space collapsed: MPICH aligns its lines with tabs.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "an unknown MPI";
  std::string name;
  for (const char c : std::string(text, static_cast<std::size_t>(length))) {
    if (c == '\n') break;
    const bool is_space = c == ' ' || c == '\t';
    if (!is_space || (!name.empty() && name.back() != ' ')) name += is_space ? ' ' : c;
  }
  return name;
}

int start_mpi(char* error) {
  int is_initialized = 0;
  if (const int status = status_of(MPI_Initialized(&is_initialized), "MPI_Initialized", error)) return status;
  int level = MPI_THREAD_SINGLE;
  const int code =
      is_initialized != 0 ? MPI_Query_thread(&level) : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  if (const int status = status_of(code, "MPI_Init_thread", error)) return status;
  if (level >= MPI_THREAD_FUNNELED) return kReshardMpiDone;
  copy_text("this MPI supports no program with threads", error);
  return kReshardMpiFailed;
}

int start(ReshardMpiWorld* started, char* error) {
  return without_exceptions(error, [&] {
    if (const int status = start_mpi(error)) return status;
    // Set before any other call. By default an error aborts the process, and after Open MPI's MPI_Abort mpirun may
    // hang.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (const int status = status_of(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup", error)) return status;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (const int status = status_of(MPI_Comm_rank(comm, &world.rank), "MPI_Comm_rank", error)) return status;
    if (const int status = status_of(MPI_Comm_size(comm, &world.size), "MPI_Comm_size", error)) return status;
    copy_text(library_name(), world.library);
    *started = world;
    return static_cast<int>(kReshardMpiDone);
  });
}

/// Polls: a blocking call would burn a core for as long as it waits.
int wait_for(MPI_Request& request, const char* call, ReshardMpiWait wait, void* context, char* error) {
  for (;;) {
    int is_done = 0;
    if (const int status = status_of(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), call, error)) return status;
    if (is_done != 0) return kReshardMpiDone;
    if (wait(context) != 0) return kReshardMpiGaveUp;
  }
}

int gather_sizes(std::int64_t mine_bytes, std::int64_t* all_bytes, ReshardMpiWait wait, void* context, char* error) {
  return without_exceptions(error, [&] {
    auto mine = std::make_unique<std::int64_t>(mine_bytes);  // on the heap: if the call gives up, MPI still owns it
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Iallgather(mine.get(), 1, MPI_INT64_T, all_bytes, 1, MPI_INT64_T, comm, &request);
    int status = status_of(code, "MPI_Iallgather", error);
    if (status == kReshardMpiDone) status = wait_for(request, "MPI_Iallgather", wait, context, error);
    if (status != kReshardMpiDone) static_cast<void>(mine.release());
    return status;
  });
}

/// Bytes moved by one MPI_Iallgatherv, whose counts are of type int.
struct Round {
  std::vector<int> counts;
  std::vector<int> begins;
  std::vector<char> bytes;
};

/// Plans at most `part_bytes` per rank, starting at `done_bytes`. \returns whether any rank has bytes left.
bool plan_round(const std::int64_t* all_bytes, std::int64_t done_bytes, std::int64_t part_bytes, Round& round) {
  const auto ranks = static_cast<std::size_t>(world.size);
  round.counts.assign(ranks, 0);
  round.begins.assign(ranks, 0);
  int total = 0;
  for (std::size_t i = 0; i < ranks; ++i) {
    round.begins[i] = total;
    round.counts[i] = static_cast<int>(std::clamp<std::int64_t>(all_bytes[i] - done_bytes, 0, part_bytes));
    total += round.counts[i];
  }
  round.bytes.resize(static_cast<std::size_t>(total));
  return total != 0;
}

int gather(const char* mine, const std::int64_t* all_bytes, std::int64_t round_bytes, char* all, ReshardMpiWait wait,
           void* context, char* error) {
  return without_exceptions(error, [&] {
    const auto own = static_cast<std::size_t>(world.rank);
    const std::int64_t part_bytes =
        std::max<std::int64_t>(std::min<std::int64_t>(round_bytes, INT_MAX) / world.size, 1);
    auto round = std::make_unique<Round>();
    for (std::int64_t done_bytes = 0; plan_round(all_bytes, done_bytes, part_bytes, *round); done_bytes += part_bytes) {
      MPI_Request request = MPI_REQUEST_NULL;
      const char* part = mine + std::min(done_bytes, all_bytes[own]);
      const int code = MPI_Iallgatherv(part, round->counts[own], MPI_BYTE, round->bytes.data(), round->counts.data(),
                                       round->begins.data(), MPI_BYTE, comm, &request);
      int status = status_of(code, "MPI_Iallgatherv", error);
      if (status == kReshardMpiDone) status = wait_for(request, "MPI_Iallgatherv", wait, context, error);
      if (status != kReshardMpiDone) {
        static_cast<void>(round.release());  // MPI may still write into it
        return status;
      }
      char* target = all;
      for (std::size_t i = 0; i < round->counts.size(); target += all_bytes[i++])
        if (round->counts[i] != 0)
          std::memcpy(target + done_bytes, round->bytes.data() + round->begins[i],
                      static_cast<std::size_t>(round->counts[i]));
    }
    return static_cast<int>(kReshardMpiDone);
  });
}

int finish(char* error) {
  return without_exceptions(error, [&] {
    if (const int status = status_of(MPI_Comm_free(&comm), "MPI_Comm_free", error)) return status;
    return status_of(MPI_Finalize(), "MPI_Finalize", error);
  });
}

constexpr ReshardMpi kTable{kReshardMpiAbi, start, gather_sizes, gather, finish};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ReshardMpi* reshard_mpi() {
  return &kTable;
}
