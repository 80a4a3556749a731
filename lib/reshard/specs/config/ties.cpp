#include "reshard/specs/config/ties.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/config/config_levels.h"

namespace reshard {

bool SaidTies::says(bool value) const {
  return tied == value ||
         std::any_of(levels.begin(), levels.end(), [&](const auto& level) { return level.second == value; });
}

std::string SaidTies::text() const {
  if (levels.empty()) return fmt::format("\"{}\" is {} by default", kTiedKey, tied);
  std::vector<std::string> texts;
  for (const auto& [key, value] : levels) texts.push_back(fmt::format("\"{}\" is {}", key, value));
  return join(texts, ", ");
}

std::vector<std::pair<std::string, bool>> ties_by_level(const Json& config) {
  std::vector<std::pair<std::string, bool>> levels;
  for_each_level(config, [&](const Json& level, std::vector<std::string> keys) {
    keys.emplace_back(kTiedKey);
    if (const auto said = level.find(kTiedKey); said != level.end() && said->is_boolean())
      levels.emplace_back(join(keys, "."), said->get<bool>());
  });
  return levels;
}

void set_ties(OrderedJson& config, bool tied) {
  for_each_level(config, [&](OrderedJson& level, const std::vector<std::string>&) { level[kTiedKey] = tied; });
}

bool are_tied(const SaidTies& said, HeldWeights held, const std::string& head, const std::string& embedding,
              Notes& notes) {
  switch (held) {
    case HeldWeights::kNeither: return said.tied;
    case HeldWeights::kHead:
      if (!said.says(true)) return false;
      notes
          .mismatch(fmt::format("{} is stored as {}, which is tied to it{}", embedding, head,
                                said.tied ? "" : ", though " + said.text()))
          .of({embedding, head});
      return true;
    case HeldWeights::kEmbedding:
      // Without the key, the default may be that of another version; a declaration is right.
      if (!said.levels.empty() && !said.says(true) && !said.outer_is_silent) return false;
      if (!said.tied)
        notes
            .mismatch(fmt::format(
                "there is no {}, so it is treated as tied to {}, although {}; if the model has a head of its "
                "own, the checkpoint is incomplete",
                head, embedding, said.text()))
            .of({head, embedding});
      return true;
    case HeldWeights::kBoth:
      if (said.says(true) && (said.says(false) || said.outer_is_silent))
        notes
            .mismatch(
                fmt::format("{} and {} are both stored, and both are kept: config.json does not agree with "
                            "itself whether they are tied ({}{})",
                            head, embedding, said.text(),
                            said.outer_is_silent ? fmt::format(", outside of it \"{}\" is missing", kTiedKey) : ""))
            .of({head, embedding});
      return !said.says(false) && !said.outer_is_silent;
  }
  return said.tied;
}

}  // namespace reshard
