#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reshard/base/pattern.h"

namespace reshard {

/// A regular expression that names are searched with.
class NamePattern {
 public:
  /// `parameter` is what takes the pattern, such as "drop"; errors name it.
  /// \throws Error kUsage if it is no regular expression, or one that Pattern does not support.
  NamePattern(const std::string& parameter, const std::string& text);

  bool matches(const std::string& name) const { return pattern_.found_in(name); }
  /// `name` with every match replaced, as Pattern::replace_all does it.
  std::string replace(const std::string& name, const std::string& replacement) const {
    return pattern_.replace_all(name, replacement);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Pattern pattern_;
};

/// Which tensors are taken over, and under which names.
struct NameRules {
  std::vector<std::pair<NamePattern, std::string>> renames;  // applied in order
  std::vector<NamePattern> drop;                             // tensors to leave out
  std::vector<NamePattern> keep;                             // if there are any: the only ones to take

  bool empty() const { return renames.empty() && drop.empty() && keep.empty(); }
};

/// "REGEX=REPLACEMENT", cut at the last "=".
/// \throws Error kUsage.
std::pair<NamePattern, std::string> parse_rename(const std::string& parameter, const std::string& text);

}  // namespace reshard
