// Options that can do nothing for the checkpoint that they are given for.
#include <string>
#include <vector>

#include "reshard/base/strings.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

using namespace reshard::test;

namespace {

/// Checkpoints of a Llama of 8 query and 4 key/value heads in bfloat16, on 2 ranks where there are ranks.
struct Checkpoints {
  TempDir temp;
  std::string model = (testdata("golden/optimum") / "llama-tp2-pp2/original").string();
  std::string adapter = (testdata("golden/lora") / "mha-tp4-pp2-fused/original").string();
  std::string adapter_shards = (testdata("golden/lora") / "mha-tp4-pp2-fused/sharded").string();
  std::string base = (testdata("golden/optimum") / "mha-tp4-pp2-fused/original").string();
  std::string ranks = made("ranks", {});
  std::string nxd = made("nxd", {"--layout", "nxd"});
  std::string out = (temp / "out").string();

  std::string made(const std::string& name, const Arguments& options) {
    run_well(joined({"shard", model, (temp / name).string(), "--tp", "2", "--manifest"}, options));
    return (temp / name).string();
  }
};

}  // namespace

TEST_CASE("An option that the checkpoint leaves nothing to do gets a note that says why") {
  const Checkpoints c;
  struct Case {
    Arguments arguments;
    std::string note;
  };
  const std::string no_replicas = " has no effect: the source stores no tensor twice";
  const std::string no_cast = " has no effect: no tensor is cast";
  for (const Case& each : std::vector<Case>{
           {{"shard", c.model, c.out, "--tp", "2", "--layout", "presharded", "--pad"},
            "--pad has no effect: nothing needs padding for 2 ranks"},
           {{"shard", c.model, c.out, "--tp", "2", "--layout", "nxdi", "--pad"},
            "--pad has no effect: layout nxdi always pads"},
           {{"shard", c.model, c.out, "--tp", "2", "--layout", "nxdi", "--pad-attn-heads"},
            "--pad-attn-heads has no effect: layout nxdi always pads"},
           {{"shard", c.model, c.out, "--tp", "2", "--layout", "nxd", "--pad-attn-heads"},
            "--pad-attn-heads has no effect: nothing needs padding for 2 ranks"},
           {{"shard", c.model, c.out, "--tp", "2", "--vpp", "2"}, "--vpp has no effect: the only pipeline rank"},
           {{"convert", c.ranks, c.out, "--to", "optimum", "--vpp", "2"},
            "--vpp has no effect: the only pipeline rank"},
           {{"shard", c.model, c.out, "--tp", "2", "--format", "safetensors", "--fuse-linears"},
            "--fuse-linears has no effect: in safetensors they are always fused"},
           {{"shard", c.model, c.out, "--tp", "2", "--layout", "nxd", "--kv-replication", "adjacent"},
            "--kv-replication has no effect: key/value heads are not replicated"},
           {{"shard", c.model, c.out, "--tp", "2", "--fuse-qkv"}, "--fuse-qkv has no effect: 8 query and 4"},
           {{"shard", c.model, c.out, "--tp", "2", "--kv-size-multiplier", "1"},
            "--kv-size-multiplier has no effect: 4 key/value heads divide over 2 ranks without replication"},
           {{"shard", c.model, c.out, "--tp", "2", "--dtype", "bfloat16"}, "--dtype" + no_cast},
           {{"shard", c.model, c.out, "--tp", "2", "--dtype", "bf16", "--overflow", "error"}, "--overflow" + no_cast},
           {{"shard", c.model, c.out, "--tp", "2", "--layout", "nxdi", "--overflow", "error"}, "--overflow" + no_cast},
           {{"consolidate", c.ranks, c.out, "--dtype", "bfloat16"}, "--dtype" + no_cast},
           {{"convert", c.model, c.out, "--dtype", "float32", "--cast-all"},
            "--cast-all has no effect: no tensor of integers or booleans is cast, and none that"},
           {{"convert", c.model, c.out, "--replicas", "first"}, "--replicas" + no_replicas},
           {{"convert", c.model, c.out, "--no-check-replicas"}, "--no-check-replicas" + no_replicas},
           {{"convert", c.adapter, c.out, "--allow-divergent-replicas"}, "--allow-divergent-replicas" + no_replicas},
           {{"verify", c.model, c.model, "--replicas", "first"},
            "--replicas has no effect: neither checkpoint stores a tensor twice"},
           {{"convert", c.model, c.out, "--allow-missing"}, "--allow-missing has no effect: no tensor is missing"},
           {{"convert", c.nxd, c.out, "--from-kv-replication", "adjacent"},
            "--from-kv-replication has no effect: key/value heads are not replicated"},
           {{"convert", c.nxd, c.out, "--from-pad-attn-heads"},
            "--from-pad-attn-heads has no effect: no heads are padded"},
           {{"verify", c.nxd, c.nxd, "--kv-replication", "adjacent"},
            "--kv-replication has no effect: key/value heads are not replicated"},
           {{"shard", c.base, c.out, "--tp", "2", "--adapter", c.adapter, "--vpp", "2"},
            "--vpp has no effect: the only pipeline rank"},
           {{"shard", c.base, c.out, "--tp", "2", "--adapter", c.adapter, "--extra-tensors", "drop"},
            "--extra-tensors has no effect on adapters"},
           {{"convert", c.adapter, c.out, "--family", "llama"}, "--family has no effect on adapters"},
           {{"consolidate", c.adapter_shards, c.out, "--kv-replication", "adjacent"},
            "--kv-replication has no effect on adapters"},
           {{"consolidate", c.adapter_shards, c.out, "--weights", "master"}, "--weights has no effect on adapters"},
           {{"inspect", c.model, "--filter", "nosuch"}, "--filter matches no tensor"},
       }) {
    INFO(reshard::join(each.arguments, " "));
    Arguments arguments = each.arguments;
    if (arguments.front() != "verify" && arguments.front() != "inspect") arguments.emplace_back("--dry-run");
    check_run(arguments, 0, {}, "reshard: note: " + each.note);
    arguments.emplace_back("--json");
    CHECK_THAT(run_reshard(arguments).out, Says(each.note));
  }
}

