#include "print.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "reshard/base/error.h"

namespace reshard::cli {

void print_output(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw ReaderGone();
  throw Error(ErrorKind::kIo, std::string("cannot write to standard output: ") + std::strerror(errno));
}

void print_error(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace reshard::cli
