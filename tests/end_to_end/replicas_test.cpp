// What several ranks hold alike: compared, taken on trust, or allowed to differ.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "reshard/engine/check/verify.h"
#include "reshard/engine/move/run.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/tensor/cast/cast.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/rewrite.h"
#include "support/spoilers.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNorm = "model.layers.1.input_layernorm.weight";

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

/// A tied model on 4 ranks and 2 stages, key/value heads doubled, norms as weights have them.
struct Shards : Input {
  Shards() : Input({.layout = "ranks", .tp = 4, .pp = 2}, write) {}

  static TensorMap write(const fs::path& directory) {
    Random random(11);
    const TinyModel tiny{.heads = 8, .tied = true};
    TensorMap tensors = random_tensors(tiny, random);
    for (auto& [name, tensor] : tensors)
      if (name.find("norm") != name.npos) tensor = random_weights(random, tensor.dtype, tensor.shape);
    write_model(directory, tiny, tensors);
    return tensors;
  }
  void change(int tp_rank, int pp_rank, const std::string& tensor, const std::function<void(TensorData&)>& how) const {
    TensorData data = read_tensors(rank(tp_rank, pp_rank)).at(tensor);
    how(data);
    change_tensor(rank(tp_rank, pp_rank), tensor, [&](std::string& bytes) { bytes = data.bytes; });
  }
  /// Gives the rank other weights.
  void spoil(int tp_rank, int pp_rank, const char* tensor) const {
    change(tp_rank, pp_rank, tensor, [&](TensorData& data) {
      Random other(static_cast<std::uint64_t>(100 + 10 * tp_rank + pp_rank));
      data = random_weights(other, data.dtype, data.shape);
    });
  }
  fs::path rank(int tp_rank, int pp_rank) const {
    return rank_file(static_cast<std::uint32_t>(tp_rank), static_cast<std::uint32_t>(pp_rank));
  }
  Request request(bool check_replicas = true) const {
    return consolidate_request(path(), temp / "whole", {.check_replicas = check_replicas});
  }
  /// Executes the job in small blocks, into "blocks".
  void run_small(const RunOptions& options, std::uint64_t block_bytes) const {
    const auto job = plan_consolidate(request());
    fs::remove_all(temp / "blocks");
    fs::create_directories(temp / "blocks");
    local_storage().create(temp / "blocks/model.safetensors", job->target.files[0].size_bytes);
    run_program(job->maps(), job->program, temp / "blocks", options, {}, block_bytes);
  }
};

/// Their bytes together.
std::uint64_t size_of(const TensorMap& tensors) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.bytes.size();
  return bytes;
}

std::uint64_t bytes_read(const FaultStorage& storage, const Job& job) {
  std::uint64_t bytes = 0;
  for (const SourceFile& file : job.source.files)
    for (const FaultStorage::Range& range : storage.reads(file.path)) bytes += range.end_bytes - range.begin_bytes;
  return bytes;
}

/// Fails in `options` by itself, with nothing written.
void check_unlike(const Shards& shards, const RunOptions& options, const Refusal& refusal) {
  const auto before = snapshot(shards.temp.path());
  check_refused([&] { consolidate(shards.request(), options); }, refusal);
  CHECK((snapshot(shards.temp.path()) == before));
}

TEST_CASE("Every copy is read and compared, unless that is not asked for") {
  const Shards shards;
  for (const bool check : {true, false}) {
    DYNAMIC_SECTION((check ? "checked" : "not checked")) {
      FaultStorage storage;
      RunOptions options;
      options.stores = storage;
      const auto job = plan_consolidate(shards.request(check));
      execute(*job, options);
      CHECK((read_model(shards / "whole") == shards.tensors));
      std::uint64_t all = 0;
      for (int rank = 0; rank < 8; ++rank) all += size_of(read_tensors(shards.rank(rank % 4, rank / 4)));
      CHECK(job->program.read_bytes + job->program.check_bytes + job->program.skipped_bytes == all);
      CHECK((job->program.skipped_bytes == 0) == check);
      CHECK(bytes_read(storage, *job) == job->program.read_bytes + job->program.check_bytes);
      // A tied matrix is not of one name, so trust in the ranks is no trust in it.
      const std::uint64_t tied = shards.tensors.at("model.embed_tokens.weight").bytes.size();
      if (!check) CHECK(job->program.check_bytes == tied);
      CHECK(job->program.read_bytes == size_of(shards.tensors));
    }
  }
}

