#pragma once

#include <functional>
#include <vector>

namespace reshard::test {

/// The calls for files that file systems, old kernels and containers may lack.
extern const std::vector<long> kFileCalls;
/// Those and further calls that came to Linux after 2.6.32. The C library does without these if they fail with ENOSYS,
/// and only then.
extern const std::vector<long> kNewCalls;

/// Runs `run` in a thread in which these system calls fail with `errno_value`, and so do those of programs that it
/// starts: by a seccomp filter. The same with fcntl(F_OFD_SETLK) if `calls` contains SYS_fcntl.
void with_refused_calls(const std::vector<long>& calls, int errno_value, const std::function<void()>& run);

}  // namespace reshard::test
