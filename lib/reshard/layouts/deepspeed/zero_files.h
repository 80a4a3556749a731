// The files of a checkpoint that DeepSpeed's ZeRO saves: what a rank says of parameters, weights and partitions. As
// read in deepspeed/runtime/engine.py, runtime/zero/stage_1_and_2.py and stage3.py of 0.18. Where the partitions' bytes
// belong is for layouts to say; no byte of a tensor is read here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// A parameter as the file names it, with the shape of all of it.
struct ZeroParameter {
  std::string name;
  Dims shape;

  friend bool operator==(const ZeroParameter&, const ZeroParameter&) = default;
};

/// `*_model_states.pt`. Invariant: names are unique in each list, and all groups together; the elements of every shape
/// can be counted in 64 bits.
struct ZeroModelStates {
  ContainerFile file;
  std::vector<TensorEntry> module;                 // state dict of the module; of stage 3, parameters have no elements
  std::vector<std::string> buffer_names;           // of `module`
  std::vector<std::vector<ZeroParameter>> groups;  // trained parameters of each optimizer group, in the flat order
  std::vector<ZeroParameter> frozen;
  std::vector<TensorEntry> frozen_fragments;                // whole, or of stage 3 this rank's part, of one dim
  std::vector<std::pair<std::string, std::string>> shared;  // a name that is not stored → the one that is
  std::uint64_t model_parallel_size = 1;
};

/// A parameter's part of a rank's partition: `count` elements from `begin` on.
struct ZeroSlice {
  std::string name;
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

/// `*_optim_states.pt`. Invariant: the masters are of one dim, of a dtype that is a float, and lie in C order.
struct ZeroOptimStates {
  ContainerFile file;
  unsigned stage = 0;                          // 1 to 3
  std::vector<std::uint64_t> partition_count;  // ranks: one number, or one per group
  std::vector<TensorEntry> masters;            // this rank's weights of each group, or of stage 3 of each sub-group
  /// Elements of padding behind each parameter of a group, to align the next (since 2026, by the setting
  /// `parameter_alignment`): one list per partition, as long as the group or shorter; or none.
  std::vector<std::vector<std::uint64_t>> paddings;
  std::vector<std::vector<ZeroSlice>> slices;  // one list per partition, or none where the file has no such key
  TensorCount state;                           // moments and whatever else the optimizer keeps
};

/// \throws Error kBadInput or kUnsupported, naming the file and the key, for what is damaged or not of this form; kIo.
ZeroModelStates read_zero_model_states(Files& files, const std::filesystem::path& path);
ZeroOptimStates read_zero_optim_states(Files& files, const std::filesystem::path& path);

/// The tensor of `zero/PARAMETER/fp32.pt` in a universal checkpoint (deepspeed/checkpoint/ds_to_universal.py): the
/// value of "param" in a dict, or of stage 3 the file's one tensor, of one dim. `file` has its place.
/// \throws as read_zero_model_states.
TensorEntry read_zero_parameter(Files& files, const std::filesystem::path& path, ContainerFile& file);

}  // namespace reshard