TEST_CASE("A copy that differs is an error that names the tensor and the rank's file, and nothing is written") {
  for (const unsigned threads : {1u, 3u}) {
    DYNAMIC_SECTION("threads " << threads) {
      const Shards shards;
      shards.spoil(2, 0, "model.layers.0.self_attn.qkv_proj.weight_k");
      RunOptions options;
      options.threads = threads;
      check_unlike(shards, options,
                   {.path = shards.rank(2, 0),
                    .tensor = "model.layers.0.self_attn.qkv_proj.weight_k",
                    .says = "a replica of model.layers.0.self_attn.k_proj.weight",
                    .hint = "`replicas` first takes the first rank's values"});
    }
  }
}

TEST_CASE("Without the check a copy that differs goes unnoticed, and the first is taken") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  CHECK(consolidate(shards.request(false)).divergent.empty());
  CHECK((read_model(shards / "whole") == shards.tensors));
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
        options.on_divergence = [&](const Divergence& one) { told.push_back(one.text); };
        shards.run_small(options, 2);
        std::sort(told.begin(), told.end());
      } else {
        for (const Divergence& one : consolidate(shards.request(), options).divergent) told.push_back(one.text);
        CHECK((read_model(shards / "whole") == shards.tensors));
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

TEST_CASE("Norms of layouts for inference, which no rank trained, do not drift apart") {
  for (const char* layout : {"nxdi", "presharded", "vllm"}) {
    CAPTURE(layout);
    const Input input({}, {.layout = layout, .tp = 2}, 3);
    flip_bit(input.rank_file(1), std::string(layout) == "nxdi" ? std::string(kNorm).substr(6) : kNorm);
    check_refused([&] { input.whole(); },
                  {.kind = ErrorKind::kBadInput, .path = input.rank_file(1), .says = "is a replica of"});
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
      CHECK((read_model(shards / "whole") == shards.tensors));
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
  check_refused([&] { consolidate(shards.request(), options); }, {.path = shards.rank(1, 1), .tensor = kNorm});
  CHECK_FALSE(fs::exists(shards / "whole"));
  CHECK(consolidate(shards.request()).divergent.size() == 1);
}

TEST_CASE("What differs beyond drift in training is an error") {
  struct Row {
    const char* title;
    int tp_rank, pp_rank;
    const char* tensor;
    std::function<void(const Shards&)> change;
    Refusal refusal;
  };
  const char* const heads = "model.layers.0.self_attn.qkv_proj.weight_v";
  const Row rows[] = {
      {"other weights in the place of a norm",
       2,
       1,
       kNorm,
       [](const Shards& shards) { shards.spoil(2, 1, kNorm); },
       {.says = "too far apart for drift in training: relative difference ", .hint = "`replicas` first"}},
      {"a norm that is not a number", 2, 1, kNorm,
       [](const Shards& shards) {
         shards.change(2, 1, kNorm, [](TensorData& norm) { norm.bytes[0] = norm.bytes[1] = '\x7f'; });
       }},
      {"the last bit of key/value heads", 3, 0, heads,
       [&](const Shards& shards) { flip_bit(shards.rank_file(3, 0), heads); }}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.title) {
      const Shards shards;
      row.change(shards);
      check_unlike(shards, unsynced(),
                   with_common(row.refusal, {.path = shards.rank(row.tp_rank, row.pp_rank), .tensor = row.tensor}));
    }
}

TEST_CASE("Norms of float32 do not drift") {
  const Input input({}, {.layout = "ranks", .tp = 2}, 23, DType::kF32);
  flip_bit(input.rank_file(1), kNorm);
  CHECK(input.refusal().tensor() == kNorm);
}

TEST_CASE("What is said of drift does not depend on threads and blocks") {
  const Shards shards;
  for (const std::size_t at : {26, 18, 10}) flip_bit(shards.rank_file(1, 1), kNorm, at);
  std::set<std::string> texts;
  RunOptions options;
  options.threads = 3;
  options.on_divergence = [&](const Divergence& one) { texts.insert(one.text); };
  for (const std::uint64_t block_bytes : {2, 4, 6, 1000}) shards.run_small(options, block_bytes);
  REQUIRE(texts.size() == 1);
  CHECK_THAT(*texts.begin(), Says("first at element [5]"));
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
    Request request = shard_request(temp / "model", temp / "shards");
    set_target(request.target, options);
    shard(request);
    const double by = std::pow(10.0, -static_cast<double>(random() % 6) - 1.4);  // below ReplicaDistance::kMaxRelative
    std::set<std::string> expected;
    std::size_t replicas = 0;
    for (const auto& entry : fs::directory_iterator(temp / "shards/tensor_parallel_shards")) {
      if (!entry.is_directory() || entry.path().filename().string().starts_with("tp_rank_00")) continue;
      TensorMap tensors = read_tensors(entry.path() / "model.safetensors");
      for (auto& [name, tensor] : tensors)
        if (is_norm(name) && random() % 2) drift(tensor, by, random), expected.insert(name), ++replicas;
      rewrite_safetensors(entry.path() / "model.safetensors", tensors);
    }
    Request whole = consolidate_request(temp / "shards", temp / "whole");
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
  check_refused([&] { consolidate(shards.request(false), options); },
                {.tensor = "lm_head.weight", .hint = "tie_word_embeddings"});
}

TEST_CASE("Converting trusts, checks and allows as consolidating does") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  Request request = convert_request(shards.path(), shards / "whole");
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
  const Checkpoint model = read_checkpoint(shards / "model", {ConfigUse::kLenient});
  const Checkpoint sharded = read_checkpoint(shards.path(), {ConfigUse::kLenient});
  for (const bool sharded_first : {false, true}) {
    DYNAMIC_SECTION((sharded_first ? "the shards first" : "the model first")) {
      const reshard::SourceMap& a = sharded_first ? sharded.map : model.map;
      const reshard::SourceMap& b = sharded_first ? model.map : sharded.map;
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
  const Input input({.heads = 8, .tied = true}, {.layout = "nxd", .tp = 4}, 31);
  flip_bit(input.rank_file(1), kNorm, 1);
  Request request = convert_request(input.path(), input / "whole");
  RunOptions options = unsynced();
  options.replicas = Replicas::kExact;
  check_refused([&] { convert(request, options); },
                {.tensor = kNorm, .hint = "`replicas` first takes the first rank's values"});
  options.replicas = Replicas::kFirst;
  CHECK(convert(request, options).divergent.size() == 1);
  CHECK((read_model(input / "whole") == input.tensors));

  const std::string heads = "model.layers.0.self_attn.qkv_proj.weight_k";
  flip_bit(input.rank_file(3), heads, 1);
  request.force = true;
  check_refused([&] { convert(request, options); }, {.tensor = heads, .hint = "`from-kv-replication`"});
}

TEST_CASE("Ranks that do not fit because config.json has too few key/value heads say so") {
  struct Heads {
    std::uint64_t kv_heads, wrong;
  };
  for (const Heads& heads : {Heads{4, 2}, {2, 1}}) {  // of other shapes, and of the same with other replicas
    CAPTURE(heads.kv_heads);
    const RequestFields to{.layout = "ranks", .format = Format::kSafetensors, .tp = 4};
    const Input input({.heads = 8, .kv_heads = heads.kv_heads}, to, 31);
    fs::remove(input.path() / "tensor_parallel_shards/mp_metadata_pp_rank_0.json");
    for (const std::uint32_t rank : {0, 1, 2, 3})
      write_safetensors(input.rank_file(rank), read_tensors(input.rank_file(rank)));  // without a record
    CHECK((input.whole() == input.tensors));
    merge_json(input.path() / "config.json", {{"num_key_value_heads", heads.wrong}});
    const Error refusal = error_of([&] { consolidated(input.path(), input / "other"); });
    INFO(refusal.what());
    CHECK_THAT(refusal.hint(), Says("num_key_value_heads in config.json"));
  }
}

/// A model of the layout optimum, with a second data-parallel rank that has saved the same.
struct Copies : Input {
  Copies() : Input({}, {.layout = "optimum", .tp = 2}) {
    for (const std::uint32_t rank : {0, 1}) fs::copy_file(rank_file(rank), second(rank));
  }
  fs::path second(std::uint32_t tp_rank) const {
    return rank_file(tp_rank).parent_path() / fmt::format("dp_rank_01_tp_rank_0{}_pp_rank_00.pt", tp_rank);
  }
};

TEST_CASE("Other data-parallel ranks are read and compared, and one that differs is named") {
  const Copies copies;
  Request request = convert_request(copies.path(), copies / "whole");
  const auto job = plan_convert(request);
  std::uint64_t stored = 0;
  for (const StoredTensor& tensor : job->source.stored) stored += tensor.size_bytes();
  CHECK(job->program.read_bytes + job->program.check_bytes == stored);
  CHECK(job->program.check_bytes > job->program.read_bytes);
  execute(*job, unsynced());
  CHECK((read_model(copies / "whole") == copies.tensors));

  const std::string changed = "model.layers.0.mlp.down_proj.weight";
  flip_bit(copies.second(1), changed);
  request.force = true;
  check_refused([&] { convert(request); }, {.path = copies.second(1), .tensor = changed});
  RunOptions options;
  options.replicas = Replicas::kFirst;
  CHECK(convert(request, options).divergent.size() == 1);
  CHECK((read_model(copies / "whole") == copies.tensors));
}

TEST_CASE("A data-parallel rank of its own that another lacks is taken") {
  const Copies copies;
  fs::remove(copies.rank_file(1));
  CHECK((converted(copies.path(), copies / "whole") == copies.tensors));
}

}  // namespace
}  // namespace reshard::test
