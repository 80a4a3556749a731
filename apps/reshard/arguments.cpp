#include "arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "print.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/mesh.h"

namespace reshard::cli {
namespace {

constexpr std::uint32_t kMaxThreads = 1024;

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// Names that a person might mean; those of help are not worth a guess.
std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

/// The first argument that looks like an option and is none, or nothing.
std::optional<Error> unknown_option(const CLI::App& command, const std::vector<std::string>& arguments) {
  const std::vector<std::string> known = option_names(command);
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const bool short_with_value =
        argument[1] != '-' && std::find(known.begin(), known.end(), argument.substr(0, 2)) != known.end();
    if (short_with_value) continue;
    Error error(ErrorKind::kUsage, fmt::format("{} does not know the option {}", command.get_name(), printable(name)));
    const std::string guess = nearest(name, known);
    error.hint(guess.empty()
                   ? (command.get_name() == "reshard" ? "see reshard --help"
                                                      : fmt::format("see reshard {} --help", command.get_name()))
                   : "did you mean " + guess + "?");
    return error;
  }
  return std::nullopt;
}

Error usage_error(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& parse_error) {
  const std::vector<std::string> commands = subcommand_names(app);
  const auto first =
      std::find_if(arguments.begin(), arguments.end(), [](const auto& a) { return !a.empty() && a[0] != '-'; });
  if (first == arguments.end()) {
    if (const auto unknown = unknown_option(app, arguments)) return *unknown;
    return Error(ErrorKind::kUsage, "a subcommand is needed: " + join(commands, ", ")).hint("see reshard --help");
  }
  if (std::find(commands.begin(), commands.end(), *first) == commands.end()) {
    const std::string guess = nearest(*first, commands);
    return Error(ErrorKind::kUsage, "there is no subcommand " + printable(*first))
        .hint(guess.empty() ? "the subcommands are " + join(commands, ", ") : "did you mean " + guess + "?");
  }
  const CLI::App* command = app.get_subcommand(*first);
  if (const auto unknown = unknown_option(*command, {first + 1, arguments.end()})) return *unknown;
  return Error(ErrorKind::kUsage, parse_error.what()).hint("see reshard " + *first + " --help");
}

}  // namespace

void add_moving(CLI::App& command, MovingArguments& arguments) {
  command
      .add_option(
          "--spec", arguments.spec,
          "Description of the model's family, in place of the built-in one; inspect --print-spec shows the form")
      ->type_name("FILE");
  command.add_option("--threads", arguments.threads, "Threads that move bytes (default: the processors, at most 16)")
      ->type_name("N");
  command
      .add_option("--max-memory", arguments.max_memory, "Memory for buffers and mapped windows, such as 256MiB or 1GB")
      ->type_name("SIZE")
      ->capture_default_str();
  command.add_option("--io", arguments.io, "How files are read and written: auto, mmap, read, direct")
      ->type_name("NAME")
      ->capture_default_str();
}

std::shared_ptr<const Family> family_spec(const MovingArguments& arguments) {
  return arguments.spec.empty() ? nullptr : read_family(arguments.spec);
}

namespace {

constexpr const char* kReplication =
    "Of the layout nxd: how repeated key/value heads lie, tiled (K0 K1 K0 K1, trn1; the "
    "default) or adjacent (K0 K0 K1 K1, trn2)";

KvReplication parse_replication(const std::string& option, const std::string& text) {
  if (text.empty() || text == "tiled") return KvReplication::kTiled;
  if (text == "adjacent") return KvReplication::kAdjacent;
  throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is neither tiled nor adjacent", option, printable(text)));
}

}  // namespace

