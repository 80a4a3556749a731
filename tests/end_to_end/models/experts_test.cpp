// Experts spread over expert-parallel ranks, of every family that has some.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "reshard/specs/family/family_parser.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model of the family with six experts a layer, written as `to` says.
Input six_experts(const char* family, const RequestFields& to) {
  return Input(to, [&](const fs::path& directory) { return write_case(with_six_experts(family), directory); });
}

/// What each rank of the layout ranks holds, against the case's own splits.
void check_ranks(const Input& input, const FamilyCase& c) {
  const std::uint64_t tp = *input.to.tp, ep = *input.to.ep;
  const auto ranks = read_ranks(input.path());
  REQUIRE(ranks.size() == tp * ep);
  for (std::uint64_t ep_rank = 0; ep_rank < ep; ++ep_rank)
    for (std::uint64_t tp_rank = 0; tp_rank < tp; ++tp_rank) {
      const TensorMap& held = ranks.at(fmt::format("ep_rank_{:02}_tp_rank_{:02}_pp_rank_00", ep_rank, tp_rank));
      TensorMap expected;
      for (const auto& tensor : c.json["tensors"]) {
        const auto name = tensor["name"].get<std::string>();
        const auto part = expert_part(name, input.tensors.at(name), ep, ep_rank);
        if (part) expected[name] = rank_part(c, tensor, *part, tp, tp_rank);
      }
      CHECK((held == expected));
    }
}

TEST_CASE("Experts are spread over expert-parallel ranks, all else is on each of them, and they come together again") {
  for (const char* family : kExpertFamilies)
    for (const auto& [tp, pp, ep] : {std::tuple(1u, 1u, 2u), {2u, 1u, 3u}, {1u, 2u, 6u}, {2u, 2u, 2u}})
      for (const Format format : {Format::kSafetensors, Format::kPytorch, Format::kXser}) {
        DYNAMIC_SECTION(family << ", tp " << tp << ", pp " << pp << ", ep " << ep << ", " << name(format)) {
          const bool is_ranks = format == Format::kSafetensors;
          const Input input = six_experts(
              family, {.layout = is_ranks ? "ranks" : "optimum", .format = format, .tp = tp, .pp = pp, .ep = ep});
          if (is_ranks && pp == 1) check_ranks(input, with_six_experts(family));
          if (!is_ranks)
            CHECK(fs::exists(
                input / fmt::format("out/shards/model/dp_rank_00_ep_rank_{:02}_tp_rank_00_pp_rank_00.pt", ep - 1)));
          CHECK((input.whole() == input.tensors));
        }
      }
}

TEST_CASE("Expert-parallel ranks become other ranks, and those of another mesh are the same as made directly") {
  const Input input = six_experts("qwen3_moe", {.layout = "ranks", .tp = 2, .pp = 2, .ep = 6});
  const RequestFields three{.layout = "ranks", .tp = 1, .pp = 1, .ep = 3};
  convert(input.path(), input / "three", three);
  shard(input / "model", input / "direct", three);
  CHECK((read_ranks(input / "three") == read_ranks(input / "direct")));
  const std::string metadata = read_file(input / "direct/tensor_parallel_shards/mp_metadata_pp_rank_0.json");
  CHECK(read_file(input / "three/tensor_parallel_shards/mp_metadata_pp_rank_0.json") == metadata);
  const nlohmann::json expert =
      nlohmann::json::parse(metadata)["parameters"]["model.layers.1.mlp.experts.4.up_proj.weight"];
  CHECK(expert["expert_model_parallel"] == true);
  CHECK(expert["expert_rank"] == 2);
}

TEST_CASE("Experts stacked along the dim that is split have to be matrices packed in it") {
  const TempDir temp;
  const FamilyCase c = with_six_experts("dbrx");
  write_case(c, temp / "model");
  nlohmann::json family = nlohmann::json::parse(builtin_family("dbrx")->json_text);
  for (nlohmann::json& module : family["modules"])
    if (module.contains("stacked_experts")) {
      module["plan"] = "colwise";
      module.erase("packed");
    }
  write_file(temp / "spec.json", family.dump());
  const RequestFields fields{.tp = 1, .ep = 2, .family = read_family(temp / "spec.json")};
  check_refused([&] { plan_shard(shard_request(temp / "model", temp / "out", fields)); },
                {.kind = ErrorKind::kUnsupported, .says = "not each a packed matrix"});
}

TEST_CASE("Experts that cannot be spread so are refused") {
  const Input input = six_experts("mixtral", {});
  write_case(family_case("olmo2"), input / "dense");
  struct Row {
    const char *model, *layout;
    std::uint32_t ep;
    Refusal refusal;
  };
  for (const Row& row : {Row{"model", "ranks", 4, {.says = "6 experts cannot be shared by 4", .hint = "1, 2, 3, 6"}},
                         Row{"model", "presharded", 2, {.says = "`ep`"}}, Row{"model", "ranks", 0, {.says = "`ep` 0"}},
                         Row{"dense", "ranks", 2, {.says = "has no experts"}}})
    check_refused(
        [&] {
          plan_shard(shard_request(input / row.model, input / "out", {.layout = row.layout, .tp = 1, .ep = row.ep}));
        },
        with_common(row.refusal, {.kind = ErrorKind::kUsage}));
}

TEST_CASE("Ranks of experts that are not all there, or others than they say, are refused") {
  const Input input = six_experts("mixtral", {.layout = "ranks", .tp = 1, .ep = 3});
  const auto rank = [&](int ep_rank) {
    return input / fmt::format("out/tensor_parallel_shards/ep_rank_0{}_tp_rank_00_pp_rank_00", ep_rank);
  };
  fs::rename(rank(1), input / "aside");
  CHECK_THAT(input.refusal().what(), Says("ep_rank_01_tp_rank_00_pp_rank_00"));
  fs::rename(rank(2), rank(1));
  fs::rename(input / "aside", rank(2));
  CHECK_THAT(input.refusal().what(), Says("its name says expert-parallel rank 1, its metadata rank 2"));
  for (int ep_rank = 0; ep_rank < 3; ++ep_rank)  // as NxD's, which say nothing
    change_tensors(rank(ep_rank) / "model.safetensors", [](TensorMap&) {});
  CHECK_THAT(input.refusal().what(), Says("the tensor belongs to another rank"));
  fs::remove_all(rank(2));
  CHECK_THAT(input.refusal().what(), Says("expert-parallel rank 2, but there are 2"));
}

TEST_CASE("Ranks of experts are consolidated by their metadata where only a plan in config.json is left") {
  const TempDir temp;
  FamilyCase c = with_six_experts("mixtral");
  nlohmann::json family = nlohmann::json::parse(builtin_family("mixtral")->json_text);
  c.json["config"]["model_type"] = family["model_type"] = "newcomer";
  c.json["config"]["base_model_tp_plan"] = {{"layers.*.self_attn.q_proj", "colwise"}};
  const TensorMap tensors = write_case(c, temp / "model");
  write_file(temp / "spec.json", family.dump());
  const FamilySpec spec = read_family(temp / "spec.json");
  shard(temp / "model", temp / "out", {.tp = 2, .pp = 2, .ep = 3, .family = spec});
  CHECK((consolidated(temp / "out", temp / "whole", spec) == tensors));
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

}  // namespace
}  // namespace reshard::test
