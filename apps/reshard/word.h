#pragma once

#include <optional>
#include <string>

#include "launcher.h"

namespace reshard::cli {

/// Decides which of several processes on a machine reports an error, if they cannot communicate because they did not
/// start together. The first process takes the word and keeps it until it ends.
class Word {
 public:
  /// `key` is shared by exactly the processes of one run.
  explicit Word(const std::string& key);
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;
  ~Word();

  /// Whether another process has taken it.
  bool is_taken() const;
  /// \returns false if another process has taken it.
  bool take();

 private:
  std::string name_;  // name of an abstract Unix socket, which the kernel closes with its process
  int socket_ = -1;
};

/// Returns the key of the processes that were started together on this machine, from `environment`.
std::string word_key(const Environment& environment);

/// Call this before a process of `launcher` ends with an error that all processes may encounter. Rank 0 takes the word
/// at once. The others wait for a second: a launcher may end all processes once the first has failed, and one report
/// from rank 0 is enough.
/// \returns whether to report the error. Then call linger() before the process ends.
bool takes_word(Word& word, const std::optional<Launcher>& launcher);

/// Keeps the word long enough for the other processes to see that it is taken.
void linger();

}  // namespace reshard::cli
