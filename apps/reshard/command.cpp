#include "command.h"

#include <CLI/CLI.hpp>
#include <deque>
#include <sstream>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
class CommandNode : public CLI::App {
 public:
  CommandNode(const std::string& description, const std::string& name) : CLI::App(description, name) {
    set_help_flag();
    CLI::Option* help = add_flag("-h,--help");  // requested_help answers it before the command line is parsed
    declared.emplace_back(
        help, OptionInfo{"-h,--help", "[TOPIC]", "Print help on all options, a layout, a group or an option"});
  }

  std::deque<std::pair<CLI::Option*, OptionInfo>> declared;  // stable addresses
};

namespace {

/// Refuses "-", which for other programs is standard input or output.
/// \throws Error kUsage.
void validate_path(const std::string& option, const std::string& value) {
  if (value != "-") return;
  throw Error(
      ErrorKind::kUsage,
      option + ": standard input and output are not supported, since files are read and written at any position")
      .hint("give a path, and save piped data to a file first; the path of a file called - is ./-");
}

/// Adds a declared option. `add` registers it with CLI11 under its names.
template <typename Add>
Option declare(CommandNode& node, const OptionInfo& info, const Add& add) {
  std::string names = info.names;
  const bool may_be_missing = names.starts_with('[');
  if (may_be_missing) names = names.substr(1, names.size() - 2);
  CLI::Option* option = add(names);
  if (info.is_argument() && !may_be_missing) option->required();
  if (info.completion == Completion::kFile || info.completion == Completion::kDirectory)
    option->check([names](const std::string& value) {
      validate_path(names, value);
      return std::string();
    });
  auto& [known, declared] = node.declared.emplace_back(option, info);
  declared.names = names;
  return Option(*option, declared);
}

/// Returns the declaration with the option's initial value as its default.
OptionInfo with_default(OptionInfo info, const std::string& value) {
  if (info.default_value.empty()) info.default_value = value;
  return info;
}

/// Returns the error message in this program's words.
std::string text_of(const CLI::ParseError& error, const CLI::App& app) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)  // "--tp: At Most 1 required but received 2"
    return text.substr(0, text.find(':')) +
           (text.find("At Most") == text.npos ? " needs a value" : " may be given only once");
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    return "there are more arguments than the subcommand takes: " + join(app.remaining(true), ", ");
  return text;
}

}  // namespace

std::size_t Option::count() const {
  return option_->count();
}

bool Option::is_switch() const {
  return option_->get_items_expected_max() == 0;
}

bool Option::is_required() const {
  return option_->get_required();
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
  auto node = std::make_shared<CommandNode>(help, name);
  node_->add_subcommand(node);
  return Command(*node);
}

Option Command::add_option(const OptionInfo& info, std::string& value) {
  return declare(*node_, with_default(info, value),
                 [&](const std::string& names) { return node_->add_option(names, value); });
}

Option Command::add_option(const OptionInfo& info, std::optional<std::string>& value) {
  return declare(*node_, info, [&](const std::string& names) { return node_->add_option(names, value); });
}

Option Command::add_option(const OptionInfo& info, std::vector<std::string>& values) {
  OptionInfo list = info;
  list.is_list = true;
  return declare(*node_, list,
                 [&](const std::string& names) { return node_->add_option(names, values)->allow_extra_args(false); });
}

Option Command::add_option(const OptionInfo& info, const std::function<void(const std::string&)>& take) {
  return declare(*node_, info,
                 [&](const std::string& names) { return node_->add_option_function<std::string>(names, take); });
}

Option Command::add_option(const OptionInfo& info, bool& value) {
  return declare(*node_, info, [&](const std::string& names) { return node_->add_flag(names, value); });
}

Option Command::add_option(const OptionInfo& info, std::function<void()> set) {
  return declare(*node_, info,
                 [&](const std::string& names) { return node_->add_flag_callback(names, std::move(set)); });
}

void Command::callback(std::function<void()> run) {
  node_->callback(std::move(run));
}

std::string Command::name() const {
  return node_->get_name();
}

std::string Command::description() const {
  return node_->get_description();
}

std::vector<Option> Command::options() const {
  std::vector<Option> all;
  for (auto& [option, info] : node_->declared) all.emplace_back(*option, info);
  return all;
}

std::optional<Option> Command::find_option(const std::string& name) const {
  const CLI::Option* found = node_->get_option_no_throw(name);
  for (auto& [option, info] : node_->declared)
    if (option == found) return Option(*option, info);
  return std::nullopt;
}

std::size_t Command::count(const std::string& name) const {
  return node_->count(name);
}

std::vector<Command> Command::subcommands() const {
  std::vector<Command> all;
  for (CLI::App* command : node_->get_subcommands([](CLI::App*) { return true; }))
    all.emplace_back(static_cast<CommandNode&>(*command));
  return all;
}

std::optional<Command> Command::find_subcommand(const std::string& name) const {
  for (const Command& command : subcommands())
    if (command.name() == name) return command;
  return std::nullopt;
}

std::optional<Command> Command::parent() const {
  CLI::App* parent = node_->get_parent();
  return parent == nullptr ? std::nullopt : std::optional(Command(static_cast<CommandNode&>(*parent)));
}

CommandLine::CommandLine(const std::string& name, const std::string& description, const std::string& version)
    : node_(std::make_unique<CommandNode>(description, name)) {
  node_->require_subcommand(1);
  CLI::Option* flag = node_->set_version_flag("-V,--version", version);
  node_->declared.emplace_back(flag, OptionInfo{"-V,--version", "", "Print the version"});
}

CommandLine::~CommandLine() = default;

Command CommandLine::program() {
  return Command(*node_);
}

void CommandLine::before_command(std::function<void(const Command& command)> run) {
  node_->parse_complete_callback(
      [this, run = std::move(run)] { run(Command(static_cast<CommandNode&>(*node_->get_subcommands().at(0)))); });
}

std::optional<std::string> CommandLine::parse(const std::vector<std::string>& arguments) {
  try {
    node_->parse(
        std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // App::parse takes them from the back
    return std::nullopt;
  } catch (const CLI::Success& success) {  // version
    std::ostringstream text;
    node_->exit(success, text, text);
    return text.str();
  } catch (const CLI::ParseError& error) {
    throw ParseError(text_of(error, *node_));
  }
}

}  // namespace reshard::cli
