// Words of other programs for what this one does.

#include "other_words.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace reshard::cli {
namespace {

struct OtherWord {
  std::string_view word;    // with hyphens
  std::string_view option;  // of this program; the value means the same
};

/// Options that mean the same as one of this program's.
constexpr OtherWord kSameOptions[] = {
    {"--tensor-parallel-size", "--tp"},
    {"--tensor-model-parallel-size", "--tp"},
    {"--tensor-parallel-degree", "--tp"},
    {"--tp-size", "--tp"},
    {"--tp-degree", "--tp"},
    {"--pipeline-parallel-size", "--pp"},
    {"--pipeline-model-parallel-size", "--pp"},
    {"--pipeline-parallel-degree", "--pp"},
    {"--pp-size", "--pp"},
    {"--pp-degree", "--pp"},
    {"--virtual-pipeline-size", "--vpp"},
    {"--virtual-pipeline-parallel-size", "--vpp"},
    {"--virtual-pipeline-model-parallel-size", "--vpp"},
    {"--expert-parallel-size", "--ep"},
    {"--expert-model-parallel-size", "--ep"},
    {"--ep-size", "--ep"},
    {"--ep-degree", "--ep"},
    {"--kv-replicator", "--kv-size-multiplier"},
    {"--fused-qkv", "--fuse-qkv"},
    {"--torch-dtype", "--dtype"},
    {"--start-rank-id", "--start-rank"},
    {"--layout", "--to"},
    {"--to", "--layout"},
};

struct Advice {
  std::string_view word;  // with hyphens
  std::string_view text;  // after "try: "
};

/// Options that mean something else here, or are not needed.
constexpr Advice kAdvice[] = {
    {"--save-xser", "--format xser"},
    {"--convert-to-xser", "--format xser"},
    {"--load-xser", "leave it out: the files show whether they are xser"},
    {"--convert-from-xser", "leave it out: the files show whether they are xser; --format says how to write"},
    {"--qkv-linear", "leave it out, or give --kv-size-multiplier 1 for q, k and v as one module where heads divide"},
    {"--coalesce-qkv", "--fuse-qkv"},
    {"--hw-backend", "--kv-replication adjacent for trn2, --kv-replication tiled for trn1"},
    {"--input-dir", "give the path without an option, as the first argument"},
    {"--checkpoint-dir", "give the path without an option, as the first argument"},
    {"--model-path", "give the path without an option, as the first argument"},
    {"--model", "give the path without an option, as the first argument"},
    {"--hf-model-name", "give the path of the model without an option, as the first argument"},
    {"--output-dir", "give the path without an option, as the second argument"},
    {"--output", "give the path without an option, as the second argument"},
    {"--compiled-model-path", "give the path without an option, as the second argument"},
    {"--convert-from-full-state",
     "leave it out: reshard shard reads whole models, and --layout says for which program"},
    {"--convert-to-full-state", "leave it out: reshard consolidate writes whole models"},
    {"--model-style", "leave it out: whole models have Hugging Face's names"},
    {"--model-key", "leave it out: the state dict in a file is found without it"},
    {"--n-layers", "leave it out: config.json says how many layers there are"},
    {"--num-cores", "--tp"},
    {"--auto-cast-type", "--dtype"},
    {"--bf16", "--dtype bfloat16"},
    {"--fp16", "--dtype float16"},
    {"--local-ranks-size", "--end-rank, which is the last rank and not a count"},
    {"--save-sharded-checkpoint", "leave it out: shards are what is written"},
};

std::string with_hyphens(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_word(std::string_view argument, std::string_view lower) {
  return argument.size() == lower.size() &&
         std::equal(argument.begin(), argument.end(), lower.begin(), [](char a, char b) { return (a | 0x20) == b; });
}

const CLI::App* command_named(const CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  const auto found = std::find_if(commands.begin(), commands.end(),
                                  [&](const CLI::App* command) { return command->get_name() == name; });
  return found == commands.end() ? nullptr : *found;
}

/// The option of `command` that an unknown option `name` means; null if there is none.
const CLI::Option* meant_option(const CLI::App& command, const std::string& name) {
  for (const std::string& candidate : {with_hyphens(name), own_option(name)})
    if (const CLI::Option* option = command.get_option_no_throw(candidate)) return option;
  return nullptr;
}

}  // namespace

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string own_option(const std::string& name) {
  const std::string word = with_hyphens(name);
  for (const OtherWord& row : kSameOptions)
    if (row.word == word) return std::string(row.option);
  return name;
}

std::optional<std::string> advice_on(const std::string& name) {
  const std::string word = with_hyphens(name);
  for (const Advice& row : kAdvice)
    if (row.word == word) return std::string(row.text);
  return std::nullopt;
}

std::vector<std::string> in_own_words(const CLI::App& app, std::vector<std::string> arguments) {
  if (!arguments.empty() && arguments.front() == "help") {
    const bool of_command = arguments.size() > 1 && command_named(app, arguments[1]) != nullptr;
    return of_command ? std::vector<std::string>{arguments[1], "--help"} : std::vector<std::string>{"--help"};
  }
  const CLI::App* command = arguments.empty() ? nullptr : command_named(app, arguments.front());
  if (command == nullptr) return arguments;
  const std::vector<std::string> known = option_names(*command);
  std::vector<std::string> own{arguments.front()};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      std::copy(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end(), std::back_inserter(own));
      break;
    }
    const std::size_t end = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(0, end);
    const CLI::Option* option = nullptr;
    if (name.starts_with("--") && std::find(known.begin(), known.end(), name) == known.end())
      option = meant_option(*command, name);
    if (option == nullptr) {
      own.push_back(argument);
      continue;
    }
    const std::string meant = "--" + option->get_lnames().front();
    const bool is_flag = option->get_items_expected_max() == 0;
    const bool has_value = is_flag && end == argument.size() && i + 1 < arguments.size() &&
                           (is_word(arguments[i + 1], "true") || is_word(arguments[i + 1], "false"));
    if (!has_value) {
      own.push_back(meant + argument.substr(end));
    } else if (is_word(arguments[++i], "true")) {
      own.push_back(meant);
    }
  }
  return own;
}

}  // namespace reshard::cli
