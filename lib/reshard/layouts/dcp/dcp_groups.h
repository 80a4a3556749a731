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

/// Reads the hyperparameters among the objects of `states` into `states.groups`. Keeps the objects in `states`.
/// torch.distributed.checkpoint.state_dict (2.2 to 2.6) saves either a list of groups with the names of their
/// parameters ("param_groups.0.lr", "param_groups.0.params"), or separate hyperparameters for every parameter
/// ("param_groups.FQN.lr"). In the latter form, parameters with equal hyperparameters become a group.
/// \param in_files  The files that contain the states.
/// \throws Error kUnsupported for a hyperparameter that is not a plain value, such as a tensor; kBadInput, naming the
///         object, if a group is missing or has no parameters, or if a parameter is in two groups; kIo.
void read_dcp_groups(Files& files, std::span<const SourceFile> in_files, TrainingStates& states);

/// Reads the groups like read_dcp_groups, but leaves `states.groups` empty if they cannot be read as values.
/// \throws Error kIo.
void try_dcp_groups(Files& files, std::span<const SourceFile> in_files, TrainingStates& states);

/// Returns the object at `offset_bytes` in `source`, the file `path`, as a plain value.
/// \param what  Name of the value in errors.
/// \throws Error kUnsupported, naming the entry, if the object is not a plain value or is larger than any list of
///         names; kBadInput as read_torch_file; kIo.
PlainValue read_dcp_object(const Source& source, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                           const std::string& entry, const std::string& what, const std::filesystem::path& path);

/// An object with values of an optimizer's groups.
struct GroupObject {
  std::string entry;  // name and file, for errors
  std::filesystem::path path;
  std::string key;  // name after "param_groups.", such as "0.lr"; empty for a list of all groups
  PlainValue value;
};

/// A parameter group as saved.
struct SavedGroup {
  PlainValue::Dict values;      // without "params"
  PlainValue::List parameters;  // "params": names or numbers
  const GroupObject* list;      // the object that contains `parameters`, for errors
};

/// Returns the groups in `objects`, in the order of their numbers. Borrows the objects.
/// \throws Error kBadInput, naming the object, if a key has no group number, a group is missing or has no list of
///         parameters, or a group has different values for one key.
std::vector<SavedGroup> saved_groups(std::span<const GroupObject> objects);

/// An object of a checkpoint: a plain value as torch.save writes it.
struct DcpGroupObject {
  std::string name;
  std::string own_name;  // the same, with the model's name of the parameter
  DcpPath path;
  std::string bytes;
};

/// Returns `groups` as objects of an optimizer called "optimizer".
/// \param name_of  Returns the name of a parameter in the checkpoint.
/// \param flat     Writes separate hyperparameters for every parameter, as torchtitan does.
/// \throws Error kUnsupported, naming the parameter, if parameters with the same name have different hyperparameters.
std::vector<DcpGroupObject> dcp_group_objects(std::span<const OptimizerGroup> groups,
                                              const std::function<std::string(const std::string& parameter)>& name_of,
                                              bool flat);

}  // namespace reshard
