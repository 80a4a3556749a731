// base/: the folder that all others use: errors, checked arithmetic, strings, JSON.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace reshard {

/// Classifies errors by what a caller can do about them. `kErrorKinds` below maps each kind to an exit code.
enum class ErrorKind {
  kUsage,        // the request is invalid
  kBadInput,     // a file or checkpoint is missing or damaged, or contradicts itself; or an output exists
  kUnsupported,  // valid, but not supported by this version
  kNoSpace,      // the outputs do not fit the file system
  kIo,           // the operating system reported an error
  kLost,         // another process of the run does not respond
  kInterrupted,  // stopped by a signal
  kInternal,     // a bug in reshard
};

/// The name, exit code and meaning of one ErrorKind.
struct ErrorKindRow {
  ErrorKind kind;
  const char* name;
  int exit_code;
  const char* meaning;
};
inline constexpr ErrorKindRow kErrorKinds[] = {
    {ErrorKind::kUsage, "usage", 2, "the command line is invalid"},
    {ErrorKind::kBadInput, "bad input", 3, "an input is missing, damaged or inconsistent, or an output exists"},
    {ErrorKind::kUnsupported, "unsupported", 4, "understood, but not supported"},
    {ErrorKind::kNoSpace, "no space", 5, "not enough space for the outputs"},
    {ErrorKind::kIo, "I/O", 6, "the operating system refused to read or write"},
    {ErrorKind::kInternal, "internal", 70, "a defect of reshard: please report it"},
    {ErrorKind::kLost, "lost", 75, "another process of the run does not answer"},
    {ErrorKind::kInterrupted, "interrupted", 130, "stopped by a signal; nothing was published"},
};

/// Every kind has a row in the table, so the loop always terminates.
constexpr const ErrorKindRow& describe(ErrorKind kind) {
  const ErrorKindRow* row = kErrorKinds;
  while (row->kind != kind) ++row;
  return *row;
}

/// The only exception type of the library. `what()` is a complete sentence that names the file and the tensor if they
/// are known. `hint()` suggests a fix and may be empty.
///
///   throw Error(ErrorKind::kBadInput, "…").in(path).tensor(name).hint("…");
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string message);

  Error& in(const std::filesystem::path& path);
  Error& tensor(std::string name);
  Error& at_byte(std::uint64_t offset_bytes);
  Error& at_line(std::uint64_t line);  // line of a text, from 1
  Error& hint(std::string text);
  Error& code(std::error_code code);
  Error& by(std::string process);  // the process that reported the error: "rank 3 on node17"

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const std::string& path() const { return path_; }
  const std::string& tensor() const { return tensor_; }
  std::optional<std::uint64_t> offset_bytes() const { return offset_bytes_; }
  std::optional<std::uint64_t> line() const { return line_; }
  const std::string& hint() const { return hint_; }
  /// what() followed by the hint, for use inside another message.
  std::string with_hint() const { return hint_.empty() ? what_ : what_ + "; " + hint_; }
  /// Error code from the operating system; empty if the error did not come from it.
  std::error_code code() const { return code_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  void compose();

  ErrorKind kind_;
  std::string process_;
  std::string message_;
  std::string path_;
  std::string tensor_;
  std::optional<std::uint64_t> offset_bytes_;
  std::optional<std::uint64_t> line_;
  std::string hint_;
  std::error_code code_;
  std::string what_;
};

/// Whether the operating system denied access to a file or directory, or it has disappeared. Not a disk fault.
bool is_denied(const Error& error);
/// Whether reading or writing failed although access was permitted.
bool is_disk_fault(const Error& error);

/// Returns an Error for a failed system call: kNoSpace for ENOSPC and EDQUOT, otherwise kIo.
Error system_error(int errno_value, std::string_view doing, const std::filesystem::path& path);

/// Converts any exception to an Error: kIo for out of memory and for operating system errors, kInternal for other
/// exceptions.
Error as_error(const std::exception_ptr& thrown);

}  // namespace reshard