TEST_CASE("An option that does something, or says what is so already, gets no note") {
  const Checkpoints c;
  for (const Arguments& each : std::vector<Arguments>{
           {"shard", c.model, c.out, "--tp", "3", "--layout", "presharded", "--pad"},
           {"shard", c.model, c.out, "--tp", "16", "--layout", "nxd", "--pad-attn-heads", "--kv-replication",
            "adjacent"},
           {"shard", c.model, c.out, "--tp", "2", "--pp", "2", "--vpp", "2"},
           {"shard", c.model, c.out, "--tp", "2", "--pp", "1", "--vpp", "1", "--ep", "1"},
           {"shard", c.model, c.out, "--tp", "2", "--format", "pytorch", "--fuse-linears"},
           {"shard", c.model, c.out, "--tp", "8", "--kv-size-multiplier", "2", "--fuse-qkv"},
           {"shard", c.model, c.out, "--tp", "2", "--layout", "nxd", "--kv-replication", "tiled"},
           {"convert", c.model, c.out, "--dtype", "float32", "--overflow", "error"},
           {"convert", c.ranks, c.out, "--replicas", "first"},
           {"convert", c.ranks, c.out, "--no-check-replicas"},
           {"convert", c.model, c.out, "--keep", "norm"},
       }) {
    INFO(reshard::join(each, " "));
    Arguments arguments = each;
    arguments.emplace_back("--dry-run");
    const ProgramResult result = run_well(arguments);
    CHECK_THAT(result.err, !Says("no effect"));
  }
  CHECK_THAT(run_reshard({"verify", c.ranks, c.model, "--replicas", "first"}).err, !Says("no effect"));
}

TEST_CASE("An option that another one leaves nothing to do is an error") {
  const Checkpoints c;
  struct Case {
    Arguments arguments;
    std::string text;
  };
  const std::string sums = c.ranks + "/SHA256SUMS";
  for (const Case& each : std::vector<Case>{
           {{"inspect", "--print-family", "llama", "--tensors"}, "--tensors has no effect with --print-family"},
           {{"inspect", "--print-family", "llama", "--config", "x"}, "--config has no effect with --print-family"},
           {{"inspect", c.ranks, "--print-spec", "--digest"}, "--digest has no effect with --print-spec"},
           {{"inspect", c.ranks, "--print-spec", "--filter", "x"}, "--filter has no effect with --print-spec"},
           {{"verify", c.ranks, "--manifest", sums, "--weights", "master"},
            "--weights has no effect with a SHA256SUMS"},
           {{"verify", c.ranks, "--manifest", sums, "--replicas", "first"},
            "--replicas has no effect with a SHA256SUMS"},
           {{"verify", c.ranks, "--manifest", sums, "--with-optimizer"},
            "--with-optimizer has no effect with a SHA256SUMS"},
       }) {
    INFO(reshard::join(each.arguments, " "));
    check_run(each.arguments, 2, {}, each.text);
  }
}