void add_heads(CLI::App& command, HeadsArguments& arguments, const std::string& prefix) {
  const std::string of = prefix == "--" ? "Of shards" : "Of SRC";
  command
      .add_option(prefix + "kv-replication", arguments.kv_replication,
                  of + " in the layout nxd: how repeated key/value heads lie, tiled (the default) or adjacent")
      ->type_name("NAME");
  command
      .add_option(prefix + "kv-size-multiplier", arguments.kv_size_multiplier,
                  of + " in the layout nxd: copies of each key/value head (default: told from the shapes)")
      ->type_name("N");
  command.add_flag(prefix + "pad-attn-heads", arguments.pad_heads,
                   of + " in the layout nxd: heads of zeros fill up (default: told from the shapes)");
}

AttentionOptions heads_of(const HeadsArguments& arguments, const std::string& prefix) {
  AttentionOptions heads;
  heads.replication = parse_replication(prefix + "kv-replication", arguments.kv_replication);
  heads.pad_heads = arguments.pad_heads;
  if (!arguments.kv_size_multiplier.empty())
    heads.kv_size_multiplier =
        parse_degree(prefix + "kv-size-multiplier", arguments.kv_size_multiplier, kMaxParallelDegree);
  return heads;
}

void add_tag(CLI::App& command, SourceArguments& arguments) {
  command
      .add_option("--tag", arguments.tag,
                  "Which checkpoint to read, if the directory holds several (step_3, checkpoint-10); default: the "
                  "newest finished one")
      ->type_name("NAME");
}

void add_config(CLI::App& command, SourceArguments& arguments) {
  command
      .add_option("--config", arguments.config,
                  "The model's config.json, or the directory that holds it, where it is not beside the weights")
      ->type_name("FILE");
}

std::string config_of(const SourceArguments& arguments) {
  if (arguments.config == "") throw Error(ErrorKind::kUsage, "--config is empty");
  return arguments.config.value_or("");
}

void prove_replication(const ShardingArguments& arguments, ShardsKind kind) {
  if (!arguments.kv_replication.empty() && kind != ShardsKind::kNxd)
    throw Error(ErrorKind::kUsage,
                fmt::format("--kv-replication is of the layout nxd alone, and not of {}", describe(kind).name));
}

void add_common(CLI::App& command, CommonArguments& arguments) {
  add_moving(command, arguments);
  command.add_flag("--no-sync", arguments.no_sync,
                   "Do not wait until the disk has confirmed the outputs; a crash of the machine may lose them");
  command.add_flag("--dry-run", arguments.dry_run,
                   "Print what would be written, from headers alone, and write nothing");
  command.add_flag("--json", arguments.json, "Print one JSON document on standard output, and nothing else there");
  command.add_flag("--force", arguments.force, "Replace outputs that exist; a shards folder is replaced as a whole");
  command.add_flag("--quiet", arguments.quiet, "No progress bar, notes or last line; errors only");
}

std::uint32_t parse_degree(const std::string& option, const std::string& text, std::uint32_t max) {
  const auto value = parse_unsigned(text, max);
  if (!value || *value == 0)
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: \"{}\" is not a whole number from 1 to {}", option, printable(text), max));
  return static_cast<std::uint32_t>(*value);
}

std::uint32_t parse_threads(const std::string& text) {
  return text.empty() ? 0 : parse_degree("--threads", text, kMaxThreads);
}

void prove_is_directory_name(const std::string& argument, const std::string& directory) {
  const std::filesystem::path path(directory);
  std::error_code not_there;
  if (!has_weights_ending(path.filename().string()) || std::filesystem::is_directory(path, not_there)) return;
  throw Error(ErrorKind::kUsage, argument + " is a directory to write to, but this is the name of a file")
      .in(path)
      .hint("give a directory; the files in it get the names that loaders look for, such as model.safetensors");
}

std::uint64_t parse_bytes(const std::string& option, const std::string& text) {
  const auto bytes = parse_size(text);
  if (!bytes)
    throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is not a size", option, printable(text)))
        .hint("write a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)");
  return *bytes;
}

