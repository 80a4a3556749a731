#include "reshard/specs/stages/stage_pt.h"

#include <map>

#include "support/files.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

using namespace pickles;
using Pairs = std::vector<std::pair<std::string, std::string>>;

const char* const kName = "mp_metadata_pp_rank_0.pt";
constexpr std::uint32_t kTp = 8;
const std::string kAttention = "l.0.self_attn.";

std::string sharded(const std::string& dim) {
  return dict({{"kind", text("sharded")}, {"partition_dim", dim}});
}

std::string set_of(const std::string& name) {
  return call("__builtin__", "set", {list({text(name)})});
}

/// A valid file's attention; the values of `changes` stand in for its own, and "" takes an entry away.
std::string attention(bool fused, const std::map<std::string, std::string>& changes = {}) {
  Pairs names;
  for (const char* letter : {"q", "k", "v"})
    names.emplace_back(kAttention + letter + "_proj.weight",
                       text(kAttention + "qkv_proj.weight_" + (fused ? "qkv" : letter)));
  Pairs entries{{"original_names_to_gqa_qkv_names", dict(names)},
                {"output_projections_names", set_of(kAttention + "o_proj.weight")},
                {"num_attention_heads", number(16)},
                {"num_key_value_heads", number(4)},
                {"kv_size_multiplier", number(2)}};
  for (auto& [key, value] : entries)
    if (const auto change = changes.find(key); change != changes.end()) value = change->second;
  std::erase_if(entries, [](const auto& entry) { return entry.second.empty(); });
  return dict(entries);
}

std::string metadata(const Pairs& parameters, const std::string& attention_value) {
  return dict({{"sharded_metadata", dict(parameters)}, {"gqa_qkv_metadata", attention_value}});
}

/// Reads the file of `value` for shards whose query weights, alone or joined, have `rows` rows.
StageMetadata read_from(const std::filesystem::path& path, const std::string& value, std::uint64_t rows, bool fused) {
  write_file(path, torch_zip(stream(value), {}));
  return read_stage_pt(path, kTp, [&](const std::string& name) -> std::optional<Dims> {
    if (name == kAttention + "qkv_proj.weight_" + (fused ? "qkv" : "q")) return Dims{rows, 32};
    return std::nullopt;
  });
}

StageMetadata read(const std::string& value, std::uint64_t rows = 8, bool fused = false) {
  const TempDir dir;
  return read_from(dir / kName, value, rows, fused);
}

Error refused(const std::string& value, std::uint64_t rows = 8) {
  const TempDir dir;
  return check_refused([&] { read_from(dir / kName, value, rows, false); }, {.path = dir / kName});
}

const std::string kNoAttention = attention(false, {{"original_names_to_gqa_qkv_names", dict({})}});

TEST_CASE("Older metadata says along which dim a parameter is split, over the ranks that there are") {
  const StageMetadata read_back = read(metadata(
      {{"down.weight", sharded(number(1))}, {"norm.weight", dict({{"kind", text("tied")}, {"partition_dim", kNone}})}},
      kNoAttention));
  CHECK(read_back.parameters == std::vector<ParallelParameter>{{"down.weight", true, 1, 1, kTp}, {"norm.weight"}});
  CHECK(read_back.modules.empty());
}

TEST_CASE("Older metadata tells grouped-query attention by names, and its sizes by the shards") {
  for (const bool fused : {false, true}) {
    const StageMetadata read_back = read(metadata({}, attention(fused)), fused ? 16 : 8, fused);
    REQUIRE(read_back.modules.size() == 1);
    CHECK(read_back.modules[0].module_fully_qualified_name == "l.0.self_attn");
    REQUIRE(read_back.modules[0].specs.size() == 1);
    GQAQKVColumnParallelLinearSpec expected{"qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", 16, 4, 2, 8, 4};
    expected.fuse_qkv = fused;
    expected.tp_size = kTp;
    CHECK(std::get<GQAQKVColumnParallelLinearSpec>(read_back.modules[0].specs[0]) == expected);
  }
}

TEST_CASE("The names of outputs are read from a set and from a list") {
  const std::string output = text(kAttention + "o_proj.weight");
  for (const std::string& outputs :
       {call("builtins", "set", {list({output})}), list({output}), "\x8f(" + output + "\x90"}) {
    const StageMetadata read_back = read(metadata({}, attention(false, {{"output_projections_names", outputs}})));
    REQUIRE(read_back.modules.size() == 1);
    CHECK(std::get<GQAQKVColumnParallelLinearSpec>(read_back.modules[0].specs.at(0)).output_projection_name ==
          "o_proj");
  }
}

TEST_CASE("A module of another pipeline rank has no spec here") {
  const TempDir dir;
  write_file(dir / kName, torch_zip(stream(metadata({}, attention(false))), {}));
  const StageMetadata read_back =
      read_stage_pt(dir / kName, kTp, [](const std::string&) { return std::optional<Dims>(); });
  CHECK(read_back.modules == std::vector<ModuleSpecs>{{"l.0.self_attn", {}}});
}

TEST_CASE("Older metadata that is not what it should be is refused") {
  const auto read_file_of = [](const std::string& value) { read(value); };
  check_each_refused(read_file_of, {},
                     {{dict({{"model", dict({})}}), "no \"sharded_metadata\""}, {list({}), "no \"sharded_metadata\""}});
  check_each_refused(
      [&](const std::string& value) {
        read(metadata({{"a.weight", value}}, kNoAttention));
      },
      {.tensor = "a.weight"},
      {{sharded(number(2)), "neither 0 nor 1"},
       {sharded(number(-1)), "neither 0 nor 1"},
       {sharded(kNone), "neither 0 nor 1"},
       {dict({{"kind", text("split")}}), "its kind is \"split\""}});
  CHECK_THAT(refused(metadata({{"a.weight", dict({})}}, kNoAttention)).what(), Says("instead of a name"));
}

TEST_CASE("Older metadata whose attention cannot be is refused") {
  const auto changed = [](const std::string& key, const std::string& value) {
    return std::string(refused(metadata({}, attention(false, {{key, value}}))).what());
  };
  CHECK_THAT(changed("num_attention_heads", kNone), Says("\"num_attention_heads\" is not a number"));
  CHECK_THAT(changed("num_key_value_heads", number(0)), Says("\"num_key_value_heads\" is not a number from 1"));
  CHECK_THAT(changed("kv_size_multiplier", ""), Says("\"kv_size_multiplier\" is not a number"));
  CHECK_THAT(changed("kv_size_multiplier", number(3)), Says("its attention is invalid"));
  CHECK_THAT(changed("output_projections_names", ""), Says("does not name all four projections"));
  CHECK_THAT(changed("output_projections_names", call("builtins", "set", {})), Says("does not name all four"));
  CHECK_THAT(changed("output_projections_names", list({kNone})), Says("instead of a name"));
  CHECK_THAT(changed("original_names_to_gqa_qkv_names", dict({{"a.b", text("c")}})), Says("records that a.b became c"));
  check_error(refused(metadata({}, attention(false)), 7),
              {.tensor = kAttention + "qkv_proj.weight_q", .says = "2 query and 1 key/value heads"});
}

}  // namespace
}  // namespace reshard::test
