#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "reshard/io/files.h"

namespace reshard {

/// What DeepSpeed calls a file (runtime/engine.py: _get_zero_ckpt_name, _get_ckpt_name). "pp_rank" in these names is
/// the data-parallel rank.
struct ZeroFileName {
  enum class Kind : std::uint8_t {
    kModelStates,  // mp_rank_00_model_states.pt, zero_pp_rank_0_mp_rank_00_model_states.pt
    kOptimStates,  // [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt
    kPartOfModel,  // layer_00-model_00-model_states.pt, layer_0_expert_1_mp_rank_00_model_states.pt: a stage or experts
  };
  Kind kind;
  std::optional<std::uint32_t> dp_rank;
  std::uint32_t mp_rank = 0;
};
std::optional<ZeroFileName> zero_file_name(std::string_view name);

/// The text beside tag folders that names the newest: of ZeRO's files, and of a universal checkpoint.
inline constexpr const char* kZeroLatestFile = "latest";
inline constexpr const char* kUniversalLatestFile = "latest_universal";
/// The folder of a universal checkpoint that has a folder of each parameter.
inline constexpr const char* kUniversalFolder = "zero";
/// A script that DeepSpeed copies beside each checkpoint.
inline constexpr const char* kZeroScript = "zero_to_fp32.py";

/// Whether `folder` holds files of ZeRO, or a universal checkpoint, by the names in it.
bool is_zero_folder(Files& files, const std::filesystem::path& folder);

/// The files of a tag folder.
struct ZeroFolder {
  std::filesystem::path path;
  std::optional<std::filesystem::path> model_states;                  // of stages 0 to 2: the one file
  std::map<std::uint32_t, std::filesystem::path> ranks_model_states;  // of stage 3, by rank
  std::map<std::uint32_t, std::filesystem::path> optim_states;        // by rank
  bool is_universal = false;
};

/// Lists them: ranks by their numbers, whatever their width.
/// \throws Error kUnsupported for files of model-parallel ranks, pipeline stages or experts; kBadInput for a rank that
/// is there twice, one that is missing in the row, and for no file with the model's states.
ZeroFolder list_zero_folder(Files& files, const std::filesystem::path& folder);

}  // namespace reshard