void add_replicas(CLI::App& command, ReplicaArguments& arguments, bool may_skip) {
  command
      .add_option("--replicas", arguments.replicas,
                  "Where ranks differ in a replicated parameter: drift takes the first rank's values if they drifted "
                  "apart in training (the default), exact is an error, first takes the first rank's values")
      ->type_name("drift|exact|first");
  if (may_skip)
    command.add_flag("--no-check-replicas", arguments.no_check, "Do not read replicas, and so not compare them");
  command.add_flag("--allow-divergent-replicas", arguments.allow_divergent, "The same as --replicas first");
}

namespace {

Replicas replicas_of(const ReplicaArguments& arguments) {
  if (arguments.no_check && !arguments.replicas.empty())
    throw Error(ErrorKind::kUsage, "--replicas has no effect with --no-check-replicas")
        .hint("leave out one of the two");
  if (arguments.allow_divergent && !arguments.replicas.empty() && arguments.replicas != "first")
    throw Error(ErrorKind::kUsage, "--allow-divergent-replicas is --replicas first, and contradicts --replicas " +
                                       printable(arguments.replicas))
        .hint("leave out one of the two");
  if (arguments.allow_divergent || arguments.replicas == "first") return Replicas::kFirst;
  if (arguments.replicas == "exact") return Replicas::kExact;
  if (arguments.replicas.empty() || arguments.replicas == "drift") return Replicas::kDrift;
  throw Error(ErrorKind::kUsage,
              fmt::format("--replicas: \"{}\" is not one of drift, exact, first", printable(arguments.replicas)));
}

}  // namespace

CLI::Option* add_sharding(CLI::App& command, ShardingArguments& arguments) {
  CLI::Option* tp = command.add_option("--tp", arguments.tp, "Tensor-parallel ranks")->type_name("N");
  command.add_option("--pp", arguments.pp, "Pipeline-parallel ranks (default: 1)")->type_name("N");
  command.add_option("--vpp", arguments.vpp, "Virtual pipeline stages a rank, interleaved")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--ep", arguments.ep,
                  "Expert-parallel ranks, over which the experts of a layer are spread (default: 1)")
      ->type_name("N");
  command
      .add_option("--pipeline-cuts", arguments.pipeline_cuts,
                  "Last layer of each stage but the last, such as model.layers.3,model.layers.7")
      ->type_name("NAMES");
  command.add_flag("--fuse-qkv", arguments.fuse_qkv, "Join the query, key and value projections where the model can");
  command
      .add_option("--kv-size-multiplier", arguments.kv_size_multiplier,
                  "Copies of each key/value head (default: TP / key-value heads)")
      ->type_name("N");
  command.add_option("--kv-replication", arguments.kv_replication, kReplication)->type_name("NAME");
  command.add_flag("--pad", arguments.pad,
                   "Of presharded: fill up sizes that the ranks do not divide; nxdi always does it");
  command.add_flag("--pad-attn-heads", arguments.pad_heads,
                   "Of nxd: fill up with heads of zeros where the ranks do not divide the heads; nxdi always does it");
  command.add_flag("--vocab-parallel", arguments.vocab_parallel,
                   "Of nxdi: cut the embedding along the vocabulary instead of its columns");
  command
      .add_option("--start-rank", arguments.start_rank,
                  "First rank that is written, of presharded and nxdi (default: 0)")
      ->type_name("N");
  command
      .add_option("--end-rank", arguments.end_rank,
                  "Last rank that is written, of presharded and nxdi (default: TP - 1)")
      ->type_name("N");
  return tp;
}

namespace {

std::uint32_t parse_rank(const std::string& option, const std::string& text, std::uint32_t fallback) {
  if (text.empty()) return fallback;
  const auto value = parse_unsigned(text, kMaxParallelDegree - 1);
  if (!value)
    throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is not the number of a rank", option, printable(text)));
  return static_cast<std::uint32_t>(*value);
}

}  // namespace

