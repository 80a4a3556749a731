#pragma once

#include <cstdint>
#include <filesystem>

/// NxD's older folders (parallel_layers/checkpointing.py save), which tests make of the newer ones.
namespace reshard::test {

enum class OlderForm : std::uint8_t {
  kOfRank,     // the optimizer under "optimizer" of each rank's file, beside the weights under "model"
  kOptimum,    // under "optimizer_state_dict" instead, as optimum-neuron 0.0.15 to 0.0.21 saves it
  kLightning,  // the one of "optimizer_states", beside "state_dict"
  kByName,     // in files of its own: optim.dp_rank_XX.tp_rank_YY, which know no stages
};

/// Writes what `folder` has in model/ and optim/ into the folder `to`. A file for every data-parallel rank that the
/// optimizer has one for, where it lies in the ranks' files.
void arrange_older(const std::filesystem::path& folder, const std::filesystem::path& to, OlderForm form, bool xser);

}  // namespace reshard::test
