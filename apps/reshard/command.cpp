#include "command.h"

#include <CLI/CLI.hpp>
#include <sstream>
#include <utility>

#include "reshard/base/strings.h"
#include "table.h"

namespace reshard::cli {
namespace {

/// Formats help to the width of the terminal.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  std::string make_description(const CLI::App* app) const override { return wrap(app->get_description(), 0) + "\n"; }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_name(), beside_names(command->get_description()), kNameColumns);
    return out.str();
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return beside_names(option->get_description());
  }
  /// Shows defaults as "=DEFAULT". Some versions of CLI11 put them in brackets with a trailing space.
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    const std::string bracketed = " [" + option->get_default_str() + "]";
    if (const auto at = text.find(bracketed); at != std::string::npos && !option->get_default_str().empty())
      text.replace(at, bracketed.size(), "=" + option->get_default_str());
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

 private:
  /// Wraps text to the column of descriptions.
  static std::string beside_names(const std::string& text) { return wrap(text, 0, table_columns() - kNameColumns); }

  static constexpr std::size_t kNameColumns = 30;
};

/// Returns the error message in this program's words.
std::string text_of(const CLI::ParseError& error, const CLI::App& app) {
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)  // "--tp: At Most 1 required but received 2"
    return text.substr(0, text.find(':')) +
           (text.find("At Most") == text.npos ? " needs a value" : " may be given only once");
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    return "there are more arguments than the subcommand takes: " + join(app.remaining(true), ", ");
  return text;
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::description(const std::string& text) {
  option_->description(text);
  return *this;
}

Option& Option::default_str(const std::string& text) {
  option_->default_str(text);
  return *this;
}

Option& Option::capture_default_str() {
  option_->capture_default_str();
  return *this;
}

Option& Option::one_value_per_use() {
  option_->allow_extra_args(false);
  return *this;
}

std::size_t Option::count() const {
  return option_->count();
}

bool Option::is_switch() const {
  return option_->get_items_expected_max() == 0;
}

std::vector<std::string> Option::long_names() const {
  return option_->get_lnames();
}

std::vector<std::string> Option::short_names() const {
  return option_->get_snames();
}

std::vector<std::string> Option::values() const {
  return option_->results();
}

Command Command::add_subcommand(const std::string& name, const std::string& help) {
  return Command(*app_->add_subcommand(name, help));
}

Option Command::add_option(const std::string& names, std::string& value, const std::string& help) {
  return Option(*app_->add_option(names, value, help));
}

Option Command::add_option(const std::string& names, std::optional<std::string>& value, const std::string& help) {
  return Option(*app_->add_option(names, value, help));
}

Option Command::add_option(const std::string& names, std::vector<std::string>& values, const std::string& help) {
  return Option(*app_->add_option(names, values, help));
}

Option Command::add_option(const std::string& names, std::function<void(const std::string&)> take,
                           const std::string& help) {
  return Option(*app_->add_option_function<std::string>(names, std::move(take), help));
}

Option Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return Option(*app_->add_flag(names, value, help));
}

Option Command::add_flag(const std::string& names, std::function<void()> set, const std::string& help) {
  return Option(*app_->add_flag_callback(names, std::move(set), help));
}

void Command::callback(std::function<void()> run) {
  app_->callback(std::move(run));
}

std::string Command::name() const {
  return app_->get_name();
}

std::vector<Option> Command::options() const {
  std::vector<Option> all;
  for (CLI::Option* option : app_->get_options()) all.emplace_back(*option);
  return all;
}

std::optional<Option> Command::find_option(const std::string& name) const {
  CLI::Option* found = app_->get_option_no_throw(name);
  return found == nullptr ? std::nullopt : std::optional(Option(*found));
}

Option Command::option(const std::string& name) const {
  return Option(*app_->get_option(name));
}

std::size_t Command::count(const std::string& name) const {
  return app_->count(name);
}

std::vector<Command> Command::subcommands() const {
  std::vector<Command> all;
  for (CLI::App* command : app_->get_subcommands([](CLI::App*) { return true; })) all.emplace_back(*command);
  return all;
}

std::optional<Command> Command::find_subcommand(const std::string& name) const {
  for (const Command& command : subcommands())
    if (command.name() == name) return command;
  return std::nullopt;
}

std::optional<Command> Command::parent() const {
  CLI::App* parent = app_->get_parent();
  return parent == nullptr ? std::nullopt : std::optional(Command(*parent));
}

CommandLine::CommandLine(const std::string& name, const std::string& description, const std::string& version,
                         const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->require_subcommand(1);
  app_->set_version_flag("-V,--version", version);
  app_->formatter(std::make_shared<HelpFormatter>());
  app_->footer(footer);
}

CommandLine::~CommandLine() = default;

Command CommandLine::program() {
  return Command(*app_);
}

void CommandLine::before_command(std::function<void(const Command& command)> run) {
  app_->parse_complete_callback([this, run = std::move(run)] { run(Command(*app_->get_subcommands().at(0))); });
}

std::optional<std::string> CommandLine::parse(const std::vector<std::string>& arguments) {
  try {
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // App::parse takes them from the back
    return std::nullopt;
  } catch (const CLI::Success& success) {  // help and version
    std::ostringstream text;
    app_->exit(success, text, text);
    return text.str();
  } catch (const CLI::ParseError& error) {
    throw ParseError(text_of(error, *app_));
  }
}

}  // namespace reshard::cli
