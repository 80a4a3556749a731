#include "help.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "color.h"
#include "commands.h"
#include "option_table.h"
#include "other_words.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/layout_table.h"
#include "table.h"

namespace reshard::cli {
namespace {

const std::string kHasEveryTopic = "convert";

constexpr std::size_t kNameColumns = 24;
constexpr const char* kMainHeading = "Options";

bool is_main(const Option& option, const CommandRow* row) {
  return row != nullptr && std::any_of(row->main.begin(), row->main.end(), [&](const std::string& name) {
           return !option.long_names().empty() && "--" + option.long_names().front() == name;
         });
}

bool has_layout(const Option& option, const std::string& name) {
  const auto& all = option.info().layouts;
  return std::find(all.begin(), all.end(), name) != all.end();
}

std::string heading_text(const std::string& heading) {
  return "\n" + styled(heading + ":", Style::kBold, STDOUT_FILENO) + "\n";
}

/// Formats a name and its description in two columns.
std::string entry(const std::string& name, const std::string& description, std::size_t name_columns = kNameColumns) {
  std::string text = "  " + name;
  const std::size_t width = display_width(text);
  if (description.empty()) return text + "\n";
  const std::string space(name_columns, ' ');
  text += width + 2 > name_columns ? "\n" + space : std::string(name_columns - width, ' ');
  const auto lines = split(wrap(description, 0, table_columns() - name_columns), '\n');
  return text + join(lines, "\n" + space) + "\n";
}

std::string entries(const std::vector<Option>& options, bool in_layout = false) {
  std::string text;
  for (const Option& option : options) text += entry(spelling_of(option), description_of(option, in_layout));
  return text;
}

std::string exit_codes_text() {
  std::string text = heading_text("Exit codes");
  for (const auto& [code, meaning] : exit_codes()) text += fmt::format("  {:>3} {}\n", code, meaning);
  return text;
}

/// Returns the layouts that have options of a command, with the number of these.
std::vector<std::pair<const Layout*, std::size_t>> layouts_of(const Command& command) {
  std::vector<std::pair<const Layout*, std::size_t>> all;
  for (const Layout* layout : layouts()) {
    std::size_t count = 0;
    for (const Option& option : command.options()) count += has_layout(option, layout->traits().name) ? 1 : 0;
    if (count > 0) all.push_back({layout, count});
  }
  return all;
}

/// Returns one line for each layout instead of its options.
std::string layouts_overview(const Command& command) {
  const auto all = layouts_of(command);
  if (all.empty()) return {};
  std::string text = wrap(fmt::format("  Options of one layout: reshard {} --help LAYOUT", command.name()), 4) + "\n";
  for (const auto& [layout, count] : all)
    text += entry(layout->traits().name, fmt::format("{} ({})", layout->traits().meaning, plural(count, "option")));
  return text;
}

std::string section_text(const OptionSection& section) {
  return heading_text(section.heading) + entries(section.options, !section.layout.empty());
}

std::string examples_text(const CommandRow& row) {
  std::string text = heading_text("Examples");
  for (const Example& example : row.examples)
    text += wrap(fmt::format("  reshard {}  # {}", example.text(), example.what), 4) + "\n";
  return text;
}

std::vector<Option> options_of(const Command& command, OptionGroup group) {
  std::vector<Option> options = command.options();
  std::erase_if(options, [&](const Option& option) {
    return option.info().group != group || !option.info().layouts.empty() || option.info().is_argument();
  });
  return options;
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
  return text;
}

std::optional<std::string> group_text(const Command& command, const std::string& name) {
  for (const OptionGroup group : kOptionGroups) {
    if (name != lower_case(heading_of(group))) continue;
    const std::string text =
        entries(options_of(command, group)) + (group == OptionGroup::kLayout ? layouts_overview(command) : "");
    if (!text.empty()) return heading_text(heading_of(group)).substr(1) + text;
  }
  return std::nullopt;
}

/// Returns the groups of options that a command has, as topics.
std::vector<std::string> groups_of(const Command& command) {
  std::vector<std::string> groups;
  for (const OptionGroup group : kOptionGroups)
    if (std::string topic = lower_case(heading_of(group)); group_text(command, topic)) groups.push_back(topic);
  return groups;
}

/// Returns the help of a command; `all` includes the options of layouts.
std::string command_text(const Command& command, bool all) {
  const CommandRow& row = *command_row(command.name());
  std::string text = wrap(fmt::format("{}. {}.", row.summary, row.when), 0) + "\n";
  text += fmt::format("\n{} reshard {}\n", styled("Usage:", Style::kBold, STDOUT_FILENO), usage_of(command));
  text += entries(arguments_of(command));
  text += examples_text(row);
  std::set<std::string> shown;
  for (OptionSection& section : sections_of(command)) {
    const bool is_layouts = section.heading == heading_of(OptionGroup::kLayout);
    if (section.layout.empty()) {
      text += section_text(section);
      if (is_layouts && !all) text += layouts_overview(command);
    } else if (all) {
      std::string known;  // shown in the section of another layout
      std::erase_if(section.options, [&](const Option& option) {
        if (shown.insert(option.info().names).second) return false;
        known += (known.empty() ? "" : ", ") + option.info().names;
        return true;
      });
      text += section_text(section);
      if (!known.empty()) text += wrap(fmt::format("  also {}, see above", known), 4) + "\n";
    }
  }
  text += exit_codes_text();
  if (!all && !row.main.empty())
    text += "\n" +
            wrap(fmt::format("More: reshard {} --help all, a layout, an option, or a group ({})", command.name(),
                             join(groups_of(command), ", ")),
                 0) +
            "\n";
  return text;
}

std::string program_text(const Command& program) {
  std::string text = wrap(program.description(), 0) + "\n";
  text += fmt::format("\n{} reshard COMMAND [OPTIONS] …\n", styled("Usage:", Style::kBold, STDOUT_FILENO));
  text += heading_text("Commands");
  constexpr std::size_t kCommandColumns = 15;
  bool is_main = true;
  for (const CommandRow& row : command_rows()) {
    if (std::exchange(is_main, !row.main.empty()) != is_main) text += "\n";
    text += entry(row.name, row.summary, kCommandColumns);
  }
  return text + heading_text("Options") + entries(program.options()) + exit_codes_text();
}

std::optional<std::string> layout_text(const Command& command, const std::string& name) {
  const Layout* layout = layout_named(name);
  if (layout == nullptr) return std::nullopt;
  std::string options;
  for (const OptionSection& section : sections_of(command))
    if (section.layout == name) options += section_text(section);
  if (options.empty()) options = fmt::format("reshard {} has no options of layout {} alone.\n", command.name(), name);
  return wrap(layout->traits().meaning, 0) + "\n" + options;
}

/// Returns the help on a group, a layout or an option; std::nullopt if the command has none of this name.
std::optional<std::string> topic_text(const Command& command, const std::string& topic) {
  if (auto text = group_text(command, lower_case(topic))) return text;
  if (auto text = layout_text(command, lower_case(topic))) return text;
  for (const std::string& name : {topic, "--" + topic, own_option("--" + topic)})
    if (const auto option = command.find_option(name); option && !option->info().is_argument())
      return entries({*option});
  return std::nullopt;
}

/// The same for a topic of any command. Puts a command's name before an option that convert does not have.
std::optional<std::string> topic_text_of_any(const Command& program, const std::string& topic) {
  if (auto text = topic_text(program.find_subcommand(kHasEveryTopic).value(), topic)) return text;
  std::string all;
  for (const Command& command : program.subcommands())
    if (const auto text = topic_text(command, topic)) all += fmt::format("reshard {}:\n{}", command.name(), *text);
  return all.empty() ? std::nullopt : std::optional(all);
}

}  // namespace

std::vector<std::pair<int, std::string>> exit_codes() {
  std::vector<std::pair<int, std::string>> codes = {{0, "done"}, {kExitDifferent, "verify: the checkpoints differ"}};
  for (const ErrorKindRow& row : kErrorKinds) codes.emplace_back(row.exit_code, row.meaning);
  codes.emplace_back(141, "the reader of standard output closed the pipe");
  return codes;
}

std::string spelling_of(const Option& option) {
  const OptionInfo& info = option.info();
  if (info.is_argument()) return option.is_required() ? info.names : "[" + info.names + "]";
  std::string text = join(split(info.names, ','), ", ");
  if (!info.value.empty()) text += " " + info.value;
  return info.is_list ? text + " …" : text;
}

std::string description_of(const Option& option, bool in_layout) {
  const OptionInfo& info = option.info();
  std::string text = info.help;
  if (!info.default_value.empty()) text += fmt::format(" (default: {})", info.default_value);
  if (!info.layouts.empty() && !(in_layout && info.layouts.size() == 1))
    text += fmt::format(" ({}{})", info.of_source ? "for a source in " : "", layouts_text(info.layouts));
  return text;
}

std::string usage_of(const Command& command) {
  std::string text = command.name() + " [OPTIONS]";
  for (const Option& argument : arguments_of(command)) text += " " + spelling_of(argument);
  return text;
}

std::vector<Option> arguments_of(const Command& command) {
  std::vector<Option> all = command.options();
  std::erase_if(all, [](const Option& option) { return !option.info().is_argument(); });
  return all;
}

std::vector<OptionSection> sections_of(const Command& command) {
  const CommandRow* row = command_row(command.name());
  std::vector<OptionSection> sections;
  const auto add_section = [&](const std::string& heading, const std::string& layout, const auto& wanted) {
    OptionSection section{heading, {}, layout};
    for (const Option& option : command.options())
      if (!option.info().is_argument() && wanted(option)) section.options.push_back(option);
    if (!section.options.empty()) sections.push_back(std::move(section));
  };
  if (row != nullptr) {
    OptionSection main{kMainHeading, {}, ""};
    for (const char* name : row->main)
      if (const auto option = command.find_option(name)) main.options.push_back(*option);
    sections.push_back(std::move(main));
  }
  for (const OptionGroup group : kOptionGroups) {
    const auto in_group = [&](const Option& option) {
      return option.info().group == group && option.info().layouts.empty() && !is_main(option, row);
    };
    add_section(heading_of(group), "", in_group);
    if (group != OptionGroup::kLayout) continue;
    if (sections.empty() || sections.back().heading != heading_of(group))
      sections.push_back({heading_of(group), {}, ""});
    for (const bool of_source : {false, true})
      for (const Layout* layout : layouts()) {
        const std::string name = layout->traits().name;
        add_section((of_source ? "Source in layout " : "Layout ") + name, name, [&](const Option& option) {
          return option.info().of_source == of_source && has_layout(option, name);
        });
      }
  }
  std::erase_if(sections,
                [&](const OptionSection& section) { return section.options.empty() && layouts_of(command).empty(); });
  return sections;
}

std::vector<std::string> topics_of(const Command& command) {
  std::vector<std::string> topics = groups_of(command);
  topics.insert(topics.begin(), "all");
  for (const auto& [layout, count] : layouts_of(command)) topics.emplace_back(layout->traits().name);
  return topics;
}

std::optional<HelpRequest> requested_help(const Command& program, const std::vector<std::string>& arguments) {
  const auto word = [&](std::size_t at) { return at < arguments.size() ? arguments[at] : std::string(); };
  const auto is_command = [&](const std::string& name) { return program.find_subcommand(name).has_value(); };
  // The first word is a subcommand, or a topic.
  const auto about = [&](std::size_t at) -> std::optional<HelpRequest> {
    if (word(at) == "all" && word(at + 1).empty()) return HelpRequest{"", "all"};
    if (word(at).empty() || (word(at).starts_with('-') && word(0) != "help")) return HelpRequest{};
    if (is_command(word(at)) && word(at + 2).empty()) return HelpRequest{word(at), word(at + 1)};
    const bool is_topic = topic_text_of_any(program, word(at)).has_value();
    std::vector<std::string> commands;
    for (const Command& command : program.subcommands()) commands.push_back(command.name());
    const bool is_near_command = word(0) == "help" && !nearest(word(at), commands).empty();
    if (word(at + 1).empty() && (is_topic || !is_near_command)) return HelpRequest{"", word(at)};
    return std::nullopt;
  };
  if (word(0) == "help" || word(0) == "--help" || word(0) == "-h") return about(1);
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::size_t end = std::min(arguments[i].find('='), arguments[i].size());
    const std::string name = arguments[i].substr(0, end);
    if (name != "--help" && arguments[i] != "-h") continue;
    const std::string topic = end < arguments[i].size() ? arguments[i].substr(end + 1) : word(i + 1);
    if (i > 0 && is_command(arguments.front())) {
      const std::string next = word(i + 2);
      const bool is_argument = end == arguments[i].size() && !next.empty() && !next.starts_with('-');
      return HelpRequest{arguments.front(), is_argument || topic.starts_with('-') ? std::string() : topic};
    }
    if (is_command(topic)) return HelpRequest{topic, word(i + 2)};
    if (arguments.front().starts_with('-')) return HelpRequest{};
    return std::nullopt;
  }
  return std::nullopt;
}

std::string help_text(const Command& program, const HelpRequest& request) {
  if (request.command.empty() && (request.topic.empty() || request.topic == "all")) {
    std::string text = program_text(program);
    for (const Command& command : program.subcommands())
      if (!request.topic.empty()) text += "\n" + command_text(command, true);
    return text;
  }
  const Command command = program.find_subcommand(request.command.empty() ? kHasEveryTopic : request.command).value();
  if (request.topic.empty() || request.topic == "all") return command_text(command, !request.topic.empty());
  const auto text =
      request.command.empty() ? topic_text_of_any(program, request.topic) : topic_text(command, request.topic);
  if (text) return *text;
  const std::vector<std::string> topics = topics_of(command);
  std::vector<std::string> names = topics;
  for (const Option& option : command.options())
    for (const std::string& name : option.long_names()) names.push_back(name);
  const std::string guess = nearest(request.topic, names);
  throw Error(ErrorKind::kUsage,
              fmt::format("reshard{} has no help on {}", request.command.empty() ? "" : " " + command.name(),
                          printable(request.topic)))
      .hint(guess.empty() ? "the topics are " + join(topics, ", ") + ", and each option"
                          : "did you mean " + guess + "?");
}

}  // namespace reshard::cli
