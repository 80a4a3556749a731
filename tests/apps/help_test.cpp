// Help, man page and shell completion, which come from the tables of commands and options.

#include "help.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "option_table.h"
#include "reshard/base/strings.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "transcript.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const char* const kCommands[] = {"inspect", "shard", "consolidate", "convert", "verify"};

std::vector<std::string> lines_of_help(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// What a command prints on a terminal of 80 columns.
std::vector<std::string> on_terminal(const std::string& command) {
  std::vector<std::string> lines = lines_of_help(replay("$ " + command + "\n", false));
  lines.erase(lines.begin());
  return lines;
}

std::size_t columns_of(const std::string& line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// The long options in a text at the beginnings of lines.
std::set<std::string> options_in(const std::string& text) {
  static const std::regex kOption(R"(\n  (?:-\w, )?(--[a-z0-9-]+))");
  return {std::sregex_token_iterator(text.begin(), text.end(), kOption, 1), std::sregex_token_iterator()};
}

/// Runs a script in a shell that knows the program as `reshard`. \returns its output, standard error included.
std::string output_of_shell(const std::string& shell, const std::string& script) {
  const TempDir dir;
  const std::string file = (dir / "script").string(), out = (dir / "out").string();
  write_file(file, script);
  const std::string command = "PATH='" + fs::path(RESHARD_PROGRAM).parent_path().string() + "':$PATH " + shell + " '" +
                              file + "' > '" + out + "' 2>&1";
  INFO(command);
  const int status = std::system(command.c_str());
  std::string text = read_file(out);
  INFO(text);
  CHECK(status == 0);
  return text;
}

bool has_shell(const std::string& shell) {
  return std::system(("command -v " + shell + " > /dev/null").c_str()) == 0;
}

/// What bash offers for the last of `words`, with spaces between.
std::string completed(const std::string& words) {
  const std::string text =
      output_of_shell("bash", "source <(reshard completion bash)\nCOMP_WORDS=(" + words + ")\n" +
                                  "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_reshard\necho \"${COMPREPLY[*]}\"\n");
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

}  // namespace

TEST_CASE("Help begins with examples and the options that everybody needs, and fits the terminal") {
  const std::string command = GENERATE(as<std::string>(), "inspect", "shard", "consolidate", "convert", "verify");
  const std::vector<std::string> lines = on_terminal("reshard " + command + " --help");
  const auto line_of = [&](const std::string& text) { return std::find(lines.begin(), lines.end(), text); };
  CHECK(line_of("Examples:") < line_of("Options:"));
  const auto first_group = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line == "Mesh:" || line == "Layout:" || line == "Selection:";
  });
  REQUIRE(first_group != lines.end());
  CHECK(first_group - lines.begin() <= 25);
  CHECK(options_in(join(std::vector<std::string>(line_of("Options:"), first_group), "\n")).size() == 5);
  std::vector<std::string> groups;
  for (const std::string& line : lines) {
    CHECK(columns_of(line) <= 80);
    if (line.ends_with(":") && !line.starts_with(" ")) groups.push_back(line);
  }
  const std::vector<std::string> all{"Examples:", "Options:", "Mesh:",        "Layout:",      "Selection:",
                                     "Values:",   "Output:",  "Performance:", "Diagnostics:", "Exit codes:"};
  std::vector<std::string> in_order;
  std::copy_if(all.begin(), all.end(), std::back_inserter(in_order),
               [&](const std::string& group) { return line_of(group) != lines.end(); });
  CHECK(groups == in_order);
}

TEST_CASE("Help on all has every option, the usual help all but those of layouts") {
  const std::string command = GENERATE(as<std::string>(), "inspect", "shard", "consolidate", "convert", "verify");
  const std::set<std::string> all = options_in(run_well({command, "--help", "all"}).out);
  const std::set<std::string> usual = options_in(run_well({command, "--help"}).out);
  CHECK(std::includes(all.begin(), all.end(), usual.begin(), usual.end()));
  for (const Layout* layout : layouts()) {
    const std::string text = run_well({command, "--help", layout->traits().name}).out;
    const std::set<std::string> of_layout = options_in(text);
    CHECK(of_layout.empty() == (text.find("has no options of layout") != text.npos));
    CHECK(std::includes(all.begin(), all.end(), of_layout.begin(), of_layout.end()));
    for (const std::string& option : of_layout) CHECK_FALSE(usual.contains(option));
  }
  for (const char* option : {"--threads", "--help"}) CHECK(usual.contains(option));
}

