// An embedding that is not parallel, by the description in docs/families.md.

#include "reshard/layouts/map/whole_map.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"

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
  const TempDir temp;
  write_file(temp / "whole-embedding.json", documented_description());
  const auto family = read_family(temp / "whole-embedding.json");
  TinyModel model;
  model.attention_bias = true;
  Random random(3);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  for (const char* name : {"ranks", "optimum", "nxd"}) {
    CAPTURE(name);
    ShardRequest request = shard_request(temp / "model", temp / name, 2, 2);
    request.source.family = family;
    request.target.layout = layout(name);
    shard(request);
    const auto ranks = read_shards(temp / name);
    for (const std::string rank : {"00", "01"}) {
      CHECK((ranks.at("tp_rank_" + rank + "_pp_rank_00").at("model.embed_tokens.weight") ==
             tensors.at("model.embed_tokens.weight")));
      CHECK((ranks.at("tp_rank_" + rank + "_pp_rank_01").at("lm_head.weight") == tensors.at("lm_head.weight")));
      CHECK(ranks.at("tp_rank_" + rank + "_pp_rank_00").at("model.layers.0.mlp.down_proj.weight").shape ==
            Dims{model.hidden, model.intermediate / 2});
    }
    CHECK((consolidated(temp / name, temp / "back", family) == tensors));
    CHECK((consolidated(temp / name, temp / "without", {}) == tensors));
    ConvertRequest conversion = convert_request(temp / name, temp / (std::string(name) + "-4"));
    conversion.source.family = family;
    conversion.target.layout = layout(name), conversion.target.tp = 4, conversion.target.pp = 1;
    convert(conversion);
    for (const auto& [rank, held] : read_shards(conversion.output_directory))
      CHECK((held.at("model.embed_tokens.weight") == tensors.at("model.embed_tokens.weight")));
  }
}

}  // namespace
}  // namespace reshard::test
