#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {

/// Reads the hyperparameters among the objects of `states` into `states.groups`. The objects stay where they are.
/// torch.distributed.checkpoint.state_dict (2.2 to 2.6) saves either a list of groups, each with the names of its
/// parameters ("param_groups.0.lr", "param_groups.0.params"), or the hyperparameters of every parameter by itself
/// ("param_groups.FQN.lr"), where those that have the same are a group.
/// \param in_files  those that the states' tensors lie in.
/// \throws Error kUnsupported for a hyperparameter that is no plain value, such as a tensor; kBadInput, naming the
///         object, for groups with gaps or without parameters, or a parameter in two of them; kIo.
void read_dcp_groups(Files& files, std::span<const SourceFile> in_files, TrainingStates& states);

/// The same, but leaves `states` without groups where they cannot be read as values.
/// \throws Error kIo.
void try_dcp_groups(Files& files, std::span<const SourceFile> in_files, TrainingStates& states);

/// The plain value that an object is, whose bytes lie in `source`, the file `path`. `what` is its part in errors.
/// \throws Error kUnsupported, naming the entry, for no plain value, and for more bytes than a list of names has;
///         kBadInput as read_torch_file does; kIo.
PlainValue read_dcp_object(const Source& source, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                           const std::string& entry, const std::string& what, const std::filesystem::path& path);

/// An object of an optimizer's groups, read.
struct GroupObject {
  std::string entry;  // its name and its file, for errors
  std::filesystem::path path;
  std::string key;  // what follows "param_groups." in its name: "0.lr"; empty for a list of all groups
  PlainValue value;
};

/// A group as it was saved.
struct SavedGroup {
  PlainValue::Dict values;      // without "params"
  PlainValue::List parameters;  // "params": names or numbers
  const GroupObject* list;      // the object that contains them, for errors
};

/// The groups that `objects` are of, in the order of their numbers. Borrows the objects.
/// \throws Error kBadInput, naming the object, for a key without a number, a missing group, one without a list of
///         parameters, and a key that a group has twice with different values.
std::vector<SavedGroup> saved_groups(std::span<const GroupObject> objects);

/// An object of a checkpoint: what torch.save makes of a plain value.
struct DcpGroupObject {
  std::string name;
  std::string own_name;  // with the model's name for its parameter
  DcpPath path;
  std::string bytes;
};

/// The same the other way round: `groups` as objects of an optimizer called "optimizer". `name_of` gives what a parameter
/// is called there. With `flat` every parameter has its hyperparameters by itself, as torchtitan has them.
/// \throws Error kUnsupported, naming the parameter, if two of one name have different ones.
std::vector<DcpGroupObject> dcp_group_objects(std::span<const OptimizerGroup> groups,
                                              const std::function<std::string(const std::string& parameter)>& name_of,
                                              bool flat);

}  // namespace reshard
