#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/io/files.h"

namespace reshard {

/// A file name of DeepSpeed (runtime/engine.py: _get_zero_ckpt_name, _get_ckpt_name). "pp_rank" in these names is the
/// data-parallel rank.
struct ZeroFileName {
  enum class Kind : std::uint8_t {
    kModelStates,  // mp_rank_00_model_states.pt, zero_pp_rank_0_mp_rank_00_model_states.pt
    kOptimStates,  // [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt
    kPartOfModel,  // layer_00-model_00-model_states.pt, layer_0_expert_1_mp_rank_00_model_states.pt; a stage or experts
  };
  Kind kind;
  std::optional<std::uint32_t> dp_rank;
  std::uint32_t mp_rank = 0;
};
std::optional<ZeroFileName> zero_file_name(std::string_view name);

/// Returns why a file with such a name is not a whole model: it belongs to one rank, pipeline stage or expert. std::nullopt
/// for the model states of ZeRO 0 to 2, which only one rank saves, and for other files.
std::optional<Error> explain_zero_file(Files& files, const std::filesystem::path& path);

/// Text files next to the tag folders that name the latest ZeRO folder and the latest universal checkpoint.
inline constexpr const char* kZeroLatestFile = "latest";
inline constexpr const char* kUniversalLatestFile = "latest_universal";
/// Folder of a universal checkpoint with one folder per parameter.
inline constexpr const char* kUniversalFolder = "zero";
/// Script that DeepSpeed copies next to each checkpoint.
inline constexpr const char* kZeroScript = "zero_to_fp32.py";

/// Whether `folder` contains ZeRO's files or a universal checkpoint, by file names alone.
bool is_zero_folder(Files& files, const std::filesystem::path& folder);

/// The files of a tag folder.
struct ZeroFolder {
  std::filesystem::path path;
  std::optional<std::filesystem::path> model_states;                  // the only file of stages 0 to 2
  std::map<std::uint32_t, std::filesystem::path> ranks_model_states;  // stage 3, keyed by rank
  std::map<std::uint32_t, std::filesystem::path> optim_states;        // keyed by rank
  bool is_universal = false;
};

/// Lists the files of a tag folder. Accepts rank numbers of any width.
/// \throws Error kUnsupported for files of model-parallel ranks, pipeline stages or experts; kBadInput if a rank exists
/// twice or is missing, or if no file contains the model's states.
ZeroFolder list_zero_folder(Files& files, const std::filesystem::path& folder);

}  // namespace reshard
