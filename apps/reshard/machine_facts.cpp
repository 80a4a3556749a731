#include "machine_facts.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "build_facts.h"
#include "cpu_features.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/tensor/values/simd.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;

/// Value of the first line "NAME: VALUE" of a file in /proc; empty if absent.
std::string proc_value(const char* file, std::string_view name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name))
      if (const auto at = line.find_first_not_of(" \t", std::min(line.size(), line.find(':') + 1)); at != line.npos)
        return line.substr(at);
  return {};
}

/// Value of a line "NAME: N kB" of /proc/meminfo; null if absent.
Document meminfo_bytes(std::string_view name) {
  std::uint64_t kibibytes = 0;
  if (std::sscanf(proc_value("/proc/meminfo", name).c_str(), "%" SCNu64, &kibibytes) != 1) return nullptr;
  return kibibytes * 1024;
}

/// The hard limit, to which the program raises that of open files; null if unlimited.
Document limit(int resource, bool hard = false) {
  rlimit value{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &value) != 0) return nullptr;
  const rlim_t found = hard ? value.rlim_max : value.rlim_cur;
  return found == RLIM_INFINITY ? Document(nullptr) : Document(static_cast<std::uint64_t>(found));
}

int usable_cpus() {
  cpu_set_t cpus;
  return ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

/// The least limit in `file` of `group` and its parents below `top`.
std::optional<std::uint64_t> least_limit(const fs::path& top, fs::path group, const char* file) {
  constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 62;  // version 1 has a number near 2^63
  std::optional<std::uint64_t> least;
  for (group = group.relative_path();; group = group.parent_path()) {
    std::ifstream in(top / group / file);
    if (std::uint64_t bytes = 0; in >> bytes && bytes < kUnlimited) least = std::min(least.value_or(bytes), bytes);
    if (group.empty()) return least;
  }
}

/// Returns the chosen instruction set, or why there is none.
std::string instruction_set() {
  try {
    return chosen_simd_target();
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

Document machine_facts() {
  utsname system{};
  ::uname(&system);
  Document json;
  json["kernel"] = fmt::format("{} {}", system.sysname, system.release);
  json["machine"] = system.machine;
  json["libc"] = libc_name();
  json["cpu"] = proc_value("/proc/cpuinfo", "model name");
  json["cpus"] = ::sysconf(_SC_NPROCESSORS_ONLN);
  json["usable_cpus"] = usable_cpus();
  json["cpu_features"] = names_of(cpu_features());
  json["instruction_set"] = instruction_set();
  json["memory_bytes"] = meminfo_bytes("MemTotal");
  json["available_memory_bytes"] = meminfo_bytes("MemAvailable");
  return json;
}

Document limit_facts() {
  Document json;
  json["open_files"] = limit(RLIMIT_NOFILE, true);
  json["file_size_bytes"] = limit(RLIMIT_FSIZE);
  json["address_space_bytes"] = limit(RLIMIT_AS);
  const auto cgroup = memory_cgroup_bytes();
  json["memory_cgroup_bytes"] = cgroup ? Document(*cgroup) : Document(nullptr);
  return json;
}

Document mpi_facts(const Environment& environment, OpenPlugin* open) {
  Document json;
  try {
    const auto launcher = find_launcher(environment);
    json["launcher"] = launcher ? Document(launcher->name) : Document(nullptr);
  } catch (const Error& error) {
    json["launcher"] = error.what();
  }
  json["plugins"] = Document::object();
  if (open == nullptr)
    json["note"] = fmt::format("{}: {}", kNoMpi, kBuildsWithMpi);
  else
    for (const MpiPluginPlace& place : find_mpi_plugins(environment, open)) json["plugins"][place.path] = place.state;
  return json;
}

std::optional<std::uint64_t> memory_cgroup_bytes(const fs::path& root) {
  const fs::path mounted = root / "sys/fs/cgroup";
  std::ifstream in(root / "proc/self/cgroup");
  std::optional<std::uint64_t> least;
  for (std::string line; std::getline(in, line);) {  // "0::/path", or "5:memory:/path" in version 1
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() < 3) continue;
    const std::vector<std::string> controllers = split(parts[1], ',');
    std::optional<std::uint64_t> found;
    if (parts[1].empty()) found = least_limit(mounted, parts[2], "memory.max");
    if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end())
      found = least_limit(mounted / "memory", parts[2], "memory.limit_in_bytes");
    if (found) least = std::min(least.value_or(*found), *found);
  }
  return least;
}

}  // namespace reshard::cli
