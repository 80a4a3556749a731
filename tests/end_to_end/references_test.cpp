// The reference systems' own files where runs.json of testdata/golden cannot say what is done: replaced by force,
// compared in place, without an output directory, or read where the reference is wrong.

#include <nlohmann/json.hpp>

#include "reshard/engine/check/verify.h"
#include "support/checkpoints.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Adjacent copies: a head's are on neighbours, the queries in their own order, where the converter is wrong") {
  const fs::path model = testdata("golden/converter/llama-tp8-m2-trn1/original");
  const TensorMap tensors = read_model(model);
  const TempDir temp;
  shard(model, temp / "out", {.layout = "nxd", .tp = 8, .options = {"kv-replication=adjacent"}});
  const auto ranks = read_shards(temp / "out");
  REQUIRE(ranks.size() == 8);
  // 8 query and 4 key/value heads of 4 rows: rank r has query head r and key/value head r / 2. NxD's converter would
  // write head r % 4 here, of which the queries of rank r know nothing.
  const TensorData& query = tensors.at("model.layers.1.self_attn.q_proj.weight");
  const TensorData& key = tensors.at("model.layers.1.self_attn.k_proj.weight");
  const std::size_t head_bytes = 4ull * 32 * 2;
  for (std::size_t rank = 0; rank < 8; ++rank) {
    const TensorMap& held = ranks.at("tp_rank_0" + std::to_string(rank) + "_pp_rank_00");
    const std::string prefix = "model.layers.1.self_attn.qkv_proj.weight_";
    CHECK((held.at(prefix + "q").bytes == query.bytes.substr(rank * head_bytes, head_bytes)));
    CHECK((held.at(prefix + "k").bytes == key.bytes.substr(rank / 2 * head_bytes, head_bytes)));
  }
  check_refused([&] { consolidated(temp / "out", temp / "whole"); }, {.hint = "`from-kv-replication`"});
  const std::vector<std::string> adjacent{"kv-replication=adjacent"};
  CHECK((consolidated(temp / "out", temp / "whole", {.source_options = adjacent}) == tensors));
  convert(temp / "out", temp / "ranks",
          {.layout = "ranks", .format = Format::kSafetensors, .source_options = adjacent});
  shard(shard_request(model, temp / "direct", 8));
  CHECK((read_shards(temp / "ranks") == read_shards(temp / "direct")));
}

TEST_CASE("Shards are written over this program's own, but not next to files of others") {
  const fs::path model = testdata("golden/converter/llama-tp4-pp2-xser/original");
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    CAPTURE(name(format));
    const TempDir temp;
    RequestFields to{.layout = "nxd", .format = format, .tp = 4, .pp = 2};
    shard(model, temp / "out", to);
    to.force = true;
    fs::remove(temp / "out/model/dp_rank_00_tp_rank_00_pp_rank_00.pt");
    shard(model, temp / "out", to);
    write_file(temp / "out/model/notes.txt", "mine");
    check_refused([&] { shard(model, temp / "out", to); }, {.says = "notes.txt"});
  }
}

TEST_CASE(
    "The reference's shards are replaced by files of the same names, and by others only after they were moved away") {
  const fs::path golden_case = testdata("golden/optimum/llama-tp8-gqa-fused-xser");
  const TempDir temp;
  fs::copy(golden_case / "sharded", temp / "out", fs::copy_options::recursive);
  const TensorMap original = read_model(golden_case / "original");
  const auto shard_in = [&](Format format) {
    shard(golden_case / "original", temp / "out",
          {.layout = "optimum", .format = format, .tp = 8, .options = {"fuse-qkv"}, .force = true});
  };
  check_refused([&] { shard_in(Format::kPytorch); },
                {.path = temp / "out/shards", .says = "model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors/"});
  CHECK((snapshot(temp / "out") == snapshot(golden_case / "sharded")));

  shard_in(Format::kXser);
  CHECK((consolidated(temp / "out", temp / "whole") == original));
  shard_in(Format::kPytorch);  // over files that record that they are reshard's
  CHECK_FALSE(fs::exists(temp / "out/shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors"));
  CHECK((consolidated(temp / "out", temp / "whole") == original));
}

TEST_CASE("Consolidating into the default place puts the model beside the shards") {
  const fs::path golden_case = testdata("golden/optimum/qwen3-tp4-pp3-gqa");
  const TempDir temp;
  shard(shard_request(golden_case / "original", temp / "out", 4, 3));
  Request request;
  request.source.path = temp / "out/tensor_parallel_shards/";
  consolidate(request);
  CHECK((read_file(temp / "out/model.safetensors") == read_file(golden_case / "original/model.safetensors")));
}

