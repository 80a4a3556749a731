#include "support/program.h"

#include <sys/wait.h>

#include <cstdlib>

#include "support/files.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

ProgramResult run_reshard(const std::vector<std::string>& arguments, const std::string& setup,
                          const std::string& program) {
  const TempDir captured;
  std::string command = setup + " " + quoted(program);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  command += " >" + quoted((captured / "out").string()) + " 2>" + quoted((captured / "err").string()) + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(captured / "out"),
          read_file(captured / "err")};
}

void check_failed(const ProgramResult& result, int exit_code, const Texts& says) {
  INFO("err: " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out.empty());
  for (const std::string& text : says.parts) CHECK_THAT(result.err, Says(text));
}

}  // namespace reshard::test
