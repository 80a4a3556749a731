#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace reshard {

/// A regular expression from a user or a file, in RE2's syntax: the syntax of ECMAScript and Python without look-ahead,
/// look-behind and back references. Matching takes linear time and bounded memory for every pattern. Text and pattern
/// are UTF-8. Copies share one compiled expression. Thread-safe.
class Pattern {
 public:
  /// \throws Error kBadInput, quoting `text`, if it is not a regular expression; kUnsupported if it needs more memory
  ///         than allowed, or syntax that RE2 lacks (the message names it).
  explicit Pattern(std::string_view text);

  /// Whether any part of `text` matches.
  bool found_in(std::string_view text) const;
  /// Whether all of `text` matches.
  bool matches_all_of(std::string_view text) const;
  /// Returns `text` with every match replaced. As in ECMAScript, `replacement` may contain $& (the match), $1 … $99 (a
  /// group; empty if the pattern does not have it), $` and $' (the text before and after the match), and $$ (a "$").
  std::string replace_all(std::string_view text, std::string_view replacement) const;

 private:
  struct Compiled;

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace reshard
