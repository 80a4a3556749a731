// Parts of a checkpoint that are given instead of all of it: what the program says.

#include <filesystem>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

void refused(const Arguments& arguments, const Texts& says) {
  check_fails(arguments, 3, says);
}

TEST_CASE("a file of a dcp checkpoint is named as what it is, with the directory that is to be given") {
  const fs::path directory = testdata("golden/dcp/llama-fsdp2-optim/sharded");
  refused({"inspect", (directory / ".metadata").string()},
          {"/.metadata: is the metadata of a torch.distributed.checkpoint",
           "try: give the directory that contains all its files: " + directory.string() + "\n"});
  refused({"inspect", (directory / "__0_0.distcp").string()},
          {"/__0_0.distcp: contains tensors of a torch.distributed.checkpoint, which only its .metadata describes",
           "try: give the directory that contains all its files: " + directory.string() + "\n"});
}

TEST_CASE("verl's files of the optimizer and the trainer are named as what they are") {
  const fs::path directory = testdata("golden/fsdp_ranks/llama-fsdp2-r3/sharded");
  for (const char* name : {"optim_world_size_3_rank_1.pt", "extra_state_world_size_3_rank_1.pt"})
    for (const Arguments& command : {Arguments{"inspect"}, Arguments{"consolidate"}})
      refused(joined(command, {(directory / name).string()}),
              {std::string(name) + ": is one rank's state of the optimizer or the trainer, not a model",
               "try: give the directory that contains the files of all ranks: " + directory.string() + "\n"});
}

TEST_CASE("accelerate's folder of the optimizer alone holds no model, and names the folder that does") {
  const TempDir temp;
  const fs::path run = testdata("golden/dcp/qwen3-fsdp1-accelerate/sharded");
  const Texts says{"optimizer_0: contains training state, such as an optimizer's, but no model tensors",
                   "try: give the parent directory, or the model's: " + (run / "pytorch_model_fsdp_0").string() + "\n"};
  for (const char* command : {"consolidate", "convert"})
    refused({command, (run / "optimizer_0").string(), (temp / "out").string()}, says);
  refused({"convert", (run / "optimizer_0").string(), (temp / "out").string(), "--to", "dcp", "--with-optimizer"},
          says);
  fs::copy(run / "optimizer_0", temp / "optimizer_0", fs::copy_options::recursive);
  refused({"consolidate", (temp / "optimizer_0").string(), (temp / "out").string()},
          {"no model tensors", "try: give the directory that contains the model\n"});
}

