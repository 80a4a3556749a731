#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/plan/plan.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ConsolidateArguments : CommonArguments {
  std::string checkpoint_directory;
  std::string output_directory;
  TargetArguments target;
  OptionValues source_options;
  SourceArguments source;
  CastArguments cast;
  SelectionArguments selection;
  ReplicaArguments replicas;
};

Request request_of(const ConsolidateArguments& arguments) {
  if (arguments.checkpoint_directory.empty()) throw Error(ErrorKind::kUsage, "CHECKPOINT_DIR is empty");
  validate_is_directory_name("OUT_DIR", arguments.output_directory);
  Request request;
  request.check_replicas = !arguments.replicas.no_check;
  validate_source_options(arguments.source_options);
  request.source = {arguments.checkpoint_directory, arguments.source.tag, config_of(arguments.source),
                    family_spec(arguments), arguments.source_options};
  request.source.extra = extra_tensors_of(arguments.source);
  request.target = target_request(arguments.target, "--to", is_whole);
  if (!arguments.output_directory.empty()) request.output_directory = arguments.output_directory;
  validate_cast(arguments.cast);
  request.dtype = dtype_of(arguments.cast);
  request.cast_all = arguments.cast.all;
  request.names = name_rules(arguments.selection);
  request.allow_missing = arguments.selection.allow_missing;
  request.companions = companions_of(arguments);
  request.force = arguments.force;
  return request;
}

}  // namespace

void add_consolidate(Command app, Together& together) {
  auto arguments = std::make_shared<ConsolidateArguments>();
  arguments->target.layout = whole_layout().traits().name;
  Command command = add_command(app, "consolidate");
  add(command, "CHECKPOINT_DIR", arguments->checkpoint_directory);
  const Option output = add(command, "OUT_DIR", arguments->output_directory);
  add(command, "--format", arguments->target.format);
  add_layout_options(command, arguments->target.options, is_whole);
  add_source(command, arguments->source);
  add_source_options(command, arguments->source_options);
  add_cast(command, arguments->cast);
  add_selection(command, arguments->selection);
  add(command, "--extra-tensors", arguments->source.extra_tensors);
  add_replicas(command, arguments->replicas);
  add_common(command, *arguments);
  command.callback([arguments, command, output, &together] {
    // An unset variable of a script must not mean the default.
    if (output.count() > 0 && arguments->output_directory.empty())
      throw Error(ErrorKind::kUsage, "OUT_DIR is empty").hint("leave it out to write next to the shards folder");
    RunOptions options =
        run_options(*arguments, arguments->replicas);  // reports a wrong option before anything is read
    options.overflow = overflow_of(arguments->cast);
    run_job(
        command, [&] { return plan_consolidate(all_files(), request_of(*arguments)); }, *arguments, options, together);
  });
}

}  // namespace reshard::cli
