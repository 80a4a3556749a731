// Random models on random meshes, there and back. A failure prints its seed; RESHARD_TEST_SEED runs that one alone.

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Linears that may be fused get one dtype; everything else its own. One that the shape cannot have becomes bytes.
TensorMap random_dtypes(const TinyModel& model, Random& random) {
  const bool sub_byte = random() % 3 == 0;  // few meshes leave whole bytes
  std::map<std::string, DType> dtypes;
  for (const TinyParameter& parameter : parameters_of(model)) {
    DType dtype = kDTypes[random() % std::size(kDTypes)].dtype;
    if (!sub_byte && bits(dtype) < 8) dtype = DType::kBF16;
    dtype = dtypes.emplace(joined_name(parameter.name), dtype).first->second;
    if (!num_bytes(dtype, parameter.shape)) dtypes[joined_name(parameter.name)] = DType::kU8;
  }
  TensorMap tensors;
  for (const TinyParameter& parameter : parameters_of(model))
    tensors[parameter.name] = random_tensor(random, dtypes.at(joined_name(parameter.name)), parameter.shape);
  return tensors;
}

struct Trial {
  TinyModel model;
  OracleOptions options;
  TensorMap tensors;
  ShardRequest request;
};

Trial random_trial(Random& random, const TempDir& temp) {
  Trial trial;
  trial.model = random_model(random);
  trial.options = random_options(random, trial.model);
  // Chance alone seldom makes sizes that divide: three in four trials are drawn until they do.
  const bool legal = random() % 4 != 0;
  while (legal && !is_legal(trial.model, trial.options)) {
    trial.model = random_model(random);
    trial.options = random_options(random, trial.model);
  }
  trial.tensors = random_dtypes(trial.model, random);
  trial.request.source.path = temp / "model";
  trial.request.output_directory = temp / "ranks";
  set_target(trial.request.target, trial.options);
  TensorMap written = trial.tensors;
  if (trial.model.tied && random() % 2) written["lm_head.weight"] = written["model.embed_tokens.weight"];
  write_model(temp / "model", trial.model, written, pick(random, 1, 3));
  write_file(temp / "model/tokenizer.json", "{}");
  return trial;
}

/// The part of a snapshot under the shards folder, or all of it.
std::map<std::string, std::string> weights_of(const fs::path& directory) {
  auto files = snapshot(directory);
  std::erase_if(files, [](const auto& entry) { return !entry.first.ends_with(".safetensors"); });
  return files;
}

void check_there_and_back(const Trial& trial, Random& random, const TempDir& temp) {
  FaultStorage storage;  // spares the disk the syncs
  const auto job = plan_shard(trial.request);
  execute(*job, random_run(random, storage));
  CHECK((read_ranks(temp / "ranks") == expected_ranks(trial.model, trial.tensors, trial.options)));
  const std::uint64_t block_bytes = one_of(random, {1, 7, 64, 1000});
  INFO("blocks of " << block_bytes);
  run_in_blocks(*job, temp / "small-blocks", block_bytes, 1 + static_cast<unsigned>(random() % 3));
  CHECK((weights_of(temp / "small-blocks") == weights_of(temp / "ranks")));

  ConsolidateRequest back;
  back.source.path = temp / "ranks";
  back.output_directory = temp / "whole";
  if (random() % 2) back.target.options.set_number("max-shard-size", pick(random, 1, 5000));
  const auto back_job = plan_consolidate(back);
  execute(*back_job, random_run(random, storage));
  CHECK((read_model(temp / "whole") == trial.tensors));
  CHECK(read_file(temp / "whole/tokenizer.json") == "{}");
  run_in_blocks(*back_job, temp / "whole-small", one_of(random, {1, 7, 64, 1000}), 2);
  CHECK((weights_of(temp / "whole-small") == weights_of(temp / "whole")));
}

TEST_CASE("Sharding and consolidating random models gives back every tensor, and what cannot be is refused") {
  std::size_t done = 0;
  std::size_t refused = 0;
  for (const std::uint64_t seed : seeds(90)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    const TempDir temp;
    const Trial trial = random_trial(random, temp);
    INFO(trial.model.model_type << " " << trial.model.config().dump() << " tp " << trial.options.tp << " pp "
                                << trial.options.pp << " vpp " << trial.options.vpp);
    const auto before = snapshot(temp.path());
    try {
      if (!is_legal(trial.model, trial.options)) {
        const Error error = error_of([&] { shard(trial.request); });
        INFO(error.what());
        CHECK(error.kind() == ErrorKind::kUsage);
        CHECK((snapshot(temp.path()) == before));
        ++refused;
        continue;
      }
      check_there_and_back(trial, random, temp);
      ++done;
    } catch (const Error& error) {
      INFO(error.what());
      CHECK_THAT(error.what(), Says("packed byte"));  // the one thing that the oracle does not judge
      CHECK(error.kind() == ErrorKind::kUsage);
      CHECK((snapshot(temp.path()) == before));
      ++refused;
    }
  }
  if (has_all_seeds()) {
    CHECK(done > 40);
    CHECK(refused > 12);
  }
}

TEST_CASE("Threads and memory do not change a byte of any output") {
  const TempDir temp;
  TinyModel model;
  model.tied = true;
  model.layers = 3;
  model.hidden = 384;  // some tensors take several blocks
  model.vocab = 8192;
  Random random(5);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors, 2);
  std::map<std::string, std::string> first_ranks;
  std::map<std::string, std::string> first_whole;
  for (const unsigned threads : {1u, 2u, 3u, 7u}) {
    RunOptions options;
    options.threads = threads;
    options.max_memory_bytes = threads == 3 ? std::uint64_t{64} << 20 : kMinMemoryBytes * threads;
    const std::string name = std::to_string(threads);
    shard(shard_request(temp / "model", temp / ("ranks" + name), 4, 2), options);
    ConsolidateRequest back;
    back.source.path = temp / ("ranks" + name);
    back.output_directory = temp / ("whole" + name);
    consolidate(back, options);
    const auto ranks = snapshot(temp / ("ranks" + name));
    const auto whole = snapshot(temp / ("whole" + name));
    if (first_ranks.empty()) {
      first_ranks = ranks;
      first_whole = whole;
      CHECK((read_model(temp / "whole1") == tensors));
    }
    CHECK((ranks == first_ranks));
    CHECK((whole == first_whole));
  }
}

}  // namespace
}  // namespace reshard::test
