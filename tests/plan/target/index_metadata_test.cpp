// What the index of a model's files says beside their names and sizes.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kFileBytes = 2000;
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kKept = "reshard_index_metadata.json";

/// model/: a model of several files, with an index whose metadata has `members` before total_size, each on a line.
struct IndexedModel {
  TempDir temp;
  TensorMap originals;
  std::uint64_t elems = 0;

  explicit IndexedModel(const std::string& members) {
    const TinyModel model;
    Random random(3);
    originals = random_tensors(model, random);
    for (const auto& [name, tensor] : originals) elems += num_elems(tensor.shape).value();
    write_model(temp / "one", model, originals);
    to_hf("one", "model");
    std::string text = index("model");
    const std::size_t at = text.find("    \"total_size\"");
    std::string lines = members;
    if (const std::size_t count = lines.find("COUNT"); count != lines.npos)
      lines.replace(count, 5, std::to_string(elems));
    write_file(temp / "model" / kIndex, text.insert(at, lines));
  }

  std::string index(const std::string& of) const { return read_file(temp / of / kIndex); }
  bool keeps(const std::string& in) const { return fs::exists(temp / in / kKept); }

  ConvertRequest request(const std::string& from, const std::string& to) const {
    ConvertRequest request = convert_request(temp / from, temp / to);
    request.target.options.set_number("max-shard-size", kFileBytes);
    return request;
  }
  void to_hf(const std::string& from, const std::string& to) const { convert(request(from, to)); }
  void to_shards(const std::string& from, const std::string& to, const Layout* kind, std::uint32_t tp = 2) const {
    ConvertRequest shards = request(from, to);
    shards.target.layout = kind;
    shards.target.options.erase("max-shard-size");
    shards.target.tp = tp;
    convert(shards);
  }
};

const std::string kCount = "    \"total_parameters\": COUNT,\n";

TEST_CASE("What an index says beside the size comes back with the files, byte for byte, by way of any layout") {
  const IndexedModel model(kCount);
  for (const Layout* const kind : {layout("ranks"), layout("optimum"), layout("presharded"), layout("nxdi"),
                                   layout("nxd"), layout("vllm"), layout("dcp")}) {
    const std::string layout = kind->traits().name;
    INFO(layout);
    model.to_shards("model", layout, kind);
    CHECK(model.keeps(layout));
    ConsolidateRequest request;
    request.source.path = model.temp / layout;
    request.output_directory = model.temp / (layout + "-whole");
    request.target.options.set_number("max-shard-size", kFileBytes);
    execute(*plan_consolidate(request), unsynced());
    CHECK((snapshot(*request.output_directory) == snapshot(model.temp / "model")));
  }
  execute(*plan_shard(shard_request(model.temp / "model", model.temp / "s", 4)), unsynced());
  model.to_shards("s", "t", layout("optimum"), 1);
  model.to_hf("t", "u");
  CHECK((snapshot(model.temp / "u") == snapshot(model.temp / "model")));
  model.to_hf("model", "again");
  CHECK((snapshot(model.temp / "again") == snapshot(model.temp / "model")));
}

TEST_CASE("Any members of an index's metadata are kept, as Python writes them") {
  const IndexedModel model(
      "    \"a\": {\n      \"b\": [\n        NaN,\n        1.5\n      ]\n    },\n"
      "    \"mergekit \\u00e9\": \"0.1\",\n");
  model.to_shards("model", "shards", layout("ranks"));
  model.to_hf("shards", "whole");
  CHECK(model.index("whole") == model.index("model"));
  CHECK_FALSE(model.keeps("whole"));
}

TEST_CASE("An index that says nothing but the size leaves nothing in the shards, and neither does a single file") {
  const IndexedModel model("");
  for (const char* from : {"model", "one"}) {
    const std::string to = std::string(from) + "-shards";
    model.to_shards(from, to, layout("ranks"));
    CHECK_FALSE(model.keeps(to));
    model.to_hf(to, std::string(from) + "-whole");
    CHECK(model.index(std::string(from) + "-whole") == model.index("model"));
  }
}

TEST_CASE("One file in place of several has no index, and takes nothing of it along") {
  const IndexedModel model(kCount);
  model.to_shards("model", "shards", layout("ranks"));
  convert(convert_request(model.temp / "shards", model.temp / "whole"));
  CHECK((read_model(model.temp / "whole") == model.originals));
  CHECK(snapshot(model.temp / "whole").size() == 2);  // with config.json
}

