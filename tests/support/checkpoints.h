#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "reshard/engine/execute.h"
#include "reshard/plan/job/request.h"
#include "support/containers.h"
#include "support/files.h"
#include "support/models.h"

/// Checkpoints of any format and layout, looked into with the library's readers of files, but not with its layouts.
namespace reshard::test {

/// Of the Hugging Face directory, safetensors or torch's.
TensorMap read_whole(const std::filesystem::path& directory);

/// Of every rank of the sharded checkpoint in `directory`: "tp_rank_XX_pp_rank_YY" → tensors.
std::map<std::string, TensorMap> read_shards(const std::filesystem::path& directory);

/// The files of weights for inference in `directory`: "weights/tpR_sharded_checkpoint.safetensors" → tensors.
std::map<std::string, TensorMap> read_weights(const std::filesystem::path& directory);

/// What consolidate makes of `checkpoint`, in one file of `output`, which is replaced.
TensorMap consolidated(const std::filesystem::path& checkpoint, const std::filesystem::path& output,
                       std::shared_ptr<const Family> spec = {});

/// plan_convert and execute.
RunResult convert(const Request& request, const RunOptions& options = unsynced());

/// Requests without the many defaults; that of shard is about `tp` ranks of one stage.
Request deployed_request(const Layout* kind, const std::filesystem::path& model, const std::filesystem::path& output,
                         std::uint32_t tp);
Request convert_request(const std::filesystem::path& source, const std::filesystem::path& output);

}  // namespace reshard::test
