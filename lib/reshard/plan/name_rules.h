#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace reshard {

/// A regular expression (ECMAScript) that names are searched with. A name longer than any real one matches nothing.
class NamePattern {
 public:
  /// `option` is what the user typed it for, "--filter".
  /// \throws Error kUsage if it is no regular expression.
  NamePattern(const std::string& option, const std::string& text);

  bool matches(const std::string& name) const;
  /// `name` with every match replaced; $1 … $9 and $& in `replacement` stand for what matched.
  std::string replace(const std::string& name, const std::string& replacement) const;
  const std::string& text() const { return text_; }

 private:
  struct Compiled;

  std::string text_;
  std::shared_ptr<const Compiled> compiled_;
};

/// Which tensors are taken over, and under which names.
struct NameRules {
  std::vector<std::pair<NamePattern, std::string>> renames;  // applied in order
  std::vector<NamePattern> drop;                             // tensors to leave out
  std::vector<NamePattern> keep;                             // if there are any: the only ones to take
};

/// "REGEX=REPLACEMENT", cut at the last "=".
/// \throws Error kUsage.
std::pair<NamePattern, std::string> parse_rename(const std::string& option, const std::string& text);

}  // namespace reshard
