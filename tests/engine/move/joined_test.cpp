// Tensors whose bytes interleave in the target's files are written together.

#include <algorithm>

#include "reshard/engine/move/run.h"
#include "reshard/plan/job/interleave.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

/// A llama for two ranks: with the kernel's order, the columns of q_proj, k_proj and v_proj alternate in each row.
struct Interleaving {
  Interleaving() {
    TinyModel model;
    model.heads = 8;
    model.kv_heads = 4;
    Random random(5);
    write_model(temp / "model", model, random_tensors(model, random));
    Request request = deployed_request(layout("nxdi"), temp / "model", temp / "ranks", 2);
    request.target.options.set_flag("fuse-qkv", true);
    request.target.options.set("kernels", "qkv");
    job = plan_shard(request);
  }
  bool interleave(std::size_t transfer) const {
    const auto& transfers = job->program.transfers;
    return transfer + 1 < transfers.size() &&
           reshard::interleave(job->maps(), transfers[transfer], transfers[transfer + 1]);
  }
  TempDir temp;
  std::unique_ptr<Job> job;
};

TEST_CASE("Transfers that interleave follow each other in the program, and the others do not interleave") {
  const Interleaving interleaving;
  const auto& transfers = interleaving.job->program.transfers;
  std::vector<std::string> joined;
  for (std::size_t t = 0; t < transfers.size(); ++t) {
    const std::string& name = transfers[t].tensor(interleaving.job->maps()).name;
    const bool is_attention_input = name.find("q_proj") != std::string::npos ||
                                    name.find("k_proj") != std::string::npos ||
                                    name.find("v_proj") != std::string::npos;
    CAPTURE(name);
    if (is_attention_input) joined.push_back(name.substr(0, name.find("self_attn")));
    if (!is_attention_input) CHECK_FALSE(interleaving.interleave(t));
  }
  REQUIRE(joined.size() > 3);
  for (std::size_t i = 0; i < joined.size(); ++i) CHECK(joined[i] == joined[i / 3 * 3]);
}

TEST_CASE("What interleaves is written in one call, and the bytes do not depend on the size of blocks") {
  const Interleaving interleaving;
  const Job& job = *interleaving.job;
  execute(job, unsynced());
  const auto expected = snapshot(job.output_directory);
  std::filesystem::remove_all(job.output_directory);
  const auto block_bytes = GENERATE(as<std::uint64_t>(), 8, 100, 700, 1 << 20);
  CAPTURE(block_bytes);
  FaultStorage storage;
  for (const TargetFile& file : job.target.files) {
    std::filesystem::create_directories((job.output_directory / file.path).parent_path());
    storage.create(job.output_directory / file.path, file.size_bytes);
  }
  run_program(job.maps(), job.program, job.output_directory, {.threads = 2, .stores = storage}, {}, block_bytes);
  for (const TargetFile& file : job.target.files) {
    const std::string written = read_file(job.output_directory / file.path);
    const std::uint64_t header = job.target.stored[file.first_stored].offset_bytes;
    CHECK(written.substr(header) == expected.at(file.path.string()).substr(header));
  }
  if (block_bytes == 1 << 20) CHECK(storage.count(FaultStorage::Operation::kWrite) == job.target.stored.size());
}

}  // namespace
}  // namespace reshard::test
