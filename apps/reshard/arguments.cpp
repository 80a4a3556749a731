#include "arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "color.h"
#include "help.h"
#include "other_words.h"
#include "print.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/plan/output/companions.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/parallel/mesh.h"

namespace reshard::cli {
namespace {

constexpr std::uint32_t kMaxThreads = 1024;

/// Names that the user may have meant; help is not worth a guess.
std::vector<std::string> subcommand_names(const Command& program) {
  std::vector<std::string> names;
  for (const Command& command : program.subcommands()) names.push_back(command.name());
  return names;
}

/// Returns the command that has the option `name`; std::nullopt if none has it. convert comes first: it reads and
/// writes whatever the other commands do.
std::optional<std::string> command_with(const Command& command, const std::string& name) {
  const auto program = command.parent();
  if (!program) return std::nullopt;
  std::vector<Command> others = program->subcommands();
  std::stable_partition(others.begin(), others.end(), [](const Command& other) { return other.name() == "convert"; });
  for (const Command& other : others)
    for (const std::string& option : {name, own_option(name)})
      if (other != command && other.find_option(option))
        return fmt::format("reshard {} has {}; see reshard {} --help", other.name(), option == name ? "it" : option,
                           other.name());
  return std::nullopt;
}

/// Returns what to try instead of an option that `command` does not know; it knows `known`.
std::string hint_for_option(const Command& command, const std::string& name, const std::vector<std::string>& known) {
  constexpr std::string_view kFrom = "--from-";
  const std::string rest = name.substr(std::min<std::size_t>(2, name.size()));
  const std::string of_source = std::string(kFrom) + rest;
  const std::string alone = name.starts_with(kFrom) ? "--" + name.substr(kFrom.size()) : name;
  for (const std::string& other : {of_source, alone})
    if (std::find(known.begin(), known.end(), other) != known.end()) return "did you mean " + other + "?";
  if (const auto advice = advice_on(command, name)) return *advice;
  if (const auto other = command_with(command, name)) return *other;
  const std::string guess = nearest(name, known);
  if (!guess.empty()) return "did you mean " + guess + "?";
  return command.name() == "reshard" ? "see reshard --help" : fmt::format("see reshard {} --help", command.name());
}

/// Returns an error for the first argument that looks like an option and is unknown, if any.
std::optional<Error> unknown_option(const Command& command, const std::vector<std::string>& arguments) {
  const std::vector<std::string> known = option_names(command);
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.size() < 2 || argument[0] != '-') continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const bool short_with_value =
        argument[1] != '-' && std::find(known.begin(), known.end(), argument.substr(0, 2)) != known.end();
    if (short_with_value) continue;
    Error error(ErrorKind::kUsage, fmt::format("{} does not know the option {}", command.name(), printable(name)));
    error.hint(hint_for_option(command, name, known));
    return error;
  }
  return std::nullopt;
}

/// Returns an error for an option that precedes the subcommand.
std::optional<Error> early_option(const Command& program, const std::vector<std::string>& arguments) {
  if (arguments.empty() || !arguments.front().starts_with('-')) return std::nullopt;
  const std::string name = arguments.front().substr(0, arguments.front().find('='));
  std::vector<std::string> commands;
  for (const Command& command : program.subcommands()) {
    const std::vector<std::string> known = option_names(command);
    if (std::find(known.begin(), known.end(), name) != known.end()) commands.push_back(command.name());
  }
  if (commands.empty()) return std::nullopt;
  return Error(ErrorKind::kUsage, fmt::format("{} comes before the subcommand", printable(name)))
      .hint(fmt::format("the subcommand comes first; {} is an option of {}", printable(name), join(commands, ", ")));
}

