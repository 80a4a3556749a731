// Tied heads in NxD's own checkpoints of several stages: the last stage stores the head, which is a copy of the first
// stage's embedding, and no embedding.

#include <fmt/format.h>

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/refusals.h"
#include "support/saved_trees.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kTiedHead = "lm_head.weight";

/// Removes the embedding from the last stage's files, where our writer stores a copy. Rewritten files have no rank record.
void keep_head_alone(const fs::path& model_folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(model_folder)) paths.push_back(entry.path());
  std::size_t heads = 0;
  for (const fs::path& path : paths) {
    SavedTree tree = read_saved_tree(path);
    if (path.filename().string().ends_with("_pp_rank_01.pt")) {
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
      const Input input({.layers = 4, .tied = true}, {.layout = "nxd", .tp = 2, .pp = 2, .vpp = vpp});
      keep_head_alone(input / "out/model");
      CHECK((input.whole() == input.tensors));
      flip_bit(input.rank_file(1, 1), kTiedHead, 5);
      check_error(input.refusal(), {.path = input.rank_file(1, 1),
                                    .tensor = kTiedHead,
                                    .says = "is a replica of model.embed_tokens.weight in " +
                                            input.rank_file(1, 0).string() + ", but differs from it"});
    }
  }
}

TEST_CASE("Without config.json, a head that the ranks' metadata lists is a tensor of its own") {
  for (const char* name : {"ranks", "optimum"})
    for (const std::uint32_t pp : {1, 2}) {
      CAPTURE(name, pp);
      const Input input({.layers = 4}, {.layout = name, .tp = 2, .pp = pp});
      fs::remove(input / "out/config.json");
      CHECK((input.whole() == input.tensors));
    }
}

TEST_CASE("States of a tied head on NxD's last stage are compared with the embedding's and left out") {
  for (const std::uint32_t vpp : {1, 2}) {
    DYNAMIC_SECTION("virtual stages " << vpp) {
      const Input input({.layers = 4, .tied = true},
                        {.layout = "nxd", .tp = 2, .pp = 2, .vpp = vpp, .options = {"dp=2"}, .with_optimizer = true},
                        9);
      const RequestFields one{.layout = "nxd", .tp = 2, .pp = 1, .options = {"dp=3"}, .with_optimizer = true};
      keep_head_alone(input / "out/model");
      convert(input.path(), input / "back", one);
      check_saved_trees(input / "back/optim", expected_optimizer(input.run, {.tp = 2}, 3, input / "back/model"));
      CHECK((input.whole() == input.tensors));

      const fs::path file = input / "out/optim/dp_rank_00_tp_rank_00_pp_rank_01.pt";
      SavedTree tree = read_saved_tree(file);
      const Dims of_head{input.model.vocab / 4, input.model.hidden};  // 2 tensor-parallel ranks, 2 data-parallel ones
      std::string changed;
      for (const auto& [place, data] : tree.tensors)
        if (place.ends_with("/exp_avg") && data.shape == of_head) changed = place;
      REQUIRE(!changed.empty());
      tree.tensors.at(changed).bytes[1] ^= 1;
      write_saved_tree(file, tree);
      check_refused([&] { convert(input.path(), input / "other", one); },
                    {.path = file, .says = "model.embed_tokens.weight.exp_avg", .unwritten = input / "other"});
    }
  }
}

}  // namespace
}  // namespace reshard::test
