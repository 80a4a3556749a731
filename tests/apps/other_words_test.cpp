// Options of NxD's checkpoint converter, optimum-cli, inference_demo and vLLM: taken if they mean the same as one of
// ours, else a hint names ours.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const std::string kModel = testdata("golden/optimum/llama-tp8-gqa/original").string();

/// What `reshard shard --dry-run --json` prints with these options, but for the free space on the disk.
std::string planned(const Arguments& options) {
  const ProgramResult result = run_well(joined({"shard", kModel, "no-such-directory", "--dry-run", "--json"}, options));
  nlohmann::ordered_json plan = nlohmann::ordered_json::parse(result.out, nullptr, false);
  CHECK(plan["bytes"].erase("free") == 1);
  return plan.dump(1);
}

std::string refused(const Arguments& arguments) {
  const ProgramResult result = run_reshard(arguments);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  return result.err;
}

TEST_CASE("options of other programs that mean the same are taken") {
  const std::string two = planned({"--layout", "nxd", "--tp", "2", "--pp", "2"});
  for (const Arguments& words : std::vector<Arguments>{{"--tensor_parallel_size", "2", "--pipeline_parallel_size", "2"},
                                                       {"--tensor-parallel-size=2", "--pipeline-parallel-size=2"},
                                                       {"--tp_size", "2", "--pp_size", "2"},
                                                       {"--tp-degree", "2", "--pp-degree", "2"}})
    CHECK(planned(joined({"--layout", "nxd"}, words)) == two);
  CHECK(planned({"--to", "nxd", "--tp", "2", "--pp", "2"}) == two);
  CHECK(planned({"--tp", "8", "--kv-replicator", "2"}) == planned({"--tp", "8", "--kv-size-multiplier", "2"}));
  CHECK(planned({"--tp", "8", "--kv_size_multiplier", "2"}) == planned({"--tp", "8", "--kv-size-multiplier", "2"}));
  CHECK(planned({"--tp", "2", "--torch-dtype", "float32"}) == planned({"--tp", "2", "--dtype", "float32"}));
  CHECK(planned({"--tp", "2", "--config_path", kModel}) == planned({"--tp", "2", "--config", kModel}));
  CHECK(planned({"--tp", "8", "--fuse_qkv", "True"}) == planned({"--tp", "8", "--fuse-qkv"}));
  CHECK(planned({"--tp", "8", "--fuse_qkv", "False"}) == planned({"--tp", "8"}));
  CHECK(planned({"--tp", "8", "--disable_embedding_parallelization", "True"}) ==
        planned({"--tp", "8", "--disable-embedding-parallelization"}));
  CHECK(planned({"--tp", "8", "--disable_embedding_parallelization", "False"}) == planned({"--tp", "8"}));
  const Arguments nxd{"--layout", "nxd", "--tp", "2"};
  CHECK(planned(joined(nxd, {"--qkv_linear", "True"})) == planned(joined(nxd, {"--qkv-linear", "on"})));
  CHECK(planned(joined(nxd, {"--qkv-linear=True"})) == planned(joined(nxd, {"--qkv-linear", "on"})));
  CHECK(planned(joined(nxd, {"--qkv_linear=False"})) == planned(joined(nxd, {"--qkv-linear", "off"})));
  CHECK(planned(joined(nxd, {"--qkv_linear", "on"})) == planned(joined(nxd, {"--qkv-linear", "on"})));
  CHECK(planned({"--tp", "1", "--pp", "2", "--virtual_pp_size", "1"}) == planned({"--tp", "1", "--pp", "2"}));
  CHECK(planned({"--tp", "1", "--pp", "2", "--virtual_pipeline_size", "1"}) == planned({"--tp", "1", "--pp", "2"}));
}

