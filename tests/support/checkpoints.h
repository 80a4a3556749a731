#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "reshard/engine/execute.h"
#include "reshard/formats/container.h"
#include "reshard/plan/convert.h"
#include "support/files.h"

/// Checkpoints of any format and layout, looked into with the library's readers of files, but not with its layouts.
namespace reshard::test {

/// All tensors, each in C order whatever its strides.
TensorMap tensors_of(const Container& container);

/// Of the Hugging Face directory, safetensors or torch's.
TensorMap read_whole(const std::filesystem::path& directory);

/// Of every rank of the sharded checkpoint in `directory`: "tp_rank_XX_pp_rank_YY" → tensors.
std::map<std::string, TensorMap> read_shards(const std::filesystem::path& directory);

/// Names, dtypes, shapes and hashes, as golden.json has them.
nlohmann::json describe_tensors(const TensorMap& tensors);

/// Holds the CRC of every entry of every zip archive under `directory` against its bytes. \returns their number.
std::size_t check_crcs(const std::filesystem::path& directory);

/// plan_convert and execute.
RunResult convert(const ConvertRequest& request, const RunOptions& options = {});

/// A request without the many defaults.
ConvertRequest convert_request(const std::filesystem::path& source, const std::filesystem::path& output);

}  // namespace reshard::test
