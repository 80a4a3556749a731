#include "support/notes.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <stdexcept>

#include "reshard/base/strings.h"

namespace reshard::test {
namespace {

/// What is left out or missing is not in the result, so nothing can be said of how it got there.
bool are_apart(NoteKind a, NoteKind b) {
  const auto is_absent = [](NoteKind kind) { return kind == NoteKind::kLeftOut || kind == NoteKind::kMissing; };
  const auto is_present = [](NoteKind kind) { return kind == NoteKind::kChanged || kind == NoteKind::kChosen; };
  return (is_absent(a) && is_present(b)) || (is_present(a) && is_absent(b)) || (is_absent(a) && is_absent(b) && a != b);
}

}  // namespace

std::vector<std::string> contradictions(const Notes& notes) {
  std::vector<std::string> found;
  std::map<std::string, std::vector<const Note*>> by_tensor, by_file;
  const auto add = [&](const std::string& what, std::vector<const Note*>& others, const Note& note) {
    for (const Note* other : others)
      if (are_apart(other->kind, note.kind))
        found.push_back(
            fmt::format("{} is {} ({}) and {} ({})", what, name(other->kind), other->text, name(note.kind), note.text));
    others.push_back(&note);
  };
  for (const Note& note : notes) {
    for (const std::string& tensor : note.tensors) add(tensor, by_tensor[tensor], note);
    if (!note.file.empty()) add(note.file, by_file[note.file], note);
  }
  return found;
}

std::unique_ptr<Job> with_checked_notes(std::unique_ptr<Job> job) {
  std::vector<std::string> wrong = contradictions(job->notes);
  std::set<std::string> tensors, files;
  for (std::size_t l = 0; l < job->target.logical.size(); ++l)
    if (!job->target.pieces[l].empty()) tensors.insert(job->target.logical[l].name);
  for (const SourceFile& file : job->source.files) files.insert(file.path.string());
  for (const CopiedFile& file : job->copied_files) files.insert(file.source.string());
  for (const Note& note : job->notes) {
    if (note.kind == NoteKind::kLeftOut && files.contains(note.file)) wrong.push_back(note.file + ": " + note.text);
    if (note.kind != NoteKind::kLeftOut && note.kind != NoteKind::kMissing) continue;
    for (const std::string& tensor : note.tensors)
      if (tensors.contains(tensor)) wrong.push_back(tensor + " is written: " + note.text);
  }
  if (!wrong.empty()) throw std::logic_error("the notes are wrong: " + join(wrong, "; "));
  return job;
}

std::vector<std::string> repeated_notes(const std::string& printed) {
  std::vector<std::string> found;
  std::set<std::string> lines;
  for (const std::string& line : split(printed, '\n'))
    if (line.starts_with("reshard: note: ") && !lines.insert(line).second) found.push_back(line);
  return found;
}

}  // namespace reshard::test
