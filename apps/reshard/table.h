#pragma once

#include <string>
#include <vector>

namespace reshard::cli {

/// Whether standard output is a terminal.
bool is_terminal();
/// Takes standard output and error for no terminals, whatever they look like: mpirun of Open MPI gives rank 0 one of its
/// own, and what comes out of it may go into a file.
void set_no_terminal();

/// Lines of columns for people. In a terminal they are at most table_columns() wide, and the first column is shortened
/// when the others need the room; what goes elsewhere, such as to grep, is shown whole.
class Table {
 public:
  enum class Align { kLeft, kRight };

  explicit Table(std::vector<std::pair<std::string, Align>> columns) : columns_(std::move(columns)) {}

  /// What is not fit for a terminal in a cell is shown as \xNN.
  void add(std::vector<std::string> cells);
  std::string text(bool may_shorten = is_terminal()) const;
  /// Whether every cell fits whole into table_columns().
  bool fits() const;

 private:
  std::vector<std::size_t> widths() const;

  std::vector<std::pair<std::string, Align>> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// The width of what is printed: the terminal's, if standard output (or another descriptor) is one, and kTableColumns
/// at most.
std::size_t table_columns(int fd = 1);
inline constexpr std::size_t kTableColumns = 100;

/// Columns that UTF-8 text takes on a terminal, one a code point.
std::size_t display_width(const std::string& text);

/// `text` cut to at most `width` columns, the most of them from its end, where names of tensors and files differ.
std::string shorten(const std::string& text, std::size_t width);

/// All of `text`, with \xNN for what is not fit for a terminal.
std::string escaped(const std::string& text);

/// `text` broken at spaces into lines of at most `columns`, each after the first indented by `indent`. What is not fit
/// for a terminal is shown as \xNN.
std::string wrap(const std::string& text, std::size_t indent, std::size_t columns = table_columns());

}  // namespace reshard::cli
