#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ShardArguments : CommonArguments {
  std::string model_directory;
  std::string output_directory;
  ShardingArguments sharding;
  std::string layout = "ranks";
  std::string format;
};

ShardRequest request_of(const ShardArguments& arguments) {
  if (arguments.model_directory.empty()) throw Error(ErrorKind::kUsage, "MODEL_DIR is empty");
  if (arguments.output_directory.empty()) throw Error(ErrorKind::kUsage, "OUT_DIR is empty");
  ShardRequest request;
  request.model_directory = arguments.model_directory;
  request.output_directory = arguments.output_directory;
  request.sharding = sharding_request(arguments.sharding);
  request.sharding.form = parse_form(arguments.layout, arguments.format);
  request.force = arguments.force;
  return request;
}

}  // namespace

void add_shard(CLI::App& app) {
  auto arguments = std::make_shared<ShardArguments>();
  CLI::App* command = app.add_subcommand("shard", "Cut a Hugging Face checkpoint into one file a rank");
  command->add_option("MODEL_DIR", arguments->model_directory, "Directory with config.json and the weights")
      ->required();
  command->add_option("OUT_DIR", arguments->output_directory, "Directory to write the shards folder into")->required();
  add_sharding(*command, arguments->sharding)->required();
  command->add_option("--layout", arguments->layout, "Layout of the shards: ranks, optimum")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("-f,--format", arguments->format,
                   "File format: safetensors, pytorch, xser (default: safetensors; pytorch for optimum)")
      ->type_name("NAME");
  add_common(*command, *arguments);
  command->callback([arguments] {
    const RunOptions options = run_options(*arguments);  // a wrong option is told before anything is read
    run_job(*plan_shard(request_of(*arguments)), *arguments, options);
  });
}

}  // namespace reshard::cli
