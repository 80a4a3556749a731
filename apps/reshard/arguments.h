#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "reshard/engine/move/run.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/plan/job/job.h"

namespace reshard::cli {

/// Options of all commands, as the user typed them: how bytes are moved, and the family of the model.
struct MovingArguments {
  std::string spec;
  std::string family;
  std::string threads;
  std::string max_memory = "256MiB";
  std::string mpi;  // which has had its effect before the command line is parsed
};
void add_moving(Command command, MovingArguments& arguments);

/// The built-in family of a name that `option` gives.
/// \throws Error kUsage, with the nearest name or all of them, for a name that is not known.
std::shared_ptr<const Family> named_family(const char* option, const std::string& name);

/// The family that --spec or --family gives, or null.
/// \throws Error kBadInput with the line and the key of a mistake in it.
std::shared_ptr<const Family> family_spec(const MovingArguments& arguments);

/// Some of the layouts.
using LayoutFilter = std::function<bool(const Layout&)>;
inline bool any_layout(const Layout&) {
  return true;
}
inline bool is_written(const Layout& layout) {
  return layout.traits().is_written();
}
inline bool is_of_ranks(const Layout& layout) {
  return layout.traits().has_ranks() && is_written(layout);
}

/// Adds the options of the layouts that `wanted` holds for; what is given goes into `values`, which must outlive
/// `command`.
void add_layout_options(Command command, OptionValues& values, const LayoutFilter& wanted);
/// Adds the options that say how a checkpoint that is read was made. `prefix` is that of their names: "--", or
/// "--from-".
void add_source_options(Command command, OptionValues& values, const std::string& prefix = "--");

/// Where a checkpoint is that is read, as far as its path does not say it.
struct SourceArguments {
  std::optional<std::string> tag;
  std::optional<std::string> config;
  bool with_optimizer = false;
  std::string extra_tensors;
};
/// Adds --extra-tensors.
void add_extra_tensors(Command command, SourceArguments& arguments);
/// \throws Error kUsage.
ExtraTensors extra_tensors_of(const SourceArguments& arguments);
void add_with_optimizer(Command command, bool& with_optimizer);
void add_tag(Command command, SourceArguments& arguments);
void add_config(Command command, SourceArguments& arguments);
/// What --config says; empty where it was not given.
/// \throws Error kUsage for an empty value: an unset variable of a script must not mean the default.
std::string config_of(const SourceArguments& arguments);

/// Options of the commands that write.
struct CommonArguments : MovingArguments {
  bool no_sync = false;
  bool dry_run = false;
  bool json = false;
  bool force = false;
  bool quiet = false;
  bool manifest = false;
  bool resume = false;
  bool clean = false;
  bool check_inputs = false;
  std::optional<std::string> check_against;
};
void add_common(Command command, CommonArguments& arguments);

/// How replicas in a sharded source are treated.
struct ReplicaArguments {
  std::string replicas;
  bool no_check = false;
  bool allow_divergent = false;
};
/// `may_skip`: with --no-check-replicas, too.
void add_replicas(Command command, ReplicaArguments& arguments, bool may_skip = true);

/// What a checkpoint becomes.
struct TargetArguments {
  std::string layout;
  std::string format;
  std::string tp;
  std::string pp;
  std::string vpp = "1";
  std::string ep;
  std::vector<std::string> pipeline_cuts;  // a list each, as parse_names takes it
  OptionValues options;                    // which the layout has
};
/// Adds -f,--format.
void add_format(Command command, TargetArguments& arguments, const LayoutFilter& wanted);
/// Adds the options of the mesh. \returns --tp, which some commands require.
Option add_mesh(Command command, TargetArguments& arguments);
/// `option` names the layout, one of those that `wanted` holds for.
/// \throws Error kUsage.
TargetRequest target_request(const TargetArguments& arguments, const std::string& option, const LayoutFilter& wanted);

/// Which tensors are taken over, and under which names.
struct SelectionArguments {
  std::vector<std::string> renames;
  std::vector<std::string> drop;
  std::vector<std::string> keep;
  bool allow_missing = false;
};
/// Adds --rename, --drop, --keep and --allow-missing.
void add_selection(Command command, SelectionArguments& arguments);
/// \throws Error kUsage.
NameRules name_rules(const SelectionArguments& arguments);

/// The dtype that tensors are cast to.
struct CastArguments {
  std::string dtype;
  bool all = false;  // integers and booleans too
  std::string overflow = "saturate";
  bool overflow_given = false;
};
/// Adds --dtype, --cast-all and --overflow.
void add_cast(Command command, CastArguments& arguments);
/// `casts_anyway`: the layout does.
/// \throws Error kUsage for --overflow and --cast-all without anything to cast.
void validate_cast(const CastArguments& arguments, bool casts_anyway);
/// \returns std::nullopt without --dtype.
/// \throws Error kUsage.
std::optional<DType> dtype_of(const CastArguments& arguments);
/// \throws Error kUsage.
Overflow overflow_of(const CastArguments& arguments);

/// Adds --lora-fuse.
void add_lora_fuse(Command command, std::string& how);
/// \throws Error kUsage.
LoraFuse parse_lora_fuse(const std::string& text);

/// A format that one of the `wanted` layouts has; the error lists these.
/// \throws Error kUsage.
Format parse_format(const std::string& option, const std::string& text, const LayoutFilter& wanted);

/// \throws Error kUsage, naming the option, for anything that is not a whole number from 1 to `max`.
std::uint32_t parse_degree(const std::string& option, const std::string& text, std::uint32_t max);

/// The value of --threads; 0, for the default, where `text` is empty.
/// \throws Error kUsage.
std::uint32_t parse_threads(const std::string& text);

/// \throws Error kUsage for a directory to write to that has the name of a file of weights, such as
/// "model.safetensors", and is not there already. `argument` is what the help calls it.
void validate_is_directory_name(const std::string& argument, const std::string& directory);

/// The names in a list: "a,b", "a, b", and as Python prints it: "['a', 'b']".
std::vector<std::string> parse_names(const std::string& text);

/// \throws Error kUsage, naming the option, for anything that parse_size does not take.
std::uint64_t parse_bytes(const std::string& option, const std::string& text);

/// \throws Error kUsage.
RunOptions run_options(const MovingArguments& arguments, const ReplicaArguments& replicas = {});

/// Parses and runs.
/// \throws Error kUsage for a command line that makes no sense, with the nearest match of an unknown option or
/// subcommand as its hint; whatever the subcommand throws. \returns false if help or the version was printed.
bool parse_and_run(CommandLine& command_line, int argc, const char* const* argv);

}  // namespace reshard::cli
