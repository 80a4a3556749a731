#include "json_report.h"

#include <fmt/format.h>

#include "support/catch.h"

namespace reshard::test {
namespace {

TEST_CASE("Notes in --json have their kind, their file and the first of their tensors") {
  std::vector<std::string> names;
  for (int i = 0; i < 101; ++i) names.push_back(fmt::format("layers.{}", i));
  Notes notes;
  notes.left_out("left out: all").of(names).in("model/a.pt");
  notes.no_effect("`x` has no effect");
  cli::Document document;
  cli::add_notes(document, notes);
  CHECK(document["notes"] == cli::Document{"left out: all", "`x` has no effect"});
  const cli::Document& first = document["findings"][0];
  CHECK(first["kind"] == "left_out");
  CHECK(first["text"] == "left out: all");
  CHECK(first["tensor_count"] == 101);
  REQUIRE(first["tensors"].size() == 100);
  CHECK(first["tensors"][99] == "layers.99");
  CHECK(first["file"] == "model/a.pt");
  CHECK(document["findings"][1] == cli::Document{{"kind", "no_effect"}, {"text", "`x` has no effect"}});
}

}  // namespace
}  // namespace reshard::test
