// Experts spread over expert-parallel ranks, of every family that has some.

#include <nlohmann/json.hpp>
#include <tuple>

#include "reshard/base/error.h"
#include "reshard/plan/job/convert.h"
#include "reshard/specs/family/family_parser.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

std::string two_digits(std::uint64_t number) {
  return (number < 10 ? "0" : "") + std::to_string(number);
}

TEST_CASE("Experts are spread over expert-parallel ranks, all else is on each of them, and they come together again") {
  for (const char* family : kExpertFamilies)
    for (const auto& [tp, pp, ep] : {std::tuple(1u, 1u, 2u), {2u, 1u, 3u}, {1u, 2u, 6u}, {2u, 2u, 2u}})
      for (const Format format : {Format::kSafetensors, Format::kPytorch, Format::kXser}) {
        DYNAMIC_SECTION(family << ", tp " << tp << ", pp " << pp << ", ep " << ep << ", " << name(format)) {
          const FamilyCase c = with_six_experts(family);
          const TempDir temp;
          const TensorMap tensors = write_case(c, temp / "model");
          const fs::path out = temp / "out";
          const fs::path whole = temp / "whole";
          ShardRequest request = shard_request(temp / "model", out, tp, pp);
          request.target.ep = ep;
          request.target.layout = format == Format::kSafetensors ? layout("ranks") : layout("optimum"),
          request.target.format = format;
          shard(request);
          if (format == Format::kSafetensors && pp == 1) {
            const auto ranks = read_ranks(out);
            REQUIRE(ranks.size() == tp * ep);
            for (std::uint64_t ep_rank = 0; ep_rank < ep; ++ep_rank)
              for (std::uint64_t tp_rank = 0; tp_rank < tp; ++tp_rank) {
                const TensorMap& held =
                    ranks.at("ep_rank_" + two_digits(ep_rank) + "_tp_rank_" + two_digits(tp_rank) + "_pp_rank_00");
                std::size_t count = 0;
                for (const auto& tensor : c.json["tensors"]) {
                  const auto tensor_name = tensor["name"].get<std::string>();
                  CAPTURE(tensor_name);
                  const auto part = expert_part(tensor_name, tensors.at(tensor_name), ep, ep_rank);
                  CHECK(held.count(tensor_name) == (part ? 1 : 0));
                  if (!part || held.count(tensor_name) == 0) continue;
                  CHECK((held.at(tensor_name) == rank_part(c, tensor, *part, tp, tp_rank)));
                  ++count;
                }
                CHECK(held.size() == count);
              }
          } else if (format != Format::kSafetensors) {
            CHECK(fs::exists(out / "shards/model" /
                             ("dp_rank_00_ep_rank_" + two_digits(ep - 1) + "_tp_rank_00_pp_rank_00.pt")));
          }
          ConsolidateRequest back;
          back.source.path = out;
          back.output_directory = whole;
          consolidate(back);
          CHECK((read_tensors(whole / "model.safetensors") == tensors));
        }
      }
}

TEST_CASE("Expert-parallel ranks become other ranks, and those of another mesh are the same as made directly") {
  const TempDir temp;
  const FamilyCase c = with_six_experts("qwen3_moe");
  const TensorMap tensors = write_case(c, temp / "model");
  ShardRequest request = shard_request(temp / "model", temp / "six", 2, 2);
  request.target.ep = 6;
  shard(request);
  ConvertRequest convert;
  convert.source.path = temp / "six";
  convert.output_directory = temp / "three";
  convert.target.layout = layout("ranks");
  convert.target.tp = 1;
  convert.target.pp = 1;
  convert.target.ep = 3;
  execute(*plan_convert(convert), unsynced());
  request = shard_request(temp / "model", temp / "direct", 1, 1);
  request.target.ep = 3;
  shard(request);
  CHECK((read_ranks(temp / "three") == read_ranks(temp / "direct")));
  CHECK(read_file(temp / "three/tensor_parallel_shards/mp_metadata_pp_rank_0.json") ==
        read_file(temp / "direct/tensor_parallel_shards/mp_metadata_pp_rank_0.json"));
  const nlohmann::json metadata =
      nlohmann::json::parse(read_file(temp / "direct/tensor_parallel_shards/mp_metadata_pp_rank_0.json"));
  const nlohmann::json& expert = metadata["parameters"]["model.layers.1.mlp.experts.4.up_proj.weight"];
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
  ShardRequest request = shard_request(temp / "model", temp / "out", 1);
  request.source.family = read_family(temp / "spec.json");
  request.target.ep = 2;
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUnsupported, .says = "not each a packed matrix"});
}

