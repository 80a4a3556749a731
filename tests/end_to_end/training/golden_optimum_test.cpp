// The reference's own files, read and written: testdata/golden/optimum/*/sharded, of torch.save and of xser.

#include <nlohmann/json.hpp>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/zip/zip.h"
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

std::vector<fs::path> cases() {
  return golden_cases("optimum");
}

bool is_xser_case(const json& golden) {
  return golden.at("case").at("xser").get<bool>();
}

ShardRequest request_of(const fs::path& golden_case, const json& golden, const fs::path& output) {
  const json& options = golden.at("case");
  ShardRequest request = shard_request(golden_case / "original", output, options.at("tp"), options.at("pp"));
  request.target.vpp = options.at("vpp");
  request.target.options.set_flag("fuse-qkv", options.at("fuse_qkv"));
  if (!options.at("kv_multiplier").is_null())
    request.target.options.set_number("kv-size-multiplier", options.at("kv_multiplier"));
  request.target.layout = layout("optimum"),
  request.target.format = is_xser_case(golden) ? Format::kXser : Format::kPytorch;
  return request;
}

/// Files and folders without their contents.
std::vector<std::string> names_under(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& [name, content] : snapshot(directory)) names.push_back(name);
  return names;
}

ConsolidateRequest consolidate_request(const fs::path& checkpoint, const json& golden, const fs::path& output) {
  ConsolidateRequest request;
  request.source.path = checkpoint;
  request.output_directory = output;
  if (const std::uint64_t bytes = golden.at("case").at("shard_original"))
    request.target.options.set_number("max-shard-size", bytes);
  return request;
}

/// The weights are the original's, in the same files; an index has the same content.
void check_original(const fs::path& golden_case, const json& golden, const fs::path& output) {
  CHECK(describe_tensors(read_model(output)) == golden.at("original"));
  for (const auto& [name, content] : snapshot(golden_case / "original")) {
    INFO(name);
    REQUIRE(fs::exists(output / name));
    if (name.ends_with(".json"))
      CHECK(json::parse(read_file(output / name)) == json::parse(content));
    else
      CHECK((read_file(output / name) == content));
  }
  CHECK(names_under(output) == names_under(golden_case / "original"));
}

TEST_CASE("Consolidating the shards that the reference wrote gives its original, byte for byte") {
  REQUIRE(cases().size() == 9);
  for (const fs::path& golden_case : cases()) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const json golden = golden_of(golden_case);
      const TempDir temp;
      const RunResult result = consolidate(consolidate_request(golden_case / "sharded", golden, temp / "whole"));
      CHECK(result.divergent.empty());
      check_original(golden_case, golden, temp / "whole");
      consolidate(consolidate_request(golden_case / "sharded/shards", golden, temp / "again"));
      CHECK((snapshot(temp / "again") == snapshot(temp / "whole")));
    }
  }
}

TEST_CASE("The reference's shards give the same bytes in blocks of any size and with any threads") {
  for (const fs::path& golden_case : cases())
    for (const std::uint64_t block_bytes : {2, 24, 1000}) {
      DYNAMIC_SECTION(golden_case.filename().string() << ", blocks of " << block_bytes << " bytes") {
        const json golden = golden_of(golden_case);
        const TempDir temp;
        const auto job = plan_consolidate(consolidate_request(golden_case / "sharded", golden, temp / "unused"));
        run_in_blocks(*job, temp / "whole", block_bytes, 3);
        for (const TensorFile& file : job->target.files)
          CHECK((read_file(temp / "whole" / file.path) == read_file(golden_case / "original" / file.path)));
      }
    }
}

