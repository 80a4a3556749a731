#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/random.h"

/// Checkpoints as DeepSpeed's ZeRO saves them, written by plain code of the tests' own.
namespace reshard::test {

struct ZeroModel {
  std::vector<std::vector<std::string>> groups;  // names of trained parameters, in the flat order
  std::vector<std::string> frozen;
  TensorMap masters;  // of the trained, fp32
  TensorMap module;   // of all of them, bf16, and buffers
  std::vector<std::string> buffers = {"steps"};
  std::uint64_t alignment_elems = 1;  // where trained parameters begin in a group of stages 1 and 2 (DeepSpeed PR 8277)
  std::int64_t global_steps = 20;     // trained
  bool lean_ranks = false;            // padding is left out of all ranks that have some (PR 6974), not of the last only
};

/// Parameters of every shape, in random groups, some frozen, with a buffer.
ZeroModel random_zero_model(Random& random);

/// Files of `stage` (1 to 3) for `ranks` in `folder`, which is made. Of stage 3 there are `sub_groups` at most in each
/// group.
void write_zero(const std::filesystem::path& folder, const ZeroModel& model, unsigned stage, std::uint32_t ranks,
                std::uint64_t sub_groups, Random& random);

/// A universal checkpoint that is made of one of `stage`, as ds_to_universal.py makes it: of stage 3, each parameter's
/// file holds a tensor of one dim, else a dict with one of its shape.
void write_universal(const std::filesystem::path& folder, const ZeroModel& model, unsigned stage, std::uint32_t ranks,
                     Random& random);

/// What a checkpoint of it holds: masters, and of the module what is not trained.
TensorMap master_tensors(const ZeroModel& model);

}  // namespace reshard::test
