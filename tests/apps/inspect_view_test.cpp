// Order and number of tensors in the report of inspect.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/program.h"

namespace reshard::test {
namespace {

const std::string kModel = testdata("golden/optimum/llama-tp2-pp2/original");

std::vector<std::string> names_shown(const Arguments& arguments) {
  std::vector<std::string> names;
  const nlohmann::json report = json_of(joined({"inspect", kModel}, arguments));
  for (const auto& tensor : report["tensors"]) names.push_back(tensor["name"]);
  return names;
}

}  // namespace

TEST_CASE("inspect sorts tensors by size, name or layer") {
  const auto sizes = json_of({"inspect", kModel, "--sort", "size"})["tensors"];
  REQUIRE(sizes.size() > 5);
  for (std::size_t i = 1; i < sizes.size(); ++i) CHECK(sizes[i - 1]["bytes"] >= sizes[i]["bytes"]);
  const std::vector<std::string> by_name = names_shown({"--sort", "name"}), by_layer = names_shown({"--sort", "layer"});
  CHECK(by_name.front() == "lm_head.weight");
  const auto at = [&](const char* name) { return std::find(by_layer.begin(), by_layer.end(), name); };
  CHECK(at("model.norm.weight") < at("model.layers.0.mlp.up_proj.weight"));
  CHECK(at("model.layers.0.mlp.up_proj.weight") < at("model.layers.1.input_layernorm.weight"));
  check_fails({"inspect", kModel, "--sort", "dtype"}, 2, {"--sort: \"dtype\" is not one of size, name, layer"});
}

TEST_CASE("inspect limits the tensors, or the lines that stand for them") {
  const std::vector<std::string> all = names_shown({"--sort", "size"});
  CHECK(names_shown({"--sort", "size", "--limit", "2"}) == std::vector<std::string>(all.begin(), all.begin() + 2));
  const std::string each = run_well({"inspect", kModel, "--tensors", "--limit", "2"}).out;
  CHECK_THAT(each, Says(fmt::format("\n{} tensors, ", all.size())) &&
                       Says(fmt::format("… and {} more lines\n", all.size() - 2)));
  const std::string folded = run_well({"inspect", kModel, "--limit", "1"}).out;
  CHECK_THAT(folded, Says("more lines\n"));
  CHECK_THAT(run_well({"inspect", kModel}).out, !Says("more lines"));
  nlohmann::json whole = json_of({"inspect", kModel}), limited = json_of({"inspect", kModel, "--limit", "1"});
  CHECK(limited["tensors"].size() == 1);
  for (nlohmann::json* one : {&whole, &limited}) one->erase("tensors");
  CHECK(limited == whole);
  CHECK_THAT(run_well({"inspect", kModel, "--stats", "--limit", "1"}).out, Says("more lines\n"));
  check_fails({"inspect", kModel, "--limit", "0"}, 2, {"--limit: \"0\" is not a whole number from 1"});
  check_fails({"inspect", kModel, "--print-spec", "--limit", "3"}, 2, {"--limit has no effect with --print-spec"});
}

}  // namespace reshard::test
