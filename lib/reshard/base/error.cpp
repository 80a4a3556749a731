#include "reshard/base/error.h"

#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "reshard/base/strings.h"

namespace reshard {

Error::Error(ErrorKind kind, std::string message)
    : std::runtime_error(message), kind_(kind), message_(std::move(message)) {
  compose();
}

Error& Error::in(const std::filesystem::path& path) {
  path_ = path.string();
  compose();
  return *this;
}

Error& Error::tensor(std::string name) {
  tensor_ = std::move(name);
  compose();
  return *this;
}

Error& Error::at_byte(std::uint64_t offset_bytes) {
  offset_bytes_ = offset_bytes;
  compose();
  return *this;
}

Error& Error::at_line(std::uint64_t line) {
  line_ = line;
  compose();
  return *this;
}

Error& Error::hint(std::string text) {
  hint_ = std::move(text);
  return *this;
}

Error& Error::code(std::error_code code) {
  code_ = code;
  return *this;
}

Error& Error::by(std::string process) {
  process_ = std::move(process);
  compose();
  return *this;
}

void Error::compose() {
  what_.clear();
  if (!process_.empty()) what_ += printable(process_) + ": ";
  if (!path_.empty()) what_ += printable(path_) + ": ";
  if (line_) what_ += "line " + std::to_string(*line_) + ": ";
  if (offset_bytes_) what_ += "at byte " + std::to_string(*offset_bytes_) + ": ";
  if (!tensor_.empty()) what_ += "tensor " + printable(tensor_) + ": ";
  what_ += message_;
}

Error system_error(int errno_value, std::string_view doing, const std::filesystem::path& path) {
  const bool full = errno_value == ENOSPC || errno_value == EDQUOT;
  Error error(full ? ErrorKind::kNoSpace : ErrorKind::kIo,
              std::string(doing) + ": " + std::generic_category().message(errno_value));
  error.in(path).code({errno_value, std::generic_category()});
  if (full) error.hint("free some space or choose an output directory on another file system");
  if (errno_value == EFBIG)
    error.hint(
        "raise the limit of file sizes (ulimit -f), or choose an output directory on a file system that supports "
        "larger files");
  if (errno_value == EMFILE) error.hint("raise the limit of open files (ulimit -n), or use fewer `threads`");
  return error;
}

bool is_denied(const Error& error) {
  return error.code() == std::errc::permission_denied || error.code() == std::errc::operation_not_permitted ||
         error.code() == std::errc::no_such_file_or_directory;
}

bool is_disk_fault(const Error& error) {
  return error.kind() == ErrorKind::kIo && !is_denied(error);
}

Error as_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    return std::move(Error(ErrorKind::kIo, error.code().message()).in(error.path1()));
  } catch (const std::bad_alloc&) {
    return std::move(Error(ErrorKind::kIo, "out of memory").hint("reduce `max-memory` or `threads`"));
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again)
      return std::move(
          Error(ErrorKind::kIo, "cannot start another thread: a limit of this user or container is reached")
              .hint("raise the limit (ulimit -u, or pids.max of the control group)"));
    return {ErrorKind::kIo, error.what()};
  } catch (const std::exception& error) {
    return {ErrorKind::kInternal, error.what()};
  }
}

}  // namespace reshard
