#include "reshard/base/numbered_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

/// An element of a pattern: literal text, or the text in brackets.
struct Element {
  char kind = 0;  // '{', '[', '<'; 0 for literal text
  std::string_view text;
};

Element take_element(std::string_view& pattern) {
  constexpr std::string_view kOpening = "{[<", kClosing = "}]>";
  const std::size_t bracket = kOpening.find(pattern.front());
  const bool literal = bracket == kOpening.npos;
  const std::size_t end = literal ? pattern.find_first_of(kOpening) : pattern.find(kClosing[bracket]);
  assert(literal || end != pattern.npos);
  const Element element{literal ? '\0' : pattern.front(), pattern.substr(literal ? 0 : 1, end - (literal ? 0 : 1))};
  pattern.remove_prefix(std::min(pattern.size(), literal ? end : end + 1));
  return element;
}

std::vector<std::string_view> parts_of(std::string_view set) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != set.npos; set.remove_prefix(std::min(set.size(), end + 1))) {
    end = set.find('|');
    parts.push_back(set.substr(0, end));
  }
  return parts;
}

std::string_view key_of(std::string_view field) {
  return field.substr(0, field.find(':'));
}

/// Appends the text of `pattern` to `name`. \returns false, leaving `name` unchanged, if a number is missing.
bool print_to(std::string& name, std::string_view pattern, const NameNumbers& numbers) {
  std::string text;
  while (!pattern.empty()) {
    const Element element = take_element(pattern);
    if (element.kind == '{') {
      const auto number = numbers.find(key_of(element.text));
      if (number == numbers.end()) return false;
      const std::size_t colon = element.text.find(':');
      text += fmt::format("{:0{}}", number->second, colon == pattern.npos ? 1 : element.text[colon + 1] - '0');
    } else if (element.kind == '[') {
      if (element.text.find('{') != pattern.npos) print_to(text, element.text, numbers);
    } else if (element.kind == '<') {
      std::vector<std::string> printed;
      for (const std::string_view part : parts_of(element.text))
        if (std::string one; print_to(one, part, numbers) && !one.empty()) printed.push_back(std::move(one));
      text += join(printed, "_");
    } else {
      text += element.text;
    }
  }
  name += text;
  return true;
}

/// Consumes the prefix of `name` that matches `pattern`. \returns false, leaving `name` unchanged, if none matches.
bool take(std::string_view pattern, std::uint64_t max, std::string_view& name, NameNumbers& numbers);

/// Same as take, for parts in any order.
bool take_set(std::vector<std::string_view> parts, std::uint64_t max, std::string_view& name, NameNumbers& numbers) {
  const auto is_optional = [](std::string_view part) { return part.starts_with('['); };
  const auto is_next = [&](std::string_view part) {
    return take(is_optional(part) ? part.substr(1, part.size() - 2) : part, max, name, numbers);
  };
  while (true) {
    const auto part = std::find_if(parts.begin(), parts.end(), is_next);
    if (part == parts.end()) return false;
    parts.erase(part);
    if (!name.starts_with('_')) return std::all_of(parts.begin(), parts.end(), is_optional);
    name.remove_prefix(1);
  }
}

bool take(std::string_view pattern, std::uint64_t max, std::string_view& name, NameNumbers& numbers) {
  std::string_view rest = name;
  NameNumbers found = numbers;
  while (!pattern.empty()) {
    const Element element = take_element(pattern);
    if (element.kind == '{') {
      const std::string_view digits = rest.substr(0, rest.find_first_not_of("0123456789"));
      const auto number = parse_unsigned(digits, max);
      if (!number) return false;
      found[key_of(element.text)] = *number;
      rest.remove_prefix(digits.size());
    } else if (element.kind == '[') {
      take(element.text, max, rest, found);
    } else if (element.kind == '<') {
      if (!take_set(parts_of(element.text), max, rest, found)) return false;
    } else {
      if (!rest.starts_with(element.text)) return false;
      rest.remove_prefix(element.text.size());
    }
  }
  name = rest;
  numbers = std::move(found);
  return true;
}

}  // namespace

std::string NumberedName::print(const NameNumbers& numbers) const {
  std::string name;
  if (!print_to(name, pattern_, numbers))
    throw Error(ErrorKind::kInternal, "a number is missing for a name of the form " + std::string(pattern_));
  return name;
}

std::optional<NameNumbers> NumberedName::parse(std::string_view name) const {
  NameNumbers numbers;
  if (!take(pattern_, max_, name, numbers) || !name.empty()) return std::nullopt;
  return numbers;
}

std::optional<NameNumbers> NumberedName::parse_printed(std::string_view name) const {
  auto numbers = parse(name);
  return numbers && print(*numbers) == name ? numbers : std::nullopt;
}

}  // namespace reshard
