#include "support/notes.h"

#include <stdexcept>

#include "support/catch.h"

namespace reshard::test {
namespace {

TEST_CASE("What is left out or missing cannot also be changed, and what is written cannot be left out") {
  Notes notes;
  notes.left_out("left out: a").of({"a"});
  notes.changed("padded: b").of({"b"});
  notes.hint("replicated: a").of({"a"});
  CHECK(contradictions(notes).empty());
  notes.changed("padded: a").of({"a"});
  CHECK(contradictions(notes).size() == 1);
  notes.missing("missing: b").of({"b"});
  CHECK(contradictions(notes).size() == 2);
  notes.left_out("left out: the adapter").in("adapter.pt");
  notes.chosen("reading adapter.pt").in("adapter.pt");
  CHECK(contradictions(notes).size() == 3);

  auto job = std::make_unique<Job>();
  job->notes.left_out("left out: a").of({"a"});
  job = with_checked_notes(std::move(job));
  job->target.logical.push_back({.name = "a"});
  job->target.pieces.emplace_back();
  job = with_checked_notes(std::move(job));
  job->target.pieces[0].emplace_back();
  CHECK_THROWS_AS(with_checked_notes(std::move(job)), std::logic_error);
}

TEST_CASE("A note that is printed twice is found") {
  CHECK(repeated_notes("reshard: note: a\nwrote 1 kB\nreshard: note: b\n").empty());
  CHECK(repeated_notes("reshard: note: a\nreshard: note: b\nreshard: note: a\n").size() == 1);
}

}  // namespace
}  // namespace reshard::test
