#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "completion.h"
#include "help.h"
#include "man_page.h"
#include "option_table.h"
#include "print.h"
#include "version.h"

namespace reshard::cli {

void add_help_commands(Command app) {
  const Command program = app;
  auto shell = std::make_shared<std::string>();
  Command completion = add_command(app, "completion");
  add(completion, "SHELL", *shell);
  completion.callback([program, shell] { print_output(completion_script(program, *shell)); });
  Command man = add_command(app, "man");
  man.callback([program] { print_output(man_page(program, kVersion)); });
  auto request = std::make_shared<HelpRequest>();
  Command help = add_command(app, "help");
  add(help, "COMMAND", request->command);
  add(help, "TOPIC", request->topic);
  help.callback([program, request] { print_output(help_text(program, *request)); });
}

}  // namespace reshard::cli
