// What the documents say is what the repository holds: the program prints what their examples show, their C++ is that
// of programs that are compiled, links lead somewhere, every family is named. scripts/make-docs.sh renews them.

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "environment.h"
#include "reshard/base/json.h"
#include "reshard/base/note.h"
#include "reshard/layouts/core/layout.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"
#include "transcript.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const fs::path kRepository = testdata("..").lexically_normal();

/// `text` with the code block after each line `<!-- from FILE -->` made FILE anew.
std::string with_sources(const std::string& text) {
  static const std::regex kFrom(R"(<!-- from (\S+) -->)");
  REQUIRE_THAT(text, Says("<!-- from "));
  std::istringstream in(text);
  std::string renewed, line;
  while (std::getline(in, line)) {
    renewed += line + "\n";
    std::smatch match;
    if (!std::regex_match(line, match, kFrom)) continue;
    const fs::path source = kRepository / match[1].str();
    if (!std::getline(in, line) || !line.starts_with("```"))
      throw std::runtime_error("no block after " + match[0].str());
    renewed += line + "\n" + read_file(source);
    while (std::getline(in, line) && line != "```") continue;
    renewed += "```\n";
  }
  return renewed;
}

/// `text` with the table after the line `marker` made `table`.
std::string with_table(const std::string& text, const std::string& marker, const std::string& table) {
  REQUIRE_THAT(text, Says(marker + "\n|"));
  std::istringstream in(text);
  std::string renewed, line;
  while (std::getline(in, line)) {
    renewed += line + "\n";
    if (line != marker) continue;
    renewed += table;
    while (std::getline(in, line) && line.starts_with("|")) continue;
    renewed += line + "\n";
  }
  return renewed;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "`" : ", `") + name + "`";
  return text;
}

std::string traits_table() {
  std::string table = "| layout | what it is | folder | stages | experts | formats |\n|---|---|---|---|---|---|\n";
  for (const Layout* layout : layouts()) {
    const LayoutTraits& traits = layout->traits();
    std::vector<std::string> formats;
    for (const Format format : traits.formats) formats.emplace_back(name(format));
    table += std::string("| `") + traits.name + "` | " + traits.meaning + " | " +
             (*traits.folder ? "`" + std::string(traits.folder) + "/`" : "") + " | " +
             (traits.has_stages() ? "yes" : "") + " | " + (traits.has_experts() ? "yes" : "") + " | " +
             (formats.empty() ? "only read" : joined_names(formats)) + " |\n";
  }
  return table;
}

std::string options_table() {
  std::vector<std::pair<const LayoutOption*, std::vector<std::string>>> options;
  std::set<std::string> of_source;
  for (const Layout* layout : layouts())
    for (const LayoutOption* option : layout->options()) {
      const auto known = std::find_if(options.begin(), options.end(),
                                      [&](const auto& row) { return std::string(row.first->name) == option->name; });
      if (option->of_source) of_source.insert(option->name);
      if (known == options.end())
        options.push_back({option, {layout->traits().name}});
      else if (known->second.back() != layout->traits().name)  // which may have one for the source, too
        known->second.emplace_back(layout->traits().name);
    }
  std::string table = "| option | layouts | | |\n|---|---|---|---|\n";
  for (const auto& [option, of] : options)
    table += std::string("| `--") + option->name + "` | " + joined_names(of) + " | " + option->help + " | " +
             (of_source.count(option->name) ? "source" : "") + " |\n";
  return table;
}

/// What each family is described by, from the files themselves.
std::string families_table() {
  std::map<std::string, Json> families;
  for (const auto& entry : fs::directory_iterator(kRepository / "lib/reshard/specs/families"))
    families.emplace(entry.path().stem(), Json::parse(read_file(entry.path())));
  std::string table = "| model_type | described by |\n|---|---|\n";
  for (const auto& [name, json] : families) {
    const auto named = [&, &family = json](const char* key) { return "`" + family.at(key).get<std::string>() + "`"; };
    std::string how = "names and shapes of its own";
    if (json.contains("language_model"))
      how = "its language model, " + named("language_model") + " unless `text_config` says another";
    else if (json.contains("like"))
      how = (json.size() == 2 ? "" : "differences from ") + named("like");
    table += "| `" + name + "` | " + how + " |\n";
  }
  return table;
}

std::string variables_table() {
  std::string table = "| variable | effect | default |\n|---|---|---|\n";
  for (const cli::Variable& variable : cli::kVariables)
    table += std::string("| `") + variable.name + "` | " + variable.effect + " | " + variable.fallback +
             (*variable.fallback ? " |\n" : "|\n");
  return table;
}