Error usage_error(const Command& program, const std::vector<std::string>& arguments, const ParseError& parse_error) {
  const std::vector<std::string> commands = subcommand_names(program);
  if (const auto early = early_option(program, arguments)) return *early;
  const auto first =
      std::find_if(arguments.begin(), arguments.end(), [](const auto& a) { return !a.empty() && a[0] != '-'; });
  if (first == arguments.end()) {
    if (const auto unknown = unknown_option(program, arguments)) return *unknown;
    return Error(ErrorKind::kUsage, "a subcommand is needed: " + join(commands, ", ")).hint("see reshard --help");
  }
  if (std::find(commands.begin(), commands.end(), *first) == commands.end()) {
    std::string guess = nearest(*first, commands);
    // "neuron consolidate", as in optimum-cli
    const auto later = std::find_first_of(first, arguments.end(), commands.begin(), commands.end());
    if (guess.empty() && later != arguments.end()) guess = "reshard " + *later;
    return Error(ErrorKind::kUsage, "there is no subcommand " + printable(*first))
        .hint(guess.empty() ? "the subcommands are " + join(commands, ", ") : "did you mean " + guess + "?");
  }
  const Command command = program.find_subcommand(*first).value();
  if (const auto unknown = unknown_option(command, {first + 1, arguments.end()})) return *unknown;
  Error error(ErrorKind::kUsage, parse_error.what());
  for (const Option& option : command.options())
    if (option.is_required() && option.count() == 0 && !option.info().words.empty())
      return error.hint("give one of " + join(option.info().words, ", "));
  return error.hint("see reshard " + *first + " --help");
}

}  // namespace

void add_moving(Command command, MovingArguments& arguments) {
  add(command, "--spec", arguments.spec);
  add(command, "--family", arguments.family);
  add(command, "--threads", arguments.threads);
  add(command, "--max-memory", arguments.max_memory);
  add(command, "--mpi", arguments.mpi);
}

void add_output(Command command, OutputArguments& arguments) {
  add(command, "--json", arguments.json);
  add(command, "--quiet", arguments.quiet);
  command.add_option(option_info(command, "--progress"),
                     [&arguments](const std::string& text) { arguments.progress = parse_progress(text); });
  add(command, "--color", arguments.color);
}

std::shared_ptr<const Family> named_family(const char* option, const std::string& name) {
  if (auto family = builtin_family(name)) return family;
  const std::vector<std::string> known = known_model_types();
  const std::string guess = nearest(name, known);
  throw Error(ErrorKind::kUsage, fmt::format("{}: the family \"{}\" is not known", option, printable(name)))
      .hint(guess.empty() ? fmt::format("docs/families.md lists the {} known families", known.size())
                          : "did you mean " + guess + "?");
}

std::shared_ptr<const Family> family_spec(const MovingArguments& arguments) {
  if (!arguments.spec.empty() && !arguments.family.empty())
    throw Error(ErrorKind::kUsage, "--spec and --family both choose the model's family").hint("leave out one");
  if (!arguments.spec.empty()) return read_family(all_files(), arguments.spec);
  if (arguments.family.empty()) return nullptr;
  return named_family("--family", arguments.family);
}

namespace {

/// Returns each layout option once, with the layouts that have it.
std::vector<std::pair<const LayoutOption*, std::vector<const Layout*>>> options_of(
    LayoutFilter wanted, bool (*wanted_option)(const LayoutOption&)) {
  std::vector<std::pair<const LayoutOption*, std::vector<const Layout*>>> all;
  for (const Layout* layout : layouts()) {
    if (!wanted(*layout)) continue;
    for (const LayoutOption* option : layout->options()) {
      if (!wanted_option(*option)) continue;
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& known) {
        return std::string_view(known.first->name) == option->name;
      });
      if (found == all.end())
        all.push_back({option, {layout}});
      else
        found->second.push_back(layout);
    }
  }
  return all;
}

std::vector<std::string> names_of(const std::vector<const Layout*>& all) {
  std::vector<std::string> names;
  for (const Layout* layout : all) names.emplace_back(layout->traits().name);
  return names;
}

/// Adds a declared option of layouts.
void add_layout_option(Command command, OptionValues& values, const LayoutOption& option, const OptionInfo& info) {
  const std::string name = option.name;
  if (option.type == LayoutOption::Type::kFlag)
    command.add_option(info, [&values, name] { values.set(name); });
  else
    command.add_option(info, [&values, name](const std::string& text) { values.set(name, text); });
}

}  // namespace

void add_layout_options(Command command, OptionValues& values, LayoutFilter wanted) {
  const auto count = static_cast<std::size_t>(
      std::count_if(layouts().begin(), layouts().end(), [&](const Layout* layout) { return wanted(*layout); }));
  for (const auto& [option, of] : options_of(wanted, [](const LayoutOption& one) { return !one.only_of_source; })) {
    std::vector<std::string> names = of.size() == count ? std::vector<std::string>() : names_of(of);
    add_layout_option(command, values, *option, option_info(command, *option, false, "--", std::move(names)));
  }
}

