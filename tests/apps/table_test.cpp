#include "table.h"

#include <algorithm>
#include <sstream>

#include "support/catch.h"
#include "support/errors.h"

using namespace reshard::cli;
using reshard::test::Says;

namespace {

std::size_t widest_line(const std::string& text) {
  std::istringstream in(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(in, line);) widest = std::max(widest, display_width(line));
  return widest;
}

}  // namespace

TEST_CASE("a table aligns its columns and has no spaces at the ends of lines") {
  Table table({{"name", Table::Align::kLeft}, {"bytes", Table::Align::kRight}, {"x", Table::Align::kLeft}});
  table.add({"a", "10 B", ""});
  table.add({"long name", "1 B", "y"});
  CHECK(table.text() ==
        "name       bytes  x\n"
        "a           10 B\n"
        "long name    1 B  y\n");
}

TEST_CASE("in a terminal a table never exceeds 100 columns: the first column is shortened, elsewhere it is whole") {
  Table table({{"name", Table::Align::kLeft}, {"rest", Table::Align::kLeft}});
  table.add({std::string(60, 'a') + std::string(60, 'b'), std::string(40, 'r')});
  CHECK_FALSE(table.fits());
  CHECK(widest_line(table.text(true)) == kTableColumns);
  CHECK_THAT(table.text(true), Says("\n" + std::string(14, 'a') + "…" + std::string(43, 'b') + "  rrr"));
  CHECK_THAT(table.text(false), Says("\n" + std::string(60, 'a') + std::string(60, 'b') + "  rrr"));
}

TEST_CASE("text with more bytes than columns is measured in columns") {
  CHECK(display_width("4 × 7 kB") == 8);
  CHECK(shorten("ääääääö", 5) == "ä…ääö");
}

TEST_CASE("wrapped text keeps its leading spaces and indents what follows") {
  const std::string text = wrap("label     " + std::string(80, 'x') + " " + std::string(30, 'y'), 10);
  CHECK(text == "label     " + std::string(80, 'x') + "\n          " + std::string(30, 'y'));
  CHECK(wrap("     a b", 5) == "     a b");
}
