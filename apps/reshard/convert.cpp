#include <fmt/format.h>

#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/plan/output/checks.h"
#include "reshard/plan/plan.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ConvertArguments : CommonArguments {
  std::string source;
  std::string output_directory;
  TargetArguments target;
  bool layout_given = false;
  OptionValues source_options;
  SourceArguments from;
  CastArguments cast;
  SelectionArguments selection;
  std::string lora_fuse;
  bool lora_fuse_given = false;
  ReplicaArguments replicas;
};

/// An option without effect suggests that another was forgotten.
void validate_options_of(const ConvertArguments& arguments, const Layout& layout) {
  const auto options = layout.options();
  for (const std::string& name : arguments.target.options.names()) {
    const auto is_it = [&](const LayoutOption* option) { return name == option->name; };
    const auto of_source = [&](const Layout& other) {
      const auto all = other.options();
      return std::any_of(all.begin(), all.end(),
                         [&](const LayoutOption* option) { return option->of_source && is_it(option); });
    };
    if (std::none_of(options.begin(), options.end(), is_it) && !layout_names(of_source).empty())
      throw Error(ErrorKind::kUsage, fmt::format("layout {} has no option --{}", layout.traits().name, name))
          .hint(fmt::format("how SRC was made, --from-{} says", name));
  }
  const TargetArguments& target = arguments.target;
  const std::pair<const char*, bool> of_ranks[] = {{"--tp", !target.tp.empty()},
                                                   {"--pp", !target.pp.empty()},
                                                   {"--vpp", target.vpp != "1"},
                                                   {"--ep", !target.ep.empty()},
                                                   {"--pipeline-cuts", !target.pipeline_cuts.empty()}};
  for (const auto& [option, given] : of_ranks)
    if (given && !layout.traits().has_ranks())
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} applies to ranks, but layout {} has whole tensors", option, layout.traits().name))
          .hint("choose a layout: --to " + layout_names(is_of_ranks));
}

/// \param layout  null if it is the source's, which is not known yet.
void validate_options(const ConvertArguments& arguments, const Layout* layout) {
  if (layout != nullptr) validate_options_of(arguments, *layout);
  validate_cast(arguments.cast);
}

Request request_of(const ConvertArguments& arguments) {
  if (arguments.source.empty()) throw Error(ErrorKind::kUsage, "SRC is empty");
  if (arguments.output_directory.empty()) throw Error(ErrorKind::kUsage, "DST is empty");
  validate_is_directory_name("DST", arguments.output_directory);
  Request request;
  request.target = target_request(arguments.target, "--to", is_written);
  const bool goes_on = arguments.from.with_optimizer || !rank_option(request.target).empty();
  if (!arguments.layout_given && goes_on) request.target.layout = nullptr;
  validate_options(arguments, request.target.layout);
  validate_source_options(arguments.source_options, "from-");
  request.source = {arguments.source,       arguments.from.tag,       config_of(arguments.from),
                    family_spec(arguments), arguments.source_options, arguments.from.with_optimizer};
  request.source.extra = extra_tensors_of(arguments.from);
  request.output_directory = arguments.output_directory;
  request.dtype = dtype_of(arguments.cast);
  request.cast_all = arguments.cast.all;
  request.names = name_rules(arguments.selection);
  if (arguments.lora_fuse_given) request.target.lora_fuse = parse_lora_fuse(arguments.lora_fuse);
  request.allow_missing = arguments.selection.allow_missing;
  request.check_replicas = !arguments.replicas.no_check;
  request.companions = companions_of(arguments);
  request.force = arguments.force;
  return request;
}

void add_options(Command command, ConvertArguments& arguments) {
  add(command, "SRC", arguments.source);
  add(command, "DST", arguments.output_directory);
  add(command, "--to", arguments.target.layout);
  add_mesh(command, arguments.target);
  add(command, "--format", arguments.target.format);
  add_source(command, arguments.from);
  add(command, "--with-optimizer", arguments.from.with_optimizer);
  add_source_options(command, arguments.source_options, "--from-");
  add_layout_options(command, arguments.target.options, is_written);
  add_cast(command, arguments.cast);
  add_selection(command, arguments.selection);
  add(command, "--extra-tensors", arguments.from.extra_tensors);
  add(command, "--lora-fuse", arguments.lora_fuse);
}

}  // namespace

void add_convert(Command app, Together& together) {
  auto arguments = std::make_shared<ConvertArguments>();
  arguments->target.layout = whole_layout().traits().name;
  Command command = add_command(app, "convert");
  add_options(command, *arguments);
  add_replicas(command, arguments->replicas);
  add_common(command, *arguments);
  command.callback([arguments, command, &together] {
    arguments->layout_given = command.count("--to") > 0;
    arguments->lora_fuse_given = command.count("--lora-fuse") > 0;
    RunOptions options =
        run_options(*arguments, arguments->replicas);  // reports a wrong option before anything is read
    options.overflow = overflow_of(arguments->cast);
    run_job(
        command, [&] { return plan_convert(all_files(), request_of(*arguments)); }, *arguments, options, together);
  });
}

}  // namespace reshard::cli
