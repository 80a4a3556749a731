// What several ranks hold alike: compared, taken on trust, or allowed to differ.

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/tensor/cast/cast.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/rewrite.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNorm = "model.layers.1.input_layernorm.weight";

TinyModel tied_model() {
  TinyModel model;
  model.heads = 8;
  model.tied = true;
  return model;
}

/// Values as weights have them.
TensorData random_weights(Random& random, DType dtype, const Dims& shape) {
  std::normal_distribution<float> values(0, 0.02F);
  std::vector<float> floats(*num_elems(shape));
  for (float& value : floats) value = values(random);
  TensorData tensor{dtype, shape, std::string(*num_bytes(dtype, shape), '\0')};
  cast_elements(DType::kF32, std::as_bytes(std::span(floats)), dtype, std::as_writable_bytes(std::span(tensor.bytes)),
                Overflow::kSaturate);
  return tensor;
}

/// Moves each element by up to `by` of its size, and at least one of them by its last bit.
void drift(TensorData& tensor, double by, Random& random) {
  std::vector<float> floats(*num_elems(tensor.shape));
  const auto out = std::as_writable_bytes(std::span(floats));
  cast_elements(tensor.dtype, std::as_bytes(std::span(tensor.bytes)), DType::kF32, out, Overflow::kSaturate);
  for (float& value : floats) value *= 1 + static_cast<float>(by * (static_cast<double>(random() % 2001) / 1000 - 1));
  const std::string before = tensor.bytes;
  cast_elements(DType::kF32, std::as_bytes(std::span(floats)), tensor.dtype,
                std::as_writable_bytes(std::span(tensor.bytes)), Overflow::kSaturate);
  if (tensor.bytes == before) tensor.bytes.front() = static_cast<char>(tensor.bytes.front() ^ 1);
}

/// A tied model on 4 ranks and 2 stages, key/value heads doubled.
struct Shards {
  TempDir temp;
  TinyModel model = tied_model();
  TensorMap originals;
  fs::path folder = temp / "shards/tensor_parallel_shards";

  Shards() {
    Random random(11);
    originals = random_tensors(model, random);
    for (auto& [name, tensor] : originals)
      if (name.find("norm") != name.npos) tensor = random_weights(random, tensor.dtype, tensor.shape);
    write_model(temp / "model", model, originals);
    shard(shard_request(temp / "model", temp / "shards", 4, 2));
  }

  fs::path rank_file(int tp_rank, int pp_rank) const {
    return folder / ("tp_rank_0" + std::to_string(tp_rank) + "_pp_rank_0" + std::to_string(pp_rank)) /
           "model.safetensors";
  }
  void change(int tp_rank, int pp_rank, const std::string& tensor, const std::function<void(TensorData&)>& how) const {
    TensorMap tensors = read_tensors(rank_file(tp_rank, pp_rank));
    how(tensors.at(tensor));
    rewrite_safetensors(rank_file(tp_rank, pp_rank), tensors);
  }
  /// Gives the rank other weights.
  void spoil(int tp_rank, int pp_rank, const char* tensor) const {
    change(tp_rank, pp_rank, tensor, [&](TensorData& data) {
      Random random(static_cast<std::uint64_t>(100 + 10 * tp_rank + pp_rank));
      data = random_weights(random, data.dtype, data.shape);
    });
  }
  ConsolidateRequest request() const {
    ConsolidateRequest request;
    request.source.path = temp / "shards";
    request.output_directory = temp / "whole";
    return request;
  }
  std::uint64_t bytes_of_data() const {
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < 8; ++rank)
      for (const auto& [name, tensor] : read_tensors(rank_file(rank % 4, rank / 4))) bytes += tensor.bytes.size();
    return bytes;
  }
};

std::uint64_t bytes_read(const FaultStorage& storage, const Job& job) {
  std::uint64_t bytes = 0;
  for (const TensorFile& file : job.source.files)
    for (const FaultStorage::Range& range : storage.reads(file.path)) bytes += range.end_bytes - range.begin_bytes;
  return bytes;
}

