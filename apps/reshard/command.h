#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class Option;
}  // namespace CLI

namespace reshard::cli {

/// Heading of the help under which an option is listed, in the order of the help.
enum class OptionGroup : std::uint8_t {
  kMesh,
  kLayout,
  kSelection,
  kValues,
  kOutput,
  kPerformance,
  kDiagnostics,
};
inline constexpr OptionGroup kOptionGroups[] = {
    OptionGroup::kMesh,   OptionGroup::kLayout,      OptionGroup::kSelection,   OptionGroup::kValues,
    OptionGroup::kOutput, OptionGroup::kPerformance, OptionGroup::kDiagnostics,
};

/// What a shell offers as the value of an option.
enum class Completion : std::uint8_t { kNone, kDirectory, kFile, kWords };

/// Declaration of an option or argument, from which parsing, help, man page and shell completion are derived.
struct OptionInfo {
  std::string names;    // one name, "-s,--long", or "NAME" for an argument; "[NAME]" if the argument may be left out
  std::string value{};  // word for the value in the help, such as "N"; empty for a switch
  std::string help{};   // without a full stop
  OptionGroup group = OptionGroup::kDiagnostics;
  Completion completion = Completion::kNone;
  std::vector<std::string> words{};    // for kWords
  std::string default_value{};         // in the help
  std::vector<std::string> layouts{};  // layouts that have the option; empty: it does not depend on the layout
  bool of_source = false;              // describes how a source in one of `layouts` was written
  bool is_list = false;                // may be given several times
  bool of_run = false;                 // changes how a run works and reports, and nothing of what it writes

  bool is_argument() const { return !names.starts_with('-'); }
};

/// An option or argument of a Command. A cheap reference.
class Option {
 public:
  Option(CLI::Option& option, const OptionInfo& info) : option_(&option), info_(&info) {}

  const OptionInfo& info() const { return *info_; }
  std::size_t count() const;
  bool is_switch() const;  // takes no value
  bool is_required() const;
  /// Without hyphens; empty for an argument.
  std::vector<std::string> long_names() const;
  std::vector<std::string> short_names() const;
  /// The values given so far, as typed.
  std::vector<std::string> values() const;

 private:
  CLI::Option* option_;
  const OptionInfo* info_;
};

/// A CLI::App with the declarations of its options.
class CommandNode;

/// The program or one of its subcommands. A cheap reference to a part of a CommandLine. Hides CLI11, whose header takes
/// longer to compile than everything else in most files that use it.
class Command {
 public:
  explicit Command(CommandNode& node) : node_(&node) {}

  /// `help` is one line of the help of the program.
  Command add_subcommand(const std::string& name, const std::string& help);
  /// `value` must outlive the command. A value that is not empty is the default in the help.
  Option add_option(const OptionInfo& info, std::string& value);
  Option add_option(const OptionInfo& info, std::optional<std::string>& value);
  /// Each use of the option takes one value.
  Option add_option(const OptionInfo& info, std::vector<std::string>& values);
  /// Calls `take` with the value.
  Option add_option(const OptionInfo& info, const std::function<void(const std::string&)>& take);
  /// Adds a switch.
  Option add_option(const OptionInfo& info, bool& value);
  Option add_option(const OptionInfo& info, std::function<void()> set);
  /// Sets the function to call when the command has been parsed.
  void callback(std::function<void()> run);

  std::string name() const;
  std::string description() const;
  std::vector<Option> options() const;
  std::optional<Option> find_option(const std::string& name) const;  // with hyphens
  std::size_t count(const std::string& name) const;
  std::vector<Command> subcommands() const;
  std::optional<Command> find_subcommand(const std::string& name) const;
  std::optional<Command> parent() const;
  bool operator==(const Command&) const = default;

 private:
  CommandNode* node_;
};

/// An error that CLI11 found in a command line.
struct ParseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The command line of a program with subcommands. Exactly one must be given.
class CommandLine {
 public:
  /// `version` is what --version prints.
  CommandLine(const std::string& name, const std::string& description, const std::string& version);
  ~CommandLine();

  Command program();
  /// Sets the function to call after parsing, before the callback of the given subcommand.
  void before_command(std::function<void(const Command& command)> run);
  /// Parses and runs the command line. \returns the version, if requested.
  /// \throws ParseError, and what callbacks throw.
  std::optional<std::string> parse(const std::vector<std::string>& arguments);

 private:
  std::unique_ptr<CommandNode> node_;
};

}  // namespace reshard::cli
