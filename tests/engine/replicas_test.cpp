// What several ranks hold alike: compared, taken on trust, or allowed to differ.

#include <algorithm>

#include "reshard/engine/verify.h"
#include "reshard/plan/checkpoint.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/models.h"
#include "support/temp_dir.h"

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

/// A tied model on 4 ranks and 2 stages, key/value heads doubled.
struct Shards {
  TempDir temp;
  TinyModel model = tied_model();
  TensorMap originals;
  fs::path folder = temp / "shards/tensor_parallel_shards";

  Shards() {
    Random random(11);
    originals = random_tensors(model, random);
    write_model(temp / "model", model, originals);
    shard(shard_request(temp / "model", temp / "shards", 4, 2));
  }

  fs::path rank_file(int tp_rank, int pp_rank) const {
    return folder / ("tp_rank_0" + std::to_string(tp_rank) + "_pp_rank_0" + std::to_string(pp_rank)) /
           "model.safetensors";
  }
  void spoil(int tp_rank, int pp_rank, const char* tensor) const {
    TensorMap tensors = read_tensors(rank_file(tp_rank, pp_rank));
    tensors.at(tensor).bytes.back() = static_cast<char>(tensors.at(tensor).bytes.back() ^ 1);
    write_safetensors(rank_file(tp_rank, pp_rank), tensors);
  }
  ConsolidateRequest request() const {
    ConsolidateRequest request;
    request.checkpoint_directory = temp / "shards";
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
  for (const LayoutFile& file : job.source.files)
    for (const FaultStorage::Range& range : storage.reads(file.path)) bytes += range.end_bytes - range.begin_bytes;
  return bytes;
}

TEST_CASE("Every copy is read and compared, unless that is not asked for") {
  const Shards shards;
  for (const bool check : {true, false}) {
    INFO("check " << check);
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
    fs::remove_all(shards.temp / "whole");
  }
}

TEST_CASE("A copy that differs is an error that names the tensor and the rank's file, and nothing is written") {
  for (const unsigned threads : {1u, 3u}) {
    const Shards shards;
    shards.spoil(2, 0, "model.layers.0.self_attn.qkv_proj.weight_k");
    const auto before = snapshot(shards.temp.path());
    RunOptions options;
    options.threads = threads;
    const Error error = error_of([&] { consolidate(shards.request(), options); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.tensor() == "model.layers.0.self_attn.qkv_proj.weight_k");
    CHECK(error.path() == shards.rank_file(2, 0).string());
    CHECK_THAT(error.what(), Says("a copy of model.layers.0.self_attn.k_proj.weight"));
    CHECK_THAT(error.hint(), Says("--allow-divergent-replicas takes the first"));
    CHECK((snapshot(shards.temp.path()) == before));
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
  options.allow_divergent_replicas = true;
  options.threads = 3;
  for (const bool small_blocks : {false, true}) {
    std::vector<std::string> told;
    if (small_blocks) {
      const auto job = plan_consolidate(shards.request());
      fs::create_directories(shards.temp / "blocks");
      local_storage().create(shards.temp / "blocks/model.safetensors", job->target.files[0].size_bytes);
      options.on_divergence = [&](const Error& error) { told.emplace_back(error.what()); };
      run_program(job->program, shards.temp / "blocks", options, {}, 2);
      std::sort(told.begin(), told.end());
    } else {
      told = consolidate(shards.request(), options).divergent;
      CHECK((read_model(shards.temp / "whole") == shards.originals));
      fs::remove_all(shards.temp / "whole");
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

TEST_CASE("Tied matrices that differ are an error, whatever is allowed and not checked") {
  const Shards shards;
  shards.spoil(0, 1, "lm_head.weight");
  RunOptions options;
  options.allow_divergent_replicas = true;
  ConsolidateRequest request = shards.request();
  request.check_replicas = false;
  const Error error = error_of([&] { consolidate(request, options); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.tensor() == "lm_head.weight");
  CHECK_THAT(error.hint(), Says("tie_word_embeddings"));
}

TEST_CASE("Converting trusts, checks and allows as consolidating does") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  ConvertRequest request = convert_request(shards.temp / "shards", shards.temp / "whole");
  CHECK(error_of([&] { convert(request); }).path() == shards.rank_file(3, 1).string());
  RunOptions options;
  options.allow_divergent_replicas = true;
  request.dtype = DType::kF64;  // what is compared is what is stored, not what is written
  CHECK(convert(request, options).divergent.size() == 1);
  request.check_replicas = false;
  request.force = true;
  CHECK(convert(request).divergent.empty());
}

TEST_CASE("Verifying compares the copies inside either side, too") {
  const Shards shards;
  shards.spoil(3, 1, kNorm);
  const Checkpoint model = read_checkpoint(shards.temp / "model", ConfigUse::kLenient);
  const Checkpoint sharded = read_checkpoint(shards.temp / "shards", ConfigUse::kLenient);
  for (const bool sharded_first : {false, true}) {
    const Layout& a = sharded_first ? sharded.layout : model.layout;
    const Layout& b = sharded_first ? model.layout : sharded.layout;
    const Error error = error_of([&] { verify(a, b, {}, {}); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.tensor() == kNorm);
    CHECK(error.path() == shards.rank_file(3, 1).string());
    RunOptions options;
    options.allow_divergent_replicas = true;
    std::vector<std::string> told;
    options.on_divergence = [&](const Error& one) { told.emplace_back(one.what()); };
    CHECK(verify(a, b, {}, options).same());
    CHECK(told.size() == 1);
  }
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
    request.sharding.form = {ShardsKind::kOptimum, Format::kPytorch};
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
  const Checkpoint checkpoint = read_checkpoint(second, ConfigUse::kLenient);
  for (const StoredTensor& tensor : checkpoint.layout.stored)
    if (tensor.name.text() == "model.layers.0.mlp.down_proj.weight") content[tensor.offset_bytes] ^= 1;
  write_file(second, content);
  const Error error = error_of([&] { convert(request); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == second.string());
  CHECK(error.tensor() == "model.layers.0.mlp.down_proj.weight");
  RunOptions options;
  options.allow_divergent_replicas = true;
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
