#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "reshard/base/json.h"
#include "reshard/specs/config/model_config.h"

namespace reshard {

/// Calls `visit` with a configuration, that of its language model, and so on, each with the keys that lead to it.
template <typename AnyJson, typename Visit>
void for_each_level(AnyJson& config, const Visit& visit) {
  std::vector<std::string> keys;
  for (AnyJson* level = &config; level != nullptr;) {
    visit(*level, keys);
    const auto part = std::find_if(kTextConfigs.begin(), kTextConfigs.end(), [&](const char* key) {
      const auto found = level->find(key);
      return found != level->end() && found->is_object();
    });
    if (part == kTextConfigs.end()) break;
    keys.emplace_back(*part);
    level = &level->at(*part);
  }
}

}  // namespace reshard
