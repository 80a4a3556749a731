#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "reshard/specs/family/family.h"

namespace reshard {

/// New names that a caller gives to the tensors of a checkpoint; null if it gives none.
using Rename = std::function<std::string(const std::string& name)>;

/// Names in the files, without wrappers, of the tensors that a caller renamed while they were read, keyed by new name.
using OldNames = std::map<std::string, std::string>;

/// Whether tensors called `names` have to be renamed before the model is read: with `rename`, more of them are the
/// model's, or they have shorter prefixes. Returns false if `rename` is null or gives two of them the same name.
/// \param family  Null if unknown: considers all built-in families.
/// O(n log n) in the names.
bool reveals_model(std::span<const std::string> names, const Rename& rename, const Family* family);

}  // namespace reshard
