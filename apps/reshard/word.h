#pragma once

#include <optional>
#include <string>

#include "launcher.h"

namespace reshard::cli {

/// Who of several processes speaks, where they cannot ask each other: they did not start together. On one machine the
/// first one has the word, and keeps it until its process ends.
class Word {
 public:
  /// `key` is the same for all processes of a run, and for no others.
  explicit Word(const std::string& key);
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;
  ~Word();

  /// Whether another process has it.
  bool is_taken() const;
  /// \returns false if another process has it.
  bool take();

 private:
  std::string name_;  // names a Unix socket without a file, which the kernel closes with its process
  int socket_ = -1;
};

/// The key of the processes that were started together on this machine, as `environment` says.
std::string word_key(const Environment& environment);

/// To be called before a process of `launcher` ends with an error that perhaps all of them meet, each by itself. Rank 0
/// takes the word at once. Others wait for a second: a launcher may end all once the first has failed, and what rank 0
/// says does for all.
/// \returns whether to say it. Then linger() before the process ends.
bool takes_word(Word& word, const std::optional<Launcher>& launcher);

/// Keeps the word until the other processes had time to see that it is taken.
void linger();

}  // namespace reshard::cli
