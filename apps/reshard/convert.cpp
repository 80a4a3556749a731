#include "reshard/plan/convert.h"

#include <fmt/format.h>

#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ConvertArguments : CommonArguments {
  std::string source;
  std::string output_directory;
  std::string to = "hf";
  std::string format;
  ShardingArguments sharding;
  HeadsArguments from_heads;
  SourceArguments from;
  std::string max_shard_size = "5GB";
  bool max_shard_size_given = false;
  std::string dtype;
  std::string overflow = "saturate";
  bool overflow_given = false;
  bool cast_all = false;
  std::vector<std::string> renames;
  std::vector<std::string> drop;
  std::vector<std::string> keep;
  ReplicaArguments replicas;
};

DType parse_dtype(const std::string& text) {
  std::vector<std::string> names;
  for (const DTypeRow& row : kDTypes) {
    if (!can_cast(DType::kF32, row.dtype)) continue;
    if (text == row.torch_name) return row.dtype;
    names.emplace_back(row.torch_name);
  }
  throw Error(ErrorKind::kUsage, fmt::format("--dtype: \"{}\" is not one of {}", printable(text), join(names, ", ")));
}

Overflow parse_overflow(const std::string& text) {
  if (text == "saturate") return Overflow::kSaturate;
  if (text == "error") return Overflow::kError;
  throw Error(ErrorKind::kUsage, fmt::format("--overflow: \"{}\" is neither saturate nor error", printable(text)));
}

/// An option that would have no effect shows that another was forgotten.
void prove_options_matter(const ConvertArguments& arguments) {
  const ShardingArguments& sharding = arguments.sharding;
  const std::pair<const char*, bool> of_shards[] = {{"--tp", !sharding.tp.empty()},
                                                    {"--pp", !sharding.pp.empty()},
                                                    {"--vpp", sharding.vpp != "1"},
                                                    {"--ep", !sharding.ep.empty()},
                                                    {"--pipeline-cuts", !sharding.pipeline_cuts.empty()},
                                                    {"--start-rank", !sharding.start_rank.empty()},
                                                    {"--end-rank", !sharding.end_rank.empty()},
                                                    {"--fuse-qkv", sharding.fuse_qkv},
                                                    {"--pad", sharding.pad},
                                                    {"--pad-attn-heads", sharding.pad_heads},
                                                    {"--vocab-parallel", sharding.vocab_parallel},
                                                    {"--kv-size-multiplier", !sharding.kv_size_multiplier.empty()},
                                                    {"--kv-replication", !sharding.kv_replication.empty()}};
  for (const auto& [option, given] : of_shards)
    if (given && arguments.to == "hf")
      throw Error(ErrorKind::kUsage, fmt::format("{} is about shards, but --to hf makes a whole model", option))
          .hint(std::string_view(option) == "--kv-replication" || std::string_view(option) == "--kv-size-multiplier" ||
                        std::string_view(option) == "--pad-attn-heads"
                    ? fmt::format("of the heads of SRC, --from{} says it", option + 1)
                    : "say which: --to ranks, optimum, presharded, nxdi or nxd");
  if (arguments.cast_all && arguments.dtype.empty())
    throw Error(ErrorKind::kUsage, "--cast-all needs --dtype: what shall tensors be cast to?");
  if (arguments.overflow_given && arguments.dtype.empty() && arguments.to != describe(ShardsKind::kNxdi).name)
    throw Error(ErrorKind::kUsage, "--overflow needs --dtype: without it nothing is cast");
  if (arguments.max_shard_size_given && arguments.to != "hf")
    throw Error(ErrorKind::kUsage,
                fmt::format("--max-shard-size is about the files of --to hf; {} has one file per rank", arguments.to));
}

