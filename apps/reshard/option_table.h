#pragma once

#include <span>
#include <string>
#include <string_view>

#include "command.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/layout_table.h"

namespace reshard::cli {

/// Selects layouts.
using LayoutFilter = bool (*)(const Layout&);
inline bool any_layout(const Layout&) {
  return true;
}
inline bool is_written(const Layout& layout) {
  return layout.traits().is_written();
}
inline bool is_of_ranks(const Layout& layout) {
  return layout.traits().has_ranks() && is_written(layout);
}
/// Accepts the layout that consolidation writes.
inline bool is_whole(const Layout& layout) {
  return &layout == &whole_layout();
}

/// An example in the help of a command.
struct Example {
  /// Returns the command without the program's name.
  std::string text() const;

  const char* command;            // "{}" is replaced by the name of a layout
  const char* what;               // a clause
  LayoutFilter layout = nullptr;  // for "{}": the first layout that it accepts
};

/// A subcommand, as its help describes it.
struct CommandRow {
  const char* name;
  const char* summary;  // one line of the program's help
  const char* when;     // when to use it, a clause
  std::span<const Example> examples;
  std::span<const char* const> main = {};  // the options that everybody needs; empty if it reads no checkpoints
  LayoutFilter writes = nullptr;           // layouts that it writes; null if it writes no checkpoint
};

/// All subcommands, in the order of the program's help.
std::span<const CommandRow> command_rows();
/// Returns nullptr if no row has this name, as for the program.
const CommandRow* command_row(std::string_view name);
/// Adds a subcommand of the table.
Command add_command(Command program, std::string_view name);

/// Heading of a group in the help: "Mesh".
const char* heading_of(OptionGroup group);

/// Returns the declaration that the table of options has of an option or argument of `command`. `name` has hyphens.
OptionInfo option_info(const Command& command, std::string_view name);
/// Returns the declaration of a layout's option. `layouts` is empty if all layouts of the command have it.
OptionInfo option_info(const Command& command, const LayoutOption& option, bool of_source, const std::string& prefix,
                       std::vector<std::string> layouts);

/// Adds an option or argument of the table; see Command::add_option.
template <typename Value>
Option add(Command command, std::string_view name, Value& value) {
  return command.add_option(option_info(command, name), value);
}

/// Names of the dtypes that tensors can be cast to, the widest first.
std::vector<std::string> names_of_dtypes();
/// Names of the formats that any of the layouts has.
std::vector<std::string> names_of_formats(LayoutFilter wanted);

/// Formats "layout a" or "layouts a, b".
std::string layouts_text(const std::vector<std::string>& names);

}  // namespace reshard::cli
