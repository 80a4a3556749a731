// Tied heads in NxD's own checkpoints of several stages: the last stage stores the head, which is a copy of the first
// stage's embedding, and no embedding.

#include <fmt/format.h>

#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/models.h"
#include "support/optimizer_oracle.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kTiedHead = "lm_head.weight";

TinyModel tied_layers() {
  TinyModel model;
  model.tied = true;
  model.layers = 4;
  return model;
}

/// Removes the embedding from the last stage's files, where our writer stores a copy. Rewritten files have no rank record.
void keep_head_alone(const fs::path& model_folder, std::uint32_t last) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(model_folder)) paths.push_back(entry.path());
  std::size_t heads = 0;
  for (const fs::path& path : paths) {
    SavedTree tree = read_saved_tree(path);
    if (path.filename().string().ends_with(fmt::format("_pp_rank_{:02}.pt", last))) {
      REQUIRE(tree.structure.contains(kTiedHead));
      REQUIRE(tree.structure.erase(kEmbedding) == 1);
      tree.tensors.erase(kEmbedding);
      ++heads;
    }
    write_saved_tree(path, tree);
  }
  REQUIRE(heads > 0);
}

TEST_CASE(
    "A tied head on NxD's last stage is compared with the embedding and left out, and both are named if it differs") {
  for (const std::uint32_t vpp : {1, 2}) {
    DYNAMIC_SECTION("virtual stages " << vpp) {
      const TempDir temp;
      const TinyModel tiny = tied_layers();
      Random random(4);
      const TensorMap tensors = random_tensors(tiny, random);
      write_model(temp / "model", tiny, tensors);
      ShardRequest request = shard_request(temp / "model", temp / "out", 2, 2);
      request.target.layout = layout("nxd");
      request.target.format = Format::kPytorch;
      request.target.vpp = vpp;
      shard(request);
      keep_head_alone(temp / "out/model", 1);
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));

      const fs::path file = temp / "out/model/dp_rank_00_tp_rank_01_pp_rank_01.pt";
      SavedTree tree = read_saved_tree(file);
      char& byte = tree.tensors.at(kTiedHead).bytes[5];
      byte = static_cast<char>(byte ^ 1);
      write_saved_tree(file, tree);
      check_refused(
          [&] { consolidated(temp / "out", temp / "other"); },
          {.path = file,
           .tensor = kTiedHead,
           .says = "is a replica of model.embed_tokens.weight in " +
                   (temp / "out/model/dp_rank_00_tp_rank_01_pp_rank_00.pt").string() + ", but differs from it"});
      CHECK_FALSE(fs::exists(temp / "other"));
    }
  }
}

TEST_CASE("Without config.json, a head that the ranks' metadata lists is a tensor of its own") {
  for (const char* name : {"ranks", "optimum"})
    for (const std::uint32_t pp : {1, 2}) {
      CAPTURE(name, pp);
      const TempDir temp;
      TinyModel tiny = tied_layers();
      tiny.tied = false;
      Random random(6);
      const TensorMap tensors = random_tensors(tiny, random);
      write_model(temp / "model", tiny, tensors);
      ShardRequest request = shard_request(temp / "model", temp / "out", 2, pp);
      request.target.layout = layout(name);
      shard(request);
      fs::remove(temp / "out/config.json");
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
}

ConvertRequest run_to_nxd(const fs::path& source, const fs::path& output, const OracleOptions& mesh, std::uint64_t dp) {
  ConvertRequest request = convert_request(source, output);
  request.source.with_optimizer = true;
  request.target.layout = layout("nxd");
  request.target.format = Format::kPytorch;
  set_target(request.target, mesh);
  request.target.options.set_number("dp", dp);
  return request;
}

TEST_CASE("States of a tied head on NxD's last stage are compared with the embedding's and left out") {
  for (const std::uint32_t vpp : {1, 2}) {
    DYNAMIC_SECTION("virtual stages " << vpp) {
      const TempDir temp;
      Random random(9);
      const TrainingRun run = random_training(random, tied_layers());
      write_dcp(temp / "dcp", run, random, false);
      write_file(temp / "dcp/config.json", run.model.config().dump());
      OracleOptions staged, one;
      staged.tp = one.tp = 2;
      staged.pp = 2;
      staged.vpp = vpp;
      convert(run_to_nxd(temp / "dcp", temp / "staged", staged, 2));
      keep_head_alone(temp / "staged/model", 1);
      convert(run_to_nxd(temp / "staged", temp / "back", one, 3));
      check_saved_trees(temp / "back/optim", expected_optimizer(run, one, 3, temp / "back/model"));
      CHECK((consolidated(temp / "staged", temp / "whole") == run.weights));

      const fs::path file = temp / "staged/optim/dp_rank_00_tp_rank_00_pp_rank_01.pt";
      SavedTree tree = read_saved_tree(file);
      const Dims of_head{run.model.vocab / 4, run.model.hidden};  // 2 tensor-parallel ranks, 2 data-parallel ones
      std::string changed;
      for (const auto& [place, data] : tree.tensors)
        if (place.ends_with("/exp_avg") && data.shape == of_head) changed = place;
      REQUIRE(!changed.empty());
      char& byte = tree.tensors.at(changed).bytes[1];
      byte = static_cast<char>(byte ^ 1);
      write_saved_tree(file, tree);
      check_refused([&] { convert(run_to_nxd(temp / "staged", temp / "other", one, 3)); },
                    {.path = file, .says = "model.embed_tokens.weight.exp_avg"});
      CHECK_FALSE(fs::exists(temp / "other"));
    }
  }
}

}  // namespace
}  // namespace reshard::test