ConvertRequest request_of(const ConvertArguments& arguments) {
  if (arguments.source.empty()) throw Error(ErrorKind::kUsage, "SRC is empty");
  if (arguments.output_directory.empty()) throw Error(ErrorKind::kUsage, "DST is empty");
  prove_is_directory_name("DST", arguments.output_directory);
  ConvertRequest request;
  if (arguments.to != "hf") request.to = parse_shards_kind("--to", arguments.to, {"hf"});
  prove_options_matter(arguments);
  request.source = arguments.source;
  request.tag = arguments.from.tag;
  request.config = config_of(arguments.from);
  request.spec = family_spec(arguments);
  request.heads = heads_of(arguments.from_heads, "--from-");
  request.output_directory = arguments.output_directory;
  if (request.to) prove_replication(arguments.sharding, *request.to);
  if (!arguments.format.empty())
    request.format =
        parse_format("--format", arguments.format, {Format::kSafetensors, Format::kPytorch, Format::kXser});
  request.sharding = sharding_request(arguments.sharding);
  if (!arguments.sharding.tp.empty()) request.tp = request.sharding.tp;
  request.max_shard_bytes = parse_bytes("--max-shard-size", arguments.max_shard_size);
  if (!arguments.dtype.empty()) request.dtype = parse_dtype(arguments.dtype);
  request.cast_all = arguments.cast_all;
  for (const std::string& text : arguments.renames) request.names.renames.push_back(parse_rename("--rename", text));
  for (const std::string& text : arguments.drop) request.names.drop.emplace_back("--drop", text);
  for (const std::string& text : arguments.keep) request.names.keep.emplace_back("--keep", text);
  request.check_replicas = !arguments.replicas.no_check;
  request.force = arguments.force;
  return request;
}

void add_options(CLI::App& command, ConvertArguments& arguments) {
  command.add_option("SRC", arguments.source, "A file of tensors, a Hugging Face directory or a sharded checkpoint")
      ->required();
  command.add_option("DST", arguments.output_directory, "Directory to write to")->required();
  command.add_option("--to", arguments.to, "Layout to make: hf, ranks, optimum, presharded, nxdi, nxd")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("-f,--format", arguments.format,
                  "File format: safetensors, pytorch, xser (default: safetensors; pytorch for optimum and nxd)")
      ->type_name("NAME");
  add_tag(command, arguments.from);
  add_config(command, arguments.from);
  add_heads(command, arguments.from_heads, "--from-");
  add_sharding(command, arguments.sharding)->description("Tensor-parallel ranks (default: those of a sharded SRC)");
  command.get_option("--pp")->description("Pipeline-parallel ranks (default: those of a sharded SRC, or 1)");
  command.get_option("--ep")->description("Expert-parallel ranks (default: those of a sharded SRC, or 1)");
  command.add_option("--max-shard-size", arguments.max_shard_size, "Tensor bytes in one file of hf at most")
      ->type_name("SIZE")
      ->capture_default_str();
  command
      .add_option("--dtype", arguments.dtype,
                  "Cast floating tensors: float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, float64. Rounds to "
                  "nearest, ties to even")
      ->type_name("NAME");
  command.add_flag("--cast-all", arguments.cast_all, "With --dtype: cast integers and booleans too");
  command
      .add_option("--overflow", arguments.overflow,
                  "With --dtype, or --to nxdi: saturate makes values beyond the largest of the dtype that largest, "
                  "infinities too where it has none (float8_e4m3fn); error stops there")
      ->type_name("NAME")
      ->capture_default_str();
  command.add_option("--rename", arguments.renames, "Replace what matches in names, in order; $1 … $9 are groups")
      ->type_name("REGEX=TEXT")
      ->allow_extra_args(false);
  command.add_option("--drop", arguments.drop, "Leave out tensors whose name matches")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  command.add_option("--keep", arguments.keep, "Take only tensors whose name matches")
      ->type_name("REGEX")
      ->allow_extra_args(false);
}

}  // namespace

void add_convert(CLI::App& app) {
  auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* command =
      app.add_subcommand("convert", "Turn a checkpoint into another layout, mesh, file format or dtype");
  add_options(*command, *arguments);
  add_replicas(*command, arguments->replicas);
  add_common(*command, *arguments);
  command->callback([arguments, command] {
    arguments->max_shard_size_given = command->count("--max-shard-size") > 0;
    arguments->overflow_given = command->count("--overflow") > 0;
    RunOptions options =
        run_options(*arguments, arguments->replicas);  // a wrong option is told before anything is read
    options.overflow = parse_overflow(arguments->overflow);
    run_job(*plan_convert(request_of(*arguments)), *arguments, options);
  });
}

}  // namespace reshard::cli
