#include "reshard/specs/parallel/mesh.h"

#include <numeric>
#include <string>

#include "reshard/base/strings.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

using Layers = std::vector<std::uint64_t>;
using Cuts = std::vector<std::string>;

/// Layers, mesh and cuts of a partition.
struct CutModel {
  std::uint64_t layers;
  Mesh mesh;
  Cuts cuts;
};

void check_cuts(const Refusal& refusal, const CutModel& of) {
  Refusal expected = with_common(refusal, {.kind = ErrorKind::kUsage, .hint = " "});
  expected.says.parts.emplace_back("`pipeline-cuts`: ");
  INFO(join(of.cuts, " "));
  check_refused([&] { partition_by_cuts(of.layers, of.mesh, of.cuts, "model.layers"); }, expected);
}

TEST_CASE("Every degree of a mesh is from 1 to the most that there are") {
  const std::uint32_t most = kMaxParallelDegree;
  CHECK_NOTHROW(validate_mesh({.tp = most, .pp = most, .vpp = most, .ep = most}));
  check_refusals<Mesh>(validate_mesh, {.kind = ErrorKind::kUsage},
                       {{"no tensor-parallel rank", {.tp = 0}, {.says = "`tp` 0 is not a number from 1 to"}},
                        {"no pipeline stage", {.pp = 0}, {.says = "`pp` 0 is not a number from 1 to"}},
                        {"no virtual stage", {.vpp = 0}, {.says = "`vpp` 0 is not a number from 1 to"}},
                        {"no expert-parallel rank", {.ep = 0}, {.says = "`ep` 0 is not a number from 1 to"}},
                        {"too many ranks", {.tp = most + 1}, {.says = "`tp` " + std::to_string(most + 1)}},
                        {"too many stages", {.pp = most + 1}, {.says = "`pp` " + std::to_string(most + 1)}}});
}

TEST_CASE("Layers that do not divide evenly leave one more each to the last stages") {
  CHECK(partition_evenly(8, {1, 4, 1}).first == Layers{0, 2, 4, 6, 8});
  CHECK(partition_evenly(5, {1, 3, 1}).first == Layers{0, 1, 3, 5});
  CHECK(partition_evenly(7, {1, 3, 1}).first == Layers{0, 2, 4, 7});
  CHECK(partition_evenly(10, {1, 2, 2}).first == Layers{0, 2, 4, 7, 10});
  CHECK(partition_evenly(4, {1, 1, 1}).first == Layers{0, 4});
  CHECK(partition_evenly(3, {1, 3, 1}).first == Layers{0, 1, 2, 3});
}

TEST_CASE("An even partition of any size differs by at most one layer, the longer stages last") {
  for (std::uint64_t layers = 1; layers <= 40; ++layers) {
    for (std::uint32_t stages = 1; stages <= layers; ++stages) {
      INFO(layers << " layers, " << stages << " stages");
      const auto first = partition_evenly(layers, {1, stages, 1}).first;
      REQUIRE(first.size() == stages + 1);
      CHECK(first.front() == 0);
      CHECK(first.back() == layers);
      Layers sizes(first.size());
      std::adjacent_difference(first.begin(), first.end(), sizes.begin());
      sizes.erase(sizes.begin());
      CHECK(std::is_sorted(sizes.begin(), sizes.end()));
      CHECK(sizes.back() - sizes.front() <= 1);
    }
  }
}

TEST_CASE("More stages than layers are refused with both numbers") {
  const auto partition = [] { return partition_evenly(3, {1, 2, 2}); };
  check_refused(partition, {.kind = ErrorKind::kUsage,
                            .says = {"3 layers, fewer than the 4 pipeline stages", "`pp` 2 × `vpp` 2"},
                            .hint = "at most 3 stages"});
}

TEST_CASE("Every layer lies on the stage whose range holds it, and stages go round the ranks") {
  const PipelinePartition partition = partition_evenly(10, {1, 2, 2});  // 0-1, 2-3, 4-6, 7-9
  CHECK(partition.stages() == 4);
  const std::uint32_t stages[] = {0, 0, 1, 1, 2, 2, 2, 3, 3, 3};
  for (std::uint64_t layer = 0; layer < 10; ++layer) {
    CHECK(partition.stage_of(layer) == stages[layer]);
    CHECK(partition.rank_of_layer(layer) == stages[layer] % 2);
  }
  CHECK(partition.first_rank() == 0);
  CHECK(partition.last_rank() == 1);
  CHECK(partition.cuts() == Layers{1, 3, 6});
  CHECK(partition_evenly(4, {}).cuts().empty());
}

TEST_CASE("Cuts name the last layer of each stage but the last") {
  const PipelinePartition partition =
      partition_by_cuts(5, {1, 3, 1}, {"model.layers.0", "model.layers.2"}, "model.layers");
  CHECK(partition.pp == 3);
  CHECK(partition.first == Layers{0, 1, 3, 5});
  CHECK(partition.cuts() == Layers{0, 2});
  CHECK(partition_by_cuts(5, {1, 1, 1}, {}, "model.layers").first == Layers{0, 5});
  CHECK(partition_by_cuts(4, {1, 2, 2}, {"h.0", "h.1", "h.2"}, "h").first == Layers{0, 1, 2, 3, 4});
}

TEST_CASE("An even partition's own cuts give it back") {
  for (std::uint32_t pp = 1; pp <= 7; ++pp) {
    const Mesh mesh{1, pp, 1};
    const PipelinePartition even = partition_evenly(7, mesh);
    Cuts cuts;
    for (const std::uint64_t layer : even.cuts()) cuts.push_back("model.layers." + std::to_string(layer));
    CHECK(partition_by_cuts(7, mesh, cuts, "model.layers").first == even.first);
  }
}

TEST_CASE("Cuts that make no partition are refused, with what would") {
  check_cuts({.says = "1 cuts make 2 stages, but `pp` 2 × `vpp` 2 asks for 4", .hint = "give 3 cuts"},
             {8, {1, 2, 2}, {"model.layers.3"}});
  check_cuts({.says = "asks for 1"}, {8, {1, 1, 1}, {"model.layers.3"}});
  check_cuts({}, {8, {1, 2, 1}, {}});
  check_cuts({.says = "model.layers.2 does not come after"}, {8, {1, 3, 1}, {"model.layers.4", "model.layers.2"}});
  check_cuts({.says = "model.layers.4 does not come after"}, {8, {1, 3, 1}, {"model.layers.4", "model.layers.4"}});
  check_cuts({}, {1, {1, 2, 1}, {"model.layers.0"}});
  for (const char* layer : {"7", "8", "1000", "18446744073709551614", "18446744073709551615"})
    check_cuts({.says = "leaves no layer for the stage after it; the model has 8 layers", .hint = "model.layers.6"},
               {8, {1, 2, 1}, {"model.layers." + std::string(layer)}});
  for (const char* cut : {"", "3", "layers.3", "model.layers", "model.layers.", "model.layers.x", "model.layers.-1",
                          "model.layers.3.mlp", "model.layers.3 ", "model.layers.0x3", "model.layersx3",
                          "model.layers.18446744073709551616", "model.embed_tokens"})
    check_cuts({.says = "\"" + std::string(cut) + "\" is not a layer of this model", .hint = "model.layers.4"},
               {8, {1, 2, 1}, {cut}});
}

}  // namespace
}  // namespace reshard::test
