#include "reshard/base/note.h"

#include "support/catch.h"

namespace reshard::test {
namespace {

TEST_CASE("Notes say each thing once, in the order in which they were added") {
  Notes notes;
  notes.left_out("left out: a").of({"a"}).in("model/b.pt");
  notes.hint("use c");
  notes.left_out("left out: a");
  REQUIRE(notes.texts() == std::vector<std::string>{"left out: a", "use c"});
  CHECK(notes[0] == Note{NoteKind::kLeftOut, "left out: a", {"a"}, "model/b.pt"});
  Notes earlier = Note{NoteKind::kChosen, "reading d"};
  earlier.hint("use c");
  notes.add_before(earlier);
  CHECK(notes.texts() == std::vector<std::string>{"reading d", "use c", "left out: a"});
  notes.remove(earlier);
  CHECK(notes.texts() == std::vector<std::string>{"left out: a"});
}

TEST_CASE("Each kind of note has a name and a meaning") {
  for (std::size_t i = 0; i < std::size(kNoteKinds); ++i) {
    CHECK(kNoteKinds[i].kind == NoteKind(i));
    CHECK(*kNoteKinds[i].meaning != '\0');
  }
  CHECK(name(NoteKind::kLeftOut) == std::string("left_out"));
  CHECK(name(NoteKind::kHint) == std::string("hint"));
}

}  // namespace
}  // namespace reshard::test
