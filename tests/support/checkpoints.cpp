#include "support/checkpoints.h"

#include <nlohmann/json.hpp>

#include "reshard/base/crc32.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/formats/zip/zip.h"
#include "reshard/layouts/hf/hf_files.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "support/catch.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/strided.h"

namespace reshard::test {

namespace fs = std::filesystem;

TensorMap read_whole(const fs::path& directory) {
  TensorMap all;
  for (const Container& file : read_hf_checkpoint(local_storage(), directory)) all.merge(tensors_of(file));
  return all;
}

std::map<std::string, TensorMap> read_weights(const fs::path& directory) {
  std::map<std::string, TensorMap> ranks;
  for (const auto& entry : fs::directory_iterator(directory / "weights"))
    ranks["weights/" + entry.path().filename().string()] = read_tensors(entry.path());
  return ranks;
}

TensorMap consolidated(const fs::path& checkpoint, const fs::path& output, std::shared_ptr<const Family> spec) {
  fs::remove_all(output);
  Request request;
  request.source.path = checkpoint;
  request.output_directory = output;
  request.source.family = std::move(spec);
  consolidate(request);
  return read_model(output);
}

Request deployed_request(const Layout* kind, const fs::path& model, const fs::path& output, std::uint32_t tp) {
  Request request = shard_request(model, output, tp);
  request.target.layout = kind;
  request.target.format = usual_format(*kind);
  return request;
}

std::map<std::string, TensorMap> read_shards(const fs::path& directory) {
  const auto folder = find_shards(directory);
  REQUIRE(folder);
  std::map<std::string, TensorMap> ranks;
  for (const RankFile& file : list_rank_files(local_storage(), *folder))
    ranks[rank_name(file.rank, false)] = tensors_of(read_container(file.path, file.format));
  return ranks;
}

RunResult convert(const Request& request, const RunOptions& options) {
  return execute(*plan_convert(request), options);
}

Request convert_request(const fs::path& source, const fs::path& output) {
  Request request;
  request.source.path = source;
  request.output_directory = output;
  return request;
}

}  // namespace reshard::test
