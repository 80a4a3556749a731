// Readers for the files of DeepSpeed's ZeRO: each rank's parameters, weights and partitions. The format follows
// deepspeed/runtime/engine.py, runtime/zero/stage_1_and_2.py and stage3.py of 0.18. zero_partitions.h maps partitions
// to parameters. Reads no bytes of tensors, except of
// the number of steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"

namespace reshard {

/// A parameter under its name in the file, with the shape of the logical tensor.
struct ZeroParameter {
  std::string name;
  Dims shape;

  friend bool operator==(const ZeroParameter&, const ZeroParameter&) = default;
};

/// `*_model_states.pt`. Invariant: names are unique in each list and over all groups; the number of elements of every
/// shape fits in 64 bits.
struct ZeroModelStates {
  ContainerFile file;
  std::vector<TensorEntry> module;        // state dict of the module; in stage 3, without elements of parameters
  std::vector<std::string> buffer_names;  // names of buffers in `module`
  std::vector<std::vector<ZeroParameter>> groups;  // trained parameters per optimizer group, in flat order
  std::vector<ZeroParameter> frozen;
  std::vector<TensorEntry> frozen_fragments;                // whole tensors; in stage 3, this rank's part as one dim
  std::vector<std::pair<std::string, std::string>> shared;  // another name → the stored name
  std::uint64_t model_parallel_size = 1;
  std::optional<std::int64_t> global_steps;  // number of steps that were trained, if recorded
};

/// A parameter's range in a rank's partition: `count` elements from `begin` on.
struct ZeroSlice {
  std::string name;
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

/// `*_optim_states.pt`. Invariant: the masters have one dim and a float dtype, and are stored in C order.
struct ZeroOptimStates {
  ContainerFile file;
  unsigned stage = 0;                          // 1 to 3
  std::vector<std::uint64_t> partition_count;  // number of ranks: one for all groups, or one per group
  std::vector<TensorEntry> masters;            // this rank's weights per group, or per sub-group in stage 3
  /// Number of padding elements after each parameter of a group, which align the next one (since 2026, with the setting
  /// `parameter_alignment`). Either empty, or one list per partition, as long as the group or shorter.
  std::vector<std::vector<std::uint64_t>> paddings;
  std::vector<std::vector<ZeroSlice>> slices;  // one list per partition; empty if not recorded
  TensorCount state;                           // moments and other optimizer state
  std::optional<double> step{};                // number of steps of the optimizer, if recorded
};

/// \throws Error kBadInput or kUnsupported, naming the file and the key, for a damaged file or another format; kIo.
ZeroModelStates read_zero_model_states(Files& files, const std::filesystem::path& path);
ZeroOptimStates read_zero_optim_states(Files& files, const std::filesystem::path& path);

/// Returns the tensor in `zero/PARAMETER/fp32.pt` of a universal checkpoint (deepspeed/checkpoint/ds_to_universal.py):
/// the value of "param" in a dict; or, converted from stage 3, the only tensor in the file, with one dim. Sets `file`.
/// \throws as read_zero_model_states.
TensorEntry read_zero_parameter(Files& files, const std::filesystem::path& path, ContainerFile& file);

}  // namespace reshard
