// `reshard version` and `reshard doctor`: what a bug report needs.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "arguments.h"
#include "build_facts.h"
#include "color.h"
#include "commands.h"
#include "environment.h"
#include "json_report.h"
#include "machine_facts.h"
#include "path_facts.h"
#include "print.h"
#include "reshard/base/strings.h"
#include "table.h"
#include "version.h"

namespace reshard::cli {
namespace {

/// The program's own variables, and those that it shares with others.
Document environment_facts() {
  Document json = Document::object();
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t end = std::min(text.find('='), text.size());
    const bool is_own = std::any_of(std::begin(kVariables), std::end(kVariables),
                                    [&](const Variable& one) { return text.substr(0, end) == one.name; });
    if (is_own || text.starts_with("RESHARD_") || text.starts_with("MALLOC_") || text.substr(0, end) == "LD_PRELOAD")
      json[std::string(text.substr(0, end))] = text.substr(std::min(end + 1, text.size()));
  }
  return json;
}

std::string value_text(const std::string& key, const Document& value) {
  if (value.is_null()) return "none";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number())
    return key == "free_bytes"       ? format_bytes(value.get<std::uint64_t>())
           : key.ends_with("_bytes") ? format_memory(value.get<std::uint64_t>())
                                     : value.dump();
  std::string text;
  for (const Document& one : value) text += (text.empty() ? "" : " ") + one.get<std::string>();
  return text.empty() ? "none" : text;
}

/// The keys as labels, one line each, below a line for each object.
void add_lines(const Document& json, std::size_t indent, std::string& text, std::string_view of = {}) {
  constexpr std::size_t kLabelColumns = 26;
  for (const auto& [key, value] : json.items()) {
    if (key == "command") continue;
    const bool is_name = key.find('/') != key.npos || key.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") != key.npos;
    std::string label = std::string(indent, ' ') + key;
    if (!is_name && indent > 0) {
      if (constexpr std::string_view kUnit = "_bytes"; label.ends_with(kUnit))
        label.resize(label.size() - kUnit.size());
      std::replace(label.begin(), label.end(), '_', ' ');
    }
    if (value.is_object()) {
      if (indent == 0) text += "\n";
      if (value.empty()) label.resize(std::max(label.size() + 2, kLabelColumns), ' ');
      text += label + (value.empty() ? "none" : "") + "\n";
      add_lines(value, indent + 2, text, key);
    } else if (indent > 0) {
      label.resize(std::max(label.size() + 2, kLabelColumns), ' ');
      const std::string line = wrap(label + value_text(key, value), kLabelColumns);
      label = wrap(label, kLabelColumns);
      const bool works = value == "works" || (key == "writable" && value == true);
      const bool is_verdict = works || of == "operations" || key == "writable";
      text += is_verdict && line.starts_with(label)
                  ? label + styled(line.substr(label.size()), works ? Style::kGreen : Style::kYellow, STDOUT_FILENO)
                  : line;
      text += "\n";
    }
  }
}

void print_facts(const Document& json, bool as_json) {
  if (as_json) return print_output(to_text(json));
  std::string text = fmt::format("reshard {}\n", kVersion);
  add_lines(json, 0, text);
  print_text(text);
}

}  // namespace

void add_version(Command app) {
  auto arguments = std::make_shared<OutputArguments>();
  Command command = add_command(app, "version");
  add_output(command, *arguments);
  command.callback([arguments] {
    const Document facts = {{"command", "version"}, {"version", kVersion}, {"build", build_facts()}};
    print_facts(facts, arguments->json);
  });
}

void add_doctor(Command app, OpenPlugin* open) {
  struct Arguments : OutputArguments {
    std::string path = ".";
  };
  auto arguments = std::make_shared<Arguments>();
  Command command = add_command(app, "doctor");
  add(command, "PATH", arguments->path);
  add_output(command, *arguments);
  command.callback([arguments, open] {
    Document json = {{"command", "doctor"}, {"version", kVersion}, {"build", build_facts()}};
    json["machine"] = machine_facts();
    json["limits"] = limit_facts();
    json["mpi"] = mpi_facts(::getenv, open);
    json["environment"] = environment_facts();
    json["path"] = path_facts(arguments->path);
    print_facts(json, arguments->json);
  });
}

}  // namespace reshard::cli
