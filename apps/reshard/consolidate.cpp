#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ConsolidateArguments : CommonArguments {
  std::string checkpoint_directory;
  std::string output_directory;
  std::string max_shard_size = "5GB";
  std::string format = "safetensors";
  HeadsArguments heads;
  SourceArguments source;
  ReplicaArguments replicas;
};

ConsolidateRequest request_of(const ConsolidateArguments& arguments, bool max_shard_size_given) {
  if (arguments.checkpoint_directory.empty()) throw Error(ErrorKind::kUsage, "CHECKPOINT_DIR is empty");
  prove_is_directory_name("OUT_DIR", arguments.output_directory);
  ConsolidateRequest request;
  request.format = parse_format("--format", arguments.format, {Format::kSafetensors, Format::kPytorch});
  request.check_replicas = !arguments.replicas.no_check;
  request.checkpoint_directory = arguments.checkpoint_directory;
  request.tag = arguments.source.tag;
  request.config = config_of(arguments.source);
  request.spec = family_spec(arguments);
  request.heads = heads_of(arguments.heads);
  if (!arguments.output_directory.empty()) request.output_directory = arguments.output_directory;
  const std::uint64_t max_shard_bytes = parse_bytes("--max-shard-size", arguments.max_shard_size);
  if (max_shard_size_given) request.max_shard_bytes = max_shard_bytes;
  request.force = arguments.force;
  return request;
}

}  // namespace

void add_consolidate(CLI::App& app) {
  auto arguments = std::make_shared<ConsolidateArguments>();
  CLI::App* command =
      app.add_subcommand("consolidate", "Put a sharded checkpoint together into a Hugging Face directory");
  command
      ->add_option("CHECKPOINT_DIR", arguments->checkpoint_directory,
                   "Directory that holds tensor_parallel_shards/, shards/, weights/ or adapter_NAME/ folders, or that "
                   "folder itself; or a training run's directory, see --tag")
      ->required();
  CLI::Option* output = command->add_option("OUT_DIR", arguments->output_directory,
                                            "Directory to write to (default: the one that holds the shards folder)");
  command->add_option("-f,--format", arguments->format, "File format of the weights: safetensors, pytorch")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--max-shard-size", arguments->max_shard_size, "Tensor bytes in one file at most")
      ->type_name("SIZE")
      ->capture_default_str();
  add_tag(*command, arguments->source);
  add_config(*command, arguments->source);
  add_heads(*command, arguments->heads);
  add_replicas(*command, arguments->replicas);
  add_common(*command, *arguments);
  command->callback([arguments, command, output] {
    // An unset variable of a script must not mean the default.
    if (output->count() > 0 && arguments->output_directory.empty())
      throw Error(ErrorKind::kUsage, "OUT_DIR is empty").hint("leave it out to write beside the shards folder");
    const RunOptions options =
        run_options(*arguments, arguments->replicas);  // a wrong option is told before anything is read
    run_job(*plan_consolidate(request_of(*arguments, command->count("--max-shard-size") > 0)), *arguments, options);
  });
}

}  // namespace reshard::cli
