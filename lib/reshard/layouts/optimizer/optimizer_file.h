// One file of an optimizer's state_dict() as NeuronX Distributed (NxD) saves it, plain or xser (trainer/checkpoint.py;
// the ZeRO-1 form is torch_xla's distributed/zero_redundancy_optimizer.py, the form with experts is NxD's
// optimizer/ep_zero.py). If the file also contains the weights, the optimizer is the value of "optimizer" (NxD's
// examples/training, tp_dp_bert_*) or "optimizer_state_dict" (optimum-neuron 0.0.21, distributed/base.py), or the only
// item of "optimizer_states" (Lightning's trainer). Layouts determine which parameter a number refers to and which of
// its rows the file contains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/io/files.h"
#include "reshard/layouts/states/optimizer_stage.h"

namespace reshard {

/// One rank's file.
struct OptimizerFile : OptimizerStage {
  std::vector<ContainerFile> files;  // indexed by TensorEntry::file; the first is `path`; contain every tensor's bytes
  bool is_xser = false;
  std::optional<std::uint64_t> dp_rank, tp_rank;  // recorded in the file
  std::vector<std::string> others;                // unknown keys of its dict
};

/// Whether `path`, a file of weights, also contains the key of an optimizer, even with an invalid value.
/// \throws Error like read_torch_file.
bool holds_optimizer(Files& files, const std::filesystem::path& path);

/// Reads a rank's file without the bytes of its tensors.
/// \throws Error kBadInput, naming the file and the position in its dict, if it is damaged or not such a file, or has
/// more than 10 000 groups or more than 64 states per parameter; kUnsupported for several optimizers and for
/// hyperparameters that are not plain values, such as tensors; like read_torch_file and XserTensors.
OptimizerFile read_optimizer_file(Files& files, const std::filesystem::path& path);

}  // namespace reshard
