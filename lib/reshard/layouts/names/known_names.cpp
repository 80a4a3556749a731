#include "reshard/layouts/names/known_names.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <vector>

#include "reshard/base/strings.h"
#include "reshard/formats/torch/state_dict.h"

namespace reshard {

KnownNames::KnownNames(const Names& known) : names_(known.begin(), known.end()) {
  for (const std::string& name : known) longest_ = std::max(longest_, name.size());
}

std::optional<std::size_t> KnownNames::prefix_bytes(const std::string& entry) const {
  constexpr std::size_t kNowhere = std::string::npos;
  const std::string starred = with_stars(entry);
  std::optional<std::size_t> found;
  std::size_t end = entry.size(), starred_end = starred.size();  // end of the parts that remain to be examined
  while (true) {
    const std::size_t dot = end == 0 ? kNowhere : entry.rfind('.', end - 1);
    const std::size_t starred_dot = starred_end == 0 ? kNowhere : starred.rfind('.', starred_end - 1);
    const std::size_t begin = dot == kNowhere ? 0 : dot + 1,
                      starred_begin = starred_dot == kNowhere ? 0 : starred_dot + 1;
    if (starred.size() - starred_begin > longest_) return found;
    if (names_.count(std::string_view(starred).substr(starred_begin)) > 0) found = begin;
    if (dot == kNowhere || starred_dot == kNowhere) return found;
    end = dot;
    starred_end = starred_dot;
  }
}

Votes vote(std::span<const std::string> entries, const Names& known) {
  const KnownNames names(known);
  Votes votes;
  for (const std::string& entry : entries)
    if (const auto bytes = names.prefix_bytes(entry)) ++votes[entry.substr(0, *bytes)];
  return votes;
}

std::size_t most(const Votes& votes) {
  std::size_t count = 0;
  for (const auto& [prefix, voters] : votes) count = std::max(count, voters);
  return count;
}

bool is_of_average(std::string_view prefix) {
  const std::vector<std::string> parts = split(prefix, '.');
  return std::any_of(parts.begin(), parts.end(), is_average_key);
}

std::string chosen_prefix(const Votes& votes) {
  const auto order = [](const std::string& prefix) {
    const auto usual = std::find_if(std::begin(kUsualPrefixes), std::end(kUsualPrefixes),
                                    [&](std::string_view start) { return prefix.starts_with(start); });
    return std::tuple(is_of_average(prefix), prefix.empty() ? -1 : usual - std::begin(kUsualPrefixes), prefix.size(),
                      prefix);
  };
  std::string chosen;
  std::size_t voters = 0;
  for (const auto& [prefix, count] : votes)
    if (count > voters || (count == voters && order(prefix) < order(chosen))) {
      chosen = prefix;
      voters = count;
    }
  return chosen;
}

bool fits_most(std::span<const std::string> entries, const Votes& votes) {
  const std::string prefix = chosen_prefix(votes);
  const auto count = std::count_if(entries.begin(), entries.end(), [&](const std::string& entry) {
    return !entry.empty() && entry.starts_with(prefix);
  });
  return 2 * most(votes) >= static_cast<std::size_t>(count);
}

bool have_prefix(const std::vector<std::string>& names, std::string_view prefix) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.empty() || name.starts_with(prefix); });
}

}  // namespace reshard