std::string note_kinds_table() {
  std::string table = "| kind | meaning |\n|---|---|\n";
  for (const NoteKindRow& row : kNoteKinds) table += std::string("| `") + row.name + "` | " + row.meaning + " |\n";
  return table;
}

/// The string literals of the library's and the program's sources, a line each; adjacent ones are joined.
std::string messages_in_sources() {
  std::string all;
  for (const char* folder : {"lib/reshard", "apps/reshard"})
    for (const auto& entry : fs::recursive_directory_iterator(kRepository / folder)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      const std::string text = read_file(entry.path());
      for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '"') continue;
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
          all += text[i];
        }
        const std::size_t next = text.find_first_not_of(" \n", i + 1);
        if (next == text.npos || text[next] != '"') all += '\n';
      }
    }
  return all;
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

/// What the first group of `pattern` matches in `text`.
std::vector<std::string> matches_in(const std::string& text, const std::regex& pattern) {
  return {std::sregex_token_iterator(text.begin(), text.end(), pattern, 1), std::sregex_token_iterator()};
}

/// The messages in the first column of tables that begin with `| message |` or `| note |`.
std::vector<std::string> messages_in_tables(const std::string& text) {
  static const std::regex kMessage(R"(\| `([^`]+)` \|.*)");
  std::vector<std::string> messages;
  std::istringstream in(text);
  bool in_table = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("| message |") || line.starts_with("| note |")) in_table = true;
    if (!line.starts_with("|")) in_table = false;
    std::smatch match;
    if (in_table && std::regex_match(line, match, kMessage)) messages.push_back(match[1]);
  }
  return messages;
}

/// Every Markdown file of the repository, build folders left out, relative to it.
std::vector<fs::path> documents() {
  std::vector<fs::path> found;
  for (const char* folder : {"", "docs"})
    for (const auto& entry : fs::directory_iterator(kRepository / folder))
      if (entry.path().extension() == ".md") found.push_back(entry.path());
  for (const char* folder : {"lib", "apps", "tests"})
    for (const auto& entry : fs::recursive_directory_iterator(kRepository / folder))
      if (entry.path().extension() == ".md") found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

/// The anchor that a heading gets: lower case, spaces as "-", punctuation left out.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '-' || c == '_' || byte >= 0x80)
      anchor += static_cast<char>(std::tolower(byte));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

bool has_anchor(const fs::path& document, const std::string& anchor) {
  std::istringstream in(read_file(document));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("#") && anchor_of(line.substr(line.find_first_not_of('#') + 1)) == anchor) return true;
  return false;
}

TEST_CASE("The program prints what the documents show", "[docs][renewed]") {
  check_transcripts(kRepository / GENERATE(as<fs::path>(), "README.md", "docs/command-line.md", "docs/families.md",
                                           "docs/migrating.md", "docs/neuron.md", "docs/recipes.md",
                                           "docs/troubleshooting.md"));
}

TEST_CASE("The C++ and JSON in the documents are those of files that tests read", "[docs][renewed]") {
  check_renewed(kRepository / GENERATE(as<fs::path>(), "docs/library.md", "docs/families.md"), with_sources);
}

TEST_CASE("The tables of layouts, options, built-in families, variables and kinds of notes are the program's own",
          "[docs][renewed]") {
  check_renewed(kRepository / "docs/layouts.md", [](const std::string& text) {
    return with_table(with_table(text, "<!-- traits of the layouts -->", traits_table()),
                      "<!-- options of the layouts -->", options_table());
  });
  check_renewed(kRepository / "docs/families.md", [](const std::string& text) {
    return with_table(text, "<!-- the built-in families -->", families_table());
  });
  check_renewed(kRepository / "docs/environment.md", [](const std::string& text) {
    return with_table(text, "<!-- variables of the program -->", variables_table());
  });
  check_renewed(kRepository / "docs/command-line.md", [](const std::string& text) {
    return with_table(text, "<!-- kinds of notes -->", note_kinds_table());
  });
}

TEST_CASE("The schemas of documents with notes name every kind of note, in order", "[docs]") {
  Json kinds = Json::array();
  for (const NoteKindRow& row : kNoteKinds) kinds.push_back(row.name);
  Json definition;
  std::size_t with_notes = 0;
  for (const auto& entry : fs::directory_iterator(kRepository / "docs/schemas")) {
    const Json schema = Json::parse(read_file(entry.path()));
    INFO(entry.path());
    if (!schema.at("properties").contains("notes")) continue;
    const Json& findings = schema.at("$defs").at("findings");
    if (with_notes++ == 0) definition = findings;
    CHECK(findings == definition);
    CHECK(findings.at(Json::json_pointer("/items/properties/kind/enum")) == kinds);
  }
  CHECK(with_notes == 6);
}

