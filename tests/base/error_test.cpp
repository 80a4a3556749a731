#include "reshard/base/error.h"

#include <cerrno>
#include <set>

#include "support/refusals.h"

namespace reshard::test {
namespace {

TEST_CASE("An error's text names file, byte and tensor in front of its message") {
  Error error(ErrorKind::kBadInput, "is odd");
  CHECK(std::string(error.what()) == "is odd");
  error.tensor("a.weight");
  CHECK(std::string(error.what()) == "tensor a.weight: is odd");
  error.at_byte(12).in("dir/file.bin");
  CHECK(std::string(error.what()) == "dir/file.bin: at byte 12: tensor a.weight: is odd");
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.message() == "is odd");
  CHECK(error.path() == "dir/file.bin");
  CHECK(error.tensor() == "a.weight");
  CHECK(error.offset_bytes() == 12);
}

TEST_CASE("A hint is kept beside the text, and the name of another process is in it") {
  Error error(ErrorKind::kIo, "is odd");
  error.hint("try again").in("a").by("rank 3 on node17");
  CHECK(error.hint() == "try again");
  CHECK(std::string(error.what()) == "rank 3 on node17: a: is odd");
}

TEST_CASE("Control characters of names do not reach an error's text") {
  Error error(ErrorKind::kBadInput, "is odd");
  error.in("a\x1b[2Jb").tensor("c\nd");
  CHECK(std::string(error.what()) == "a\\x1b[2Jb: tensor c\\x0ad: is odd");
  CHECK(error.tensor() == "c\nd");
}

TEST_CASE("Every kind of error has a row, and no two share a name or an exit code") {
  const ErrorKind kinds[] = {ErrorKind::kUsage, ErrorKind::kBadInput, ErrorKind::kUnsupported, ErrorKind::kNoSpace,
                             ErrorKind::kIo,    ErrorKind::kLost,     ErrorKind::kInterrupted, ErrorKind::kInternal};
  std::set<std::string> names;
  std::set<int> codes;
  for (const ErrorKind kind : kinds) {
    CHECK(describe(kind).kind == kind);
    names.insert(describe(kind).name);
    codes.insert(describe(kind).exit_code);
  }
  CHECK(names.size() == std::size(kinds));
  CHECK(codes.size() == std::size(kinds));
  CHECK(std::size(kErrorKinds) == std::size(kinds));
  CHECK(codes.count(0) == 0);
}

TEST_CASE("A system error for a full disk or quota is no-space, any other is I/O") {
  for (const int full : {ENOSPC, EDQUOT}) {
    const Error error = system_error(full, "cannot write", "out.bin");
    check_error(error, {.kind = ErrorKind::kNoSpace, .path = "out.bin"});
    CHECK_FALSE(error.hint().empty());
  }
  check_error(system_error(EFBIG, "cannot write", "out.bin"), {.kind = ErrorKind::kIo, .hint = "ulimit -f"});
  const Error error = system_error(EACCES, "cannot open", "out.bin");
  check_error(error, {.kind = ErrorKind::kIo, .path = "out.bin", .what = "out.bin: cannot open: Permission denied"});
  CHECK(error.code() == std::errc::permission_denied);
  CHECK_FALSE(Error(ErrorKind::kIo, "is odd").code());
}

}  // namespace
}  // namespace reshard::test
