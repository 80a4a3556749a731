#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace reshard {

/// Prefix of the names in a base model, and one under which training programs store a model.
inline constexpr std::string_view kModelPrefix = "model.";
/// Prefixes under which training programs store the model's state dict.
inline constexpr std::string_view kUsualPrefixes[] = {kModelPrefix, "module.", "state_dict.", "app.",
                                                      "model_state_dict."};

/// Names of parameters, with stars for numbers.
using Names = std::set<std::string, std::less<>>;

/// Finds known names at the ends of entries.
class KnownNames {
 public:
  /// Borrows `known`.
  explicit KnownNames(const Names& known);

  /// Returns the size of the prefix before the longest suffix of `entry` that is a known name.
  std::optional<std::size_t> prefix_bytes(const std::string& entry) const;

 private:
  std::unordered_set<std::string_view> names_;
  std::size_t longest_ = 0;  // longest known name; longer suffixes are skipped
};

/// Number of entries by prefix. An entry's prefix precedes its longest suffix that is a known name.
using Votes = std::map<std::string, std::size_t, std::less<>>;

Votes vote(std::span<const std::string> entries, const Names& known);

std::size_t most(const Votes& votes);

/// Whether `prefix` contains an average of the weights: "ema.".
bool is_of_average(std::string_view prefix);

/// Returns the prefix with the most votes. If several tie, such as a model and its average, returns the most usual one
/// for models.
std::string chosen_prefix(const Votes& votes);

/// Whether at least half of the entries under the chosen prefix are votes.
bool fits_most(std::span<const std::string> entries, const Votes& votes);

/// Whether all non-empty names begin with `prefix`.
bool have_prefix(const std::vector<std::string>& names, std::string_view prefix);

template <typename Words>
bool is_one_of(std::string_view word, const Words& words) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

}  // namespace reshard
