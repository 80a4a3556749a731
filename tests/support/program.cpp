#include "support/program.h"

#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "support/files.h"
#include "support/notes.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

Arguments joined(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

ProgramResult run_reshard(const Arguments& arguments, const std::string& setup, const std::string& program) {
  const TempDir captured;
  std::string command = setup + " " + quoted(program);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  command += " >" + quoted((captured / "out").string()) + " 2>" + quoted((captured / "err").string()) + " </dev/null";
  const int status = std::system(command.c_str());
  ProgramResult result{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(captured / "out"),
                       read_file(captured / "err")};
  CHECK(repeated_notes(result.err).empty());
  return result;
}

ProgramResult run_well(const Arguments& arguments) {
  const ProgramResult result = run_reshard(arguments);
  INFO(join(arguments, " ") << "\n" << result.out << result.err);
  REQUIRE(result.exit_code == 0);
  return result;
}

ProgramResult check_run(const Arguments& arguments, int exit_code, const Texts& out, const Texts& err) {
  ProgramResult result = run_reshard(arguments);
  INFO(join(arguments, " ") << "\n" << result.out << result.err);
  CHECK(result.exit_code == exit_code);
  for (const std::string& text : out.parts) CHECK_THAT(result.out, Says(text));
  for (const std::string& text : err.parts) CHECK_THAT(result.err, Says(text));
  return result;
}

nlohmann::json json_of(const Arguments& arguments, int exit_code) {
  return nlohmann::json::parse(check_run(joined(arguments, {"--json"}), exit_code).out);
}

void check_fails(const Arguments& arguments, int exit_code, const Texts& says) {
  INFO(join(arguments, " "));
  check_failed(run_reshard(arguments), exit_code, says);
}

void check_failed(const ProgramResult& result, int exit_code, const Texts& says) {
  INFO("err: " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out.empty());
  for (const std::string& text : says.parts) CHECK_THAT(result.err, Says(text));
}

}  // namespace reshard::test
