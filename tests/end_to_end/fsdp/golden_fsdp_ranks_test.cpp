// The layout fsdp-ranks, on files that torch 2.6 wrote with FSDP: testdata/golden/fsdp_ranks.

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path fsdp_case(const std::string& name) {
  return testdata("golden/fsdp_ranks") / name;
}

fs::path verl_file(const fs::path& folder, int world_size, int rank) {
  return folder / ("model_world_size_" + std::to_string(world_size) + "_rank_" + std::to_string(rank) + ".pt");
}

/// A copy of a case's files, to change.
fs::path copied(const TempDir& temp, const std::string& name) {
  fs::copy(fsdp_case(name) / "sharded", temp / "ranks", fs::copy_options::recursive);
  return temp / "ranks";
}

Error refused(const fs::path& folder, const TempDir& temp) {
  const Error error = error_of([&] { convert(convert_request(folder, temp / "out")); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_FALSE(fs::exists(temp / "out"));
  return error;
}

TEST_CASE("The cases of FSDP's files of ranks are complete") {
  CHECK(golden_cases("fsdp_ranks").size() == 5);
}

TEST_CASE("Every case of FSDP's files of ranks is consolidated byte for byte, by convert and consolidate") {
  for (const fs::path& golden_case : golden_cases("fsdp_ranks")) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      const json expected = golden_of(golden_case).at("original");
      convert(convert_request(golden_case / "sharded", temp / "converted"));
      CHECK(describe_tensors(read_model(temp / "converted")) == expected);
      CHECK(fs::exists(temp / "converted/config.json"));
      CHECK(describe_tensors(consolidated(golden_case / "sharded", temp / "consolidated")) == expected);
    }
  }
}

TEST_CASE("FSDP's files of ranks become shards of another layout") {
  const TempDir temp;
  ShardRequest request = shard_request(fsdp_case("llama-dp2-tp2") / "sharded", temp / "out", 1, 2);
  shard(request);
  CHECK(describe_tensors(consolidated(temp / "out", temp / "whole")) ==
        golden_of(fsdp_case("llama-dp2-tp2")).at("original"));
}

TEST_CASE("Replicas in FSDP's files of ranks are compared, and wrappers taken out of names") {
  const Checkpoint checkpoint =
      read_checkpoint(local_storage(), fsdp_case("llama-hsdp2x2") / "sharded", {ConfigUse::kStrict});
  const std::string notes = json(checkpoint.notes).dump();
  CHECK_THAT(notes, Says("names of tensors are read without _orig_mod"));
  CHECK_THAT(notes, Says("8 files of the optimizer and the trainer"));
  const auto norm = checkpoint.map.find_logical("model.norm.weight");
  REQUIRE(norm);
  CHECK(checkpoint.map.pieces[*norm].size() == 4);

  const TempDir temp;
  const fs::path folder = copied(temp, "llama-hsdp2x2");
  std::string bytes = read_file(verl_file(folder, 4, 3));
  const StoredTensor& stored = checkpoint.map.stored[checkpoint.map.pieces[*norm].back().stored];
  bytes[stored.offset_bytes] ^= 1;
  write_file(verl_file(folder, 4, 3), bytes);
  const Error error = refused(folder, temp);
  CHECK_THAT(error.what(), Says("is a replica of model.norm.weight"));
}

TEST_CASE("Files of ranks of FSDP that are missing, swapped or mixed are refused") {
  const TempDir temp;
  SECTION("one in the middle") {
    const fs::path folder = copied(temp, "llama-fsdp2-r3");
    fs::remove(verl_file(folder, 3, 1));
    CHECK_THAT(refused(folder, temp).what(), Says("the file of rank 1 of 3 is missing"));
  }
  SECTION("the last, whose name says how many there are") {
    const fs::path folder = copied(temp, "llama-fsdp2-r3");
    fs::remove(verl_file(folder, 3, 2));
    CHECK_THAT(refused(folder, temp).what(), Says("the file of rank 2 of 3 is missing"));
  }
  SECTION("the last, whose name does not") {
    const fs::path folder = copied(temp, "llama-fsdp1-r3");
    fs::remove(folder / "pytorch_model_fsdp_0_rank2.bin");
    CHECK_FALSE(refused(folder, temp).tensor().empty());
  }
  SECTION("swapped") {
    const fs::path folder = copied(temp, "llama-fsdp2-r3");
    fs::rename(verl_file(folder, 3, 0), temp / "aside");
    fs::rename(verl_file(folder, 3, 1), verl_file(folder, 3, 0));
    fs::rename(temp / "aside", verl_file(folder, 3, 1));
    const Error error = refused(folder, temp);
    CHECK(error.path() == verl_file(folder, 3, 0).string());
    CHECK_THAT(error.what(), Says("is of the rank at [1] of its mesh, but rank 0, which the file is named after"));
  }
  SECTION("of two numbers of ranks") {
    const fs::path folder = copied(temp, "llama-fsdp2-r3");
    fs::copy_file(verl_file(fsdp_case("llama-one") / "sharded", 1, 0), verl_file(folder, 1, 0));
    CHECK_THAT(refused(folder, temp).what(), Says("holds files of two models or of two numbers of ranks"));
  }
}

}  // namespace
}  // namespace reshard::test
