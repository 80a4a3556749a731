#include "table.h"

#include <algorithm>
#include <sstream>

#include "progress.h"
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

TEST_CASE("the progress line fits every terminal") {
  for (const int columns : {1, 10, 20, 40, 60, 80, 100, 200})
    for (const bool flushing : {false, true})
      CHECK(progress_line(123456789, 4970000000, 1.5, flushing, columns).size() <
            static_cast<std::size_t>(std::max(columns, 1)));
}

TEST_CASE("the progress line says bytes, rate and time left") {
  const std::string line = progress_line(1'000'000'000, 4'000'000'000, 2.0, false, 100);
  CHECK_THAT(line, Says(" 25%"));
  CHECK_THAT(line, Says("1.00 GB of 4.00 GB"));
  CHECK_THAT(line, Says("500 MB/s"));
  CHECK_THAT(line, Says("0:06 left"));
  CHECK_THAT(line, Says("[======="));
  CHECK_THAT(progress_line(0, 100, 0.0, false, 80), !Says("left"));
}
