#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "option_table.h"
#include "progress.h"
#include "reshard/engine/move/run.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/job/request.h"

namespace reshard::cli {

/// Options of all commands, as the user typed them: how bytes are moved, and the model's family.
struct MovingArguments {
  std::string spec;
  std::string family;
  std::string threads;
  std::string max_memory = "256MiB";
  std::string mpi;  // handled before the command line is parsed
};
void add_moving(Command command, MovingArguments& arguments);

/// Returns the built-in family that `option` names.
/// \throws Error kUsage, with the nearest name or all names, if the name is unknown.
std::shared_ptr<const Family> named_family(const char* option, const std::string& name);

/// Returns the family given by --spec or --family, or null.
/// \throws Error kBadInput with the line and the key of an error in the specification.
std::shared_ptr<const Family> family_spec(const MovingArguments& arguments);

/// How results are printed.
struct OutputArguments {
  bool json = false;
  bool quiet = false;
  ProgressStyle progress = ProgressStyle::kAuto;
  std::string color;  // handled before the command line is parsed

  /// Whether notes and results are printed for people.
  bool talks() const { return !quiet && !json; }
};
void add_output(Command command, OutputArguments& arguments);

/// Adds the options of the layouts that `wanted` accepts. Stores their values in `values`, which must outlive
/// `command`.
void add_layout_options(Command command, OptionValues& values, LayoutFilter wanted);
/// Adds options that describe how a checkpoint to read was written. Their names begin with `prefix`: "--" or "--from-".
void add_source_options(Command command, OptionValues& values, const std::string& prefix = "--");

/// Options that locate a checkpoint to read, in addition to its path.
struct SourceArguments {
  std::optional<std::string> tag;
  std::optional<std::string> config;
  bool with_optimizer = false;
  std::string extra_tensors;
};
/// Adds --tag and --config.
void add_source(Command command, SourceArguments& arguments);
ExtraTensors extra_tensors_of(const SourceArguments& arguments);
/// Returns the value of --config; empty if it was not given.
/// \throws Error kUsage for an empty value: an unset variable of a script must not mean the default.
std::string config_of(const SourceArguments& arguments);

/// Options of the commands that write.
struct CommonArguments : MovingArguments, OutputArguments {
  bool no_sync = false;
  bool dry_run = false;
  bool force = false;
  bool manifest = false;
  std::string companions;
  bool resume = false;
  bool clean = false;
  bool check_inputs = false;
  std::optional<std::string> check_against;
};
void add_common(Command command, CommonArguments& arguments);
CompanionFiles companions_of(const CommonArguments& arguments);

/// How replicas in a sharded source are checked.
struct ReplicaArguments {
  std::string replicas;
  bool no_check = false;
  bool allow_divergent = false;
};
/// `may_skip` also adds --no-check-replicas.
void add_replicas(Command command, ReplicaArguments& arguments, bool may_skip = true);

/// The checkpoint to write.
struct TargetArguments {
  std::string layout;
  std::string format;
  std::string tp;
  std::string pp;
  std::string vpp = "1";
  std::string ep;
  std::vector<std::string> pipeline_cuts;  // one list per entry, as parse_names takes it
  OptionValues options;                    // options of the layout
};
/// Adds the options of the mesh.
void add_mesh(Command command, TargetArguments& arguments);
/// Returns the request for the target. `option` names the layout, which `wanted` must accept.
/// \throws Error kUsage.
TargetRequest target_request(const TargetArguments& arguments, const std::string& option, LayoutFilter wanted);

/// Selection and renaming of tensors.
struct SelectionArguments {
  std::vector<std::string> renames;
  std::vector<std::string> drop;
  std::vector<std::string> keep;
  bool renumber_layers = false;
  bool allow_missing = false;
};
/// Adds --rename, --drop, --keep, --renumber-layers and --allow-missing.
void add_selection(Command command, SelectionArguments& arguments);
/// \throws Error kUsage.
NameRules name_rules(const SelectionArguments& arguments);

/// The dtype that tensors are cast to.
struct CastArguments {
  std::string dtype;
  bool all = false;  // also integers and booleans
  std::string overflow = "saturate";
};
/// Adds --dtype, --cast-all and --overflow.
void add_cast(Command command, CastArguments& arguments);
/// \throws Error kUsage for --cast-all without --dtype.
void validate_cast(const CastArguments& arguments);
/// \returns std::nullopt without --dtype.
/// \throws Error kUsage.
std::optional<DType> dtype_of(const CastArguments& arguments);
Overflow overflow_of(const CastArguments& arguments);

LoraFuse parse_lora_fuse(const std::string& text);

/// \throws Error kUsage, naming the option, for anything that is not a whole number from 1 to `max`.
std::uint32_t parse_degree(const std::string& option, const std::string& text, std::uint32_t max);

/// \throws Error kUsage for an output directory that is named like a weights file, such as "model.safetensors", and
/// does not exist. `argument` is its name in the help.
void validate_is_directory_name(const std::string& argument, const std::string& directory);

/// \throws Error kUsage.
RunOptions run_options(const MovingArguments& arguments, const ReplicaArguments& replicas = {});

/// Parses and runs the command line.
/// \throws Error kUsage for an invalid command line, with the nearest match of an unknown option or subcommand as its
/// hint; whatever the subcommand throws. \returns false if help or the version was printed.
bool parse_and_run(CommandLine& command_line, int argc, const char* const* argv);

}  // namespace reshard::cli
