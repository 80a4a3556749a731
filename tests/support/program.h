#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "support/refusals.h"

namespace reshard::test {

using Arguments = std::vector<std::string>;

/// `first`, then `more`.
Arguments joined(Arguments first, const Arguments& more);

struct ProgramResult {
  int exit_code;
  std::string out;  // standard output
  std::string err;  // standard error
};

/// Runs the built `reshard` with `arguments`, no terminal anywhere. `setup` is shell text put before it, such as
/// "ulimit -f 8;".
ProgramResult run_reshard(const Arguments& arguments, const std::string& setup = {},
                          const std::string& program = RESHARD_PROGRAM);

/// A run that ends with exit code 0.
ProgramResult run_well(const Arguments& arguments);

/// A run that ends with `exit_code`, and all of `out` and `err` on standard output and on standard error.
ProgramResult check_run(const Arguments& arguments, int exit_code, const Texts& out = {}, const Texts& err = {});

/// What a run prints with --json, which ends with `exit_code`.
nlohmann::json json_of(const Arguments& arguments, int exit_code = 0);

/// A run that failed with `exit_code`, no output and all of `says` on standard error.
void check_fails(const Arguments& arguments, int exit_code, const Texts& says);
void check_failed(const ProgramResult& result, int exit_code, const Texts& says);

}  // namespace reshard::test
