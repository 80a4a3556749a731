#include "table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "color.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kLeastFirstColumn = 24;

bool no_terminal = false;  // set before threads start

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// Returns the byte offset of code point `count`.
std::size_t byte_of(const std::string& text, std::size_t count) {
  std::size_t at = 0;
  while (at < text.size() && count > 0) {
    ++at;
    while (at < text.size() && continues(text[at])) ++at;
    --count;
  }
  return at;
}

std::string padded(const std::string& text, std::size_t width, Table::Align align) {
  const std::string space(width - std::min(width, display_width(text)), ' ');
  return align == Table::Align::kLeft ? text + space : space + text;
}

}  // namespace

bool is_terminal(int fd) {
  return !no_terminal && ::isatty(fd) != 0;
}

void set_no_terminal() {
  no_terminal = true;
}

std::size_t table_columns(int fd) {
  constexpr std::size_t kLeast = 60;  // minimum for useful tables
  winsize terminal{};
  if (no_terminal || ::ioctl(fd, TIOCGWINSZ, &terminal) != 0 || terminal.ws_col == 0) return kTableColumns;
  return std::clamp<std::size_t>(terminal.ws_col, kLeast, kTableColumns);
}

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

std::string shorten(const std::string& text, std::size_t width) {
  const std::size_t length = display_width(text);
  if (length <= width) return text;
  if (width < 2) return text.substr(0, byte_of(text, width));
  const std::size_t head = (width - 1) / 4;
  const std::size_t tail = width - 1 - head;
  return text.substr(0, byte_of(text, head)) + "…" + text.substr(byte_of(text, length - tail));
}

std::string plural(std::uint64_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many.empty() ? one + "s" : many);
}

std::string escaped(const std::string& raw) {
  std::string text;
  for (std::size_t at = 0; at < raw.size();) {
    if (raw[at] >= ' ' && raw[at] <= '~') {
      text += raw[at++];
      continue;
    }
    const std::size_t length = std::max<std::size_t>(1, utf8_length(std::string_view(raw).substr(at)));
    text += printable(std::string_view(raw).substr(at, length));
    at += length;
  }
  return text;
}

std::string wrap(const std::string& raw, std::size_t indent, std::size_t columns) {
  const std::string text = escaped(raw);
  std::string out;
  std::size_t column = 0;
  bool begin = true;
  bool line_has_word = false;
  for (const std::string& word : split(text, ' ')) {
    const std::size_t width = display_width(word);
    const bool first = std::exchange(begin, false);
    if (line_has_word && column + 1 + width > columns) {
      out += "\n" + std::string(indent, ' ') + word;
      column = indent + width;
      continue;
    }
    out += (first ? "" : " ") + word;
    column += width + (first ? 0 : 1);
    line_has_word = line_has_word || width > 0;
  }
  return out;
}

void Table::add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(display_width(columns_[c].first));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  return widths;
}

bool Table::fits() const {
  std::size_t all = 0;
  for (const std::size_t width : widths()) all += width + kGap;
  return all <= table_columns() + kGap;
}

std::string Table::text(bool may_shorten) const {
  std::vector<std::size_t> widths = this->widths();
  std::size_t others = 0;
  for (std::size_t c = 1; c < widths.size(); ++c) others += widths[c] + kGap;
  const std::size_t all = table_columns();
  const std::size_t room = all > others + kLeastFirstColumn ? all - others : kLeastFirstColumn;
  if (may_shorten) widths[0] = std::min(widths[0], room);
  std::string out;
  const auto line_of = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t c = 0; c < cells.size(); ++c)
      line += (c ? std::string(kGap, ' ') : "") + padded(shorten(cells[c], widths[c]), widths[c], columns_[c].second);
    while (!line.empty() && line.back() == ' ') line.pop_back();
    return line;
  };
  std::vector<std::string> heads;
  for (const auto& column : columns_) heads.push_back(column.first);
  out += styled(line_of(heads), Style::kBold, STDOUT_FILENO) + "\n";
  for (const auto& row : rows_) out += line_of(row) + "\n";
  return out;
}

}  // namespace reshard::cli
