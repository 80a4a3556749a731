// What the index of a model's files says beside their names and sizes.

#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileBytes = "max-shard-size=2000";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kKept = "reshard_index_metadata.json";

/// model/: a model of several files, with an index whose metadata has `members` before total_size, each on a line. one/:
/// the same in one file.
struct IndexedModel {
  Input input{{}, {}, 3};
  const TempDir& temp = input.temp;
  const TensorMap& originals = input.tensors;
  std::uint64_t elems = 0;

  explicit IndexedModel(const std::string& members) {
    for (const auto& [name, tensor] : originals) elems += num_elems(tensor.shape).value();
    fs::rename(temp / "model", temp / "one");
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
  void to_hf(const std::string& from, const std::string& to) const {
    convert(temp / from, temp / to, {.options = {kFileBytes}});
  }
  void to_shards(const std::string& from, const std::string& to, const std::string& layout = "ranks",
                 std::uint32_t tp = 2) const {
    convert(temp / from, temp / to, {.layout = layout, .tp = tp});
  }
};

const std::string kCount = "    \"total_parameters\": COUNT,\n";

TEST_CASE("What an index says beside the size comes back with the files, byte for byte, by way of any layout") {
  const IndexedModel model(kCount);
  const auto original = snapshot(model.temp / "model");
  for (const std::string layout : {"ranks", "optimum", "presharded", "nxdi", "nxd", "vllm", "dcp"}) {
    INFO(layout);
    model.to_shards("model", layout, layout);
    CHECK(model.keeps(layout));
    const fs::path whole = model.temp / (layout + "-whole");
    execute(*plan_consolidate(consolidate_request(model.temp / layout, whole, {.options = {kFileBytes}})), unsynced());
    CHECK((snapshot(whole) == original));
  }
  shard(model.temp / "model", model.temp / "s", {.tp = 4});
  model.to_shards("s", "t", "optimum", 1);
  for (const char* from : {"t", "model"}) {
    model.to_hf(from, std::string(from) + "-again");
    CHECK((snapshot(model.temp / (std::string(from) + "-again")) == original));
  }
}

TEST_CASE("Any members of an index's metadata are kept, as Python writes them") {
  const IndexedModel model(
      "    \"a\": {\n      \"b\": [\n        NaN,\n        1.5\n      ]\n    },\n"
      "    \"mergekit \\u00e9\": \"0.1\",\n");
  model.to_shards("model", "shards");
  model.to_hf("shards", "whole");
  CHECK(model.index("whole") == model.index("model"));
  CHECK_FALSE(model.keeps("whole"));
}

TEST_CASE("An index that says nothing but the size leaves nothing in the shards, and neither does a single file") {
  const IndexedModel model("");
  for (const std::string from : {"model", "one"}) {
    model.to_shards(from, from + "-shards");
    CHECK_FALSE(model.keeps(from + "-shards"));
    model.to_hf(from + "-shards", from + "-whole");
    CHECK(model.index(from + "-whole") == model.index("model"));
  }
}

TEST_CASE("One file in place of several has no index, and takes nothing of it along") {
  const IndexedModel model(kCount);
  model.to_shards("model", "shards");
  CHECK((converted(model.temp / "shards", model.temp / "whole") == model.originals));
  CHECK(snapshot(model.temp / "whole").size() == 2);  // with config.json
}

TEST_CASE("The size in an index is that of the tensors, and a number with a point stays one") {
  const IndexedModel model(kCount);
  const std::string text = model.index("model");
  const std::size_t end = text.find('\n', text.find("\"total_size\""));
  for (const std::string added : {".0", "7.0"}) {
    std::string changed = text;
    write_file(model.temp / "model" / kIndex, changed.insert(end, added));
    model.to_shards("model", "shards" + added);
    model.to_hf("shards" + added, "whole" + added);
    CHECK(model.index("whole" + added) == (added == ".0" ? changed : text));
  }
}

TEST_CASE("The number of parameters is counted anew where tensors are left out") {
  for (const bool counted : {true, false}) {
    INFO(counted);
    const IndexedModel model(counted ? kCount : "    \"total_parameters\": 77,\n");
    model.to_shards("model", "shards");
    for (const std::string from : {"model", "shards"}) {
      const std::string to = from + "-less";
      Request request = convert_request(model.temp / from, model.temp / to, {.options = {kFileBytes}});
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
  for (const std::string rank : {"1", "0"}) {
    convert(model.temp / "model", model.temp / "shards",
            {.layout = "presharded", .tp = 2, .options = {"start-rank=" + rank, "end-rank=" + rank}});
    CHECK(model.keeps("shards") == (rank == "0"));
  }
  model.to_hf("shards", "whole");
  CHECK((snapshot(model.temp / "whole") == snapshot(model.temp / "model")));
}

TEST_CASE("A file of the index's metadata that is none is refused by name") {
  const IndexedModel model(kCount);
  model.to_shards("model", "shards");
  for (const char* text : {"", "[]", "{\"total_parameters\": 1"}) {
    write_file(model.temp / "shards" / kKept, text);
    check_refused([&] { model.to_hf("shards", "whole"); },
                  {.path = model.temp / "shards" / kKept, .unwritten = model.temp / "whole"});
  }
}

TEST_CASE("Numbered files without an index are converted like those with one, which is written again") {
  const IndexedModel model("");
  for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
    INFO(name(format));
    const TempDir temp;
    const RequestFields fields{.format = format, .options = {kFileBytes}};
    convert(model.temp / "model", temp / "indexed", fields);
    fs::copy(temp / "indexed", temp / "lost");
    const std::string index = format == Format::kPytorch ? "pytorch_model.bin.index.json" : kIndex;
    REQUIRE(fs::remove(temp / "lost" / index));
    const auto job = plan_convert(convert_request(temp / "lost", temp / "again", fields));
    CHECK(std::count_if(job->notes.begin(), job->notes.end(), [&](const std::string& note) {
            return note.starts_with(index + " is missing; read the complete set of ");
          }) == 1);
    execute(*job, unsynced());
    CHECK((snapshot(temp / "again") == snapshot(temp / "indexed")));
    // Ranks are cut from such a model, too.
    convert(temp / "lost", temp / "ranks", {.layout = "ranks", .tp = 2});
    CHECK((converted(temp / "ranks", temp / "whole") == model.originals));
  }
}

}  // namespace
}  // namespace reshard::test
