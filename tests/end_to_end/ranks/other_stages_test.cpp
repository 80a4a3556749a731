// Checkpoints whose files hold every parameter of the model, as optimum-neuron saves them with several pipeline stages:
// those of other stages are uninitialised memory.

#include <nlohmann/json.hpp>

#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/golden.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/torch_files.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

/// What uninitialised memory may hold: anything, NaN and the pattern of deleted memory included.
TensorData junk_like(const TensorData& tensor, Random& random) {
  TensorData junk = tensor;
  const std::uint64_t kind = random() % 4;
  for (char& byte : junk.bytes) byte = static_cast<char>(kind == 0 ? 0 : kind == 1 ? 0xFF : random());
  return junk;
}

std::string rank_key(std::uint64_t tp_rank, std::uint64_t pp_rank) {
  return "tp_rank_0" + std::to_string(tp_rank) + "_pp_rank_0" + std::to_string(pp_rank);
}

/// Gives every rank's file in `directory`, the layout optimum, the parameters of all stages. Those of others are junk;
/// so is a tied embedding on the last stage, which knows the matrix by its second name.
/// \returns how many tensors of other stages there are then, over all files.
std::uint64_t add_other_stages(const fs::path& directory, const OracleOptions& options, bool tied, bool xser,
                               Random& random) {
  std::map<std::string, TensorMap> ranks = read_shards(directory);
  const std::uint64_t last = options.pp - 1;
  if (tied) {
    merge_json(directory / "shards" / ("mp_metadata_pp_rank_" + std::to_string(last) + ".json"),
               {{"parameters", {{kEmbedding, nullptr}}}});
    for (std::uint64_t tp = 0; tp < options.tp; ++tp) ranks.at(rank_key(tp, last)).erase(kEmbedding);
  }
  std::uint64_t others = 0;
  for (std::uint64_t tp = 0; tp < options.tp; ++tp)
    for (std::uint64_t pp = 0; pp < options.pp; ++pp) {
      TensorMap all = ranks.at(rank_key(tp, pp));
      for (std::uint64_t other = 0; other < options.pp; ++other)
        for (const auto& [name, tensor] : ranks.at(rank_key(tp, other)))
          if (!all.count(name)) all.emplace(name, junk_like(tensor, random)), ++others;
      const fs::path file = directory / "shards/model" / ("dp_rank_00_" + rank_key(tp, pp) + ".pt");
      xser ? write_xser(file, all) : write_torch(file, all);
    }
  return others;
}

std::string note_of(std::uint64_t tensors) {
  return "ignored " + std::to_string(tensors) + " tensors of other pipeline stages";
}

std::size_t count_notes(const Notes& notes, const std::string& begin) {
  return static_cast<std::size_t>(
      std::count_if(notes.begin(), notes.end(), [&](const std::string& note) { return note.starts_with(begin); }));
}

TEST_CASE("Files that hold junk under the names of other stages give the model, from any mesh, stages and format") {
  std::size_t tied = 0, interleaved = 0, xsers = 0;
  for (const std::uint64_t seed : seeds(60)) {
    Random random(seed);
    TinyModel model = random_model(random);
    model.layers += 3;
    OracleOptions options = legal_options(random, model);
    while (options.pp == 1) options = legal_options(random, model);
    const bool xser = random() % 2;
    INFO("seed " << seed << " " << model.model_type << " tp " << options.tp << " pp " << options.pp << " vpp "
                 << options.vpp << " tied " << model.tied << " xser " << xser);
    const TempDir temp;
    const TensorMap originals = random_tensors(model, random);
    write_model(temp / "model", model, originals);
    Request request = shard_request(temp / "model", temp / "optimum");
    set_target(request.target, options);
    request.target.layout = layout("optimum"), request.target.format = xser ? Format::kXser : Format::kPytorch;
    shard(request);
    const std::uint64_t others = add_other_stages(temp / "optimum", options, model.tied, xser, random);
    REQUIRE(others > 0);

    const auto job = plan_consolidate(consolidate_request(temp / "optimum", temp / "whole"));
    CHECK(count_notes(job->notes, note_of(others)) == 1);
    execute(*job, unsynced());
    CHECK((read_model(temp / "whole") == originals));
    CHECK((converted(temp / "optimum", temp / "converted") == originals));
    const Checkpoint sharded = read_checkpoint(temp / "optimum", {ConfigUse::kLenient});
    CHECK(count_notes(sharded.notes, note_of(others)) == 1);
    CHECK(verify(sharded.map, read_checkpoint(temp / "model", {ConfigUse::kLenient}).map, {}, {}).same());
    tied += model.tied;
    interleaved += options.vpp > 1;
    xsers += xser;
  }
  if (has_all_seeds()) {
    CHECK(tied > 10);
    CHECK(interleaved > 5);
    CHECK(xsers > 20);
  }
}

/// Two stages of a small model on two ranks, with junk or without.
struct Stages : Input {
  explicit Stages(bool tied = false, bool junk = true)
      : Input({.tied = tied}, {.layout = "optimum", .format = Format::kPytorch, .tp = 2, .pp = 2}, 5) {
    if (junk) add_other_stages(path(), {.tp = 2, .pp = 2}, tied, false, random);
  }
};

