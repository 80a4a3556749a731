#pragma once

#include <string>
#include <utility>
#include <vector>

#include "reshard/base/pattern.h"

namespace reshard {

/// A regular expression to search names for.
class NamePattern {
 public:
  /// `parameter` is the option that takes the pattern, such as "drop". Errors name it.
  /// \throws Error kUsage if `text` is not a regular expression, or one that Pattern does not support.
  NamePattern(const std::string& parameter, const std::string& text);

  bool matches(const std::string& name) const { return pattern_.found_in(name); }
  /// Returns `name` with every match replaced, as by Pattern::replace_all.
  /// \throws Error kUsage if the result is longer than the names of tensors may be.
  std::string replace(const std::string& name, const std::string& replacement) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Pattern pattern_;
};

/// Selects and renames tensors.
struct NameRules {
  std::vector<std::pair<NamePattern, std::string>> renames;  // applied in order
  std::vector<NamePattern> drop;                             // tensors to leave out
  std::vector<NamePattern> keep;                             // if not empty, the only tensors to take
  bool renumber_layers = false;                              // number the layers that are left from 0, without gaps

  bool empty() const { return renames.empty() && drop.empty() && keep.empty(); }
};

/// Returns `name` after all renames of `rules`.
std::string renamed(const NameRules& rules, std::string name);

/// Parses "REGEX=REPLACEMENT", split at the last "=".
/// \throws Error kUsage.
std::pair<NamePattern, std::string> parse_rename(const std::string& parameter, const std::string& text);

}  // namespace reshard