TEST_CASE("The size in an index is that of the tensors, and a number with a point stays one") {
  const IndexedModel model(kCount);
  const std::string text = model.index("model");
  const std::size_t end = text.find('\n', text.find("\"total_size\""));
  for (const bool right : {true, false}) {
    std::string changed = text;
    changed.insert(end, right ? ".0" : "7.0");
    write_file(model.temp / "model" / kIndex, changed);
    const std::string shards = right ? "right" : "wrong";
    model.to_shards("model", shards, layout("ranks"));
    model.to_hf(shards, shards + "-whole");
    CHECK(model.index(shards + "-whole") == (right ? changed : text));
  }
}

TEST_CASE("The number of parameters is counted anew where tensors are left out") {
  for (const bool counted : {true, false}) {
    INFO(counted);
    const IndexedModel model(counted ? kCount : "    \"total_parameters\": 77,\n");
    model.to_shards("model", "shards", layout("ranks"));
    for (const char* from : {"model", "shards"}) {
      const std::string to = std::string(from) + "-less";
      ConvertRequest request = model.request(from, to);
      request.names.drop.emplace_back("drop", "mlp");
      convert(request);
      std::uint64_t left = 0;
      for (const auto& [name, tensor] : read_model(model.temp / to)) left += num_elems(tensor.shape).value();
      CHECK(left < model.elems);
      const auto metadata = nlohmann::json::parse(model.index(to)).at("metadata");
      CHECK(metadata.contains("total_parameters") == counted);  // what else 77 counts nobody knows
      if (counted) CHECK(metadata.at("total_parameters") == left);
    }
  }
}

TEST_CASE("Runs that share a directory write what the index says once") {
  const IndexedModel model(kCount);
  for (const std::uint32_t rank : {1u, 0u}) {
    ConvertRequest part = model.request("model", "shards");
    part.target.layout = layout("presharded");
    part.target.options.erase("max-shard-size");
    part.target.tp = 2;
    part.target.options.set_number("start-rank", rank), part.target.options.set_number("end-rank", rank);
    convert(part);
    CHECK(model.keeps("shards") == (rank == 0));
  }
  model.to_hf("shards", "whole");
  CHECK((snapshot(model.temp / "whole") == snapshot(model.temp / "model")));
}

TEST_CASE("A file of the index's metadata that is none is refused by name") {
  const IndexedModel model(kCount);
  model.to_shards("model", "shards", layout("ranks"));
  for (const char* text : {"", "[]", "{\"total_parameters\": 1"}) {
    write_file(model.temp / "shards" / kKept, text);
    check_refused([&] { model.to_hf("shards", "whole"); }, {.path = model.temp / "shards" / kKept});
    CHECK_FALSE(fs::exists(model.temp / "whole"));
  }
}

TEST_CASE("Numbered files without an index are converted like those with one, which is written again") {
  const IndexedModel model("");
  for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
    INFO(name(format));
    const TempDir temp;
    ConvertRequest request = convert_request(model.temp / "model", temp / "indexed");
    request.target.options.set_number("max-shard-size", kFileBytes);
    request.target.format = format;
    convert(request);
    fs::copy(temp / "indexed", temp / "lost");
    const std::string index = format == Format::kPytorch ? "pytorch_model.bin.index.json" : kIndex;
    REQUIRE(fs::remove(temp / "lost" / index));
    request.source.path = temp / "lost";
    request.output_directory = temp / "again";
    const auto job = plan_convert(request);
    CHECK(std::count_if(job->notes.begin(), job->notes.end(), [&](const std::string& note) {
            return note.starts_with(index + " is missing; read the complete set of ");
          }) == 1);
    execute(*job, unsynced());
    CHECK((snapshot(temp / "again") == snapshot(temp / "indexed")));
    // Ranks are cut from such a model, too.
    request.output_directory = temp / "ranks";
    request.target = {};
    request.target.layout = layout("ranks");
    request.target.tp = 2;
    convert(request);
    CHECK((consolidated(temp / "ranks", temp / "whole") == model.originals));
  }
}

}  // namespace
}  // namespace reshard::test