TEST_CASE("A name that no stage's metadata lists stays an error beside junk of other stages") {
  const Stages stages;
  for (const std::uint32_t tp_rank : {0, 1}) {
    TensorMap tensors = read_torch_tensors(stages.rank_file(tp_rank, 1));
    tensors.emplace("model.rotary_emb.scale", tensors.begin()->second);
    write_torch(stages.rank_file(tp_rank, 1), tensors);
  }
  check_error(stages.refusal(), {.path = stages.rank_file(0, 1),
                                 .tensor = "model.rotary_emb.scale",
                                 .says = "not listed in mp_metadata_pp_rank_1.json"});
}

TEST_CASE("Metadata files of two stages that were swapped are an error, with junk of other stages and without") {
  for (const bool junk : {false, true})
    for (const bool config : {false, true}) {
      CAPTURE(junk, config);
      const Stages stages(false, junk);
      if (!config) fs::remove(stages / "out/config.json");
      const fs::path folder = stages / "out/shards";
      swap_files(folder / "mp_metadata_pp_rank_0.json", folder / "mp_metadata_pp_rank_1.json");
      check_error(stages.refusal(),
                  {.path = junk ? folder / "mp_metadata_pp_rank_1.json" : stages.rank_file(0, 0), .hint = "swapped"});
    }
}

TEST_CASE("A tied head on the last stage that differs from the embedding is an error, junk elsewhere is none") {
  const Stages stages(true);
  CHECK((stages.whole() == stages.tensors));
  flip_bit(stages.rank_file(1, 1), kHead, 3);
  check_error(stages.refusal(), {.path = stages.rank_file(1, 1), .tensor = kHead});
}

TEST_CASE("Tensors of other stages are not read") {
  const Stages stages;
  FaultStorage storage;
  RunOptions options = unsynced();
  options.stores = storage;
  const auto job = plan_consolidate(consolidate_request(stages.path(), stages / "whole"));
  execute(*job, options);
  std::uint64_t originals = 0;
  for (const auto& [name, tensor] : stages.tensors) originals += tensor.bytes.size();
  CHECK(job->program.read_bytes == originals);
  std::uint64_t read = 0;
  for (const SourceFile& file : job->source.files)
    for (const FaultStorage::Range& range : storage.reads(file.path)) read += range.end_bytes - range.begin_bytes;
  CHECK(read == job->program.read_bytes + job->program.check_bytes);
}

TEST_CASE("Checkpoints that optimum-neuron saved in training consolidate to their originals, byte for byte") {
  std::size_t found = 0, with_others = 0;
  for (const fs::path& golden_case : golden_cases("zero1")) {
    if (!golden_case.filename().string().starts_with("optimum-")) continue;
    const json golden = golden_of(golden_case);
    const bool has_others = golden.at("case").at("pp").get<std::uint32_t>() > 1;
    ++found;
    with_others += has_others;
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
        const fs::path output = temp / std::string(name(format));
        const auto job = plan_consolidate(consolidate_request(golden_case / "checkpoint", output, {.format = format}));
        CHECK(count_notes(job->notes, "ignored ") == (has_others ? 1 : 0));
        execute(*job, unsynced());
        CHECK(describe_tensors(read_whole(output)) == golden.at("original"));
        if (format == Format::kSafetensors)
          CHECK((read_file(output / "model.safetensors") == read_file(golden_case / "original/model.safetensors")));
      }
      const Checkpoint sharded = read_checkpoint(golden_case / "checkpoint", {ConfigUse::kLenient});
      const Checkpoint original = read_checkpoint(golden_case / "original", {ConfigUse::kLenient});
      CHECK(verify(sharded.map, original.map, {}, {}).same());
      convert(golden_case / "checkpoint", temp / "ranks", {.layout = "ranks", .tp = 1});
      CHECK(describe_tensors(consolidated(temp / "ranks", temp / "again")) == golden.at("original"));
    }
  }
  CHECK(found == 3);
  CHECK(with_others == 1);
}

TEST_CASE("The tensors that golden.json says are of other stages are those that are ignored") {
  const fs::path golden_case = testdata("golden/zero1/optimum-llama-dp2-tp2-pp2-xser");
  const json golden = golden_of(golden_case);
  std::size_t others = 0;
  for (const auto& [stage, names] : golden.at("other_stages").items()) others += 2 * names.size();  // two ranks each
  REQUIRE(others > 0);
  const Checkpoint checkpoint = read_checkpoint(golden_case / "checkpoint", {ConfigUse::kLenient});
  CHECK(count_notes(checkpoint.notes, note_of(others)) == 1);
  for (const StoredTensor& tensor : checkpoint.map.stored) {
    const std::uint32_t pp_rank = checkpoint.map.files[tensor.file].pp_rank;
    const json& ignored = golden.at("other_stages").at("pp_rank_0" + std::to_string(pp_rank));
    INFO(tensor.name.text() << " on pp rank " << pp_rank);
    CHECK(std::find(ignored.begin(), ignored.end(), tensor.name.text()) == ignored.end());
  }
}

}  // namespace
}  // namespace reshard::test
