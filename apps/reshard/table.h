#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reshard::cli {

/// Whether standard output (or `fd`) is a terminal.
bool is_terminal(int fd = 1);
/// Treats standard output and error as if they were not terminals: Open MPI's mpirun gives rank 0 a terminal, and its
/// output may still go into a file.
void set_no_terminal();

/// A table for people. On a terminal it is at most table_columns() wide, and the first column is shortened if
/// necessary. Elsewhere, as for grep, it is complete.
class Table {
 public:
  enum class Align { kLeft, kRight };

  explicit Table(std::vector<std::pair<std::string, Align>> columns) : columns_(std::move(columns)) {}

  /// Escapes unprintable characters in cells as \xNN.
  void add(std::vector<std::string> cells);
  /// For standard output: the header may be bold.
  std::string text(bool may_shorten = is_terminal()) const;
  /// Whether all cells fit into table_columns() without shortening.
  bool fits() const;

 private:
  std::vector<std::size_t> widths() const;

  std::vector<std::pair<std::string, Align>> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Returns the output width: the terminal's width, if standard output (or `fd`) is one, but at most kTableColumns.
std::size_t table_columns(int fd = 1);
inline constexpr std::size_t kTableColumns = 100;

/// Returns the number of terminal columns of UTF-8 text, one per code point.
std::size_t display_width(const std::string& text);

/// Shortens `text` to at most `width` columns. Keeps more of its end, where names of tensors and files differ.
std::string shorten(const std::string& text, std::size_t width);

/// "1 file", "2 files", "0 entries". \param many  if it is not `one` with an s.
std::string plural(std::uint64_t count, const std::string& one, const std::string& many = {});

/// Escapes unprintable characters in `text` as \xNN.
std::string escaped(const std::string& text);

/// Breaks `text` at spaces into lines of at most `columns`, all but the first indented by `indent`. Escapes unprintable
/// characters as \xNN.
std::string wrap(const std::string& text, std::size_t indent, std::size_t columns = table_columns());

}  // namespace reshard::cli