TEST_CASE("All commands that report have the same output flags") {
  for (const std::string command : {"inspect", "shard", "consolidate", "convert", "verify", "doctor", "version"})
    for (const char* option : {"--json", "--quiet", "--progress", "--color"})
      CHECK(options_in(run_well({command, "--help"}).out).contains(option));
  CHECK(run_well({"version", "--quiet", "--progress", "none", "--color", "never"}).out == run_well({"version"}).out);
}

TEST_CASE("The help of a layout has its options for the target, and for a source that has it") {
  check_run({"shard", "--help", "nxd"}, 0, {"NxD's training checkpoints\n", "Layout nxd:\n", "--kv-replication"});
  check_run({"convert", "--help", "nxd"}, 0, {"Source in layout nxd:", "--from-kv-replication"});
  CHECK(run_well({"help", "convert", "nxd"}).out == run_well({"convert", "--help=nxd"}).out);
  CHECK(run_well({"help", "nxd"}).out == run_well({"convert", "--help", "nxd"}).out);
  CHECK(options_in("\n" + run_well({"shard", "--help", "presharded"}).out) ==
        std::set<std::string>{"--start-rank", "--end-rank", "--pad"});
}

TEST_CASE("Help is found wherever it is asked for, on a group and on one option too") {
  const std::string shard = run_well({"shard", "--help"}).out;
  for (const Arguments& arguments : std::vector<Arguments>{{"help", "shard"},
                                                           {"--help", "shard"},
                                                           {"shard", "-h"},
                                                           {"shard", "a", "b", "--tp", "2", "--help"},
                                                           {"shard", "--help", "a", "b"}})
    CHECK(run_well(arguments).out == shard);
  check_run({"shard", "--help", "mesh"}, 0, {"Mesh:", "--tp N", "--pipeline-cuts"});
  CHECK(options_in(run_well({"inspect", "--help", "output"}).out) ==
        std::set<std::string>{"--tensors", "--sort", "--limit", "--pickle", "--print-family", "--print-spec", "--json",
                              "--quiet", "--progress", "--color"});
  check_fails({"inspect", "--help", "mesh"}, 2, {"reshard inspect has no help on mesh"});
  CHECK(options_in("\n" + run_well({"shard", "--help", "dtype"}).out) == std::set<std::string>{"--dtype"});
  CHECK(run_well({"shard", "--help", "tp_size"}).out == run_well({"shard", "--help", "tp"}).out);
  check_fails({"help", "bogus"}, 2, {"reshard has no help on bogus"});
  CHECK_THAT(run_well({"help", "--pickle"}).out, Says("reshard inspect:\n  --pickle"));
  CHECK_THAT(run_well({"help", "complete"}).out, Says("reshard verify:\n  --complete"));
  check_fails({"shard", "--help", "dtyp"}, 2, {"reshard shard has no help on dtyp", "did you mean dtype?"});
  check_fails({"shard", "--help", "elephant"}, 2, {"the topics are all, mesh, layout"});
  check_fails({"shrad", "--help"}, 2, {"did you mean shard?"});
  CHECK(run_well({"help", "mesh"}).out == run_well({"convert", "--help", "Mesh"}).out);
  CHECK(run_well({"--help", "dtype"}).out == run_well({"convert", "--help", "dtype"}).out);
  const std::string everything = run_well({"help", "all"}).out;
  CHECK(run_well({"--help", "all"}).out == everything);
  for (const char* command : {"inspect", "shard", "consolidate", "convert", "verify"})
    CHECK_THAT(everything, Says(run_well({command, "--help", "all"}).out));
  CHECK(run_well({"help", "--tp"}).out == run_well({"help", "tp"}).out);
  check_fails({"help", "bogus"}, 2, {"no help on bogus", "the topics are all, mesh"});
  check_fails({"help", "shrad"}, 2, {"did you mean shard?"});
  check_fails({"--help", "bogus"}, 2, {"bogus"});
  check_fails({"help", "shard", "mesh", "layout"}, 2, {"layout"});
}

