// The table of subcommands and the table of options. Parsing, help, man page, shell completion and the documents are
// derived from them, and from the options that layouts declare.

#include "option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "help.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family/family.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard::cli {
namespace {

bool writes_without_mesh(const Layout& layout) {
  return layout.traits().is_written() && layout.traits().needs_no_mesh();
}

constexpr const char* kShardMain[] = {"--tp", "--layout", "--dtype", "--dry-run", "--force"};
constexpr const char* kConsolidateMain[] = {"--config", "--tag", "--dtype", "--dry-run", "--force"};
constexpr const char* kConvertMain[] = {"--to", "--tp", "--dtype", "--dry-run", "--force"};
constexpr const char* kVerifyMain[] = {"--manifest", "--rtol", "--atol", "--with-optimizer", "--config"};
constexpr const char* kInspectMain[] = {"--tensors", "--filter", "--sort", "--limit", "--stats"};

constexpr Example kShardExamples[] = {
    {"shard MODEL OUT --tp 8 --dry-run", "what would be written"},
    {"shard MODEL OUT --layout {} --fsdp 8", "for FSDP", writes_without_mesh},
    {"shard MODEL OUT --for COMPILED", "a compiled model of NxD Inference"},
};
constexpr Example kConsolidateExamples[] = {
    {"consolidate RANKS OUT", "RANKS has a config.json"},
    {"consolidate RUN OUT --config MODEL", "the newest checkpoint of a run"},
};
constexpr Example kConvertExamples[] = {
    {"convert RANKS OUT --tp 4 --pp 1 --with-optimizer", "another mesh"},
    {"convert MODEL OUT --dtype bfloat16", "another dtype"},
    {"convert MODEL OUT --max-shard-size 50GB", "fewer, larger files"},
};
constexpr Example kVerifyExamples[] = {
    {"verify MODEL RANKS", "any two layouts"},
    {"verify MODEL RANKS --rtol 1e-3", "after a cast"},
    {"verify OUT --manifest OUT/SHA256SUMS", "after a copy"},
};
constexpr Example kInspectExamples[] = {
    {"inspect DIR", "layout, model, mesh and tensors"},
    {"inspect DIR --tensors --sort size --limit 10", "the ten largest"},
    {"inspect DIR --stats --filter norm", "values of some tensors"},
};

constexpr Example kDoctorExamples[] = {{"doctor", "the current directory"}, {"doctor DIR", "another file system"}};
constexpr Example kVersionExamples[] = {{"version", "with the build"}, {"version --json", "for programs"}};
constexpr Example kCompletionExamples[] = {
    {"completion bash", "in ~/.bashrc: source <(reshard completion bash)"},
    {"completion zsh", "likewise in ~/.zshrc, after compinit"},
    {"completion fish", "into ~/.config/fish/completions/reshard.fish"},
};
constexpr Example kManExamples[] = {{"man", "to read it: reshard man | man -l -"}};
constexpr Example kHelpExamples[] = {
    {"help shard", "a subcommand"},
    {"help convert mesh", "a group of options"},
    {"help {}", "a layout", is_of_ranks},
};

constexpr CommandRow kCommandRows[] = {
    {"inspect", "Show what a file or directory contains; start here",
     "Reads headers only, unless --stats or --digest is given", kInspectExamples, kInspectMain},
    {"shard", "Hugging Face model (or LoRA adapters) to one file per rank",
     "For a trainer or server that loads rank files", kShardExamples, kShardMain, is_of_ranks},
    {"consolidate", "Rank files of any trainer to a Hugging Face directory",
     "For Transformers, vLLM, SGLang, or to publish a model", kConsolidateExamples, kConsolidateMain, is_whole},
    {"convert", "Anything to anything: another mesh, layout, file format or dtype",
     "Also for another mesh of a training run, optimizer included", kConvertExamples, kConvertMain, is_written},
    {"verify", "Compare two checkpoints of any layouts, or one with its manifest",
     "Exits with 0 if they are the same, 1 if they differ", kVerifyExamples, kVerifyMain},
    {"doctor", "Show facts for a bug report: build, machine, limits, file system",
     "Also whether plug-ins for MPI load, and which operations of a file system work", kDoctorExamples},
    {"version", "Print the version, and how the program was built", "reshard --version prints the version alone",
     kVersionExamples},
    {"completion", "Print a script that completes command lines in a shell",
     "Completes options, layouts, formats, families and paths", kCompletionExamples},
    {"man", "Print the manual page", "In the format of man", kManExamples},
    {"help", "Print help on a subcommand, a layout or an option", "The same as --help after a subcommand",
     kHelpExamples},
};

/// What completes the value of an option of the table.
enum class Values : std::uint8_t {
  kByWord,  // paths for DIR and FILE, and the choices of "keep|drop"
  kLayouts,
  kFormats,
  kDtypes,
  kFamilies,
  kCommands,
  kTopics,  // of the help of convert, which has options of all layouts
};

struct OptionRow {
  const char* names;         // as OptionInfo::names
  const char* value;         // as OptionInfo::value
  const char* help;          // "{}" is replaced by formats or dtypes if it takes one, else by layouts
  const char* command = "";  // the only command that the row applies to; takes precedence
  Values values = Values::kByWord;
  LayoutFilter layouts = nullptr;  // layouts for "{}"; null: those that the command writes
  bool of_run = false;             // as OptionInfo::of_run
};

constexpr OptionRow of_run(OptionRow row) {
  row.of_run = true;
  return row;
}

bool writes_states(const Layout& layout) {
  return layout.traits().writes_states();
}
bool holds_adapters(const Layout& layout) {
  return layout.traits().holds_adapters();
}
bool holds_drafts(const Layout& layout) {
  return layout.joined_roles().count("draft") > 0;
}

constexpr const char* kAnyCheckpoint =
    "A file of tensors, a Hugging Face directory, a sharded checkpoint or an adapter";

constexpr OptionRow kArguments[] = {
    {"[PATH]", "FILE", kAnyCheckpoint},
    {"[PATH]", "DIR", "Directory to examine, such as an output's parent: tries operations in a temporary subdirectory",
     "doctor"},
    {"MODEL_DIR", "FILE",
     "Directory with config.json and weights, a training checkpoint of whole tensors, or a file of all weights"},
    {"OUT_DIR", "DIR", "Directory to write the shards folder into", "shard"},
    {"CHECKPOINT_DIR", "FILE",
     "Directory with a shards folder or adapter_NAME/ folders, or such a folder; a training run, see --tag; or a file "
     "of all weights"},
    {"[OUT_DIR]", "DIR", "Output directory (default: that of the shards folder)", "consolidate"},
    {"SRC", "FILE", kAnyCheckpoint},
    {"DST", "DIR", "Directory to write to"},
    {"A", "FILE", kAnyCheckpoint},
    {"[B]", "FILE", "The other checkpoint"},
    {"[COMMAND]", "", "A subcommand, or a layout", "", Values::kCommands},
    {"[TOPIC]", "", "all, a group of options such as mesh, a layout, or an option", "", Values::kTopics},
    {"SHELL", "bash|zsh|fish", "bash, zsh or fish"},
};

constexpr OptionRow kMeshOptions[] = {
    {"--tp", "N", "Tensor-parallel ranks; required, but for {}", "shard", Values::kByWord, writes_without_mesh},
    {"--tp", "N", "Tensor-parallel ranks (default: those of a sharded SRC)"},
    {"--pp", "N", "Pipeline-parallel ranks (default: 1)"},
    {"--pp", "N", "Pipeline-parallel ranks (default: those of a sharded SRC, or 1)", "convert"},
    {"--vpp", "N", "Virtual pipeline stages per rank, interleaved"},
    {"--ep", "N", "Expert-parallel ranks to distribute each layer's experts over (default: 1)"},
    {"--ep", "N", "Expert-parallel ranks (default: those of a sharded SRC, or 1)", "convert"},
    {"--pipeline-cuts", "NAMES", "Last layer of each stage but the last, such as model.layers.3,model.layers.7"},
};

constexpr OptionRow kLayoutOptions[] = {
    {"--layout", "NAME", "Layout of the shards: {}", "", Values::kLayouts},
    {"--to", "NAME", "Layout to write: {}; that of a sharded SRC with --with-optimizer or options of ranks", "",
     Values::kLayouts},
    {"--for", "DIR", "Directory of a compiled model (neuron_config.json): take its ranks, dtype and layout options"},
    {"-f,--format", "NAME", "File format: {}", "", Values::kFormats},
    {"--fused-model", "NAME",
     "Compare only the target or only the draft of a fused speculation, without adapters and Medusa's heads", "verify"},
};

constexpr OptionRow kSelectionOptions[] = {
    {"--tag", "NAME",
     "Which checkpoint to read, if the directory holds several (step_3, checkpoint-10); default: the newest complete "
     "one"},
    {"--tag", "NAME",
     "Which checkpoint to read, if A or B holds several (step_3, checkpoint-10); default: the newest complete one",
     "verify"},
    {"--config", "FILE", "The model's config.json, or its directory, if it is not next to the weights"},
    {"--config", "FILE", "The model's config.json, or its directory, for a side that has none", "verify"},
    {"--with-optimizer", "", "Include the optimizer and other training state ({})", "", Values::kByWord, writes_states},
    {"--with-optimizer", "", "Also compare the optimizer and other training state", "verify"},
    {"--complete", "", "Also fail if B lacks files of A's model, such as the tokenizer, or A's training state"},
    {"--rename", "REGEX=TEXT", "Replace what matches in names, in order; $1 … $9 are groups"},
    {"--drop", "REGEX", "Leave out tensors whose name matches"},
    {"--keep", "REGEX", "Take only tensors whose name matches"},
    {"--renumber-layers", "", "Number the layers that --keep and --drop leave from 0, in names and in config.json"},
    {"--filter", "REGEX", "Only tensors whose name matches"},
    {"--allow-missing", "", "Write a model that lacks tensors which config.json asks for, and list them in a note"},
    {"--extra-tensors", "keep|drop",
     "Tensors that config.json does not explain, such as buffers: keep, whole on every rank, or drop (default: an "
     "error where ranks are read or written, else keep)"},
    {"--extra-tensors", "keep",
     "Also compare tensors in rank files that config.json does not explain, whole on every rank (default: an error)",
     "verify"},
    {"--family", "NAME", "Built-in family of the model, whatever its model_type", "", Values::kFamilies},
    {"--spec", "FILE",
     "Model family description (JSON) to use instead of the built-in one; see inspect --print-family"},
    {"--adapter", "DIR",
     "Directory of a LoRA adapter saved by PEFT, or of several; once per directory. In {} (default: the first) "
     "only adapters are written, and MODEL_DIR needs only config.json; others contain them with their model",
     "", Values::kByWord, holds_adapters},
    {"--draft", "DIR", "Directory of the draft model of a speculation, for files that contain both: {}", "",
     Values::kByWord, holds_drafts},
    {"--draft-family", "NAME",
     "Built-in family of the draft, such as llama_eagle (default: from --for, else from its config.json)", "",
     Values::kFamilies},
    {"--medusa-heads", "FILE", "File with Medusa's heads (medusa_heads.pt), for a model that was compiled with them"},
    {"--manifest", "FILE",
     "Verify A against a reshard.manifest.json (its tensors) or a SHA256SUMS (its files) instead of B", "verify"},
};

constexpr OptionRow kValuesOptions[] = {
    {"--dtype", "NAME", "Cast floating tensors (to nearest even): {}", "", Values::kDtypes},
    {"--overflow", "saturate|error",
     "With --dtype, or a layout that casts: saturate replaces out-of-range values by the largest finite ones, and "
     "infinities where the dtype has none (float8_e4m3fn); error stops at the first"},
    {"--cast-all", "", "With --dtype: also cast integers, booleans and parameters that the model needs in float32"},
    {"--lora-fuse", "mean|exact|same",
     "lora_A of fused linears: mean (as optimum-neuron does), exact (stacked), or same, which accepts only equal ones "
     "(as NxD needs) (default: mean; for NxD: same)"},
    {"--lora-fuse", "mean|exact|same",
     "lora_A of fused linears, where an adapter is sharded for the model of --config (default: mean; for NxD: same)",
     "convert"},
    {"--rtol", "X",
     "Compare values, not bytes: |a - b| may be ATOL + RTOL * |b|. Dtypes may differ, -0 equals 0, NaN equals NaN, "
     "also if the tolerance is 0"},
    {"--atol", "X", "Absolute tolerance; see --rtol"},
    {"--stats", "", "Read the values: minimum, maximum, mean, NaN and infinity counts"},
    {"--digest", "", "Read the values: a SHA-256 of each tensor, the same whatever the layout, format or ranks"},
};

constexpr OptionRow kOutputOptions[] = {
    {"--dry-run", "", "Print the plan and write nothing"},
    {"--force", "", "Replace existing outputs (a shards folder as a whole)"},
    {"--companions", "all|model|none",
     "Which files next to the weights to copy: all, those of the model (tokenizer, processor, chat template, code that "
     "its config names, README, licence), or none but config.json (default: model)"},
    {"--manifest", "", "Also write SHA256SUMS and reshard.manifest.json, with a SHA-256 of each file and tensor"},
    {"--resume", "",
     "Resume an interrupted run of the same command, or start from scratch; long runs should have it from the start"},
    {"--clean", "", "First delete staging directories that killed runs left for this output"},
    {"--tensors", "", "One line per tensor, instead of one for all layers"},
    {"--sort", "size|name|layer", "Order of tensors: largest first, by name, or by layer number (default: as stored)"},
    {"--limit", "N", "Show only the first N tensors, or lines that fold layers"},
    {"--pickle", "",
     "List the classes and functions that pickles name (.pt, .bin, .metadata), without running anything"},
    {"--print-family", "FAMILY", "Print the description of a built-in family, in the format of --spec", "",
     Values::kFamilies},
    {"--print-spec", "", "Print the model's description for --spec, from the ranks' metadata if they have any"},
    of_run({"--json", "", "Print one JSON document to standard output, and nothing else"}),
    of_run({"--quiet", "", "No progress, notes or last line"}),
    of_run({"--quiet", "", "Print nothing; see the exit code", "verify"}),
    of_run({"--progress", "auto|lines|json|none",
            "Progress of long runs on standard error: auto (a bar on a terminal, elsewhere lines), lines, json (an "
            "object per line) or none"}),
    of_run({"--color", "auto|always|never",
            "Colour: auto, on a terminal unless NO_COLOR is set (the default), always or never"}),
};

constexpr OptionRow kPerformanceOptions[] = {
    of_run({"--threads", "N", "Number of threads that move bytes (default: number of CPUs, at most 16)"}),
    of_run({"--max-memory", "SIZE", "Memory for buffers, such as 256MiB or 1GB"}),
    of_run({"--mpi", "auto|yes|no",
            "Share the work between the processes that mpirun or srun started: auto (if there are several), yes, or no "
            "(each process does all of it); default: RESHARD_MPI, or auto"}),
    {"--no-sync", "", "Skip fsync: faster, but outputs may be lost if the machine crashes"},
};

constexpr OptionRow kDiagnosticsOptions[] = {
    {"--check-inputs", "", "Verify input files first, against SHA256SUMS or the Hugging Face cache"},
    {"--check-against", "DIR",
     "First verify the source's files against the git-lfs pointers or SHA256SUMS in this directory"},
    {"--replicas", "drift|exact|first",
     "If ranks differ in a replicated parameter: drift (the default) uses the first rank's values if they drifted "
     "apart in training, exact reports an error, first uses the first rank's values"},
    {"--no-check-replicas", "",
     "Compare only tied parameters and replicas that are the only evidence for the partition"},
    {"--allow-divergent-replicas", "", "The same as --replicas first"},
};

struct GroupRow {
  const char* heading;
  std::span<const OptionRow> options;
};

/// By OptionGroup.
constexpr GroupRow kGroups[] = {
    {"Mesh", kMeshOptions},
    {"Layout", kLayoutOptions},
    {"Selection", kSelectionOptions},
    {"Values", kValuesOptions},
    {"Output", kOutputOptions},
    {"Performance", kPerformanceOptions},
    {"Diagnostics", kDiagnosticsOptions},
};

bool has_name(const OptionRow& row, std::string_view name) {
  const std::string_view names = row.names;
  return names == name || (names.starts_with('[') && names.substr(1, names.size() - 2) == name) ||
         (names.ends_with(name) && names[names.size() - name.size() - 1] == ',');
}

/// Returns the row of a command's option and its group (any for arguments); std::nullopt if no row has this name.
std::optional<std::pair<OptionRow, OptionGroup>> row_of(const std::string& command, std::string_view name) {
  std::optional<std::pair<OptionRow, OptionGroup>> found;
  const auto look = [&](std::span<const OptionRow> rows, OptionGroup group) {
    for (const OptionRow& row : rows)
      if (has_name(row, name) && (row.command == command || (*row.command == '\0' && !found))) found = {row, group};
  };
  look(kArguments, OptionGroup::kSelection);
  for (const OptionGroup group : kOptionGroups) look(kGroups[static_cast<std::size_t>(group)].options, group);
  return found;
}

std::vector<std::string> names_of_layouts(LayoutFilter wanted) {
  std::vector<std::string> names;
  for (const Layout* layout : layouts())
    if (wanted(*layout)) names.emplace_back(layout->traits().name);
  return names;
}

bool has_format(const Layout& layout, Format format) {
  const auto formats = layout.traits().formats;
  return std::find(formats.begin(), formats.end(), format) != formats.end();
}

/// "safetensors, pytorch (default: safetensors; pytorch for layouts …)"
std::string formats_text(LayoutFilter wanted) {
  std::vector<std::string> defaults;
  for (const FormatRow& row : kFormats) {
    std::vector<std::string> first;
    for (const Layout* layout : layouts())
      if (wanted(*layout) && layout->traits().formats.front() == row.format) first.emplace_back(layout->traits().name);
    if (first.empty()) continue;
    defaults.push_back(defaults.empty() ? row.name : fmt::format("{} for {}", row.name, layouts_text(first)));
  }
  return fmt::format("{} (default: {})", join(names_of_formats(wanted), ", "), join(defaults, "; "));
}

std::vector<std::string> names_of_commands(const Command& command) {
  std::vector<std::string> names;
  for (const Command& other : command.parent()->subcommands()) names.push_back(other.name());
  return names;
}

/// Sets what completes the value, and fills "{}" in the help.
void fill(OptionInfo& info, const OptionRow& row, const Command& command) {
  const CommandRow* of = command_row(command.name());
  const LayoutFilter written = of == nullptr ? nullptr : of->writes;
  const LayoutFilter wanted = row.layouts != nullptr ? row.layouts : written != nullptr ? written : any_layout;
  switch (row.values) {
    case Values::kByWord:
      if (info.value.find('|') != info.value.npos) info.words = split(info.value, '|');
      if (info.value == "DIR") info.completion = Completion::kDirectory;
      if (info.value == "FILE") info.completion = Completion::kFile;
      break;
    case Values::kLayouts: info.words = names_of_layouts(wanted); break;
    case Values::kFormats: info.words = names_of_formats(wanted); break;
    case Values::kDtypes: info.words = names_of_dtypes(); break;
    case Values::kFamilies: info.words = known_model_types(); break;
    case Values::kCommands: info.words = names_of_commands(command); break;
    case Values::kTopics: info.words = topics_of(command.parent()->find_subcommand("convert").value()); break;
  }
  if (!info.words.empty()) info.completion = Completion::kWords;
  const std::size_t at = info.help.find("{}");
  if (at == info.help.npos) return;
  const std::string text = row.values == Values::kFormats  ? formats_text(wanted)
                           : row.values == Values::kByWord ? layouts_text(names_of_layouts(wanted))
                                                           : join(info.words, ", ");
  info.help.replace(at, 2, text);
}

}  // namespace

