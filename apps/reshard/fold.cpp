#include "fold.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

using Numbers = std::vector<std::uint64_t>;

struct Member {
  Numbers numbers;
  std::uint32_t index;
};

/// A full grid: every combination of one number per set is a member.
struct Grid {
  std::vector<Numbers> sets;
  std::vector<std::uint32_t> members;
};

/// Parses a number without leading zeros.
std::optional<std::uint64_t> as_number(std::string_view part) {
  if (part.size() > 1 && part[0] == '0') return std::nullopt;
  return parse_unsigned(part);
}

/// Replaces each number in a name by a star. Names that already contain a star keep their numbers.
std::string make_pattern(std::string_view name, Numbers& numbers) {
  std::string pattern;
  pattern.reserve(name.size());
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::string_view part = name.substr(begin, name.find('.', begin) - begin);
    if (part == "*") return numbers.clear(), std::string(name);
    const auto number = as_number(part);
    if (number) numbers.push_back(*number);
    if (begin > 0) pattern += '.';
    pattern += number ? "*" : part;
    begin += part.size() + 1;
  }
  return pattern;
}

/// Divides members into grids over their numbers from `position` on.
std::vector<Grid> make_grids(const std::vector<const Member*>& members, std::size_t position) {
  if (members.empty() || position == members.front()->numbers.size()) {
    Grid grid;
    for (const Member* member : members) grid.members.push_back(member->index);
    return {grid};
  }
  std::map<std::uint64_t, std::vector<const Member*>> by_number;
  for (const Member* member : members) by_number[member->numbers[position]].push_back(member);
  // Numbers whose members have the same grids from here on are merged.
  std::map<std::vector<std::vector<Numbers>>, std::pair<Numbers, std::vector<Grid>>> alike;
  for (const auto& [number, rest] : by_number) {
    std::vector<Grid> grids = make_grids(rest, position + 1);
    std::vector<std::vector<Numbers>> look;
    look.reserve(grids.size());
    for (const Grid& grid : grids) look.push_back(grid.sets);
    auto& [numbers, merged] = alike[look];
    numbers.push_back(number);
    if (merged.empty()) merged.resize(grids.size());
    for (std::size_t g = 0; g < grids.size(); ++g) {
      merged[g].sets = grids[g].sets;
      merged[g].members.insert(merged[g].members.end(), grids[g].members.begin(), grids[g].members.end());
    }
  }
  std::vector<Grid> result;
  for (auto& [look, group] : alike)
    for (Grid& grid : group.second) {
      grid.sets.insert(grid.sets.begin(), group.first);
      result.push_back(std::move(grid));
    }
  return result;
}

std::string name_of(const std::string& pattern, const Grid& grid) {
  std::vector<std::string> parts = split(pattern, '.');
  std::size_t next = 0;
  for (std::string& part : parts)
    if (part == "*" && next < grid.sets.size()) part = number_set(grid.sets[next++]);
  return join(parts, ".");
}

/// Returns the end of the arithmetic progression that starts at `begin`.
std::size_t end_of_steps(const Numbers& numbers, std::size_t begin) {
  std::size_t end = std::min(begin + 2, numbers.size());
  while (end < numbers.size() && numbers[end] - numbers[end - 1] == numbers[begin + 1] - numbers[begin]) ++end;
  return end;
}

}  // namespace

std::string without_numbers(std::string_view name) {
  Numbers numbers;
  return make_pattern(name, numbers);
}

std::string number_set(const Numbers& numbers, int digits) {
  constexpr std::size_t kFewestSteps = 3;  // minimum length of a range with a step: two numbers are clearer alone
  if (numbers.size() == 1) return fmt::format("{:0{}}", numbers.front(), digits);
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = end_of_steps(numbers, i);
    const std::uint64_t step = end - i > 1 ? numbers[i + 1] - numbers[i] : 1;
    if (step > 1 && end - i < kFewestSteps) end = i + 1;
    text += fmt::format("{}{:0{}}", text.empty() ? "" : ",", numbers[i], digits);
    if (end - i > 1) text += fmt::format("..{:0{}}", numbers[end - 1], digits);
    if (end - i > 1 && step > 1) text += fmt::format("..{}", step);
    i = end;
  }
  return "{" + text + "}";
}

std::vector<Folded> fold(const std::vector<Foldable>& items) {
  std::vector<Member> members(items.size());
  std::map<std::pair<std::string, std::string>, std::vector<const Member*>> by_pattern;
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    members[i].index = i;
    by_pattern[{make_pattern(items[i].name, members[i].numbers), items[i].key}].push_back(&members[i]);
  }
  std::vector<Folded> folded;
  for (const auto& [pattern, alike] : by_pattern) {
    for (Grid& grid : make_grids(alike, 0)) {
      std::sort(grid.members.begin(), grid.members.end());
      folded.push_back({name_of(pattern.first, grid), std::move(grid.members)});
    }
  }
  std::sort(folded.begin(), folded.end(), [](const Folded& a, const Folded& b) { return a.members < b.members; });
  return folded;
}

}  // namespace reshard::cli