TEST_CASE("The groups that the end of the help names have help") {
  for (const std::string command : {"inspect", "shard", "consolidate", "convert", "verify"}) {
    const std::string help = run_well({command, "--help"}).out;
    const std::size_t begin = help.find("a group (", help.find("\nMore: "));
    REQUIRE(begin != help.npos);
    std::string groups = help.substr(begin + 9, help.find(')', begin) - begin - 9);
    std::replace(groups.begin(), groups.end(), '\n', ' ');
    for (std::string group : split(groups, ',')) {
      group.erase(0, group.find_first_not_of(' '));
      CHECK_THAT(run_well({command, "--help", group}).out, Says("--"));
    }
  }
}

TEST_CASE("The program's help has a line for each command") {
  const std::string help = run_well({"--help"}).out;
  for (const cli::CommandRow& row : cli::command_rows())
    CHECK_THAT(help, Says(std::string(row.name)) && Says(std::string(row.summary)));
  for (const std::string& line : on_terminal("reshard --help")) CHECK(columns_of(line) <= 80);
  for (const cli::CommandRow& row : cli::command_rows())
    CHECK(run_well({"help", row.name}).out.find("\nExamples:\n  reshard ") != std::string::npos);
}

TEST_CASE("The examples of the help are commands that work") {
  const TempDir temp;
  const auto golden = [](const std::string& name) { return testdata("golden/" + name).string(); };
  const std::string small = golden("optimum/llama-tp2-pp2/original");
  const std::string copy = (temp / "copy").string();
  run_well({"convert", small, copy, "--manifest", "--quiet"});
  // Values of the words in capitals, by command.
  const std::map<std::string, std::map<std::string, std::string>> values = {
      {"inspect", {{"DIR", small}}},
      {"shard", {{"MODEL", golden("optimum/llama-tp8-gqa/original")}}},
      {"consolidate",
       {{"RANKS", golden("optimum/llama-tp2-pp2/sharded")},
        {"RUN", golden("zero1/nxd-llama-dp2-tp2/checkpoint")},
        {"MODEL", golden("zero1/nxd-llama-dp2-tp2/original")}}},
      {"convert", {{"RANKS", golden("zero1/optimum-llama-dp1-tp4-m2-fused/checkpoint")}, {"MODEL", small}}},
      {"doctor", {{"DIR", temp.path().string()}}},
      {"version", {}},
      {"completion", {}},
      {"man", {}},
      {"help", {}},
      {"verify", {{"MODEL", small}, {"RANKS", golden("optimum/llama-tp2-pp2/sharded")}, {"OUT", copy}}}};
  const std::map<std::string, std::string> for_compiled = {{"MODEL", golden("nxdi_compiled/moe-mixtral-tp4/original")},
                                                           {"COMPILED", golden("nxdi_compiled/moe-mixtral-tp4")}};
  std::size_t count = 0;
  for (const cli::CommandRow& row : cli::command_rows())
    for (const cli::Example& example : row.examples) {
      INFO(example.text());
      const TempDir output;
      Arguments arguments;
      std::istringstream words(example.text());
      for (std::string word; words >> word;) {
        const std::size_t slash = std::min(word.find('/'), word.size());
        const bool is_compiled = example.text().find("COMPILED") != std::string::npos;
        const auto& known = is_compiled ? for_compiled : values.at(row.name);
        const auto value = known.find(word.substr(0, slash));
        if (value != known.end())
          word = value->second + word.substr(slash);
        else if (word == "OUT")
          word = (output / "out").string();
        arguments.push_back(word);
      }
      run_well(arguments);
      ++count;
    }
  CHECK(count >= 10);
}

