#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/base/json_fwd.h"

namespace reshard {

/// A value that config.json should have, as the tensors show, in place of its own.
struct ConfigChange {
  std::vector<std::string> keys;      // that lead to the value, outermost first: "text_config", "vocab_size"
  std::shared_ptr<const Json> value;  // null JSON: the last key is removed
  std::string says;                   // what a config.json with this value says: "how the weights are quantised: …"
};

/// Changes `config`, unless it lacks one of the objects that the keys lead through.
void apply_change(const ConfigChange& change, Json& config);
void apply_change(const ConfigChange& change, OrderedJson& config);

/// Whether `config` has the value.
bool is_applied(const ConfigChange& change, const OrderedJson& config);

/// Returns the changes of `key` from one value to another in `config` and in the configuration of its language model.
std::vector<ConfigChange> changes_of_key(const Json& config, const std::string& key, const Json& from, const Json& to);

/// Returns the change of quantization_config. \param quantization  null if the weights are not quantised.
ConfigChange quantization_change(std::shared_ptr<const Json> quantization);

}  // namespace reshard
