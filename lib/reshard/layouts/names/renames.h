#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reshard/specs/family/family.h"

namespace reshard {

/// New names that a caller gives to the tensors of a checkpoint; null if it gives none.
using Rename = std::function<std::string(const std::string& name)>;

/// Names in the files, without wrappers, of the tensors that a caller renamed while they were read, keyed by new name.
using OldNames = std::map<std::string, std::string>;

/// Whether tensors called `names` have to be renamed before the model is read: with `rename`, more of them are the
/// model's, or they have shorter prefixes. If only names without words that trainers put before all of them show
/// this, removes the words from `names` and adds them to `wrappers`. Returns false if `rename` is null or gives two
/// tensors the same name.
/// \param tensors  Number of names, which come first, of tensors. The others only lose the words.
/// \param family   Null if unknown: considers all built-in families.
/// O(n log n) in the names.
bool reveals_model(std::vector<std::string>& names, std::size_t tensors, const Rename& rename, const Family* family,
                   std::set<std::string>& wrappers);

}  // namespace reshard