void add_source_options(Command command, OptionValues& values, const std::string& prefix) {
  for (const auto& [option, of] : options_of(any_layout, [](const LayoutOption& one) { return one.of_source; })) {
    std::vector<const Layout*> sources;
    const LayoutOption* declared = nullptr;
    for (const Layout* layout : of)
      for (const LayoutOption* own : layout->options())
        if (own->of_source && std::string_view(own->name) == option->name) sources.push_back(layout), declared = own;
    if (declared != nullptr)
      add_layout_option(command, values, *declared, option_info(command, *declared, true, prefix, names_of(sources)));
  }
}

ExtraTensors extra_tensors_of(const SourceArguments& arguments) {
  if (arguments.extra_tensors.empty()) return ExtraTensors::kRefuse;
  return arguments.extra_tensors == "keep" ? ExtraTensors::kKeep : ExtraTensors::kDrop;
}

void add_source(Command command, SourceArguments& arguments) {
  add(command, "--tag", arguments.tag);
  add(command, "--config", arguments.config);
}

std::string config_of(const SourceArguments& arguments) {
  return arguments.config.value_or("");
}

void add_common(Command command, CommonArguments& arguments) {
  add_moving(command, arguments);
  add(command, "--no-sync", arguments.no_sync);
  add(command, "--dry-run", arguments.dry_run);
  add(command, "--force", arguments.force);
  add(command, "--resume", arguments.resume);
  add(command, "--clean", arguments.clean);
  add(command, "--companions", arguments.companions);
  add(command, "--manifest", arguments.manifest);
  add(command, "--check-inputs", arguments.check_inputs);
  add(command, "--check-against", arguments.check_against);
  add_output(command, arguments);
}

CompanionFiles companions_of(const CommonArguments& arguments) {
  if (arguments.companions == "all") return CompanionFiles::kAll;
  return arguments.companions == "none" ? CompanionFiles::kNone : CompanionFiles::kModel;
}

std::uint32_t parse_degree(const std::string& option, const std::string& text, std::uint32_t max) {
  const auto value = parse_unsigned(text, max);
  if (!value || *value == 0)
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: \"{}\" is not a whole number from 1 to {}", option, printable(text), max));
  return static_cast<std::uint32_t>(*value);
}

void validate_is_directory_name(const std::string& argument, const std::string& directory) {
  const std::filesystem::path path(directory);
  Storage& target = open_storage(path);
  if (!has_weights_ending(path.filename().string()) || target.is_directory(path)) return;
  throw Error(ErrorKind::kUsage, argument + " is a directory to write to, but this is the name of a file")
      .in(path)
      .hint("give a directory; the files in it get the names that loaders look for, such as model.safetensors");
}

void add_replicas(Command command, ReplicaArguments& arguments, bool may_skip) {
  add(command, "--replicas", arguments.replicas);
  if (may_skip) add(command, "--no-check-replicas", arguments.no_check);
  add(command, "--allow-divergent-replicas", arguments.allow_divergent);
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
  return arguments.replicas == "exact" ? Replicas::kExact : Replicas::kDrift;
}

/// Other names of file formats: file extensions, and Transformers' names.
constexpr std::pair<std::string_view, std::string_view> kOtherFormats[] = {
    {"pt", "pytorch"}, {"pth", "pytorch"}, {"bin", "pytorch"}, {"torch", "pytorch"}, {"st", "safetensors"}};

std::string own_format(const std::string& text) {
  for (const auto& [other, own] : kOtherFormats)
    if (text == other) return std::string(own);
  return text;
}

std::string lower(std::string text) {
  for (char& letter : text)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter | 0x20);
  return text;
}

/// Returns what to try instead of `text`, which is not one of the layouts `names`: a format, a folder or a program.
std::string hint_for_layout(const std::string& option, const std::string& text, const std::vector<std::string>& names,
                            LayoutFilter wanted) {
  if (format_from_name(own_format(text)))
    return fmt::format("this is a file format: --format {}; {} says which program reads the files", own_format(text),
                       option);
  if (const std::string guess = nearest(text, names); !guess.empty()) return "did you mean " + guess + "?";
  std::vector<std::string> meant, all;
  for (const Layout* layout : layouts()) {
    if (!wanted(*layout)) continue;
    const LayoutTraits& traits = layout->traits();
    all.push_back(fmt::format("{} ({})", traits.name, traits.meaning));
    if (text.size() > 1 && (text == traits.folder || lower(traits.meaning).find(lower(text)) != std::string::npos))
      meant.push_back(all.back());
  }
  if (meant.size() == 1) return "did you mean " + meant.front() + "?";
  return (meant.empty() ? "they are " : "did you mean one of ") + join(meant.empty() ? all : meant, "; ");
}

