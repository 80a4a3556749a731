// What a pickle is made of, by class.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// A class or function that a pickle names.
struct PickleName {
  std::string name;           // "module.name"
  std::uint64_t objects = 0;  // that Python would make of it; 0 if it is only named, such as a dtype
  bool is_known = true;       // false if the objects are of an unknown class
};

/// Returns the names in `pickle`, sorted, each once.
std::vector<PickleName> names_in(const Pickle& pickle);

/// Returns the sorted names of unknown classes with objects that contain storages, whose meaning is unknown, too. A
/// storage in several objects counts for the first of them. The list of ranks of a DeviceMesh does not count.
std::vector<std::string> unknown_classes_with_storages(const Pickle& pickle);

/// Whether `node` contains a storage, or more nodes than are searched: many tensors may share one object.
bool may_contain_storage(const Pickle& pickle, PickleRef node);

}  // namespace reshard