std::string Example::text() const {
  return layout == nullptr ? command : fmt::format(fmt::runtime(command), names_of_layouts(layout).front());
}

std::span<const CommandRow> command_rows() {
  return kCommandRows;
}

const CommandRow* command_row(std::string_view name) {
  const auto row = std::find_if(std::begin(kCommandRows), std::end(kCommandRows),
                                [&](const CommandRow& one) { return one.name == name; });
  return row == std::end(kCommandRows) ? nullptr : row;
}

Command add_command(Command program, std::string_view name) {
  const CommandRow& row = *command_row(name);
  return program.add_subcommand(row.name, row.summary);
}

const char* heading_of(OptionGroup group) {
  return kGroups[static_cast<std::size_t>(group)].heading;
}

OptionInfo option_info(const Command& command, std::string_view name) {
  const auto found = row_of(command.name(), name);
  if (!found) throw std::logic_error(fmt::format("{} is not in the table of options", name));
  const auto& [row, group] = *found;
  OptionInfo info{row.names, row.value, row.help, group};
  info.of_run = row.of_run;
  fill(info, row, command);
  return info;
}

OptionInfo option_info(const Command& command, const LayoutOption& option, bool of_source, const std::string& prefix,
                       std::vector<std::string> layouts) {
  using Type = LayoutOption::Type;
  OptionInfo info{prefix + option.name, "", of_source ? option.source_help : option.help, OptionGroup::kLayout};
  if (option.type == Type::kChoice || option.type == Type::kText) info.value = "NAME";
  if (option.type == Type::kSize) info.value = "SIZE";
  if (option.type == Type::kDegree || option.type == Type::kCount || option.type == Type::kRank) info.value = "N";
  info.default_value = option.default_value;
  if (option.type == Type::kChoice) {
    info.completion = Completion::kWords;
    info.words.assign(option.choices.begin(), option.choices.end());
    if (!of_source && info.help.find(option.choices.front()) == info.help.npos)
      info.help += ": " + join(info.words, ", ");
  }
  info.layouts = std::move(layouts);
  info.of_source = of_source;
  if (const auto found = row_of(command.name(), info.names)) {
    info.help = found->first.help;
    info.default_value.clear();
  }
  return info;
}

std::vector<std::string> names_of_dtypes() {
  std::vector<std::string> names;
  for (const DTypeRow& row : kDTypes)
    if (can_cast(DType::kF32, row.dtype)) names.emplace_back(row.torch_name);
  std::reverse(names.begin(), names.end());  // the widest first
  return names;
}

std::vector<std::string> names_of_formats(LayoutFilter wanted) {
  std::vector<std::string> names;
  for (const FormatRow& row : kFormats)
    if (!layout_names([&](const Layout& layout) { return wanted(layout) && has_format(layout, row.format); }).empty())
      names.emplace_back(row.name);
  return names;
}

std::string layouts_text(const std::vector<std::string>& names) {
  return (names.size() == 1 ? "layout " : "layouts ") + join(names, ", ");
}

}  // namespace reshard::cli
