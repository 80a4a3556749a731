#include "print.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "color.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "table.h"

namespace reshard::cli {
namespace {

std::atomic<bool> muted{false};

/// Styles of the beginnings of messages; the first that fits applies.
constexpr std::pair<const char*, Style> kStyles[] = {
    {"reshard: note:", Style::kYellow}, {"reshard:", Style::kRed}, {"  try:", Style::kGreen}};

/// Escapes all but the codes of styled().
std::string escaped_unless_styled(const std::string& line) {
  std::string text;
  std::size_t done = 0;
  for (std::size_t at = line.find('\x1b'); at != line.npos; at = line.find('\x1b', at + 1))
    if (const std::size_t bytes = style_bytes(std::string_view(line).substr(at), STDOUT_FILENO); bytes > 0) {
      text += escaped(line.substr(done, at - done)) + line.substr(at, bytes);
      done = at + bytes;
    }
  return text + escaped(line.substr(done));
}

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
  for (std::string& line : lines) line = escaped_unless_styled(line);
  print_output(join(lines, "\n"));
}

void print_message(const std::string& line) {
  constexpr std::size_t kIndent = 2;
  std::string text = ::isatty(STDERR_FILENO) ? wrap(line, kIndent, table_columns(STDERR_FILENO)) : escaped(line);
  for (const auto& [begin, style] : kStyles)
    if (text.starts_with(begin)) {
      text = styled(begin, style, STDERR_FILENO) + text.substr(std::string_view(begin).size());
      break;
    }
  print_error(text + "\n");
}

void print_error(const std::string& text) {
  if (muted) return;
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace reshard::cli
