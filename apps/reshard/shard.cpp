#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/plan/output/joined_models.h"
#include "reshard/plan/plan.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct ShardArguments : CommonArguments {
  std::string model_directory;
  std::string output_directory;
  TargetArguments target;
  SourceArguments source;
  std::string compiled;
  std::vector<std::string> adapters;
  std::optional<std::string> draft;
  std::optional<std::string> draft_family;
  std::optional<std::string> medusa_heads;
  std::string lora_fuse;
  bool lora_fuse_given = false;
  CastArguments cast;
  SelectionArguments selection;
};

void add_adapters(const ShardArguments& arguments, Request& request) {
  if (arguments.lora_fuse_given && arguments.adapters.empty())
    throw Error(ErrorKind::kUsage, "--lora-fuse needs --adapter: without it no adapter is sharded");
  for (const std::string& directory : arguments.adapters) {
    if (directory.empty()) throw Error(ErrorKind::kUsage, "--adapter is empty");
    request.adapters.emplace_back(directory);
  }
}

/// \throws Error kUsage for an empty value: an unset variable of a script must not mean the default.
void validate_not_empty(const char* option, const std::optional<std::string>& value) {
  if (value && value->empty()) throw Error(ErrorKind::kUsage, std::string(option) + " is empty");
}

/// Adds a further model, or further weights, to the files of the model.
void add_joined(const ShardArguments& arguments, Request& request) {
  validate_not_empty("--draft", arguments.draft);
  validate_not_empty("--draft-family", arguments.draft_family);
  validate_not_empty("--medusa-heads", arguments.medusa_heads);
  if (!arguments.draft && arguments.draft_family)
    throw Error(ErrorKind::kUsage, "--draft-family needs --draft: without it no draft is sharded");
  if (!request.adapters.empty() + arguments.draft.has_value() + arguments.medusa_heads.has_value() > 1)
    throw Error(ErrorKind::kUsage, "--adapter, --draft and --medusa-heads do not apply to the same files")
        .hint("leave out all but one of them");
  if (arguments.draft) {
    SourceRequest& source = request.joined.emplace_back(JoinedModel{"draft", {}}).source;
    source.path = *arguments.draft;
    source.kind = SourceKind::kWhole;
    if (arguments.draft_family) source.family = named_family("--draft-family", *arguments.draft_family);
  }
  if (arguments.medusa_heads)
    request.joined.emplace_back(JoinedModel{"medusa-heads", {}}).source.path = *arguments.medusa_heads;
}

Request request_of(const ShardArguments& arguments, bool layout_given) {
  if (arguments.model_directory.empty()) throw Error(ErrorKind::kUsage, "MODEL_DIR is empty");
  if (arguments.output_directory.empty()) throw Error(ErrorKind::kUsage, "OUT_DIR is empty");
  validate_is_directory_name("OUT_DIR", arguments.output_directory);
  Request request;
  request.source.path = arguments.model_directory;
  request.source.tag = arguments.source.tag;
  request.source.family = family_spec(arguments);
  request.source.config = config_of(arguments.source);
  request.source.with_optimizer = arguments.source.with_optimizer;
  request.source.extra = extra_tensors_of(arguments.source);
  request.output_directory = arguments.output_directory;
  add_adapters(arguments, request);
  add_joined(arguments, request);
  TargetArguments target = arguments.target;
  if (!request.adapters.empty() && arguments.compiled.empty()) {
    const auto has_adapters = [](const Layout& layout) {
      return layout.traits().holds_adapters() || layout.joined_roles().count(kJoinedAdapter) > 0;
    };
    const Layout* const given = layout_named(target.layout);
    if (layout_given && given != nullptr && !has_adapters(*given))
      throw Error(ErrorKind::kUsage, "--layout " + printable(target.layout) + " has no place for adapters")
          .hint("--adapter writes layouts " + layout_names(has_adapters));
    if (!layout_given) target.layout = adapter_layout().traits().name;
  }
  request.target = target_request(target, "--layout", is_of_ranks);
  std::optional<DType> compiled_dtype;
  if (!arguments.compiled.empty()) {
    const CompiledModel compiled = complete_for(all_files(), arguments.compiled, request.target, layout_given);
    if (!request.adapters.empty()) request.joined.push_back({kJoinedAdapter, {}, std::exchange(request.adapters, {})});
    complete_joined(request, compiled);
    compiled_dtype = compiled.dtype;
  }
  if (arguments.lora_fuse_given) request.target.lora_fuse = parse_lora_fuse(arguments.lora_fuse);
  if (!request.target.tp && !request.target.layout->traits().needs_no_mesh())
    throw Error(ErrorKind::kUsage, "--tp is required: the number of tensor-parallel ranks");
  validate_cast(arguments.cast);
  request.dtype = dtype_of(arguments.cast);
  if (request.dtype && compiled_dtype && *request.dtype != *compiled_dtype)
    throw Error(ErrorKind::kUsage, std::string("--dtype contradicts the compiled model, which has ") +
                                       describe(*compiled_dtype).torch_name)
        .hint("leave out --dtype");
  if (!request.dtype) request.dtype = compiled_dtype;
  request.cast_all = arguments.cast.all;
  request.names = name_rules(arguments.selection);
  request.allow_missing = arguments.selection.allow_missing;
  request.companions = companions_of(arguments);
  request.force = arguments.force;
  return request;
}

}  // namespace

void add_shard(Command app, Together& together) {
  auto arguments = std::make_shared<ShardArguments>();
  arguments->target.layout = default_rank_layout().traits().name;
  Command command = add_command(app, "shard");
  add(command, "MODEL_DIR", arguments->model_directory);
  add(command, "OUT_DIR", arguments->output_directory);
  add_mesh(command, arguments->target);
  add(command, "--layout", arguments->target.layout);
  add(command, "--for", arguments->compiled);
  add(command, "--format", arguments->target.format);
  add_layout_options(command, arguments->target.options, is_of_ranks);
  add_cast(command, arguments->cast);
  add_source(command, arguments->source);
  add(command, "--with-optimizer", arguments->source.with_optimizer);
  add_selection(command, arguments->selection);
  add(command, "--extra-tensors", arguments->source.extra_tensors);
  add(command, "--adapter", arguments->adapters);
  add(command, "--lora-fuse", arguments->lora_fuse);
  add(command, "--draft", arguments->draft);
  add(command, "--draft-family", arguments->draft_family);
  add(command, "--medusa-heads", arguments->medusa_heads);
  add_common(command, *arguments);
  command.callback([arguments, command, &together] {
    arguments->lora_fuse_given = command.count("--lora-fuse") > 0;
    RunOptions options = run_options(*arguments);  // reports a wrong option before anything is read
    options.overflow = overflow_of(arguments->cast);
    run_job(
        command, [&] { return plan_shard(all_files(), request_of(*arguments, command.count("--layout") > 0)); },
        *arguments, options, together);
  });
}

}  // namespace reshard::cli