TEST_CASE("for options of other programs that mean something else a hint names ours") {
  struct Case {
    Arguments options;
    const char* hint;
  };
  for (const Case& each : std::vector<Case>{
           {{"--hw_backend", "trn2"}, "try: --kv-replication adjacent for trn2"},
           {{"--save_xser", "False"}, "try: --format xser; for False, leave it out"},
           {{"--qkv-kernel-enabled"}, "try: --kernels qkv"},
           {{"--load-format", "sharded_state"}, "try: --layout, which says for which program"},
           {{"--qkv_linear", "True"}, "try: layouts with --qkv-linear: nxd"},
           {{"--input_dir", "x"}, "as the first argument"},
           {{"--output_dir", "x"}, "as the second argument"},
           {{"--convert_from_full_state"}, "reshard shard reads whole models"},
           {{"--bf16"}, "try: --dtype bfloat16"},
           {{"--num_cores", "2"}, "try: --tp"},
           {{"--local_ranks_size", "2"}, "try: --end-rank"},
           {{"-m", "x"}, "as the first argument"},
           {{"--nxdt_yaml_config", "x.yaml"}, "try: --config, which takes the model's config.json"},
           {{"--draft_model_path", "x"}, "try: --draft for a fused speculation; shard the draft"},
           {{"--skip-sharding"}, "then run reshard shard into"},
           {{"--quantized"}, "reshard quantises none"},
           {{"--is-medusa"}, "try: --medusa-heads, which takes"},
           {{"--max-loras", "2"}, "try: --lora-config, or --for"},
           {{"--max-lora-rank", "2"}, "try: --lora-config, or --for"},
           {{"--target-modules", "q_proj"}, "try: --lora-config, or --for"},
           {{"--enable-lora"}, "try: --adapter, which takes"},
           {{"--enable-fused-speculation"}, "try: --draft, which takes"},
           {{"--enable-eagle-speculation"}, "try: --draft, which takes"},
           {{"--fused-rmsnorm-skip-gamma"}, "try: --skip-gamma, unless"},
           {{"--cast-type", "as-declared"}, "try: --declared-dtypes for as-declared"},
           {{"--moe-cte-tp-degree", "2"}, "try: leave it out: it is --tp divided by --moe-cte-ep-degree"},
           {{"--moe_tkg_tp_degree", "2"}, "try: leave it out: it is --tp divided by --moe-tkg-ep-degree"},
           {{"--zero_1"}, "try: leave it out for weights, which ZeRO-1 does not shard; --with-optimizer"},
           {{"--auto_partition", "True"}, "try: leave it out: --pp divides the layers evenly"},
           {{"--model_name_or_path", "x"}, "as the first argument"},
           {{"--serialize_path", "x"}, "as the second argument"},
           {{"--load_on_device", "False"}, "try: leave it out: reshard writes files"},
           {{"--disable_sequence_parallel"}, "try: leave it out: it does not change the weights"},
           {{"--nproc_per_node=2"}, "try: leave it out: --threads says"},
           {{"--use_zero1_optimizer"}, "try: leave it out for weights, which ZeRO-1 does not shard; --with-optimizer"},
           {{"--do_train"}, "try: leave it out: it does not change the weights"},
           {{"--per_device_train_batch_size", "1"}, "try: leave it out: it does not change the weights"},
           {{"--num_microbatches", "4"}, "try: leave it out: it does not change the weights"},
           {{"--layout", "optimum", "--disable_embedding_parallelization"},
            "layouts with --disable-embedding-parallelization: ranks"},
           {{"--batch_size", "1"}, "try: leave it out: it does not change the weights"},
           {{"--seq-len", "64"}, "try: leave it out: it does not change the weights"},
           {{"--world_size", "8"}, "try: leave it out: --tp, --pp and --ep say how many ranks there are"},
           {{"--use_xser", "True"}, "try: --format xser; for False, leave it out"},
           {{"--async_save", "True"}, "try: leave it out: reshard ends when all files are written"},
           {{"--lazy_load", "True"}, "try: leave it out: reshard reads no more at a time than fits into --max-memory"},
           {{"--transformer_layer_cls", "X"}, "try: leave it out: the layers are found without it"},
           {{"--param_init_fn", "x"}, "try: leave it out: all values come from the checkpoint"},
           {{"--priority_model_key", "x"}, "try: leave it out: it does not change the weights"},
           {{"--stride", "2"}, "try: --spec, the path of a description"},
           {{"--xser"}, "try: --format xser"},
           {{"--resume_from_checkpoint", "x"}, "try: give the path without an option, as the first argument"},
       }) {
    INFO(each.options.front());
    CHECK_THAT(refused(joined({"shard", kModel, "o", "--tp", "2"}, each.options)), Says(each.hint));
  }
}

