#pragma once

#include <filesystem>
#include <optional>
#include <regex>
#include <string>
#include <vector>

namespace reshard::bench {

struct Options {
  double size_gb = 2;
  std::optional<std::filesystem::path> model;
  std::filesystem::path dir;  // where the work directory is made
  unsigned runs = 5;
  std::vector<unsigned> threads;
  std::string only;
  bool cold = false;
  bool planning = false;
  unsigned ranks = 0;  // with how many ranks one process is compared; 0: not at all
  bool journal = false;
  bool dcp = false;
  bool zero1 = false;
  std::string torch;  // a Python that has torch 2.2 or newer, whose own tool is measured too; empty: none
  bool json = false;
  std::string reshard;  // the program
  std::string with;     // options for its measured runs
  std::string revision = "of unknown revision";
};

/// Whether a case of this name is asked for.
inline bool wanted(const Options& options, const std::string& name) {
  return std::regex_search(name, std::regex(options.only));
}

}  // namespace reshard::bench
