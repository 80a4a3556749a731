#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// Numbers in a name, keyed by the keys of its pattern.
using NameNumbers = std::map<std::string_view, std::uint64_t>;

/// A pattern for file names that contain numbers:
///   {tp:2}   a number, printed with at least two digits and parsed in any width; {tp} has at least one digit
///   [text]   optional; printed if it has numbers and all of them are given
///   <a|b|c>  parts joined by "_", printed in this order and parsed in any order; [a] is optional
/// Everything else is literal. Widths have one digit. Brackets cannot be nested, except that <> may contain [].
/// Matching is greedy and never backtracks. NameNumbers refer to the keys in the pattern, which must be a string
/// literal.
class NumberedName {
 public:
  /// \param max  the largest number that parse() accepts.
  constexpr explicit NumberedName(std::string_view pattern, std::uint64_t max = UINT32_MAX)
      : pattern_(pattern), max_(max) {}

  /// Returns the name with `numbers`; ignores numbers that the pattern does not have.
  /// \throws Error kInternal if a number that is not optional is missing.
  std::string print(const NameNumbers& numbers) const;
  /// Returns the numbers in `name`, or std::nullopt if it does not match.
  std::optional<NameNumbers> parse(std::string_view name) const;
  /// Same as parse, but also returns std::nullopt for widths that print() does not produce.
  std::optional<NameNumbers> parse_printed(std::string_view name) const;
  bool matches(std::string_view name) const { return parse(name).has_value(); }

 private:
  std::string_view pattern_;
  std::uint64_t max_;
};

}  // namespace reshard
