#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace reshard {

/// A regular expression from a user or a file, in RE2's syntax: that of ECMAScript and Python without look-ahead,
/// look-behind and back references. Takes time linear in the text and a bounded amount of memory, whatever the pattern
/// is. Text and pattern are UTF-8. Copies share one compiled expression; safe to use from several threads at once.
class Pattern {
 public:
  /// \throws Error kBadInput, quoting `text`, if it is no regular expression; kUnsupported if it needs syntax that RE2
  ///         lacks, which the message names, or more memory than a pattern may take.
  explicit Pattern(std::string_view text);

  /// Whether any part of `text` matches.
  bool found_in(std::string_view text) const;
  /// Whether all of `text` matches.
  bool matches_all_of(std::string_view text) const;
  /// `text` with every match replaced. In `replacement`, as in ECMAScript, $& stands for the match, $1 … $99 for a
  /// group (empty where the pattern has no such group), $` and $' for the text before and after the match, $$ for "$".
  std::string replace_all(std::string_view text, std::string_view replacement) const;

 private:
  struct Compiled;

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace reshard
