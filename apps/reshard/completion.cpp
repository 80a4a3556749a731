#include "completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "help.h"
#include "reshard/base/strings.h"

namespace reshard::cli {
namespace {

/// Returns the names of an option with hyphens, the long ones first.
std::vector<std::string> hyphened_names(const Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.long_names()) names.push_back("--" + name);
  for (const std::string& name : option.short_names()) names.push_back("-" + name);
  return names;
}

/// The values of an option or argument that a shell offers.
struct Offer {
  Completion kind = Completion::kNone;
  std::string words;  // for kWords, separated by spaces

  auto operator<=>(const Offer&) const = default;
};

Offer offer_of(const Command& command, const Option& option) {
  if (option.info().names == "-h,--help") return {Completion::kWords, join(topics_of(command), " ")};
  return {option.info().completion, join(option.info().words, " ")};
}

/// Returns what to offer for any of several arguments, since options may be between them.
Offer joined(const Offer& a, const Offer& b) {
  if (a.kind != Completion::kWords || a.kind != b.kind) return std::max(a, b);
  return {a.kind, a.words + " " + b.words};
}

/// Also true of --help, which may be given without its value.
bool takes_value(const Option& option) {
  return !option.info().is_argument() && !option.info().value.empty();
}

/// Returns the beginning of the description, without details.
std::string short_description(const Option& option) {
  const std::string& help = option.info().help;
  std::size_t end = help.size();
  for (const char* detail : {": ", "; ", ". ", ", ", " ("}) end = std::min(end, help.find(detail));
  return help.substr(0, end);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

/// The commands of a bash script that offer values.
std::string bash_offer(const Offer& offer) {
  switch (offer.kind) {
    case Completion::kNone: return "";
    case Completion::kDirectory: return "files=-d";
    case Completion::kFile: return "files=-f";
    case Completion::kWords: return fmt::format("words='{}'", offer.words);
  }
  return "";
}

std::string bash_command(const Command& command) {
  std::map<Offer, std::vector<std::string>> by_offer;
  std::vector<std::string> options;
  Offer argument;
  for (const Option& option : command.options()) {
    const std::vector<std::string> names = hyphened_names(option);
    if (option.info().is_argument()) argument = joined(argument, offer_of(command, option));
    options.insert(options.end(), names.begin(), names.begin() + (names.empty() ? 0 : 1));
    if (!takes_value(option)) continue;
    std::vector<std::string>& same = by_offer[offer_of(command, option)];
    same.insert(same.end(), names.begin(), names.end());
  }
  std::string text =
      fmt::format("    1:{})\n      options='{}'\n      case $option in\n", command.name(), join(options, " "));
  for (const auto& [offer, names] : by_offer)
    text += fmt::format("        {}) {} ;;\n", join(names, " | "),
                        offer.kind == Completion::kNone ? ":" : bash_offer(offer));
  return text + fmt::format("        *) is_argument=yes {} ;;\n      esac ;;\n", bash_offer(argument));
}

std::string bash_script(const Command& program) {
  std::vector<std::string> commands;
  std::string cases;
  for (const Command& command : program.subcommands()) {
    commands.push_back(command.name());
    cases += bash_command(command);
  }
  return fmt::format(R"(# Completion of reshard for bash: source <(reshard completion bash)
_reshard() {{
  [[ $COMP_CWORD -gt 1 && ${{COMP_WORDS[1]}} == --help ]] && COMP_WORDS[1]=help
  local word=${{COMP_WORDS[COMP_CWORD]}} option=${{COMP_WORDS[COMP_CWORD - 1]}}
  local options='--help --version' words='' files='' is_argument=''
  # bash makes three words of --option=value
  if [[ $word == '=' ]]; then
    word=''
  elif [[ $option == '=' ]]; then
    option=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  case $((COMP_CWORD > 1)):${{COMP_WORDS[1]}} in
    0:*)
      words='{}' is_argument=yes ;;
{}  esac
  [[ $is_argument && $word == -* ]] && words=$options files=''
  COMPREPLY=()
  [[ $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [[ $files ]]; then
    mapfile -t COMPREPLY < <(compgen "$files" -- "$word")
    compopt -o filenames 2>/dev/null
  fi
  return 0
}}
complete -F _reshard reshard
)",
                     join(commands, " "), cases);
}

std::string zsh_quoted(std::string text) {
  for (const char* special : {"\\", ":", "[", "]"})
    text = replaced(std::move(text), special, std::string("\\") + special);
  return replaced(std::move(text), "'", "'\\''");
}

std::string zsh_action(const Offer& offer) {
  switch (offer.kind) {
    case Completion::kNone: return " ";
    case Completion::kDirectory: return "_files -/";
    case Completion::kFile: return "_files";
    case Completion::kWords: return "(" + offer.words + ")";
  }
  return "";
}

std::string zsh_command(const Command& command) {
  std::vector<std::string> specs;
  for (const Option& option : command.options()) {
    const std::string action = zsh_action(offer_of(command, option));
    const OptionInfo& info = option.info();
    if (info.is_argument()) {
      specs.push_back(fmt::format("'{}:{}:{}'", option.is_required() ? "" : ":", info.names, action));
      continue;
    }
    const bool has_value = takes_value(option), may_lack_value = option.is_switch();
    for (const std::string& name : hyphened_names(option))
      specs.push_back(fmt::format(
          "'{}{}{}[{}]{}'", info.is_list ? "*" : "", name,
          !has_value || may_lack_value ? ""
          : name.starts_with("--")     ? "="
                                       : "+",
          zsh_quoted(short_description(option)),
          has_value ? fmt::format("{}:{}:{}", may_lack_value ? ":" : "", zsh_quoted(info.value), action) : ""));
  }
  return fmt::format("        {})\n          _arguments -s \\\n            {} ;;\n", command.name(),
                     join(specs, " \\\n            "));
}

std::string zsh_script(const Command& program) {
  std::string commands, cases;
  for (const Command& command : program.subcommands()) {
    commands += fmt::format("        '{}:{}'\n", command.name(), zsh_quoted(command.description()));
    cases += zsh_command(command);
  }
  return fmt::format(R"(#compdef reshard
# Completion of reshard for zsh: source <(reshard completion zsh), or as a file _reshard in a directory of $fpath
_reshard() {{
  local curcontext="$curcontext" state state_descr line
  typeset -A opt_args
  _arguments -C -A '-*' '(- *)'{{-V,--version}}'[Print the version]' '(- *)'{{-h,--help}}'[Print help]:command:->command' \
    '1:command:->command' '*::argument:->arguments'
  case $state in
    command)
      local -a commands
      commands=(
{}      )
      _describe command commands ;;
    arguments)
      case $words[1] in
{}      esac ;;
  esac
}}
if [[ $funcstack[1] == _reshard ]]; then
  _reshard "$@"
else
  compdef _reshard reshard
fi
)",
                     commands, cases);
}

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_offer(const Offer& offer) {
  switch (offer.kind) {
    case Completion::kNone: return "";
    case Completion::kDirectory: return " -a '(__fish_complete_directories)'";
    case Completion::kFile: return " -F";
    case Completion::kWords: return " -a " + fish_quoted(offer.words);
  }
  return "";
}

