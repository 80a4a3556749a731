#include "reshard/layouts/names/optimizer_entries.h"

#include <algorithm>
#include <iterator>

namespace reshard {
namespace {

constexpr std::string_view kRoots[] = {"optim", "optimizer", "optimizers", "optimizer_state", "optimizer_states"};
constexpr std::string_view kStates = "state.", kGroupEntries = "param_groups.";

constexpr std::string_view kMoments[] = {"exp_avg",         "exp_avg_sq", "max_exp_avg_sq", "exp_inf",
                                         "momentum_buffer", "square_avg", "acc_delta"};
/// Optimizer states that do not have the shape of their parameters.
constexpr std::string_view kOtherStates[] = {"step", "exp_avg_sq_row", "exp_avg_sq_col"};
/// Names that only modules have.
constexpr std::string_view kOfModules[] = {"weight", "bias"};

template <typename Words>
bool is_among(std::string_view word, const Words& words) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

std::string_view last_part(std::string_view entry) {
  return entry.substr(entry.rfind('.') + 1);
}

/// Calls `visit(begin)` for each part of `entry` that begins with `word`, first to last, until it returns true. A
/// parameter's name may contain the word too, but not many times.
template <typename Visit>
bool any_part(std::string_view entry, std::string_view word, const Visit& visit) {
  constexpr std::size_t kMost = 8;
  std::size_t count = 0;
  for (std::size_t at = entry.find(word); at != entry.npos && count < kMost; at = entry.find(word, at + 1)) {
    if (at != 0 && entry[at - 1] != '.') continue;
    ++count;
    if (visit(at)) return true;
  }
  return false;
}

}  // namespace

bool is_moment(std::string_view state) {
  return is_among(state, kMoments);
}

OptimizerEntries::OptimizerEntries(std::span<const std::string> tensors, std::span<const std::string> objects) {
  std::set<std::string, std::less<>> of_groups;
  for (const auto entries : {tensors, objects})
    for (const std::string& entry : entries) {
      any_part(entry, kGroupEntries, [&](std::size_t begin) {
        of_groups.insert(entry.substr(0, begin) += kStates);
        return true;
      });
      const std::string_view last = last_part(entry);
      if (!is_moment(last) && !is_among(last, kOtherStates)) continue;
      std::size_t innermost = entry.npos;
      any_part(entry, kStates, [&](std::size_t begin) {
        if (begin + kStates.size() + last.size() < entry.size()) innermost = begin;
        return false;
      });
      if (innermost != entry.npos) folders_.insert(entry.substr(0, innermost + kStates.size()));
    }
  // If weights are stored there as well, "state" is a word of the training program or of the model.
  for (const std::string& entry : tensors)
    if (is_among(last_part(entry), kOfModules))
      any_part(entry, kStates, [&](std::size_t begin) {
        if (const auto found = folders_.find(std::string_view(entry).substr(0, begin + kStates.size()));
            found != folders_.end())
          folders_.erase(found);
        return false;
      });
  folders_.merge(of_groups);
}

/// Position in a state's name at which its parameter's name begins; npos if the entry is not a state.
std::size_t OptimizerEntries::state_begin(std::string_view entry) const {
  std::size_t found = entry.npos;
  any_part(entry, kStates, [&](std::size_t begin) {
    if (folders_.find(entry.substr(0, begin + kStates.size())) == folders_.end()) return false;
    found = begin + kStates.size();
    return true;
  });
  return found;
}

bool OptimizerEntries::has(std::string_view entry) const {
  return is_among(entry.substr(0, entry.find('.')), kRoots) || is_moment(last_part(entry)) ||
         any_part(entry, kGroupEntries, [](std::size_t) { return true; }) || state_begin(entry) != entry.npos;
}

std::string_view OptimizerEntries::parameter_of(std::string_view entry) const {
  const std::size_t begin = state_begin(entry), end = entry.rfind('.');
  if (begin == entry.npos || end == entry.npos || end < begin) return {};
  return entry.substr(begin, end - begin);
}

}  // namespace reshard
