#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

namespace reshard {

/// Heads that models have instead of the language model's head, or in addition to it: those of Transformers' classes
/// for classification and question answering, and of reward models.
inline constexpr std::string_view kOtherHeads[] = {"score",  "classifier", "qa_outputs",
                                                   "v_head", "value_head", "reward_head"};

inline bool is_other_head(std::string_view module) {
  return std::find(std::begin(kOtherHeads), std::end(kOtherHeads), module) != std::end(kOtherHeads);
}

}  // namespace reshard