ShardingRequest sharding_request(const ShardingArguments& arguments) {
  ShardingRequest request;
  if (!arguments.tp.empty()) request.tp = parse_degree("--tp", arguments.tp, kMaxParallelDegree);
  if (!arguments.pp.empty()) request.pp = parse_degree("--pp", arguments.pp, kMaxParallelDegree);
  request.vpp = parse_degree("--vpp", arguments.vpp, kMaxParallelDegree);
  if (!arguments.ep.empty()) request.ep = parse_degree("--ep", arguments.ep, kMaxParallelDegree);
  request.form.start_rank = parse_rank("--start-rank", arguments.start_rank, 0);
  request.form.end_rank = parse_rank("--end-rank", arguments.end_rank, UINT32_MAX);
  if (!arguments.pipeline_cuts.empty()) request.pipeline_cuts = split(arguments.pipeline_cuts, ',');
  request.attention.fuse_qkv = arguments.fuse_qkv;
  request.pad = arguments.pad;
  request.vocab_parallel = arguments.vocab_parallel;
  request.attention.pad_heads = arguments.pad_heads;
  request.attention.replication = parse_replication("--kv-replication", arguments.kv_replication);
  if (!arguments.kv_size_multiplier.empty())
    request.attention.kv_size_multiplier =
        parse_degree("--kv-size-multiplier", arguments.kv_size_multiplier, kMaxParallelDegree);
  return request;
}

ShardsKind parse_shards_kind(const std::string& option, const std::string& text,
                             const std::vector<std::string>& others) {
  for (const ShardsKindRow& row : kShardsKinds)
    if (text == row.name) return row.kind;
  std::vector<std::string> names = others;
  for (const ShardsKindRow& row : kShardsKinds) names.emplace_back(row.name);
  throw Error(ErrorKind::kUsage,
              fmt::format("{}: \"{}\" is not one of {}", option, printable(text), join(names, ", ")));
}

ShardedForm parse_form(const std::string& layout, const std::string& format) {
  const ShardsKind kind = parse_shards_kind("--layout", layout);
  if (format.empty()) return {kind, describe(kind).torch_only ? Format::kPytorch : Format::kSafetensors};
  return {kind, parse_format("--format", format, {Format::kSafetensors, Format::kPytorch, Format::kXser})};
}

Format parse_format(const std::string& option, const std::string& text, const std::vector<Format>& allowed) {
  const auto format = format_from_name(text);
  if (format && std::find(allowed.begin(), allowed.end(), *format) != allowed.end()) return *format;
  std::vector<std::string> names;
  for (const Format one : allowed) names.emplace_back(name(one));
  throw Error(ErrorKind::kUsage,
              fmt::format("{}: \"{}\" is not one of {}", option, printable(text), join(names, ", ")));
}

IoMode parse_io_mode(const std::string& text) {
  std::vector<std::string> names;
  for (const IoModeRow& row : kIoModes) {
    if (text == row.name) return row.mode;
    names.emplace_back(row.name);
  }
  throw Error(ErrorKind::kUsage, fmt::format("--io: \"{}\" is not one of {}", printable(text), join(names, ", ")));
}

RunOptions run_options(const MovingArguments& arguments, const ReplicaArguments& replicas) {
  RunOptions options;
  options.threads = parse_threads(arguments.threads);
  options.replicas = replicas_of(replicas);
  options.max_memory_bytes = parse_bytes("--max-memory", arguments.max_memory);
  if (options.max_memory_bytes < kMinMemoryBytes)
    throw Error(ErrorKind::kUsage, "--max-memory " + arguments.max_memory + " is too little to work in")
        .hint("give at least " + format_memory(kMinMemoryBytes));
  options.storage = &local_storage(parse_io_mode(arguments.io));
  return options;
}

bool parse_and_run(CLI::App& app, int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::Success& success) {  // help and version
    std::ostringstream text;
    app.exit(success, text, text);
    print_output(text.str());
    return false;
  } catch (const CLI::ParseError& error) {
    throw usage_error(app, arguments, error);
  }
}

}  // namespace reshard::cli
