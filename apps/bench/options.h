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
  std::filesystem::path dir;  // parent of the work directory
  unsigned runs = 5;
  std::vector<unsigned> threads;
  std::string only;
  bool cold = false;
  bool planning = false;
  unsigned ranks = 0;  // number of ranks to compare with one process; 0: none
  bool journal = false;
  bool dcp = false;
  bool nxdi = false;
  bool zero1 = false;
  std::string torch;  // a Python with torch 2.2 or later, whose own tool is measured too; empty: none
  std::string numpy;  // a Python with numpy, for a script that shards experts; empty: none
  bool json = false;
  std::string reshard;  // the program
  std::string with;     // further options for the measured runs
  std::string revision = "of unknown revision";
};

/// Whether the user selected the case with this name.
inline bool wanted(const Options& options, const std::string& name) {
  return std::regex_search(name, std::regex(options.only));
}

}  // namespace reshard::bench