TEST_CASE("Every copy is read and compared, unless that is not asked for") {
  const Shards shards;
  for (const bool check : {true, false}) {
    DYNAMIC_SECTION((check ? "checked" : "not checked")) {
      FaultStorage storage;
      RunOptions options;
      options.storage = &storage;
      ConsolidateRequest request = shards.request();
      request.check_replicas = check;
      const auto job = plan_consolidate(request);
      execute(*job, options);
      CHECK((read_model(shards.temp / "whole") == shards.originals));
      const std::uint64_t all = shards.bytes_of_data();
      CHECK(job->program.read_bytes + job->program.check_bytes + job->program.skipped_bytes == all);
      CHECK((job->program.skipped_bytes == 0) == check);
      CHECK(bytes_read(storage, *job) == job->program.read_bytes + job->program.check_bytes);
      // A tied matrix is not of one name, so trust in the ranks is no trust in it.
      const std::uint64_t tied = shards.originals.at("model.embed_tokens.weight").bytes.size();
      if (!check) CHECK(job->program.check_bytes == tied);
      std::uint64_t placed = 0;
      for (const auto& [name, tensor] : shards.originals) placed += tensor.bytes.size();
      CHECK(job->program.read_bytes == placed);
    }
  }
}

TEST_CASE("A copy that differs is an error that names the tensor and the rank's file, and nothing is written") {
  for (const unsigned threads : {1u, 3u}) {
    DYNAMIC_SECTION("threads " << threads) {
      const Shards shards;
      shards.spoil(2, 0, "model.layers.0.self_attn.qkv_proj.weight_k");
      const auto before = snapshot(shards.temp.path());
      RunOptions options;
      options.threads = threads;
      check_refused([&] { consolidate(shards.request(), options); },
                    {.path = shards.rank_file(2, 0),
                     .tensor = "model.layers.0.self_attn.qkv_proj.weight_k",
                     .says = "a replica of model.layers.0.self_attn.k_proj.weight",
                     .hint = "`replicas` first takes the first rank's values"});
      CHECK((snapshot(shards.temp.path()) == before));
    }
  }
}

TEST_CASE("Without the check a copy that differs goes unnoticed, and the first is taken") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  ConsolidateRequest request = shards.request();
  request.check_replicas = false;
  CHECK(consolidate(request).divergent.empty());
  CHECK((read_model(shards.temp / "whole") == shards.originals));
}

TEST_CASE("Copies that may differ are told once each, by tensor and file, and the first is taken") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  shards.spoil(1, 1, kNorm);
  shards.spoil(2, 0, "model.layers.0.self_attn.qkv_proj.weight_v");
  RunOptions options;
  options.replicas = Replicas::kFirst;
  options.threads = 3;
  for (const bool small_blocks : {false, true}) {
    DYNAMIC_SECTION((small_blocks ? "small blocks" : "large blocks")) {
      std::vector<std::string> told;
      if (small_blocks) {
        const auto job = plan_consolidate(shards.request());
        fs::create_directories(shards.temp / "blocks");
        local_storage().create(shards.temp / "blocks/model.safetensors", job->target.files[0].size_bytes);
        options.on_divergence = [&](const Divergence& one) { told.push_back(one.text); };
        run_program(job->maps(), job->program, shards.temp / "blocks", options, {}, 2);
        std::sort(told.begin(), told.end());
      } else {
        for (const Divergence& one : consolidate(shards.request(), options).divergent) told.push_back(one.text);
        CHECK((read_model(shards.temp / "whole") == shards.originals));
      }
      REQUIRE(told.size() == 3);
      CHECK_THAT(told[0], Says("tp_rank_01_pp_rank_01/model.safetensors"));
      CHECK_THAT(told[0], Says(kNorm));
      CHECK_THAT(told[1], Says("tp_rank_02_pp_rank_00/model.safetensors"));
      CHECK_THAT(told[1], Says("qkv_proj.weight_v"));
      CHECK_THAT(told[2], Says("tp_rank_03_pp_rank_01/model.safetensors"));
      CHECK_THAT(told[2], Says("first at element ["));
    }
  }
}

TEST_CASE("A norm that drifted apart between ranks is the first rank's, and told once for each replica") {
  for (const unsigned threads : {1u, 3u}) {
    DYNAMIC_SECTION("threads " << threads) {
      const Shards shards;
      Random random(21);
      for (const int tp_rank : {1, 3})
        shards.change(tp_rank, 1, kNorm, [&](TensorData& norm) { drift(norm, 0.05, random); });
      RunOptions options = unsynced();
      options.threads = threads;
      const RunResult result = consolidate(shards.request(), options);
      CHECK((read_model(shards.temp / "whole") == shards.originals));
      REQUIRE(result.divergent.size() == 2);
      for (const Divergence& one : result.divergent) {
        CHECK(one.tensor == kNorm);
        CHECK(one.is_drift);
        CHECK(one.relative > 0);
        CHECK(one.relative < 0.06);
        CHECK(one.max_abs > 0);
        CHECK(one.max_abs < 0.01);
      }
      CHECK_THAT(result.divergent[0].text, Says("tp_rank_01_pp_rank_01/model.safetensors"));
      CHECK_THAT(result.divergent[1].text, Says("tp_rank_03_pp_rank_01/model.safetensors"));
    }
  }
}