Error unknown_layout(const std::string& option, const std::string& text, LayoutFilter wanted) {
  std::vector<std::string> names;
  for (const Layout* layout : layouts())
    if (wanted(*layout)) names.emplace_back(layout->traits().name);
  Error error(ErrorKind::kUsage,
              fmt::format("{}: \"{}\" is not one of {}", option, printable(text), join(names, ", ")));
  error.hint(hint_for_layout(option, text, names, wanted));
  return error;
}

/// Returns a format that one of the `wanted` layouts has; the error lists these formats.
Format parse_format(const std::string& option, const std::string& text, LayoutFilter wanted) {
  if (const auto format = format_from_name(text)) return *format;
  const std::vector<std::string> names = names_of_formats(wanted);
  Error error(ErrorKind::kUsage,
              fmt::format("{}: \"{}\" is not one of {}", option, printable(text), join(names, ", ")));
  const std::string own = own_format(text);
  const std::string guess = own != text ? own : nearest(text, names);
  if (!guess.empty()) error.hint("did you mean " + guess + "?");
  throw error;
}

/// Parses the names in a list: "a,b", "a, b", or as Python prints it, "['a', 'b']".
std::vector<std::string> parse_names(const std::string& text) {
  constexpr std::string_view kAround = " \t\n[]()'\"";
  std::vector<std::string> names;
  for (const std::string& part : split(text, ',')) {
    const std::size_t begin = std::min(part.find_first_not_of(kAround), part.size());
    const std::size_t end = part.find_last_not_of(kAround);
    names.push_back(end == part.npos ? std::string() : part.substr(begin, end + 1 - begin));
  }
  if (names.size() == 1 && names.front().empty()) names.clear();  // an empty list
  return names;
}

std::uint64_t parse_bytes(const std::string& option, const std::string& text) {
  const auto bytes = parse_size(text);
  if (!bytes)
    throw Error(ErrorKind::kUsage, fmt::format("{}: \"{}\" is not a size", option, printable(text)))
        .hint("write a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)");
  return *bytes;
}

}  // namespace

void add_mesh(Command command, TargetArguments& arguments) {
  add(command, "--tp", arguments.tp);
  add(command, "--pp", arguments.pp);
  add(command, "--vpp", arguments.vpp);
  add(command, "--ep", arguments.ep);
  add(command, "--pipeline-cuts", arguments.pipeline_cuts);
}

TargetRequest target_request(const TargetArguments& arguments, const std::string& option, LayoutFilter wanted) {
  TargetRequest request;
  request.layout = layout_named(arguments.layout);
  if (request.layout == nullptr || !wanted(*request.layout)) throw unknown_layout(option, arguments.layout, wanted);
  if (!arguments.format.empty()) request.format = parse_format("--format", arguments.format, wanted);
  if (!arguments.tp.empty()) request.tp = parse_degree("--tp", arguments.tp, kMaxParallelDegree);
  if (!arguments.pp.empty()) request.pp = parse_degree("--pp", arguments.pp, kMaxParallelDegree);
  request.vpp = parse_degree("--vpp", arguments.vpp, kMaxParallelDegree);
  if (!arguments.ep.empty()) request.ep = parse_degree("--ep", arguments.ep, kMaxParallelDegree);
  for (const std::string& list : arguments.pipeline_cuts)
    for (std::string& name : parse_names(list)) request.pipeline_cuts.push_back(std::move(name));
  request.options = arguments.options;
  return request;
}

void add_selection(Command command, SelectionArguments& arguments) {
  add(command, "--rename", arguments.renames);
  add(command, "--drop", arguments.drop);
  add(command, "--keep", arguments.keep);
  add(command, "--renumber-layers", arguments.renumber_layers);
  add(command, "--allow-missing", arguments.allow_missing);
}