TEST_CASE("a hint names a command only if it can do what is asked for") {
  // consolidate reads ranks, which shard cannot.
  CHECK_THAT(refused({"consolidate", "x", "--with-optimizer"}), Says("reshard convert has it"));
  CHECK_THAT(refused({"consolidate", "x", "--tensor_parallel_size", "2"}), Says("reshard convert has --tp"));
  CHECK_THAT(refused({"inspect", kModel, "--rename", "a=b"}), Says("has it"));
  CHECK_THAT(refused({"consolidate", "x", "--with_optimizer"}), Says("reshard convert has --with-optimizer"));
  CHECK_THAT(refused({"consolidate", "x", "--layout", "nxd"}), Says("reshard convert has --to"));
  CHECK_THAT(refused({"inspect", "x", "--zero_1"}), Says("try: leave it out: ZeRO-1 shards"));
  CHECK_THAT(refused({"consolidate", "x", "--disable_embedding_parallelization"}),
             Says("try: leave it out: the files show whether"));
  CHECK_THAT(refused({"consolidate", "x", "--save_xser", "True"}),
             Says("try: reshard convert has --format xser; for False, leave it out\n"));
  CHECK_THAT(refused({"inspect", "x", "--num_cores", "2"}), Says("try: reshard convert has --tp\n"));
  CHECK_THAT(refused({"verify", "x", "y", "--coalesce_qkv"}), Says("try: reshard convert has --fuse-qkv\n"));
  CHECK_THAT(refused({"verify", "x", "y", "--bf16"}), Says("try: reshard convert has --dtype bfloat16\n"));
  CHECK_THAT(refused({"inspect", "x", "--output_dir", "o"}), !Says("second argument"));
  CHECK_THAT(refused({"consolidate", "x", "--qkv_linear", "True"}), Says("try: leave it out"));
  CHECK_THAT(refused({"consolidate", "x", "--save_sharded_checkpoint"}), Says("reshard shard"));
}

TEST_CASE("layouts and formats in the words of other programs get a hint") {
  const auto hint = [](const Arguments& options) {
    return refused(joined({"convert", kModel, "o", "--tp", "2"}, options));
  };
  CHECK_THAT(hint({"--to", "safetensors"}), Says("this is a file format: --format safetensors"));
  CHECK_THAT(hint({"--to", "pt"}), Says("this is a file format: --format pytorch"));
  CHECK_THAT(hint({"--to", "fsdp"}), Says("did you mean dcp (torch.distributed.checkpoint: FSDP"));
  CHECK_THAT(hint({"--to", "neuron"}), Says("did you mean one of") && Says("optimum (optimum-neuron's"));
  CHECK_THAT(hint({"--to", "tensor_parallel_shards"}), Says("did you mean ranks ("));
  CHECK_THAT(hint({"--to", "shards"}), Says("optimum (optimum-neuron's"));
  CHECK_THAT(hint({"--to", "zzz"}), Says("they are hf (Hugging Face directory of whole tensors); "));
  CHECK_THAT(hint({"--format", "pt"}), Says("did you mean pytorch?"));
  // What another layout would have is not offered.
  CHECK_THAT(refused({"consolidate", kModel, "o", "-f", "npz"}), Says("is not one of safetensors, pytorch\n"));
}

TEST_CASE("dtypes in the words of other programs are taken, but for those that mean one of several") {
  const Arguments tp{"--tp", "2"};
  for (const auto& [word, own] :
       {std::pair{"bf16", "bfloat16"}, std::pair{"fp16", "float16"}, std::pair{"half", "float16"},
        std::pair{"torch.float16", "float16"}, std::pair{"fp32", "float32"}, std::pair{"float", "float32"},
        std::pair{"BF16", "bfloat16"}, std::pair{"FP16", "float16"}, std::pair{"torch.Float32", "float32"}}) {
    INFO(word);
    CHECK(planned(joined(tp, {"--dtype", word})) == planned(joined(tp, {"--dtype", own})));
  }
  const auto hint = [](const char* dtype) { return refused({"shard", kModel, "o", "--tp", "2", "--dtype", dtype}); };
  for (const char* word : {"fp8", "float8", "torch.float8_e4m3", "e5m2", "int8", "fp4", "nf4", "int4", "8bit"}) {
    INFO(word);
    CHECK_THAT(hint(word), Says("quantise the model with a tool that writes scales") && !Says("did you mean"));
  }
  CHECK_THAT(hint("float17"), Says("did you mean float16?"));
  CHECK_THAT(hint("zzz"), !Says("did you mean"));
}