TEST_CASE("Where replicas have to be exact, drift is an error") {
  const Shards shards;
  Random random(22);
  shards.change(1, 1, kNorm, [&](TensorData& norm) { drift(norm, 1e-6, random); });
  RunOptions options = unsynced();
  options.replicas = Replicas::kExact;
  check_refused([&] { consolidate(shards.request(), options); }, {.path = shards.rank_file(1, 1), .tensor = kNorm});
  CHECK_FALSE(fs::exists(shards.temp / "whole"));
  CHECK(consolidate(shards.request()).divergent.size() == 1);
}

TEST_CASE("Other weights in the place of a norm are no drift, and the error says how far apart they are") {
  const Shards shards;
  shards.spoil(2, 1, kNorm);
  const auto before = snapshot(shards.temp.path());
  check_refused([&] { consolidate(shards.request()); },
                {.path = shards.rank_file(2, 1),
                 .tensor = kNorm,
                 .says = "too far apart for drift in training: relative difference ",
                 .hint = "`replicas` first"});
  CHECK((snapshot(shards.temp.path()) == before));
}

TEST_CASE("Norms of float32 do not drift") {
  const TempDir temp;
  const TinyModel model;
  Random random(23);
  TensorMap originals = random_tensors(model, random, DType::kF32);
  write_model(temp / "model", model, originals);
  shard(shard_request(temp / "model", temp / "shards", 2));
  const fs::path rank = temp / "shards/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
  TensorMap tensors = read_tensors(rank);
  tensors.at(kNorm).bytes[0] = static_cast<char>(tensors.at(kNorm).bytes[0] ^ 1);
  rewrite_safetensors(rank, tensors);
  ConsolidateRequest request;
  request.source.path = temp / "shards";
  request.output_directory = temp / "whole";
  CHECK(error_of([&] { consolidate(request); }).tensor() == kNorm);
}

TEST_CASE("What is said of drift does not depend on threads and blocks") {
  const Shards shards;
  Random random(24);
  shards.change(1, 1, kNorm, [&](TensorData& norm) {
    for (const std::size_t at : {26, 18, 10}) norm.bytes[at] = static_cast<char>(norm.bytes[at] ^ 1);
  });
  std::set<std::string> texts;
  for (const std::uint64_t block_bytes : {2, 4, 6, 1000}) {
    const auto job = plan_consolidate(shards.request());
    fs::remove_all(shards.temp / "blocks");
    fs::create_directories(shards.temp / "blocks");
    local_storage().create(shards.temp / "blocks/model.safetensors", job->target.files[0].size_bytes);
    RunOptions options;
    options.threads = 3;
    options.on_divergence = [&](const Divergence& one) { texts.insert(one.text); };
    run_program(job->maps(), job->program, shards.temp / "blocks", options, {}, block_bytes);
  }
  REQUIRE(texts.size() == 1);
  CHECK_THAT(*texts.begin(), Says("first at element [5]"));
}

TEST_CASE("A norm that is not a number on one rank is no drift") {
  const Shards shards;
  shards.change(2, 1, kNorm, [](TensorData& norm) { norm.bytes[0] = norm.bytes[1] = '\x7f'; });
  CHECK(error_of([&] { consolidate(shards.request()); }).tensor() == kNorm);
}

TEST_CASE("Copies of key/value heads do not drift: the smallest difference is an error") {
  const Shards shards;
  const char* const heads = "model.layers.0.self_attn.qkv_proj.weight_v";
  shards.change(3, 0, heads, [](TensorData& data) { data.bytes[0] = static_cast<char>(data.bytes[0] ^ 1); });
  check_refused([&] { consolidate(shards.request()); }, {.path = shards.rank_file(3, 0), .tensor = heads});
}

