#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/run.h"
#include "reshard/plan/job.h"

namespace reshard::cli {

/// What all commands are told: how bytes are moved, and of which family the model is, as the user typed it.
struct MovingArguments {
  std::string spec;
  std::string threads;
  std::string max_memory = "256MiB";
  std::string io = "auto";
};
void add_moving(CLI::App& command, MovingArguments& arguments);

/// The family that --spec gives, or null.
/// \throws Error kBadInput with the line and the key of a mistake in it.
std::shared_ptr<const Family> family_spec(const MovingArguments& arguments);

/// How heads are placed in shards that are read and have no metadata, as far as shapes do not tell it.
struct HeadsArguments {
  std::string kv_replication;
  std::string kv_size_multiplier;
  bool pad_heads = false;
};
/// `prefix` is that of the options' names: "--", or "--from-".
void add_heads(CLI::App& command, HeadsArguments& arguments, const std::string& prefix = "--");
/// \throws Error kUsage, naming the option.
AttentionOptions heads_of(const HeadsArguments& arguments, const std::string& prefix = "--");

/// Where a checkpoint is that is read, as far as its path does not say it.
struct SourceArguments {
  std::optional<std::string> tag;
  std::optional<std::string> config;
};
void add_tag(CLI::App& command, SourceArguments& arguments);
void add_config(CLI::App& command, SourceArguments& arguments);
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
};
void add_common(CLI::App& command, CommonArguments& arguments);

/// How replicas in a sharded source are treated.
struct ReplicaArguments {
  std::string replicas;
  bool no_check = false;
  bool allow_divergent = false;
};
/// `may_skip`: with --no-check-replicas, too.
void add_replicas(CLI::App& command, ReplicaArguments& arguments, bool may_skip = true);

/// How shards are made.
struct ShardingArguments {
  std::string tp;
  std::string pp;
  std::string vpp = "1";
  std::string ep;
  std::string pipeline_cuts;
  std::string kv_size_multiplier;
  std::string kv_replication;
  std::string start_rank;
  std::string end_rank;
  bool fuse_qkv = false;
  bool pad = false;
  bool vocab_parallel = false;
  bool pad_heads = false;
};
/// \returns the option --tp, which some commands require.
CLI::Option* add_sharding(CLI::App& command, ShardingArguments& arguments);
/// Everything but its `tp`, where that was not given, and its `form`.
ShardingRequest sharding_request(const ShardingArguments& arguments);
/// \throws Error kUsage for an order of heads that is asked of a layout which has its own.
void prove_replication(const ShardingArguments& arguments, ShardsKind kind);

/// The layout of shards that `text` names.
/// \throws Error kUnsupported for those of later versions, kUsage for others.
/// \param others What else the option takes, for the error.
ShardsKind parse_shards_kind(const std::string& option, const std::string& text,
                             const std::vector<std::string>& others = {});
/// The form of shards; without `format`, the layout's own.
/// \throws Error kUsage.
ShardedForm parse_form(const std::string& layout, const std::string& format);
/// One of `allowed`.
/// \throws Error kUsage.
Format parse_format(const std::string& option, const std::string& text, const std::vector<Format>& allowed);

/// \throws Error kUsage, naming the option, for anything that is not a whole number from 1 to `max`.
std::uint32_t parse_degree(const std::string& option, const std::string& text, std::uint32_t max);

/// The value of --threads; 0, for the default, where `text` is empty.
/// \throws Error kUsage.
std::uint32_t parse_threads(const std::string& text);

/// \throws Error kUsage for a directory to write to that has the name of a file of weights, such as
/// "model.safetensors", and is not there already. `argument` is what the help calls it.
void prove_is_directory_name(const std::string& argument, const std::string& directory);

/// \throws Error kUsage, naming the option, for anything that parse_size does not take.
std::uint64_t parse_bytes(const std::string& option, const std::string& text);

/// \throws Error kUsage.
RunOptions run_options(const MovingArguments& arguments, const ReplicaArguments& replicas = {});

/// Parses and runs.
/// \throws Error kUsage for a command line that makes no sense, with the nearest match of an unknown option or
/// subcommand as its hint; whatever the subcommand throws. \returns false if help or the version was printed.
bool parse_and_run(CLI::App& app, int argc, const char* const* argv);

}  // namespace reshard::cli