TEST_CASE("an option with an empty value is refused, as a shell's variable that is not set may give it") {
  for (const char* option : {"--dtype", "--format", "--family", "--spec", "--pipeline-cuts", "--config", "--layout"}) {
    INFO(option);
    CHECK_THAT(refused({"shard", kModel, "o", "--tp", "2", option, ""}), Says(option + std::string(": ")));
  }
}

TEST_CASE("an option in front of the subcommand is told to come after it") {
  CHECK_THAT(refused({"--tp", "2"}), Says("the subcommand comes first; --tp is an option of shard, convert"));
  CHECK_THAT(refused({"--dtype=bf16", "shard"}), Says("--dtype is an option of shard, consolidate, convert"));
  CHECK_THAT(refused({"--verbose"}), Says("does not know the option --verbose"));
}

TEST_CASE("help and version come under their usual names") {
  const std::string help = run_reshard({"--help"}).out;
  CHECK(run_reshard({"help"}).out == help);
  CHECK(run_reshard({"help", "shard"}).out == run_reshard({"shard", "--help"}).out);
  CHECK_THAT(refused({"help", "shrad"}), Says("did you mean shard?"));
  CHECK(run_reshard({"-V"}).out == run_reshard({"--version"}).out);
}

TEST_CASE("pipeline cuts are taken as Python prints them, and one by one") {
  const std::string cuts = planned({"--tp", "1", "--pipeline-cuts", "model.layers.0,model.layers.1"});
  CHECK_THAT(cuts, Says("model.layers.1"));
  for (const Arguments& words : std::vector<Arguments>{
           {"--pipeline-cuts", "model.layers.0, model.layers.1"},
           {"--pipeline_cuts", "['model.layers.0', 'model.layers.1']"},
           {"--pipeline-cuts=[\"model.layers.0\", \"model.layers.1\"]"},
           {"--pipeline-cuts", "model.layers.0", "--pipeline-cuts", "model.layers.1"},
       })
    CHECK(planned(joined({"--tp", "1"}, words)) == cuts);
  CHECK(planned({"--tp", "1", "--pipeline-cuts", "[]"}) == planned({"--tp", "1"}));
}

TEST_CASE("a first rank after the last one is called that") {
  CHECK_THAT(
      refused({"shard", kModel, "o", "--layout", "presharded", "--tp", "2", "--start-rank", "1", "--end-rank", "0"}),
      Says("--start-rank 1 is after --end-rank 0"));
}

TEST_CASE("shard casts as convert does, and notes a float32 model whose config.json says another dtype") {
  const TempDir temp;
  const std::string wide = (temp / "wide").string(), ranks = (temp / "ranks").string(), same = (temp / "same").string();
  run_well({"convert", kModel, wide, "--dtype", "float32"});
  run_well({"shard", wide, ranks, "--tp", "2", "--dtype", "bfloat16"});
  run_well({"convert", wide, same, "--to", "ranks", "--tp", "2", "--dtype", "bfloat16"});
  CHECK(snapshot(ranks) == snapshot(same));
  CHECK_THAT(read_file(ranks + "/config.json"), Says("bfloat16"));

  fs::copy(kModel + "/config.json", wide + "/config.json", fs::copy_options::overwrite_existing);
  check_run({"shard", wide, (temp / "kept").string(), "--tp", "2"}, 0, {},
            "are float32, although config.json has bfloat16: --dtype bfloat16 casts them");
  CHECK_THAT(run_reshard({"shard", kModel, (temp / "plain").string(), "--tp", "2"}).err, !Says("float32"));
}

}  // namespace
}  // namespace reshard::test
