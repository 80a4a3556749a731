#pragma once

#include <string>
#include <vector>

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

}  // namespace reshard::test
