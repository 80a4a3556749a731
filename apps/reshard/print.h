#pragma once

#include <string>

namespace reshard::cli {

/// The reader of standard output closed it, as in `reshard inspect … | head -n 1`.
struct ReaderGone {};

/// Sets whether all output is suppressed, since one of several processes reports for all.
void set_muted(bool muted);
bool is_muted();

/// Writes `text` to standard output unchanged.
/// \throws Error kIo if it cannot be written; ReaderGone.
void print_output(const std::string& text);

/// Writes a report for people to standard output. Escapes characters that hide or move text, except newlines and
/// the codes of styled().
/// \throws as print_output.
void print_text(const std::string& text);

/// Writes a line to standard error, escaped, and wrapped if that is a terminal.
void print_message(const std::string& line);

/// Writes to standard error and ignores failures: a closed terminal must not end a run.
void print_error(const std::string& text);

}  // namespace reshard::cli