/// The lines below `run: |` in the YAML of a document, as a shell gets them.
std::string script_in(const std::string& text) {
  static const std::regex kScript(R"(\n( +)- run: \|\n((?:\1    [^\n]*\n)+))");
  std::smatch match;
  REQUIRE(std::regex_search(text, match, kScript));
  return match[2];
}

TEST_CASE("The commands of the CI job in the recipes work, and stop the job at tensors that differ", "[docs]") {
  const std::string script = script_in(read_file(kRepository / "docs/recipes.md"));
  const std::string model = testdata("golden/optimum/qwen3-tp4-pp3-gqa/original").string();
  const auto exit_code_of = [&](const std::string& script_of_job) {
    const TempDir job;
    const std::string command = "(set -e; cd '" + job.path().string() + "'; MODEL='" + model + "'; reshard() { '" +
                                RESHARD_PROGRAM + "' \"$@\"; }\n" + script_of_job + ") >/dev/null 2>&1 </dev/null";
    return WEXITSTATUS(std::system(command.c_str()));
  };
  CHECK(exit_code_of(script) == 0);
  const std::size_t first = script.find('\n') + 1;
  CHECK(exit_code_of(script.substr(0, first) + "printf x >>shards/config.json\n" + script.substr(first)) == 1);
}

TEST_CASE("Every link in the documents leads to a file, and to a heading in it", "[docs]") {
  static const std::regex kLink(R"(\]\(([^)\s]*)\))");
  const std::vector<fs::path> all = documents();
  REQUIRE(all.size() >= 10);
  for (const fs::path& file : all)
    for (const std::string& link : matches_in(read_file(file), kLink)) {
      if (link.find("://") != std::string::npos || link.starts_with("mailto:")) continue;
      const std::size_t hash = std::min(link.find('#'), link.size());
      const fs::path target = hash == 0 ? file : file.parent_path() / link.substr(0, hash);
      INFO(file << ": the link " << link);
      CHECK(fs::exists(target));
      if (hash < link.size() && fs::exists(target)) CHECK(has_anchor(target, link.substr(hash + 1)));
    }
}

TEST_CASE("Every source file that documents for developers name is there", "[docs]") {
  static const std::regex kSource(R"re(`((?:[a-z_]+/)*[a-z_0-9]+\.(?:cpp|h|json|py|sh))`)re");
  std::set<std::string> names;
  for (const char* folder : {"lib", "apps", "tests", "scripts", "testdata"})
    for (const auto& entry : fs::recursive_directory_iterator(kRepository / folder))
      names.insert("/" + entry.path().string());
  for (const char* file : {"ARCHITECTURE.md", "CONTRIBUTING.md", "docs/extending.md"})
    for (const std::string& named : matches_in(read_file(kRepository / file), kSource)) {
      INFO(file << ": " << named);
      CHECK((named == "config.json" || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
               return name.ends_with("/" + named);
             })));
    }
}

TEST_CASE("Messages that the documents explain are the program's", "[docs]") {
  static const std::string kEllipsis = "…";
  const std::string sources = messages_in_sources();
  for (const char* file : {"docs/troubleshooting.md", "docs/cluster.md"}) {
    const std::vector<std::string> messages = messages_in_tables(read_file(kRepository / file));
    REQUIRE(messages.size() >= 5);
    for (const std::string& message : messages) {
      std::size_t longest = 0;
      for (std::size_t begin = 0; begin < message.size();) {
        const std::size_t end = std::min(message.find(kEllipsis, begin), message.size());
        const std::string part = trimmed(message.substr(begin, end - begin));
        longest = std::max(longest, part.size());
        INFO("\"" << part << "\" of the message " << message);
        CHECK(sources.find(part) != std::string::npos);
        begin = end + kEllipsis.size();
      }
      INFO(message);
      CHECK(longest >= 8);
    }
  }
}

/// A checkpoint that a row of README's table is tried with, below testdata/golden, and its model.
struct ReadmeInput {
  const char* directory;
  const char* model = "optimum/llama-tp8-gqa/original";
};