TEST_CASE("Experts that cannot be spread so are refused, and ranks of experts that are not all there") {
  const TempDir temp;
  const FamilyCase c = with_six_experts("mixtral");
  write_case(c, temp / "model");
  ShardRequest request = shard_request(temp / "model", temp / "out", 1);
  const auto refused = [&](std::uint32_t ep, const Layout* kind, const char* says) {
    request.target.ep = ep;
    request.target.layout = kind, request.target.format = Format::kSafetensors;
    return check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUsage, .says = says});
  };
  CHECK_THAT(refused(4, layout("ranks"), "6 experts cannot be shared by 4").hint(), Says("1, 2, 3, 6"));
  refused(2, layout("presharded"), "`ep`");
  refused(0, layout("ranks"), "`ep` 0");
  write_case(family_case("olmo2"), temp / "dense");
  request.source.path = temp / "dense";
  refused(2, layout("ranks"), "has no experts");

  request = shard_request(temp / "model", temp / "out", 1);
  request.target.ep = 3;
  shard(request);
  const fs::path shards = temp / "out/tensor_parallel_shards";
  ConsolidateRequest back;
  back.source.path = temp / "out";
  back.output_directory = temp / "whole";
  fs::rename(shards / "ep_rank_01_tp_rank_00_pp_rank_00", temp / "aside");
  CHECK_THAT(error_of([&] { plan_consolidate(back); }).what(), Says("ep_rank_01_tp_rank_00_pp_rank_00"));
  fs::rename(temp / "aside", shards / "ep_rank_01_tp_rank_00_pp_rank_00");
  fs::rename(shards / "ep_rank_02_tp_rank_00_pp_rank_00", temp / "aside");
  check_refused([&] { plan_consolidate(back); }, {.says = "expert-parallel rank 2, but there are 2"});
  fs::rename(shards / "ep_rank_01_tp_rank_00_pp_rank_00", shards / "ep_rank_02_tp_rank_00_pp_rank_00");
  fs::rename(temp / "aside", shards / "ep_rank_01_tp_rank_00_pp_rank_00");
  check_refused([&] { plan_consolidate(back); }, {.says = "its name says expert-parallel rank 1, its metadata rank 2"});
  for (const auto& entry : fs::recursive_directory_iterator(shards))  // as NxD's, which say nothing
    if (entry.path().extension() == ".safetensors") write_safetensors(entry.path(), read_tensors(entry.path()));
  check_refused([&] { plan_consolidate(back); }, {.says = "says the tensor is another's"});
}

TEST_CASE("Ranks of experts are consolidated by their metadata where only a plan in config.json is left") {
  const TempDir temp;
  FamilyCase c = with_six_experts("mixtral");
  nlohmann::json family = nlohmann::json::parse(builtin_family("mixtral")->json_text);
  c.json["config"]["model_type"] = family["model_type"] = "newcomer";
  c.json["config"]["base_model_tp_plan"] = {{"layers.*.self_attn.q_proj", "colwise"}};
  const TensorMap tensors = write_case(c, temp / "model");
  write_file(temp / "spec.json", family.dump());
  ShardRequest request = shard_request(temp / "model", temp / "out", 2, 2);
  request.source.family = read_family(temp / "spec.json");
  request.target.ep = 3;
  shard(request);
  CHECK((consolidated(temp / "out", temp / "whole", request.source.family) == tensors));
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

}  // namespace
}  // namespace reshard::test