TEST_CASE("NxD's folder of the optimizer is no checkpoint, and neither is one without its model") {
  const TempDir temp;
  const fs::path step = temp / "step_3", config = testdata("golden/zero1/nxd-llama-dp2-tp2/original");
  fs::copy(testdata("golden/zero1/nxd-llama-dp2-tp2/checkpoint/step_3"), step, fs::copy_options::recursive);
  const auto check_both = [&](const fs::path& path, const Texts& says) {
    refused({"inspect", path.string()}, says);
    refused({"consolidate", path.string(), (temp / "out").string()}, says);
  };
  check_both(step / "optim", {"step_3/optim: contains an optimizer, but no model",
                              "try: give the parent directory, which contains both: " + step.string() + "\n"});
  refused({"inspect", (step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt").string()},
          {"dp_rank_00_tp_rank_00_pp_rank_00.pt: is an optimizer file without model tensors",
           "try: give the directory that contains both: " + step.string() + "\n"});
  fs::copy(step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt", step / "optim/tp_rank_00_pp_rank_00.pt");
  check_both(step / "optim", {"step_3/optim: contains an optimizer, but no model"});  // two of one rank
  run_well({"inspect", (step / "model").string(), "--config", config.string()});
  fs::permissions(step, fs::perms::owner_all, fs::perm_options::add);
  fs::rename(step / "model", temp / "kept");
  check_both(step,
             {"step_3: contains an optimizer in optim/, but no model in model/", "try: copy the folder model here"});
  fs::create_directory(temp / "run");
  fs::rename(step, temp / "run/shards");
  check_both(temp / "run", {"run/shards: contains an optimizer in optim/, but no model in model/"});
}

TEST_CASE("The optimizer's files show that the model lacks its last rank, where nothing else does") {
  const TempDir temp;
  const fs::path step = temp / "step_3", golden_case = testdata("golden/zero1/nxd-llama-tied-dp2-tp4-m2-fused");
  fs::copy(golden_case / "checkpoint/step_3", step, fs::copy_options::recursive);
  const std::vector<std::string> inspect{"inspect", step.string(), "--config", (golden_case / "original").string()};
  run_well(inspect);
  fs::permissions(step / "model", fs::perms::owner_all, fs::perm_options::add);
  fs::remove(step / "model/dp_rank_00_tp_rank_03_pp_rank_00.pt");
  refused(inspect, {"try: the model's files belong to tp 3 × pp 1 ranks, but the optimizer's to tp 4 × pp 1: copy the "
                    "model's other ranks here too"});
}

TEST_CASE("one rank's folder or file is no model, and inspect says which rank it is") {
  const TempDir temp;
  const std::string model = testdata("golden/optimum/llama-tp2-pp2/original").string();
  const auto shard_to = [&](const char* name, const Arguments& options) {
    run_well(joined({"shard", model, (temp / name).string(), "--quiet"}, options));
  };
  shard_to("staged", {"--tp", "2", "--pp", "2", "--layout", "ranks", "--format", "safetensors"});
  shard_to("served", {"--tp", "2", "--layout", "presharded"});
  const fs::path all = temp / "staged/tensor_parallel_shards", folder = all / "tp_rank_01_pp_rank_00";
  const fs::path file = temp / "served/weights/tp0_sharded_checkpoint.safetensors";
  const std::string rank = "tensor-parallel rank 1 of 2, pipeline rank 0 of 2", out = (temp / "out").string();
  const Texts says{"records that it is " + rank + " of a sharded checkpoint, not a complete model",
                   "try: give the directory of all ranks: " + all.string() + "\n"};
  refused({"convert", folder.string(), out}, says);
  refused({"convert", folder.string(), out, "--config", model}, says);
  refused({"convert", folder.string(), out, "--to", "dcp"}, says);
  refused({"convert", (folder / "model.safetensors").string(), out}, says);
  refused({"consolidate", folder.string(), out}, says);
  fs::copy(fs::path(model) / "config.json", folder / "config.json");
  refused({"shard", folder.string(), out, "--tp", "2"}, says);
  fs::remove(folder / "config.json");
  refused({"convert", file.string(), out}, {"records that it is tensor-parallel rank 0 of 2 of a sharded checkpoint"});
  CHECK_FALSE(fs::exists(out));

  check_run({"inspect", folder.string()}, 0, rank + " of a sharded checkpoint, 1 safetensors file\n");
  CHECK_THAT(run_reshard({"inspect", file.string()}).out, Says("tensor-parallel rank 0 of 2 of a sharded checkpoint"));
  CHECK_THAT(run_reshard({"inspect", folder.string(), "--json"}).out,
             Says("this is one rank of a sharded checkpoint, not a complete model: " + rank));
  shard_to("one", {"--tp", "1", "--layout", "presharded"});
  const std::string only = (temp / "one/weights/tp0_sharded_checkpoint.safetensors").string();
  run_well({"convert", only, out, "--config", model});
  shard_to("fused", {"--tp", "1", "--layout", "ranks", "--format", "safetensors"});
  const fs::path fused = temp / "fused/tensor_parallel_shards/tp_rank_00_pp_rank_00";
  const Arguments convert{"convert", fused.string(), (temp / "other").string(), "--config", model};
  refused(convert, {"not a complete model: mp_metadata_pp_rank_0.json describes how it is split"});
  fs::remove(fused.parent_path() / "mp_metadata_pp_rank_0.json");
  refused(convert, {"8 tensors that config.json asks for are missing", "mlp.gate_proj.weight"});
}

TEST_CASE("a rank's file that records nothing is refused by its name and its siblings, and inspect notes it") {
  const TempDir temp;
  const std::string out = (temp / "out").string();
  for (const char* file :
       {"optimum/llama-tp2-pp2/sharded/shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt",
        "optimum/llama-tp8-gqa-fused-xser/sharded/shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt",
        "neuron/mixtral-tp2-ep2/checkpoint/step_3/model/dp_rank_00_ep_rank_00_tp_rank_00_pp_rank_00.pt",
        "neuron/mixtral-lightning-ep2-lost/checkpoint/epoch=0-step=10.ckpt/tp_rank_00_pp_rank_00/checkpoint.pt",
        "nxdi/llama-tp4/weights/tp0_sharded_checkpoint.safetensors",
        "preshard/llama-tp4/weights/tp3_sharded_checkpoint.safetensors",
        "vllm/llama-tp2/sharded/model-rank-0-part-0.safetensors"}) {
    CAPTURE(file);
    const fs::path path = testdata("golden") / file;
    const fs::path rank = path.filename() == "checkpoint.pt" ? path.parent_path() : path;
    const Texts says{"is one rank of a sharded checkpoint, not a complete model: ", " is next to it",
                     "try: give the directory of all ranks: " + rank.parent_path().string() + "\n"};
    refused({"convert", path.string(), out}, says);
    refused({"convert", path.string(), out, "--to", "dcp"}, says);
    refused({"consolidate", path.string(), out}, says);
    refused({"shard", path.string(), out, "--tp", "2"}, says);
    CHECK_THAT(run_well({"inspect", path.string()}).err, Says("is one rank of a sharded checkpoint, not a complete"));
    if (rank != path) refused({"convert", rank.string(), out}, says);
  }
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("a rank's file without siblings is refused for a later rank, and noted for the first") {
  const TempDir temp;
  const fs::path all = testdata("golden/optimum/llama-tp2-pp2/sharded/shards/model"), out = temp / "out";
  const char *first = "dp_rank_00_tp_rank_00_pp_rank_00.pt", *second = "dp_rank_00_tp_rank_01_pp_rank_00.pt";
  for (const char* name : {first, second}) {
    fs::create_directories(temp / "of" / name);
    fs::copy_file(all / name, temp / "of" / name / name);
  }
  refused({"convert", (temp / "of" / second / second).string(), out.string()},
          {"not a complete model: its name has the number of a later rank"});
  CHECK_THAT(run_well({"convert", (temp / "of" / first / first).string(), out.string()}).err,
             Says("has the name of rank 0: if there were other ranks, these are parts of the tensors"));
}

TEST_CASE("one rank of NxD Inference is refused under any name, since it contains its number") {
  const TempDir temp;
  fs::copy(testdata("golden/nxdi/llama-tp4/weights/tp0_sharded_checkpoint.safetensors"), temp / "some.safetensors");
  for (const char* command : {"convert", "consolidate"})
    refused({command, (temp / "some.safetensors").string(), (temp / "out").string()},
            {"some.safetensors: tensor layers.0.self_attn.rank_util.rank: contains a rank's number",
             "try: give the directory of all ranks"});
  CHECK_FALSE(fs::exists(temp / "out"));
}

TEST_CASE("metadata shows that a rank's file is one of several, and replicas do not") {
  const TempDir temp;
  const fs::path shards = temp / "shards", file = shards / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  const fs::path original = testdata("golden/optimum/llama-tp2-pp2/original");
  run_well({"shard", original.string(), (temp / "one").string(), "--layout", "nxd", "--tp", "1", "--quiet"});
  fs::create_directories(file.parent_path());
  fs::path written;
  for (const auto& entry : fs::recursive_directory_iterator(temp / "one"))
    if (entry.path().filename() == file.filename()) written = entry.path();
  fs::copy(written, file);
  fs::copy(written, file.parent_path() / "dp_rank_01_tp_rank_00_pp_rank_00.pt");
  run_well({"convert", file.string(), (temp / "out").string()});
  fs::copy_file(testdata("golden/optimum/llama-tp2-pp2/sharded/shards/mp_metadata_pp_rank_0.json"),
                shards / "mp_metadata_pp_rank_0.json");
  refused({"convert", file.string(), (temp / "other").string()},
          {"not a complete model: mp_metadata_pp_rank_0.json describes how it is split"});
}

TEST_CASE("files of DeepSpeed's ranks and model-parallel ranks are no model") {
  const TempDir temp;
  const fs::path zero3 = testdata("golden/deepspeed/qwen3-zero3-r3/sharded/global_step2");
  const std::string out = (temp / "out").string();
  for (const char* name :
       {"zero_pp_rank_0_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"})
    refused({"convert", (zero3 / name).string(), out},
            {"is one rank's file of DeepSpeed's ZeRO, not a complete model",
             "try: give the directory that contains the files of all ranks: " + zero3.string() + "\n"});
  const fs::path whole = testdata("golden/deepspeed/qwen3-zero2-r2/sharded/global_step2/mp_rank_00_model_states.pt");
  run_well({"convert", whole.string(), out});
  for (const char* name : {"mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"})
    fs::copy_file(whole, temp / name);
  check_fails({"convert", (temp / "mp_rank_00_model_states.pt").string(), (temp / "other").string()}, 4,
              {"belongs to a model that is split over model-parallel ranks, which is not supported"});
}

}  // namespace
}  // namespace reshard::test