TEST_CASE("Master weights are verified against the weights that are made of them, and either side may have these") {
  const fs::path golden_case = testdata("golden/deepspeed/qwen3-zero3-r3");
  const TempDir temp;
  convert(golden_case / "sharded", temp / "out", {.config = golden_case / "original"});
  const Checkpoint source = read_checkpoint(local_storage(), golden_case / "sharded", {});
  const auto found = [&](bool swapped) {
    const Checkpoint made = read_checkpoint(local_storage(), temp / "out", {});
    return swapped ? verify(made.map, source.map, {}, unsynced()) : verify(source.map, made.map, {}, unsynced());
  };
  for (const bool swapped : {false, true}) {
    const Verification same = found(swapped);
    CHECK(same.same());
    CHECK(same.compared_tensors == 24);
  }
  const Container container = read_container(temp / "out/model.safetensors", Format::kSafetensors);
  flip_byte(temp / "out/model.safetensors", container.tensors.back().offset_bytes + 2ull * 33);
  for (const bool swapped : {false, true}) {
    const Verification other = found(swapped);
    REQUIRE(other.different.size() == 1);
    CHECK(other.different[0].name == container.tensors.back().name);
    CHECK(other.different[0].differing == 1);
    CHECK(other.different[0].first.back() == 33);
  }
}

TEST_CASE("Replicas in FSDP's files of ranks are compared, and wrappers taken out of names") {
  const TempDir temp;
  fs::copy(testdata("golden/fsdp_ranks/llama-hsdp2x2/sharded"), temp / "ranks", fs::copy_options::recursive);
  const Checkpoint checkpoint = read_checkpoint(temp / "ranks", {ConfigUse::kStrict});
  const std::string notes = nlohmann::json(checkpoint.notes.texts()).dump();
  CHECK_THAT(notes, Says("names of tensors are read without _orig_mod"));
  CHECK_THAT(notes, Says("8 files of the optimizer and the trainer"));
  const auto norm = checkpoint.map.find_logical("model.norm.weight");
  REQUIRE(norm);
  CHECK(checkpoint.map.pieces[*norm].size() == 4);

  const StoredTensor& stored = checkpoint.map.stored[checkpoint.map.pieces[*norm].back().stored];
  flip_byte(temp / "ranks/model_world_size_4_rank_3.pt", stored.offset_bytes);
  check_refused([&] { convert(temp / "ranks", temp / "out"); },
                {.says = "is a replica of model.norm.weight", .unwritten = temp / "out"});
}

TEST_CASE("Two files of one of FSDP's ranks are refused, whatever the width of their numbers") {
  for (const char* other : {"model_world_size_3_rank_02.pt", "model_world_size_03_rank_2.pt"}) {
    const TempDir temp;
    fs::copy(testdata("golden/fsdp_ranks/llama-fsdp2-r3/sharded"), temp / "ranks", fs::copy_options::recursive);
    fs::copy_file(temp / "ranks/model_world_size_3_rank_1.pt", temp / "ranks" / other);
    check_refused(
        [&] { convert(temp / "ranks", temp / "out"); },
        {.says = "belongs to rank 2, as does model_world_size_", .hint = "two saves", .unwritten = temp / "out"});
  }
}

TEST_CASE("Where a layout has no place beside a checkpoint, consolidate asks for an output directory") {
  const fs::path golden_case = testdata("golden/dcp/llama-fsdp2-optim");
  const TempDir temp;
  fs::copy(golden_case / "sharded", temp / "dcp", fs::copy_options::recursive);
  Request request;
  request.source.path = temp / "dcp";
  request.source.config = golden_case / "original";
  check_refused([&] { consolidate(request); },
                {.kind = ErrorKind::kUsage,
                 .path = temp / "dcp",
                 .says = "no output directory was given, and layout dcp has no folder next to which",
                 .hint = "name an output directory",
                 .unwritten = temp / "dcp/model.safetensors"});
}

TEST_CASE("Files of a later save that did not finish are refused, and those of a copy are not") {
  const fs::path golden_case = testdata("golden/dcp/llama-torch2.9-fsdp2-r2");
  const TempDir temp;
  fs::copy(golden_case / "sharded", temp / "dcp");
  const auto saved = fs::last_write_time(temp / "dcp/.metadata");
  const auto read = [&] { return read_checkpoint(local_storage(), temp / "dcp", {}); };
  fs::last_write_time(temp / "dcp/__0_0.distcp", saved - std::chrono::hours(1));
  fs::last_write_time(temp / "dcp/__1_0.distcp", saved + std::chrono::minutes(7));
  check_refused(read,
                {.path = temp / "dcp/__1_0.distcp", .says = "was written 7 minutes after .metadata", .hint = "touch"});
  fs::last_write_time(temp / "dcp/__1_0.distcp", saved + std::chrono::seconds(4));
  CHECK_NOTHROW(read());
  // A copy of many hours would go from file to file.
  fs::last_write_time(temp / "dcp/__0_0.distcp", saved + std::chrono::hours(4));
  check_refused(read, {.says = "was written 240 minutes after .metadata"});
}

}  // namespace
}  // namespace reshard::test
