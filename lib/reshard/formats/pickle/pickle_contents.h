// Tensors inside objects of a pickle.
#pragma once

#include <string>
#include <vector>

#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// Returns the sorted names of unknown classes with objects that contain storages, whose meaning is unknown, too. A
/// storage in several objects counts for the first of them. The list of ranks of a DeviceMesh does not count.
std::vector<std::string> unknown_classes_with_storages(const Pickle& pickle);

/// Whether `node` contains a storage, or more nodes than are searched: many tensors may share one object.
bool may_contain_storage(const Pickle& pickle, PickleRef node);

}  // namespace reshard