const std::map<std::string, std::vector<ReadmeInput>> kReadmeInputs = {
    {"a checkpoint", {{"optimum/llama-tp2-pp2/sharded"}, {"optimum/llama-tp2-pp2/original"}}},
    {"rank files of optimum-neuron, vLLM or SGLang",
     {{"optimum/llama-tp2-pp2/sharded"}, {"vllm/llama-tp2/sharded"}, {"sglang/qwen2_moe-tp2/sharded"}}},
    {"rank files of NxD or NxD Inference",
     {{"zero1/nxd-llama-dp2-tp2/checkpoint", "zero1/nxd-llama-dp2-tp2/original"},
      {"nxdi/llama-tp4", "nxdi/llama-tp4/original"},
      {"preshard/llama-tp4", "preshard/llama-tp4/original"}}},
    {"a checkpoint of FSDP, torchtitan or DeepSpeed",
     {{"dcp/llama-fsdp2-optim/sharded", "dcp/llama-fsdp2-optim/original"},
      {"dcp/titan-llama3-v0.2.2/sharded", "dcp/titan-llama3-v0.2.2/original"},
      {"deepspeed/qwen3-zero3-r3/sharded", "deepspeed/qwen3-zero3-r3/original"}}},
    {"a Hugging Face model", {{""}}},
    {"rank files for one mesh", {{"optimum/llama-tp2-pp2/sharded"}}},
    {"a training checkpoint of NxD", {{"zero1/nxd-llama-dp2-tp2/checkpoint", "zero1/nxd-llama-dp2-tp2/original"}}},
    {"two checkpoints", {{""}}}};

/// Runs `command`, a line of words without the program's name, with values for the words in capitals.
void check_command(const std::string& command, const ReadmeInput& input) {
  const TempDir temp;
  const std::map<std::string, std::string> values = {{"DIR", testdata("golden") / input.directory},
                                                     {"SRC", testdata("golden") / input.directory},
                                                     {"MODEL", testdata("golden") / input.model},
                                                     {"A", testdata("golden/optimum/llama-tp2-pp2/original")},
                                                     {"B", testdata("golden/optimum/llama-tp2-pp2/sharded")},
                                                     {"OUT", temp / "out"},
                                                     {"RUN", temp / "run"}};
  std::vector<std::string> arguments;
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    const std::size_t slash = std::min(word.find('/'), word.size());
    const auto value = values.find(word.substr(0, slash));
    arguments.push_back(value == values.end() ? word : value->second + word.substr(slash));
  }
  run_well(arguments);
}

TEST_CASE("The commands in README's table work, and those for the programs that load a layout", "[docs]") {
  static const std::regex kRow(R"(\n\| ([^|\n]+ \| [^|\n]+ \| `reshard [^`\n]+)` \|(?=\n))");
  static const std::regex kLayoutRow(R"(\n\| [^|\n]+ \| `((?:shard|convert) [^`\n]+)` \|(?=\n))");
  const std::vector<std::string> rows = matches_in(read_file(kRepository / "README.md"), kRow);
  CHECK(rows.size() >= 8);
  for (const std::string& row : rows) {
    INFO(row);
    const auto inputs = kReadmeInputs.find(row.substr(0, row.find(" | ")));
    REQUIRE(inputs != kReadmeInputs.end());
    const std::string command = row.substr(row.find("`reshard ") + 9);
    for (const ReadmeInput& input : inputs->second) check_command(command, input);
  }
  const std::vector<std::string> commands = matches_in(read_file(kRepository / "docs/layouts.md"), kLayoutRow);
  CHECK(commands.size() >= 8);
  for (const std::string& command : commands) check_command(command, {"optimum/llama-tp2-pp2/sharded"});
  static const std::regex kInText(R"(`reshard ([a-z]+ [A-Z]+ [^`\n]+)`)");
  const std::vector<std::string> in_text = matches_in(read_file(kRepository / "docs/neuron.md"), kInText);
  CHECK(in_text.size() >= 5);
  for (const std::string& command : in_text)
    check_command(command, {"zero1/nxd-llama-dp2-tp2/checkpoint", "zero1/nxd-llama-dp2-tp2/original"});
}

TEST_CASE("README is short", "[docs]") {
  const std::string text = read_file(kRepository / "README.md");
  CHECK(std::count(text.begin(), text.end(), '\n') <= 150);
  const std::string first_screen = text.substr(0, text.find("## Why"));
  CHECK(std::count(first_screen.begin(), first_screen.end(), '\n') <= 40);
  for (const char* command : {"scripts/demo.sh", "scripts/test.sh"}) CHECK_THAT(first_screen, Says(command));
}

}  // namespace
}  // namespace reshard::test
