#include <memory>

#include "arguments.h"
#include "commands.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/open_store.h"
#include "reshard/plan/target/joined_models.h"
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
  std::string lora_fuse = "mean";
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
  validate_cast(arguments.cast, request.target.layout->traits().casts_to_config_dtype);
  request.dtype = dtype_of(arguments.cast);
  if (request.dtype && compiled_dtype && *request.dtype != *compiled_dtype)
    throw Error(ErrorKind::kUsage, std::string("--dtype contradicts the compiled model, which has ") +
                                       describe(*compiled_dtype).torch_name)
        .hint("leave out --dtype");
  if (!request.dtype) request.dtype = compiled_dtype;
  request.cast_all = arguments.cast.all;
  request.names = name_rules(arguments.selection);
  request.allow_missing = arguments.selection.allow_missing;
  request.force = arguments.force;
  return request;
}

}  // namespace

void add_shard(Command app, Together& together) {
  auto arguments = std::make_shared<ShardArguments>();
  arguments->target.layout = default_rank_layout().traits().name;
  Command command =
      app.add_subcommand("shard", "Shard a Hugging Face checkpoint, or LoRA adapters, into one file per rank");
  command
      .add_option(
          "MODEL_DIR", arguments->model_directory,
          "Directory with config.json and the weights, or of a training checkpoint that is read as whole tensors; or a "
          "file that contains all weights")
      .required();
  command.add_option("OUT_DIR", arguments->output_directory, "Directory to write the shards folder into").required();
  add_mesh(command, arguments->target)
      .description("Tensor-parallel ranks; required, but for layout " + layout_names([](const Layout& layout) {
                     return layout.traits().is_written() && layout.traits().needs_no_mesh();
                   }));
  command.add_option("--layout", arguments->target.layout, "Layout of the shards: " + layout_names(is_of_ranks))
      .type_name("NAME")
      .capture_default_str();
  command
      .add_option("--for", arguments->compiled,
                  "Directory of a compiled model (neuron_config.json): take its ranks, dtype and layout options")
      .type_name("DIR");
  add_format(command, arguments->target, is_of_ranks);
  add_layout_options(command, arguments->target.options, is_of_ranks);
  add_cast(command, arguments->cast);
  add_selection(command, arguments->selection);
  add_tag(command, arguments->source);
  add_config(command, arguments->source);
  add_extra_tensors(command, arguments->source);
  add_with_optimizer(command, arguments->source.with_optimizer);
  command
      .add_option(
          "--adapter", arguments->adapters,
          std::string("Directory of a LoRA adapter saved by PEFT, or of several; once per directory. Only adapters are "
                      "written, in layout ") +
              layout_names([](const Layout& layout) { return layout.traits().holds_adapters(); }) +
              " (default: the first); MODEL_DIR needs only config.json. Layout " +
              layout_names([](const Layout& layout) { return layout.joined_roles().count(kJoinedAdapter) > 0; }) +
              " contains them with their model")
      .type_name("DIR")
      .one_value_per_use();
  add_lora_fuse(command, arguments->lora_fuse);
  command
      .add_option("--draft", arguments->draft,
                  "Directory of the draft model of a speculation, for files that contain both: layout " +
                      layout_names([](const Layout& layout) { return layout.joined_roles().count("draft") > 0; }))
      .type_name("DIR");
  command
      .add_option("--draft-family", arguments->draft_family,
                  "Built-in family of the draft, such as llama_eagle (default: from --for, else from its config.json)")
      .type_name("NAME");
  command
      .add_option("--medusa-heads", arguments->medusa_heads,
                  "File with Medusa's heads (medusa_heads.pt), for a model that was compiled with them")
      .type_name("FILE");
  add_common(command, *arguments);
  command.callback([arguments, command, &together] {
    arguments->lora_fuse_given = command.count("--lora-fuse") > 0;
    arguments->cast.overflow_given = command.count("--overflow") > 0;
    RunOptions options = run_options(*arguments);  // reports a wrong option before anything is read
    options.overflow = overflow_of(arguments->cast);
    run_job(
        command, [&] { return plan_shard(all_files(), request_of(*arguments, command.count("--layout") > 0)); },
        *arguments, options, together);
  });
}

}  // namespace reshard::cli
