// `version` and `doctor`, and the check of the CPU.
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cpu_features.h"
#include "machine_facts.h"
#include "reshard/base/error.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/program.h"
#include "support/refused_calls.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("doctor shows build, machine, limits, MPI and what works on a file system, and leaves nothing there") {
  const TempDir dir;
  const ProgramResult text = run_well({"doctor", dir.path().string()});
  CHECK(text.out.starts_with("reshard "));
  for (const char* part : {"\nbuild\n", "\n  instruction sets ", "\nmachine\n", "\n  kernel ", "\n  available memory ",
                           "\nlimits\n", "\n  memory cgroup ", "\nmpi\n", "\n    renameat2 exchange "})
    CHECK_THAT(text.out, Says(part));
  const json found = json_of({"doctor", dir.path().string()});
  CHECK(found["path"]["directory"] == fs::canonical(dir.path()).string());
  CHECK(found["path"]["writable"] == true);
  CHECK(found["path"]["operations"].size() == 7);
  CHECK(found["build"]["static"] == false);
  const auto sets = found["build"]["instruction_sets"].get<std::vector<std::string>>();
  CHECK(std::count(sets.begin(), sets.end(), found["machine"]["instruction_set"].get<std::string>()) == 1);
  CHECK(fs::is_empty(dir.path()));
  CHECK(json::parse(run_reshard({"doctor", "--json"}, "RESHARD_SIMD=scalar").out)["machine"]["instruction_set"] ==
        "scalar");
}

TEST_CASE("version shows the version and the build") {
  CHECK(run_well({"version"}).out.starts_with(run_well({"--version"}).out));
  const json found = json_of({"version"});
  CHECK("reshard " + found["version"].get<std::string>() + "\n" == run_well({"-V"}).out);
  CHECK(found["build"] == json_of({"doctor"})["build"]);
}

TEST_CASE("doctor takes a file for its directory, and says why it cannot write there") {
  const TempDir dir;
  write_file(dir / "file", "text");
  CHECK(json_of({"doctor", (dir / "file").string()})["path"]["directory"] == fs::canonical(dir.path()).string());
  const json unwritable = json_of({"doctor", "/proc"});
  CHECK(unwritable["path"]["file_system"] == "proc");
  CHECK(unwritable["path"]["writable"] == false);
  CHECK(unwritable["path"]["operations"].empty());
  CHECK_THAT(unwritable["path"]["error"].get<std::string>(), Says("/proc: cannot create a directory"));
  const json missing = json_of({"doctor", (dir / "none").string()});
  CHECK_THAT(missing["path"]["error"].get<std::string>(), Says("none: cannot find it: No such file or directory"));
  CHECK(missing["machine"]["cpus"] >= 1);
  const ProgramResult full = run_reshard({"doctor", dir.path().string(), "--json"}, "ulimit -f 4;");  // 2 or 4 KiB
  CHECK_THAT(json::parse(full.out)["path"]["error"].get<std::string>(), Says("cannot write files: File too large"));
}

TEST_CASE("doctor names each call that the kernel refuses, and what runs do instead") {
  const TempDir dir;
  with_refused_calls(kNewCalls, ENOSYS, [&] {
    const json works = json_of({"doctor", dir.path().string()})["path"]["operations"];
    for (const char* name : {"renameat2_exchange", "renameat2_noreplace", "locks", "fallocate", "copy_file_range"}) {
      INFO(works);
      CHECK(works[name] != "works");
    }
    CHECK(works["copy_file_range"] == "Function not implemented: bytes are read and written");
    CHECK(works["fsync_of_directories"] == "works");
  });
}

TEST_CASE("doctor lists where a plug-in for MPI is looked for, and whether it can be loaded") {
  const auto plugins = [](const std::string& path) {
    return json::parse(run_reshard({"doctor", "--json"}, "RESHARD_MPI_PLUGIN='" + path + "'").out)["mpi"]["plugins"];
  };
  CHECK(plugins("").size() == 4);
  CHECK(plugins("/no/plugin.so") == json{{"/no/plugin.so", "not there"}});
  const TempDir dir;
  const std::string path = (dir / "plugin.so").string();
  write_file(path, "no library");
  CHECK_THAT(plugins(path)[path].get<std::string>(), Says("plugin.so"));
}

TEST_CASE("doctor of a static program says why there is no plug-in, and which build has MPI") {
  const auto facts = cli::mpi_facts([](const char*) { return nullptr; }, nullptr);
  CHECK(facts["plugins"].empty());
  CHECK_THAT(facts["note"].get<std::string>(), Says("static and has no MPI") && Says("ends in -mpi"));
}

TEST_CASE("The least memory limit of a control group and those that contain it counts") {
  const TempDir root;
  CHECK_FALSE(cli::memory_cgroup_bytes(root.path()));
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root.path() / path).parent_path());
    write_file(root.path() / path, text);
  };
  write("proc/self/cgroup", "0::/slurm/job_1/step_0\n");
  write("sys/fs/cgroup/slurm/job_1/step_0/memory.max", "max\n");
  CHECK_FALSE(cli::memory_cgroup_bytes(root.path()));
  write("sys/fs/cgroup/slurm/job_1/memory.max", "1073741824\n");
  write("sys/fs/cgroup/memory.max", "4294967296\n");
  CHECK(cli::memory_cgroup_bytes(root.path()) == 1073741824);
  write("proc/self/cgroup", "5:cpu,memory:/job\n1:name=systemd:/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_FALSE(cli::memory_cgroup_bytes(root.path()));
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  CHECK(cli::memory_cgroup_bytes(root.path()) == 2147483648);
}

TEST_CASE("A CPU without the instructions that the program was compiled for is named as the reason") {
  CHECK((cli::kCompiledFor & ~cli::cpu_features()) == 0);
  char text[512];
  const std::string all(text, cli::lacking_text(~cli::CpuFeatures{0}, text, sizeof text));
  for (const std::string& name : cli::names_of(~cli::CpuFeatures{0})) CHECK_THAT(all, Says(" " + name));
  CHECK_THAT(all, Says("reshard: this CPU lacks instructions that this program was compiled for:"));
  CHECK_THAT(all, Says("\n  try: "));
  CHECK(cli::lacking_text(~cli::CpuFeatures{0}, text, 10) == 10);
  CHECK(describe(ErrorKind::kUnsupported).exit_code == 4);  // of cpu_check.cpp
}

TEST_CASE("doctor reports a variable with a value that runs refuse, and goes on") {
  const ProgramResult result = run_reshard({"doctor", "--json"}, "env RESHARD_SIMD=bogus NO_COLOR=1");
  REQUIRE(result.exit_code == 0);
  const json facts = json::parse(result.out);
  CHECK_THAT(facts.at("machine").at("instruction_set").get<std::string>(), Says("of this machine: \"bogus\""));
  CHECK(facts.at("environment").at("RESHARD_SIMD").get<std::string>() == "bogus");
  CHECK(facts.at("environment").at("NO_COLOR").get<std::string>() == "1");
}

}  // namespace
}  // namespace reshard::test