std::string fish_script(const Command& program) {
  std::string text = R"(# Completion of reshard for fish: reshard completion fish | source
function __reshard_command
  set -l words (commandline -opc)
  test "$words[2]" = $argv[1]
end
complete -c reshard -f
complete -c reshard -n __fish_use_subcommand -s V -l version -d 'Print the version'
complete -c reshard -n __fish_use_subcommand -s h -l help -d 'Print help'
)";
  for (const Command& command : program.subcommands())
    text += fmt::format("complete -c reshard -n __fish_use_subcommand -a {} -d {}\n", command.name(),
                        fish_quoted(command.description()));
  for (const Command& command : program.subcommands()) {
    const std::string begin = fmt::format("complete -c reshard -n '__reshard_command {}'", command.name());
    for (const Option& option : command.options()) {
      const Offer offer = offer_of(command, option);
      std::string names;
      for (const std::string& name : option.long_names()) names += " -l " + name;
      for (const std::string& name : option.short_names()) names += " -s " + name;
      if (option.info().is_argument())
        text += begin + fish_offer(offer) + "\n";
      else
        text += fmt::format(
            "{}{}{} -d {}\n", begin, names,
            !takes_value(option) ? "" : (offer.kind == Completion::kFile ? " -r" : " -x") + fish_offer(offer),
            fish_quoted(short_description(option)));
    }
  }
  return text;
}

}  // namespace

std::string completion_script(const Command& program, const std::string& shell) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  throw std::logic_error("no completion for " + shell);
}

}  // namespace reshard::cli