NameRules name_rules(const SelectionArguments& arguments) {
  NameRules rules;
  for (const std::string& text : arguments.renames) rules.renames.push_back(parse_rename("rename", text));
  for (const std::string& text : arguments.drop) rules.drop.emplace_back("drop", text);
  for (const std::string& text : arguments.keep) rules.keep.emplace_back("keep", text);
  rules.renumber_layers = arguments.renumber_layers;
  return rules;
}

void add_cast(Command command, CastArguments& arguments) {
  add(command, "--dtype", arguments.dtype);
  add(command, "--overflow", arguments.overflow);
  add(command, "--cast-all", arguments.all);
}

void validate_cast(const CastArguments& arguments) {
  if (arguments.all && arguments.dtype.empty())
    throw Error(ErrorKind::kUsage, "--cast-all needs --dtype: what shall tensors be cast to?");
}

namespace {

/// Other names of dtypes.
constexpr std::pair<std::string_view, std::string_view> kOtherDtypes[] = {
    {"bf16", "bfloat16"}, {"fp16", "float16"},  {"f16", "float16"},  {"half", "float16"},  {"fp32", "float32"},
    {"f32", "float32"},   {"float", "float32"}, {"fp64", "float64"}, {"double", "float64"}};

std::string own_dtype(std::string text) {
  constexpr std::string_view kTorch = "torch.";
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const std::string_view alone = std::string_view(text).substr(text.starts_with(kTorch) ? kTorch.size() : 0);
  for (const auto& [other, own] : kOtherDtypes)
    if (alone == other) return std::string(own);
  return std::string(alone);
}

/// Whether a word names a dtype that needs scales: "fp8", "float8", "e4m3", "nf4", "8bit".
bool names_few_bits(const std::string& word) {
  if (word.starts_with("e4m3") || word.starts_with("e5m2")) return true;
  const std::size_t digit = word.find_first_of("0123456789");
  const std::string number =
      digit == word.npos ? "" : word.substr(digit, word.find_first_not_of("0123456789", digit) - digit);
  return number == "4" || number == "8";
}

}  // namespace

std::optional<DType> dtype_of(const CastArguments& arguments) {
  if (arguments.dtype.empty()) return std::nullopt;
  const std::string own = own_dtype(arguments.dtype);
  const std::vector<std::string> names = names_of_dtypes();
  for (const DTypeRow& row : kDTypes)
    if (own == row.torch_name && std::find(names.begin(), names.end(), own) != names.end()) return row.dtype;
  Error error(ErrorKind::kUsage,
              fmt::format("--dtype: \"{}\" is not one of {}", printable(arguments.dtype), join(names, ", ")));
  if (names_few_bits(own))
    throw error.hint(
        "quantise the model with a tool that writes scales; convert with --keep casts selected tensors to "
        "float8_e4m3fn "
        "or float8_e5m2");
  const std::string guess = nearest(own, names);
  if (!guess.empty()) error.hint("did you mean " + guess + "?");
  throw error;
}

Overflow overflow_of(const CastArguments& arguments) {
  return arguments.overflow == "error" ? Overflow::kError : Overflow::kSaturate;
}

LoraFuse parse_lora_fuse(const std::string& text) {
  if (text == "exact") return LoraFuse::kExact;
  return text == "same" ? LoraFuse::kSame : LoraFuse::kMean;
}

RunOptions run_options(const MovingArguments& arguments, const ReplicaArguments& replicas) {
  RunOptions options;
  if (!arguments.threads.empty()) options.threads = parse_degree("--threads", arguments.threads, kMaxThreads);
  options.replicas = replicas_of(replicas);
  options.max_memory_bytes = parse_bytes("--max-memory", arguments.max_memory);
  if (options.max_memory_bytes < kMinMemoryBytes)
    throw Error(ErrorKind::kUsage, "--max-memory " + arguments.max_memory + " is too little to work with")
        .hint("give at least " + format_memory(kMinMemoryBytes) + "; a manifest needs 17 MiB or more");
  return options;
}

bool parse_and_run(CommandLine& command_line, int argc, const char* const* argv) {
  const Command program = command_line.program();
  const std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  set_color(given);
  if (const auto help = requested_help(program, given)) return print_output(help_text(program, *help)), false;
  const std::vector<std::string> arguments = in_own_words(program, given);
  try {
    const auto text = command_line.parse(arguments);
    if (text) print_output(*text);
    return !text;
  } catch (const ParseError& error) {
    throw usage_error(program, arguments, error);
  }
}

}  // namespace reshard::cli
