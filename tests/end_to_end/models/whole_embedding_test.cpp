// An embedding that is not parallel, by the description in docs/families.md.

#include "reshard/layouts/map/whole_map.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"

namespace reshard::test {
namespace {

/// The description in the document: what stands between ```json and ``` after its heading.
std::string documented_description() {
  const std::string text = read_file(testdata("../docs/families.md"));
  const std::string fence = "```json\n";
  const std::size_t heading = text.find("### An embedding that is not parallel");
  REQUIRE(heading != text.npos);
  const std::size_t begin = text.find(fence, heading) + fence.size();
  return text.substr(begin, text.find("```", begin) - begin);
}

TEST_CASE(
    "The documented description gives every rank the whole embedding, and all layouts of training are read back") {
  const Input input({.attention_bias = true});
  write_file(input / "whole-embedding.json", documented_description());
  const auto family = read_family(input / "whole-embedding.json");
  const TensorData& embedding = input.tensors.at("model.embed_tokens.weight");
  for (const std::string name : {"ranks", "optimum", "nxd"}) {
    CAPTURE(name);
    shard(input / "model", input / name, {.layout = name, .tp = 2, .pp = 2, .family = family});
    const auto ranks = read_shards(input / name);
    for (const std::string rank : {"00", "01"}) {
      const TensorMap& first = ranks.at("tp_rank_" + rank + "_pp_rank_00");
      CHECK((first.at("model.embed_tokens.weight") == embedding));
      CHECK(first.at("model.layers.0.mlp.down_proj.weight").shape ==
            Dims{input.model.hidden, input.model.intermediate / 2});
      CHECK((ranks.at("tp_rank_" + rank + "_pp_rank_01").at("lm_head.weight") == input.tensors.at("lm_head.weight")));
    }
    CHECK((consolidated(input / name, input / "back", family) == input.tensors));
    CHECK((consolidated(input / name, input / "without") == input.tensors));
    convert(input / name, input / (name + "-4"), {.layout = name, .tp = 4, .pp = 1, .family = family});
    for (const auto& [rank, held] : read_shards(input / (name + "-4")))
      CHECK((held.at("model.embed_tokens.weight") == embedding));
  }
}

}  // namespace
}  // namespace reshard::test
