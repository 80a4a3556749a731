#pragma once

#include <string>

namespace reshard::cli {

/// The reader of standard output has closed it, as in `reshard inspect … | head -n 1`.
struct ReaderGone {};

/// Whether nothing is printed from now on, since one of several processes speaks for all.
void set_muted(bool muted);
bool is_muted();

/// Writes data to standard output, as it is.
/// \throws Error kIo if it cannot be written; ReaderGone.
void print_output(const std::string& text);

/// Writes a report for people to standard output: what hides or moves text is escaped, but for newlines.
/// \throws as print_output.
void print_text(const std::string& text);

/// Writes a line to standard error, escaped, and broken at spaces where that is a terminal.
void print_message(const std::string& line);

/// Writes to standard error, as far as there is one: a terminal that has gone must not end a run.
void print_error(const std::string& text);

}  // namespace reshard::cli
