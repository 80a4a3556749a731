#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ShardArguments : CommonArguments {
  std::string model_directory;
  std::string output_directory;
  ShardingArguments sharding;
  std::string layout = "ranks";
  std::string format;
  std::vector<std::string> adapters;
  std::string lora_fuse = "mean";
  bool lora_fuse_given = false;
};

LoraFuse parse_lora_fuse(const std::string& text) {
  if (text == "mean") return LoraFuse::kMean;
  if (text == "exact") return LoraFuse::kExact;
  throw Error(ErrorKind::kUsage, "--lora-fuse: \"" + printable(text) + "\" is not one of mean, exact");
}

void add_adapters(const ShardArguments& arguments, ShardRequest& request) {
  if (arguments.lora_fuse_given && arguments.adapters.empty())
    throw Error(ErrorKind::kUsage, "--lora-fuse needs --adapter: without it no adapter is sharded");
  request.lora_fuse = parse_lora_fuse(arguments.lora_fuse);
  for (const std::string& directory : arguments.adapters) {
    if (directory.empty()) throw Error(ErrorKind::kUsage, "--adapter is empty");
    request.adapters.emplace_back(directory);
  }
}

ShardRequest request_of(const ShardArguments& arguments, bool layout_given) {
  if (arguments.model_directory.empty()) throw Error(ErrorKind::kUsage, "MODEL_DIR is empty");
  if (arguments.output_directory.empty()) throw Error(ErrorKind::kUsage, "OUT_DIR is empty");
  prove_is_directory_name("OUT_DIR", arguments.output_directory);
  ShardRequest request;
  request.model_directory = arguments.model_directory;
  request.spec = family_spec(arguments);
  request.output_directory = arguments.output_directory;
  request.sharding = sharding_request(arguments.sharding);
  add_adapters(arguments, request);
  if (!request.adapters.empty() && layout_given && arguments.layout != "optimum")
    throw Error(ErrorKind::kUsage, "--layout " + printable(arguments.layout) + " has no place for adapters")
        .hint("--adapter writes the layout optimum");
  const ShardedForm form = parse_form(request.adapters.empty() ? arguments.layout : "optimum", arguments.format);
  prove_replication(arguments.sharding, form.kind);
  request.sharding.form.kind = form.kind;
  request.sharding.form.format = form.format;
  request.force = arguments.force;
  return request;
}

}  // namespace

void add_shard(CLI::App& app) {
  auto arguments = std::make_shared<ShardArguments>();
  CLI::App* command =
      app.add_subcommand("shard", "Cut a Hugging Face checkpoint, or LoRA adapters, into one file a rank");
  command->add_option("MODEL_DIR", arguments->model_directory, "Directory with config.json and the weights")
      ->required();
  command->add_option("OUT_DIR", arguments->output_directory, "Directory to write the shards folder into")->required();
  add_sharding(*command, arguments->sharding)->required();
  command->add_option("--layout", arguments->layout, "Layout of the shards: ranks, optimum, presharded, nxdi, nxd")
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("-f,--format", arguments->format,
                   "File format: safetensors, pytorch, xser (default: safetensors; pytorch for optimum and nxd)")
      ->type_name("NAME");
  command
      ->add_option(
          "--adapter", arguments->adapters,
          "LoRA adapter saved by PEFT, and those in its folders. Only adapters are written then, in the layout "
          "optimum; of MODEL_DIR config.json is enough")
      ->type_name("DIR")
      ->allow_extra_args(false);
  command
      ->add_option("--lora-fuse", arguments->lora_fuse,
                   "lora_A of linears that are joined: mean (as optimum-neuron does), or exact (stacked)")
      ->type_name("HOW")
      ->capture_default_str();
  add_common(*command, *arguments);
  command->callback([arguments, command] {
    arguments->lora_fuse_given = command->count("--lora-fuse") > 0;
    const RunOptions options = run_options(*arguments);  // a wrong option is told before anything is read
    run_job(*plan_shard(request_of(*arguments, command->count("--layout") > 0)), *arguments, options);
  });
}

}  // namespace reshard::cli
