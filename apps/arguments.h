#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/run.h"

namespace reshard::cli {

/// Options that shard and consolidate share, as the user typed them.
struct CommonArguments {
  std::string threads;
  std::string max_memory = "256MiB";
  std::string format = "safetensors";
  bool dry_run = false;
  bool json = false;
  bool force = false;
  bool quiet = false;
};

void add_common(CLI::App& command, CommonArguments& arguments);

/// \throws Error kUsage, naming the option, for anything that is not a whole number from 1 to `max`.
std::uint32_t parse_degree(const std::string& option, const std::string& text, std::uint32_t max);

/// \throws Error kUsage, naming the option, for anything that parse_size does not take.
std::uint64_t parse_bytes(const std::string& option, const std::string& text);

/// `text` if it is the one value that this version has.
/// \throws Error kUnsupported for those of later versions, kUsage for others.
void require_supported(const std::string& option, const std::string& text, const std::string& supported,
                       const std::vector<std::string>& later);

RunOptions run_options(const CommonArguments& arguments);

/// Parses and runs.
/// \throws Error kUsage for a command line that makes no sense, with the nearest match of an unknown option or
/// subcommand as its hint; whatever the subcommand throws. \returns false if help or the version was printed.
bool parse_and_run(CLI::App& app, int argc, const char* const* argv);

}  // namespace reshard::cli