TEST_CASE("Random drift of random norms on random ranks: the first rank's values, whatever blocks and threads") {
  std::size_t drifted = 0;
  for (const std::uint64_t seed : seeds(60)) {
    Random random(seed);
    INFO("seed " << seed);
    TinyModel model = random_model(random);
    const OracleOptions options = legal_options(random, model);
    if (options.tp == 1) continue;
    const TempDir temp;
    TensorMap originals = random_tensors(model, random);
    const auto is_norm = [](const std::string& name) { return name.ends_with("norm.weight"); };
    for (auto& [name, tensor] : originals)
      if (is_norm(name)) tensor = random_weights(random, tensor.dtype, tensor.shape);
    write_model(temp / "model", model, originals);
    ShardRequest request = shard_request(temp / "model", temp / "shards");
    set_target(request.target, options);
    shard(request);
    const double by = std::pow(10.0, -static_cast<double>(random() % 6) - 1.2);
    std::set<std::string> expected;
    std::size_t replicas = 0;
    for (const auto& entry : fs::directory_iterator(temp / "shards/tensor_parallel_shards")) {
      if (!entry.is_directory() || entry.path().filename().string().starts_with("tp_rank_00")) continue;
      TensorMap tensors = read_tensors(entry.path() / "model.safetensors");
      for (auto& [name, tensor] : tensors)
        if (is_norm(name) && random() % 2) drift(tensor, by, random), expected.insert(name), ++replicas;
      rewrite_safetensors(entry.path() / "model.safetensors", tensors);
    }
    ConsolidateRequest whole;
    whole.source.path = temp / "shards";
    whole.output_directory = temp / "whole";
    const RunResult result = consolidate(whole, random_run(random, local_storage()));
    CHECK((read_model(temp / "whole") == originals));
    std::set<std::string> told;
    for (const Divergence& one : result.divergent) {
      CHECK(one.is_drift);
      told.insert(one.tensor);
    }
    CHECK(told == expected);
    CHECK(result.divergent.size() == replicas);
    whole.force = true;
    const auto job = plan_consolidate(whole);
    run_in_blocks(*job, temp / "blocks", 2 * pick(random, 1, 8), 2);
    CHECK((read_file(temp / "blocks/model.safetensors") == read_file(temp / "whole/model.safetensors")));
    drifted += replicas;
  }
  if (has_all_seeds()) CHECK(drifted > 100);
}

TEST_CASE("Tied matrices that differ are an error, whatever is allowed and not checked") {
  const Shards shards;
  shards.spoil(0, 1, "lm_head.weight");
  RunOptions options;
  options.replicas = Replicas::kFirst;
  ConsolidateRequest request = shards.request();
  request.check_replicas = false;
  check_refused([&] { consolidate(request, options); }, {.tensor = "lm_head.weight", .hint = "tie_word_embeddings"});
}

TEST_CASE("Converting trusts, checks and allows as consolidating does") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  ConvertRequest request = convert_request(shards.temp / "shards", shards.temp / "whole");
  CHECK(error_of([&] { convert(request); }).path() == shards.rank_file(3, 1).string());
  RunOptions options;
  options.replicas = Replicas::kFirst;
  request.dtype = DType::kF64;  // what is compared is what is stored, not what is written
  CHECK(convert(request, options).divergent.size() == 1);
  request.check_replicas = false;
  request.force = true;
  CHECK(convert(request).divergent.empty());
}

TEST_CASE("Verifying compares the copies inside either side, too") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  const Checkpoint model = read_checkpoint(shards.temp / "model", {ConfigUse::kLenient});
  const Checkpoint sharded = read_checkpoint(shards.temp / "shards", {ConfigUse::kLenient});
  for (const bool sharded_first : {false, true}) {
    DYNAMIC_SECTION((sharded_first ? "the shards first" : "the model first")) {
      const reshard::TensorMap& a = sharded_first ? sharded.map : model.map;
      const reshard::TensorMap& b = sharded_first ? model.map : sharded.map;
      check_refused([&] { verify(a, b, {}, {}); }, {.path = shards.rank_file(3, 1), .tensor = kNorm});
      RunOptions options;
      options.replicas = Replicas::kFirst;
      std::vector<std::string> told;
      options.on_divergence = [&](const Divergence& one) { told.push_back(one.text); };
      CHECK(verify(a, b, {}, options).same());
      CHECK(told.size() == 1);
    }
  }
}

