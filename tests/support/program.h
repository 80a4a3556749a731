#pragma once

#include <string>
#include <vector>

#include "support/refusals.h"

namespace reshard::test {

struct ProgramResult {
  int exit_code;
  std::string out;  // standard output
  std::string err;  // standard error
};

/// Runs the built `reshard` with `arguments`, no terminal anywhere. `setup` is shell text put before it, such as
/// "ulimit -f 8;".
ProgramResult run_reshard(const std::vector<std::string>& arguments, const std::string& setup = {},
                          const std::string& program = RESHARD_PROGRAM);

/// A run that failed with `exit_code`, no output and all of `says` on standard error.
void check_failed(const ProgramResult& result, int exit_code, const Texts& says);

}  // namespace reshard::test
