#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/mesh.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ShardArguments : CommonArguments {
  std::string model_directory;
  std::string output_directory;
  std::string tp;
  std::string pp;
  std::string vpp = "1";
  std::string pipeline_cuts;
  std::string kv_size_multiplier;
  std::string layout = "ranks";
  bool fuse_qkv = false;
};

ShardRequest request_of(const ShardArguments& arguments) {
  require_supported("--layout", arguments.layout, "ranks", {"optimum", "presharded", "nxdi", "nxd"});
  if (arguments.model_directory.empty()) throw Error(ErrorKind::kUsage, "MODEL_DIR is empty");
  if (arguments.output_directory.empty()) throw Error(ErrorKind::kUsage, "OUT_DIR is empty");
  require_supported("--format", arguments.format, "safetensors", {"pytorch", "xser"});
  ShardRequest request;
  request.model_directory = arguments.model_directory;
  request.output_directory = arguments.output_directory;
  request.sharding.tp = parse_degree("--tp", arguments.tp, kMaxParallelDegree);
  if (!arguments.pp.empty()) request.sharding.pp = parse_degree("--pp", arguments.pp, kMaxParallelDegree);
  request.sharding.vpp = parse_degree("--vpp", arguments.vpp, kMaxParallelDegree);
  if (!arguments.pipeline_cuts.empty()) request.sharding.pipeline_cuts = split(arguments.pipeline_cuts, ',');
  request.sharding.attention.fuse_qkv = arguments.fuse_qkv;
  if (!arguments.kv_size_multiplier.empty())
    request.sharding.attention.kv_size_multiplier =
        parse_degree("--kv-size-multiplier", arguments.kv_size_multiplier, kMaxParallelDegree);
  request.force = arguments.force;
  return request;
}

}  // namespace

void add_shard(CLI::App& app) {
  auto arguments = std::make_shared<ShardArguments>();
  CLI::App* command = app.add_subcommand("shard", "Cut a Hugging Face checkpoint into one file a rank");
  command->add_option("MODEL_DIR", arguments->model_directory, "Directory with config.json and safetensors weights")
      ->required();
  command->add_option("OUT_DIR", arguments->output_directory, "Directory to write tensor_parallel_shards/ into")
      ->required();
  command->add_option("--tp", arguments->tp, "Tensor-parallel ranks")->required()->type_name("N");
  command->add_option("--pp", arguments->pp, "Pipeline-parallel ranks (default: 1)")->type_name("N");
  command->add_option("--vpp", arguments->vpp, "Virtual pipeline stages a rank, interleaved")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--pipeline-cuts", arguments->pipeline_cuts,
                   "Last layer of each stage but the last, such as model.layers.3,model.layers.7")
      ->type_name("NAMES");
  command->add_flag("--fuse-qkv", arguments->fuse_qkv, "Join the query, key and value projections where the model can");
  command
      ->add_option("--kv-size-multiplier", arguments->kv_size_multiplier,
                   "Copies of each key/value head (default: TP / key-value heads)")
      ->type_name("N");
  command->add_option("--layout", arguments->layout, "Layout of the shards: ranks")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--format", arguments->format, "File format of the shards: safetensors")
      ->type_name("NAME")
      ->capture_default_str();
  add_common(*command, *arguments);
  command->callback([arguments] {
    const RunOptions options = run_options(*arguments);  // a wrong option is told before anything is read
    run_job(*plan_shard(request_of(*arguments)), *arguments, options);
  });
}

}  // namespace reshard::cli
