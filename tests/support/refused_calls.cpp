#include "support/refused_calls.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>

namespace reshard::test {
namespace {

void install_filter(const std::vector<long>& calls, int errno_value) {
  const auto failed = static_cast<std::uint32_t>(SECCOMP_RET_ERRNO | errno_value);
  std::vector<sock_filter> filter;
  const auto add = [&](unsigned code, std::size_t value, unsigned if_true = 0, unsigned if_false = 0) {
    filter.push_back({static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(if_true),
                      static_cast<std::uint8_t>(if_false), static_cast<std::uint32_t>(value)});
  };
  constexpr unsigned kLoad = BPF_LD | BPF_W | BPF_ABS, kIfEqual = BPF_JMP | BPF_JEQ | BPF_K, kReturn = BPF_RET | BPF_K;
  for (const long call : calls) {
    add(kLoad, offsetof(seccomp_data, nr));
    if (call == SYS_fcntl) {
      add(kIfEqual, SYS_fcntl, 0, 3);
      add(kLoad, offsetof(seccomp_data, args[1]));  // the lower half, on a little-endian machine
      add(kIfEqual, F_OFD_SETLK, 0, 1);
    } else {
      add(kIfEqual, static_cast<std::size_t>(call), 0, 1);
    }
    add(kReturn, failed);
  }
  add(kReturn, SECCOMP_RET_ALLOW);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    throw std::system_error(errno, std::generic_category(), "seccomp");
}

}  // namespace

const std::vector<long> kFileCalls = {SYS_renameat2,       SYS_copy_file_range, SYS_statx,          SYS_fallocate,
                                      SYS_sync_file_range, SYS_syncfs,          SYS_io_uring_setup, SYS_fcntl};

const std::vector<long> kNewCalls = [] {
  std::vector<long> calls = {SYS_preadv2,   SYS_pwritev2,     SYS_faccessat2,  SYS_openat2,
                             SYS_getrandom, SYS_memfd_create, SYS_close_range, SYS_rseq};
  calls.insert(calls.end(), kFileCalls.begin(), kFileCalls.end());
  return calls;
}();

void with_refused_calls(const std::vector<long>& calls, int errno_value, const std::function<void()>& run) {
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      install_filter(calls, errno_value);
      run();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace reshard::test
