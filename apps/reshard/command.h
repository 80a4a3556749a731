#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace reshard::cli {

/// An option or argument of a Command. A cheap reference; setters return the option itself.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option& required();
  /// Name of the value in the help, such as "N".
  Option& type_name(const std::string& name);
  Option& description(const std::string& text);
  /// Default value in the help; capture_default_str takes it from the variable.
  Option& default_str(const std::string& text);
  Option& capture_default_str();
  /// For a list: each use of the option takes one value.
  Option& one_value_per_use();

  std::size_t count() const;
  bool is_switch() const;  // takes no value
  /// Without hyphens; empty for an argument.
  std::vector<std::string> long_names() const;
  std::vector<std::string> short_names() const;
  /// The values given so far, as typed.
  std::vector<std::string> values() const;

 private:
  CLI::Option* option_;
};

/// The program or one of its subcommands. A cheap reference to a part of a CommandLine. Hides CLI11, whose header takes
/// longer to compile than everything else in most files that use it.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  Command add_subcommand(const std::string& name, const std::string& help);
  /// `names` is one name, "-s,--long", or "NAME" for an argument. `value` must outlive the command.
  Option add_option(const std::string& names, std::string& value, const std::string& help);
  Option add_option(const std::string& names, std::optional<std::string>& value, const std::string& help);
  Option add_option(const std::string& names, std::vector<std::string>& values, const std::string& help);
  /// Calls `take` with the value.
  Option add_option(const std::string& names, std::function<void(const std::string&)> take, const std::string& help);
  Option add_flag(const std::string& names, bool& value, const std::string& help);
  Option add_flag(const std::string& names, std::function<void()> set, const std::string& help);
  /// Sets the function to call when the command has been parsed.
  void callback(std::function<void()> run);

  std::string name() const;
  std::vector<Option> options() const;
  std::optional<Option> find_option(const std::string& name) const;  // with hyphens
  Option option(const std::string& name) const;                      // must exist
  std::size_t count(const std::string& name) const;
  std::vector<Command> subcommands() const;
  std::optional<Command> find_subcommand(const std::string& name) const;
  std::optional<Command> parent() const;
  bool operator==(const Command&) const = default;

 private:
  CLI::App* app_;
};

/// An error that CLI11 found in a command line.
struct ParseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The command line of a program with subcommands. Exactly one must be given.
class CommandLine {
 public:
  /// `version` is what --version prints, `footer` the end of the help.
  CommandLine(const std::string& name, const std::string& description, const std::string& version,
              const std::string& footer);
  ~CommandLine();

  Command program();
  /// Sets the function to call after parsing, before the callback of the given subcommand.
  void before_command(std::function<void(const Command& command)> run);
  /// Parses and runs the command line. \returns the text of help or version, if requested.
  /// \throws ParseError, and what callbacks throw.
  std::optional<std::string> parse(const std::vector<std::string>& arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace reshard::cli