TEST_CASE("bash completes subcommands, options and their values") {
  CHECK(completed("reshard co") == "consolidate convert completion");
  CHECK(completed("reshard --he") == "--help");
  CHECK(completed("reshard shard --lay") == "--layout");
  CHECK(completed("reshard shard --layout nx") == "nxd nxdi");
  CHECK(completed("reshard shard --layout = nx") == "nxd nxdi");
  CHECK(completed("reshard convert a b --to d") == "dcp");
  CHECK(completed("reshard convert a b --to = ") == completed("reshard convert a b --to ''"));
  CHECK(completed("reshard shard a b -f s") == "safetensors");
  CHECK(completed("reshard shard a b --family qwen3_m") == "qwen3_moe");
  CHECK(completed("reshard shard a b --dtype b") == "bfloat16");
  CHECK(completed("reshard shard a b --tp 4").empty());
  CHECK(completed("reshard shard --help nxdi") == "nxdi");
  CHECK(completed("reshard completion z") == "zsh");
  CHECK(completed("reshard help sh") == "shard");
  CHECK(completed("reshard --help sh") == "shard");
  CHECK(completed("reshard help convert me") == "mesh");
  CHECK(completed("reshard verify --from").empty());
}

TEST_CASE("bash completes directories and files, names with spaces too") {
  const TempDir temp;
  fs::create_directories(temp / "a model");
  write_file(temp / "a file", "");
  const std::string begin = "'" + (temp / "a").string();
  CHECK(completed("reshard doctor " + begin + "'") == (temp / "a model").string());
  CHECK(completed("reshard shard x y --for " + begin + "'") == (temp / "a model").string());
  for (const std::string command : {"inspect", "shard", "consolidate"}) {  // which read files, too
    const std::string both = completed("reshard " + command + " " + begin + "'");
    CHECK_THAT(both, Says((temp / "a model").string()) && Says((temp / "a file").string()));
  }
}

TEST_CASE("The scripts for zsh and fish are understood by these shells and have all options") {
  const std::string shell = GENERATE("zsh", "fish");
  const std::string script = run_well({"completion", shell}).out;
  for (const char* command : kCommands) CHECK_THAT(script, Says(std::string(command)));
  for (const char* word : {"layout", "pipeline-cuts", "ranks optimum", "safetensors pytorch", "qwen3_moe"})
    CHECK_THAT(script, Says(std::string(word)));
  if (!has_shell(shell)) {
    WARN(shell << " is not installed");
    return;
  }
  const TempDir temp;
  write_file(temp / "script", script);
  output_of_shell(shell + " -n", script);
  if (shell == "fish") {
    const std::string load = "source " + (temp / "script").string() + "\n";
    CHECK_THAT(output_of_shell("fish", load + "complete -C 'reshard shard --layout nx'"), Says("nxdi"));
    CHECK_THAT(output_of_shell("fish", load + "complete -C 'reshard sh'"), Says("shard"));
    CHECK_THAT(output_of_shell("fish", load + "complete -C 'reshard --'"), Says("--help") && Says("--version"));
    CHECK_THAT(output_of_shell("fish", load + "complete -C 'reshard convert --help me'"), Says("mesh"));
    CHECK_THAT(output_of_shell("fish", load + "complete -C 'reshard inspect verify --'"), !Says("--rtol"));
    fs::create_directories(temp / "a model");
    write_file(temp / "a file", "");
    const std::string offered =
        output_of_shell("fish", load + "cd " + temp.path().string() + "\ncomplete -C 'reshard doctor '");
    CHECK_THAT(offered, Says("a model/") && !Says("a file"));
  } else {
    output_of_shell("zsh", "autoload -Uz compinit\ncompinit -D -u\nsource " + (temp / "script").string() +
                               "\n[[ $_comps[reshard] == _reshard ]]\n");
  }
}

TEST_CASE("Completion knows three shells") {
  check_fails({"completion", "tcsh"}, 2, {"\"tcsh\" is not one of bash, zsh, fish"});
  check_fails({"completion"}, 2, {"SHELL is required"});
}

