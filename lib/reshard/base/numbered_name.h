#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// The numbers in a name, by the keys of its grammar.
using NameNumbers = std::map<std::string_view, std::uint64_t>;

/// The grammar of file names that contain numbers, as one text:
///   {tp:2}   a number, printed with at least two digits and parsed in any width; {tp} has at least one
///   [text]   optional; printed if it has numbers and all of them are given
///   <a|b|c>  parts joined by "_", printed in this order and parsed in any; [a] is optional
/// Everything else is literal. Widths have one digit. Parts in brackets do not contain others, except that <> may contain [].
/// A part takes as much of a name as it can, and never gives any of it back. Numbers refer to the keys in the pattern, which
/// is a literal, too.
class NumberedName {
 public:
  /// \param max  the largest number that parse() accepts.
  constexpr explicit NumberedName(std::string_view pattern, std::uint64_t max = UINT32_MAX)
      : pattern_(pattern), max_(max) {}

  /// The name with these numbers; others are ignored.
  /// \throws Error kInternal if a number is missing that is not optional.
  std::string print(const NameNumbers& numbers) const;
  /// The numbers in `name`; std::nullopt if it does not match.
  std::optional<NameNumbers> parse(std::string_view name) const;
  /// The same, but std::nullopt also for widths that print() does not produce.
  std::optional<NameNumbers> parse_printed(std::string_view name) const;
  bool matches(std::string_view name) const { return parse(name).has_value(); }

 private:
  std::string_view pattern_;
  std::uint64_t max_;
};

}  // namespace reshard