TEST_CASE("The layout optimum is written with the reference's tensors, metadata, markers and file names") {
  std::size_t xser = 0;
  for (const fs::path& golden_case : cases()) {
    const json golden = golden_of(golden_case);
    xser += is_xser_case(golden);
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      shard(request_of(golden_case, golden, temp / "out"));
      const auto ranks = read_shards(temp / "out");
      REQUIRE(ranks.size() == golden.at("files").size());
      for (const auto& [file, tensors] : golden.at("files").items()) {
        INFO(file);
        CHECK(describe_tensors(ranks.at(rank_of_reference(file))) == tensors);
      }
      const fs::path reference = golden_case / "sharded";
      CHECK(names_under(temp / "out") == names_under(reference));
      for (const auto& [name, content] : snapshot(reference)) {
        INFO(name);
        if (name.ends_with(".json")) CHECK(json::parse(read_file(temp / "out" / name)) == json::parse(content));
        if (name == "shards/checkpoint" || name == "shards/done") CHECK(read_file(temp / "out" / name) == content);
      }
      CHECK(check_crcs(temp / "out") > 0);
    }
  }
  CHECK(xser == 2);
}

/// What torch.load makes of a file: names in order, and for each the first name that shares its storage.
std::vector<std::pair<std::string, std::string>> sharing(const TorchFile& file) {
  std::map<std::uint32_t, std::string> first;
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [key, value] : file.pickle().pairs(file.pickle().root())) {
    const std::string name(file.pickle().text(key));
    names.emplace_back(name, first.emplace(file.tensor(value, name).storage, name).first->second);
  }
  return names;
}

TEST_CASE(
    "Files of torch.save that are written have the order, the sharing and the archive's name of the reference's") {
  std::size_t files = 0;
  std::size_t shared = 0;
  for (const fs::path& golden_case : cases()) {
    const json golden = golden_of(golden_case);
    if (is_xser_case(golden)) continue;
    const TempDir temp;
    shard(request_of(golden_case, golden, temp / "out"));
    for (const auto& [name, tensors] : golden.at("files").items()) {
      INFO(golden_case.filename() << " " << name);
      const TorchFile ours = read_torch_file(temp / "out" / name);
      const TorchFile theirs = read_torch_file(golden_case / "sharded" / name);
      CHECK(sharing(ours) == sharing(theirs));
      CHECK(ours.storages().size() == theirs.storages().size());
      for (const auto& [stored, first] : sharing(ours)) shared += stored != first;
      const auto zip = read_zip(*local_storage().open(ours.path()), ours.path());
      const auto their_zip = read_zip(*local_storage().open(theirs.path()), theirs.path());
      for (const ZipEntry& entry : zip.entries()) {
        INFO(entry.name);
        CHECK(entry.offset_bytes % 64 == 0);
        if (!entry.name.ends_with("/reshard.json"))  // ours alone: which rank the file is of
          CHECK(their_zip.find(entry.name) != nullptr);
      }
      ++files;
    }
  }
  CHECK(files == 42);
  CHECK(shared == 4);  // the tied matrices of the two granites
}

TEST_CASE(
    "The reference's shards are replaced by files of the same names, and by others only after they were moved away") {
  const fs::path golden_case = testdata("golden/optimum/llama-tp8-gqa-fused-xser");
  const json golden = golden_of(golden_case);
  const TempDir temp;
  fs::copy(golden_case / "sharded", temp / "out", fs::copy_options::recursive);
  ShardRequest request = request_of(golden_case, golden, temp / "out");
  request.force = true;
  request.target.format = Format::kPytorch;
  const Error error = error_of([&] { shard(request); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK(error.path() == (temp / "out/shards").string());
  CHECK_THAT(error.what(), Says("model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors/"));
  CHECK((snapshot(temp / "out") == snapshot(golden_case / "sharded")));

  request.target.format = Format::kXser;
  shard(request);
  consolidate(consolidate_request(temp / "out", golden, temp / "whole"));
  check_original(golden_case, golden, temp / "whole");
  fs::remove_all(temp / "whole");
  request.target.format = Format::kPytorch;  // over files that record that they are reshard's
  shard(request);
  CHECK_FALSE(fs::exists(temp / "out/shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors"));
  consolidate(consolidate_request(temp / "out", golden, temp / "whole"));
  check_original(golden_case, golden, temp / "whole");
}

}  // namespace
}  // namespace reshard::test