TEST_CASE("The man page has every command and option, and is valid") {
  const std::string page = run_well({"man"}).out;
  for (const std::string command : kCommands) {
    CHECK_THAT(page, Says(".SS reshard " + command + " "));
    for (const std::string& option : options_in(run_well({command, "--help", "all"}).out)) {
      const std::string escaped = std::regex_replace(option, std::regex("-"), "\\-");
      CHECK((page.find(".B " + escaped) != std::string::npos || page.find(", " + escaped) != std::string::npos));
    }
  }
  if (!has_shell("groff")) {
    WARN("groff is not installed");
    return;
  }
  const TempDir temp;
  write_file(temp / "reshard.1", page);
  CHECK(output_of_shell("sh", "groff -man -Kutf8 -Tutf8 -ww -z '" + (temp / "reshard.1").string() + "'\n").empty());
}

TEST_CASE("Headers of tables are bold and verdicts coloured, where nothing else changes") {
  const std::string model = testdata("golden/optimum/llama-tp8-gqa/original").string();
  const TempDir temp;
  const std::string out = (temp / "out").string(), half = (temp / "half").string();
  run_well({"convert", model, out, "--manifest", "--quiet"});
  run_well({"convert", model, half, "--dtype", "float8_e5m2", "--keep", ".", "--quiet"});
  const auto check_styled = [](const Arguments& arguments, const std::string& styled) {
    const std::string plain = run_reshard(arguments).out;
    const std::string text = run_reshard(joined(arguments, {"--color", "always"})).out;
    CHECK_THAT(text, Says(styled));
    CHECK(std::regex_replace(text, std::regex("\x1b\\[[0-9;]*m"), "") == plain);
  };
  check_styled({"inspect", model}, "\x1b[1mtensor ");
  check_styled({"shard", model, (temp / "ranks").string(), "--tp", "8", "--dry-run"}, "\x1b[1mfile ");
  check_styled({"verify", model, model}, "\x1b[1;32msame:\x1b[0m ");
  check_styled({"verify", model, half}, "\n\x1b[1;31mdifferent:\x1b[0m ");
  check_styled({"verify", out, "--manifest", out + "/SHA256SUMS"}, "\x1b[1;32msame:\x1b[0m ");
  check_styled({"verify", model, "--manifest", out + "/reshard.manifest.json"}, "\x1b[1;32msame:\x1b[0m ");
  CHECK_THAT(run_well({"doctor", out, "--color", "always"}).out,
             Says("writable") && Says("  \x1b[1;32mworks\x1b[0m\n"));
  CHECK_THAT(run_well({"doctor", "/proc", "--color", "always"}).out, Says("\x1b[1;33mno\x1b[0m\n"));
  for (const Arguments& arguments : std::vector<Arguments>{{"inspect", model}, {"verify", model, model}, {"doctor"}})
    CHECK_THAT(run_well(joined(arguments, {"--json", "--color", "always"})).out, !Says("\x1b"));
}

TEST_CASE("Output has colours on a terminal only, unless --color or NO_COLOR says otherwise") {
  const auto is_colored = [](const std::string& text) { return text.find("\x1b[") != std::string::npos; };
  const auto shows = [&](const std::string& command) { return is_colored(replay("$ " + command + "\n", false)); };
  CHECK_FALSE(is_colored(run_well({"shard", "--help"}).out));
  CHECK(is_colored(run_well({"shard", "--help", "--color", "always"}).out));
  CHECK(is_colored(run_reshard({"inspect", "/nowhere", "--color=always"}).err));
  CHECK_FALSE(is_colored(run_reshard({"inspect", "/nowhere"}).err));
  CHECK(shows("NO_COLOR= TERM=xterm reshard shard --help"));
  CHECK_FALSE(shows("NO_COLOR=1 TERM=xterm reshard shard --help"));
  CHECK_FALSE(shows("NO_COLOR= TERM=dumb reshard shard --help"));
  CHECK_FALSE(shows("NO_COLOR= TERM=xterm reshard shard --help --color never"));
  check_fails({"inspect", "x", "--color", "blue"}, 2, {"--color: \"blue\" is not one of auto, always, never"});
}

}  // namespace reshard::test
