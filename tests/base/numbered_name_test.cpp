#include "reshard/base/numbered_name.h"

#include <random>
#include <string>
#include <vector>

#include "support/catch.h"

namespace reshard::test {
namespace {

/// One grammar, names that it accepts, and names that it refuses.
struct Row {
  NumberedName pattern;
  std::vector<std::string> printed;  // as print() has them
  std::vector<std::string> parsed;   // also
  std::vector<std::string> refused;
};

const Row kRows[] = {
    {NumberedName("tp{tp}_sharded_checkpoint.safetensors", 4095),
     {"tp0_sharded_checkpoint.safetensors", "tp4095_sharded_checkpoint.safetensors"},
     {"tp007_sharded_checkpoint.safetensors"},
     {"", "tp", "tp_sharded_checkpoint.safetensors", "tp4096_sharded_checkpoint.safetensors",
      "tp-1_sharded_checkpoint.safetensors", "tp+1_sharded_checkpoint.safetensors",
      "tp 1_sharded_checkpoint.safetensors", "xtp1_sharded_checkpoint.safetensors",
      "tp1_sharded_checkpoint.safetensors.tmp", "tp18446744073709551617_sharded_checkpoint.safetensors"}},
    {NumberedName("shard-{rank:5}-model-{part:5}-of-{parts:5}.safetensors"),
     {"shard-00001-model-00002-of-00002.safetensors", "shard-123456-model-00001-of-00001.safetensors",
      "shard-4294967295-model-00001-of-00001.safetensors"},
     {"shard-1-model-2-of-2.safetensors"},
     {"shard-00001-model-00002-of-.safetensors", "shard-4294967296-model-00001-of-00001.safetensors",
      "shard-00001-model-00001-of-00001", "model-00001-of-00001.safetensors"}},
    {NumberedName("pytorch_model_fsdp[_{model}]_rank{rank}.bin"),
     {"pytorch_model_fsdp_rank3.bin", "pytorch_model_fsdp_0_rank3.bin"},
     {"pytorch_model_fsdp_01_rank03.bin"},
     {"pytorch_model_fsdp.bin", "pytorch_model_fsdp__rank3.bin", "pytorch_model_fsdp_1rank3.bin"}},
    {NumberedName("[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{mp:2}_optim_states.pt"),
     {"zero_pp_rank_10_mp_rank_00_optim_states.pt"},
     {"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt"},
     {"fp16_bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_optim_states.pt"}},
    {NumberedName("<[dp_rank_{dp:2}]|tp_rank_{tp:2}|pp_rank_{pp:2}>.pt", 4095),
     {"tp_rank_00_pp_rank_10.pt", "dp_rank_02_tp_rank_100_pp_rank_00.pt"},
     {"pp_rank_1_dp_rank_2_tp_rank_3.pt", "tp_rank_0_pp_rank_0_dp_rank_0.pt"},
     {"tp_rank_00.pt", "dp_rank_00_tp_rank_00.pt", "tp_rank_00_pp_rank_00_.pt", "_tp_rank_00_pp_rank_00.pt",
      "tp_rank_00pp_rank_00.pt", "tp_rank_00_pp_rank_00_tp_rank_00.pt", "tp_rank_pp_rank_00_tp_rank_00.pt",
      "tp_rank_00_pp_rank_00_ep_rank_00.pt", ".pt"}},
};

TEST_CASE("A numbered name accepts its names and refuses others") {
  for (const Row& row : kRows) {
    for (const std::string& name : row.printed) {
      INFO(name);
      const auto numbers = row.pattern.parse_printed(name);
      REQUIRE(numbers);
      CHECK(row.pattern.print(*numbers) == name);
    }
    for (const std::string& name : row.parsed) {
      INFO(name);
      CHECK(row.pattern.matches(name));
      CHECK_FALSE(row.pattern.parse_printed(name));
    }
    for (const std::string& name : row.refused) {
      INFO(name);
      CHECK_FALSE(row.pattern.matches(name));
    }
  }
}

TEST_CASE("Printed names parse to the same numbers, with or without the optional ones") {
  const NumberedName patterns[] = {NumberedName("a{x:2}-{y}"), NumberedName("[b{z}_]a{x:5}.{y:3}"),
                                   NumberedName("<[z_{z:2}]|x_{x}|y_{y:4}>.pt"), NumberedName("{x}[of{y}][,{z:2}]")};
  std::mt19937_64 random(7);  // NOLINT(cert-msc51-cpp)
  for (int i = 0; i < 2000; ++i)
    for (const NumberedName& pattern : patterns) {
      NameNumbers numbers{{"x", random() >> (32 + random() % 32)}, {"y", random() >> (32 + random() % 32)}};
      if (random() % 2 == 0) numbers.emplace("z", random() >> (32 + random() % 32));
      const std::string name = pattern.print(numbers);
      INFO(name);
      const auto parsed = pattern.parse(name);
      REQUIRE(parsed);
      CHECK(pattern.print(*parsed) == name);
      for (const auto& [key, number] : *parsed) CHECK(numbers.at(key) == number);
      CHECK_FALSE(pattern.matches(name + "x"));
      CHECK_FALSE(pattern.matches("x" + name));
    }
}

}  // namespace
}  // namespace reshard::test
