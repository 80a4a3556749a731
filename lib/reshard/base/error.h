// base/: what every other floor stands on: errors, checked arithmetic, files, strings, JSON text.
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

/// What went wrong, in the terms a caller acts on. `kErrorKinds` below maps each to the program's exit code.
enum class ErrorKind {
  kUsage,        // the request itself makes no sense
  kBadInput,     // a file or checkpoint is damaged or contradicts itself
  kUnsupported,  // understood, but not something this version does
  kNoSpace,      // the outputs do not fit the file system
  kIo,           // the operating system refused
  kLost,         // another process of the run does not answer
  kInterrupted,  // a signal asked to stop
  kInternal,     // a defect of reshard
};

/// One row a kind: the one place where kinds, their names and exit codes meet.
struct ErrorKindRow {
  ErrorKind kind;
  const char* name;
  int exit_code;
  const char* meaning;
};
inline constexpr ErrorKindRow kErrorKinds[] = {
    {ErrorKind::kUsage, "usage", 2, "the command line makes no sense"},
    {ErrorKind::kBadInput, "bad input", 3, "an input is damaged or inconsistent"},
    {ErrorKind::kUnsupported, "unsupported", 4, "understood, but not supported"},
    {ErrorKind::kNoSpace, "no space", 5, "not enough space for the outputs"},
    {ErrorKind::kIo, "I/O", 6, "the operating system refused to read or write"},
    {ErrorKind::kInternal, "internal", 70, "a defect of reshard: please report it"},
    {ErrorKind::kLost, "lost", 75, "another process of the run does not answer"},
    {ErrorKind::kInterrupted, "interrupted", 130, "stopped by a signal; nothing was published"},
};

/// The table has a row for every kind, so that the loop always ends in one.
constexpr const ErrorKindRow& describe(ErrorKind kind) {
  const ErrorKindRow* row = kErrorKinds;
  while (row->kind != kind) ++row;
  return *row;
}

/// The one exception type of the library. `what()` is a whole sentence that names the file and the tensor where they
/// are known; `hint()` says what to try and may be empty.
///
///   throw Error(ErrorKind::kBadInput, "…").in(path).tensor(name).hint("…");
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string message);

  Error& in(const std::filesystem::path& path);
  Error& tensor(std::string name);
  Error& at_byte(std::uint64_t offset_bytes);
  Error& at_line(std::uint64_t line);  // of a text, from 1
  Error& hint(std::string text);
  Error& code(std::error_code code);
  Error& by(std::string process);  // which of several met it: "rank 3 on node17"

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const std::string& path() const { return path_; }
  const std::string& tensor() const { return tensor_; }
  std::optional<std::uint64_t> offset_bytes() const { return offset_bytes_; }
  std::optional<std::uint64_t> line() const { return line_; }
  const std::string& hint() const { return hint_; }
  /// what(), with the hint behind it: where an error becomes part of another text.
  std::string with_hint() const { return hint_.empty() ? what_ : what_ + "; " + hint_; }
  /// What the operating system said; empty if it was not asked.
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

/// Whether the operating system says that a file or directory may not be accessed, or has just gone: no fault of a disk.
bool is_denied(const Error& error);
/// Whether the system could not read or write what it may read or write.
bool is_disk_fault(const Error& error);

/// An Error for a failed system call: `errno_value` decides between kNoSpace (ENOSPC, EDQUOT) and kIo.
Error system_error(int errno_value, std::string_view doing, const std::filesystem::path& path);

/// What was thrown, whatever it is, as an Error: out of memory and what the operating system refused are kIo, and other
/// exceptions kInternal.
Error as_error(const std::exception_ptr& thrown);

}  // namespace reshard