TEST_CASE("Without metadata, norms of tensor-parallel ranks may differ where that is allowed, and heads may not") {
  const TempDir temp;
  const TinyModel model = tied_model();
  Random random(31);
  const TensorMap originals = random_tensors(model, random);
  write_model(temp / "model", model, originals);
  ShardRequest sharding = shard_request(temp / "model", temp / "nxd", 4);
  sharding.target.layout = layout("nxd"), sharding.target.format = Format::kPytorch;
  shard(sharding);
  const auto spoil = [&](const char* rank, const std::string& name) {
    const fs::path file = temp / "nxd/model" / rank;
    std::string content = read_file(file);
    std::size_t found = 0;
    const Checkpoint checkpoint = read_checkpoint(file, {ConfigUse::kLenient});
    for (const StoredTensor& tensor : checkpoint.map.stored)
      if (tensor.name.text() == name) content[tensor.offset_bytes + 1] ^= 1, ++found;
    REQUIRE(found == 1);
    write_file(file, content);
  };
  spoil("dp_rank_00_tp_rank_01_pp_rank_00.pt", kNorm);
  ConvertRequest request = convert_request(temp / "nxd", temp / "whole");
  RunOptions options = unsynced();
  options.replicas = Replicas::kExact;
  check_refused([&] { convert(request, options); },
                {.tensor = kNorm, .hint = "`replicas` first takes the first rank's values"});
  options.replicas = Replicas::kFirst;
  CHECK(convert(request, options).divergent.size() == 1);
  CHECK((read_model(temp / "whole") == originals));

  const std::string heads = "model.layers.0.self_attn.qkv_proj.weight_k";
  spoil("dp_rank_00_tp_rank_03_pp_rank_00.pt", heads);
  request.force = true;
  check_refused([&] { convert(request, options); }, {.tensor = heads, .hint = "`from-kv-replication`"});
}

/// Shards in the layout optimum, with a second data-parallel rank that has saved the same.
struct Copies {
  TempDir temp;
  TinyModel model;
  TensorMap originals;
  fs::path ranks = temp / "optimum/shards/model";

  Copies() {
    Random random(12);
    originals = random_tensors(model, random);
    write_model(temp / "model", model, originals);
    ShardRequest request = shard_request(temp / "model", temp / "optimum", 2);
    request.target.layout = layout("optimum"), request.target.format = Format::kPytorch;
    shard(request);
    for (const char* rank : {"_tp_rank_00_pp_rank_00.pt", "_tp_rank_01_pp_rank_00.pt"})
      fs::copy_file(ranks / ("dp_rank_00" + std::string(rank)), ranks / ("dp_rank_01" + std::string(rank)));
  }
};

TEST_CASE("Other data-parallel ranks are read and compared, and one that differs is named") {
  const Copies copies;
  ConvertRequest request = convert_request(copies.temp / "optimum", copies.temp / "whole");
  const auto job = plan_convert(request);
  std::uint64_t stored = 0;
  for (const StoredTensor& tensor : job->source.stored) stored += tensor.size_bytes;
  CHECK(job->program.read_bytes + job->program.check_bytes == stored);
  CHECK(job->program.check_bytes > job->program.read_bytes);
  execute(*job, unsynced());
  CHECK((read_model(copies.temp / "whole") == copies.originals));
  request.force = true;

  const fs::path second = copies.ranks / "dp_rank_01_tp_rank_01_pp_rank_00.pt";
  const TensorData original = copies.originals.at("model.layers.0.mlp.down_proj.weight");
  std::string content = read_file(second);
  const Checkpoint checkpoint = read_checkpoint(second, {ConfigUse::kLenient});
  for (const StoredTensor& tensor : checkpoint.map.stored)
    if (tensor.name.text() == "model.layers.0.mlp.down_proj.weight") content[tensor.offset_bytes] ^= 1;
  write_file(second, content);
  check_refused([&] { convert(request); }, {.path = second, .tensor = "model.layers.0.mlp.down_proj.weight"});
  RunOptions options;
  options.replicas = Replicas::kFirst;
  CHECK(convert(request, options).divergent.size() == 1);
  CHECK((read_model(copies.temp / "whole") == copies.originals));
}

TEST_CASE("A data-parallel rank of its own that another lacks is taken") {
  const Copies copies;
  fs::remove(copies.ranks / "dp_rank_00_tp_rank_01_pp_rank_00.pt");
  convert(convert_request(copies.temp / "optimum", copies.temp / "whole"));
  CHECK((read_model(copies.temp / "whole") == copies.originals));
}

}  // namespace
}  // namespace reshard::test
