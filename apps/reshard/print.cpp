#include "print.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "table.h"

namespace reshard::cli {
namespace {

std::atomic<bool> muted{false};

}  // namespace

void set_muted(bool is) {
  muted = is;
}

bool is_muted() {
  return muted;
}

void print_output(const std::string& text) {
  if (muted) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw ReaderGone();
  throw Error(ErrorKind::kIo, std::string("cannot write to standard output: ") + std::strerror(errno));
}

void print_text(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) line = escaped(line);
  print_output(join(lines, "\n"));
}

void print_message(const std::string& line) {
  constexpr std::size_t kIndent = 2;
  print_error((::isatty(STDERR_FILENO) ? wrap(line, kIndent, table_columns(STDERR_FILENO)) : escaped(line)) + "\n");
}

void print_error(const std::string& text) {
  if (muted) return;
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace reshard::cli
