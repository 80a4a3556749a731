// What a pickle contains: the classes and functions it names, and tensors inside objects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// A class or function of a pickle.
struct PickleName {
  std::string name;           // "module.name"
  std::uint64_t objects = 0;  // number that Python would create with it; 0 if it is only named, such as a dtype
  enum class Is : std::uint8_t {
    kOnlyNamedCode,         // of a module that runs code; no object is created with it
    kRecorded,              // an unknown class, whose objects are in the tree (Pickle::unknown_objects)
    kRecordedWithStorages,  // the same; some of its objects contain storages of tensors
    kKnown,                 // to read_pickle
    kOnlyNamed,
  } is = Is::kOnlyNamed;
};

/// Returns the classes and functions of a pickle, in the order of PickleName::Is, then by name.
std::vector<PickleName> pickle_names(const Pickle& pickle);

/// Returns the sorted names of unknown classes with objects that contain storages, whose meaning is unknown, too. A
/// storage in several objects counts for the first of them. The list of ranks of a DeviceMesh does not count.
std::vector<std::string> unknown_classes_with_storages(const Pickle& pickle);

/// Whether `node` contains a storage, or more nodes than are searched: many tensors may share one object.
bool may_contain_storage(const Pickle& pickle, PickleRef node);

}  // namespace reshard
