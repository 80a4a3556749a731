#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/numbered_name.h"
#include "reshard/formats/common/format.h"
#include "reshard/io/files.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard {

/// Marker files beside shards: a save has begun, a save is complete. Their text is "1" (optimum-neuron, NxD).
inline constexpr const char* kCheckpointMarker = "checkpoint";
inline constexpr const char* kDoneMarker = "done";

/// A rank's state dict in a folder of its own, as NxD's older trainers save it (parallel_layers/checkpointing.py).
inline constexpr const char* kRankCheckpointFile = "checkpoint.pt";

/// The numbers in the names of a rank's files, by the keys "tp", "pp", "dp" and "ep".
NameNumbers numbers_of(RankId rank);
/// The same, read. Numbers that the name lacks are 0.
RankId rank_of(const NameNumbers& numbers);

/// "tp_rank_03_pp_rank_00", at least two digits each. With experts "ep_rank_01_" precedes "tp_rank" (NxD), with
/// `dp` "dp_rank_00_" before all.
std::string rank_name(RankId rank, bool dp);
/// The numbers of a name made of `dp_rank_N`, `ep_rank_N`, `tp_rank_N` and `pp_rank_N` in any order and of any width;
/// tp and pp must be there. std::nullopt for any other name.
std::optional<RankId> rank_of_name(std::string_view name);

/// One rank's weights as they stand on disk.
struct RankFile {
  RankId rank;
  std::filesystem::path path;
  Format format = Format::kSafetensors;
  std::optional<std::uint32_t> part;  // of a layout whose ranks may have several files: the number of this one
  std::vector<std::filesystem::path> more_parts;  // the files after it
};

/// The format of a file that torch saved: xser if the folder of its tensors is beside it.
Format torch_format_of(Files& files, const std::filesystem::path& path);

}  // namespace reshard
