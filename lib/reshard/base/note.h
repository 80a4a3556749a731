#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reshard {

/// Classifies notes by what a user can do about them. `kNoteKinds` below has their meanings.
enum class NoteKind : std::uint8_t {
  kLeftOut,
  kMissing,
  kAssumed,
  kMismatch,
  kChanged,
  kChosen,
  kReplicas,
  kNoEffect,
  kOutput,
  kHint,
};

/// The name and meaning of one NoteKind.
struct NoteKindRow {
  NoteKind kind;
  const char* name;
  const char* meaning;
};
inline constexpr NoteKindRow kNoteKinds[] = {
    {NoteKind::kLeftOut, "left_out", "part of the source is not read or not written"},
    {NoteKind::kMissing, "missing", "something is absent that the files should contain, or that a program looks for"},
    {NoteKind::kAssumed, "assumed", "not recorded in the files: inferred, or cannot be checked"},
    {NoteKind::kMismatch, "mismatch",
     "files contradict each other or the model, or are not as their writer leaves them"},
    {NoteKind::kChanged, "changed", "names, dtypes, shapes or values differ from the source's"},
    {NoteKind::kChosen, "chosen", "one of several things is used"},
    {NoteKind::kReplicas, "replicas", "replicas differ"},
    {NoteKind::kNoEffect, "no_effect", "an option has no effect"},
    {NoteKind::kOutput, "output", "other contents of the output directory, and what earlier runs left there"},
    {NoteKind::kHint, "hint", "how to continue, and which programs load the result"},
};

/// \returns "left_out", "missing", …
constexpr const char* name(NoteKind kind) {
  return kNoteKinds[static_cast<std::size_t>(kind)].name;
}

/// A message for the user that is not an error.
struct Note {
  NoteKind kind;
  std::string text;                       // a whole sentence
  std::vector<std::string> tensors = {};  // all that it is about, although the text may list only the first
  std::string file = {};                  // the file or directory that it is about

  // These two change only a note that has no tensors, or no file.
  Note& of(std::vector<std::string> names) {
    if (tensors.empty()) tensors = std::move(names);
    return *this;
  }
  Note& in(const std::filesystem::path& path) {
    if (file.empty()) file = path.string();
    return *this;
  }
  /// A note reads as its text.
  operator const std::string&() const { return text; }
  bool operator==(const Note&) const = default;
  bool operator==(std::string_view other) const { return text == other; }
};

/// Notes in the order in which they were added. No two have the same text, so that what is found on several ranks is
/// said once.
///
///   notes.left_out("left out: " + list_names(names)).of(names);
class Notes {
 public:
  Notes() = default;
  Notes(Note note) { add(std::move(note)); }

  // Each adds a note of its kind, and returns the note with this text.
  Note& left_out(std::string text) { return add({NoteKind::kLeftOut, std::move(text)}); }
  Note& missing(std::string text) { return add({NoteKind::kMissing, std::move(text)}); }
  Note& assumed(std::string text) { return add({NoteKind::kAssumed, std::move(text)}); }
  Note& mismatch(std::string text) { return add({NoteKind::kMismatch, std::move(text)}); }
  Note& changed(std::string text) { return add({NoteKind::kChanged, std::move(text)}); }
  Note& chosen(std::string text) { return add({NoteKind::kChosen, std::move(text)}); }
  Note& replicas(std::string text) { return add({NoteKind::kReplicas, std::move(text)}); }
  Note& no_effect(std::string text) { return add({NoteKind::kNoEffect, std::move(text)}); }
  Note& output(std::string text) { return add({NoteKind::kOutput, std::move(text)}); }
  Note& hint(std::string text) { return add({NoteKind::kHint, std::move(text)}); }

  Note& add(Note note) {
    const auto known = std::find(notes_.begin(), notes_.end(), std::string_view(note.text));
    return known != notes_.end() ? *known : notes_.emplace_back(std::move(note));
  }
  void add(const Notes& others) {
    for (const Note& note : others) add(note);
  }
  /// Puts `others` before these.
  void add_before(Notes others) {
    others.add(*this);
    *this = std::move(others);
  }
  /// Removes the notes that are in `others`.
  void remove(const Notes& others) {
    std::erase_if(notes_, [&](const Note& note) { return others.contains(note.text); });
  }
  bool contains(std::string_view text) const { return std::find(begin(), end(), text) != end(); }

  std::vector<Note>::const_iterator begin() const { return notes_.begin(); }
  std::vector<Note>::const_iterator end() const { return notes_.end(); }
  std::size_t size() const { return notes_.size(); }
  bool empty() const { return notes_.empty(); }
  const Note& operator[](std::size_t index) const { return notes_[index]; }
  const Note& front() const { return notes_.front(); }
  const Note& back() const { return notes_.back(); }
  std::vector<std::string> texts() const { return {begin(), end()}; }
  bool operator==(const Notes&) const = default;

 private:
  std::vector<Note> notes_;
};

}  // namespace reshard
