#include "reshard/plan/output/checks.h"

#include <fmt/format.h>

#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/io/files.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/read_model.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/training/adapter_target.h"
#include "reshard/plan/source/metadata_model.h"
#include "reshard/plan/transforms/select.h"
#include "reshard/specs/family/family_parser.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Refuses requests that shards with the partition of the source cannot fulfil.
void validate_kept_ranks(const Request& request, const Checkpoint& source) {
  const TargetRequest& target = request.target;
  const bool same = source.layout == target.layout && target.tp.value_or(source.mesh.tp) == source.mesh.tp &&
                    target.pp.value_or(source.mesh.pp) == source.mesh.pp && target.vpp == 1 &&
                    target.pipeline_cuts.empty() && target.options.empty();
  if (!same)
    throw Error(ErrorKind::kBadInput, "is an adapter, which does not say how its model is split over ranks")
        .in(source.path)
        .hint("set `config` to the base model's config.json");
  for (const Adapter& adapter : source.adapters)
    if (adapter.mesh.tp != source.mesh.tp || adapter.mesh.pp != source.mesh.pp)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("has tp {} × pp {} ranks, but the adapter {} has tp {} × pp {}", adapter.mesh.tp,
                              adapter.mesh.pp, source.adapters.front().name, source.mesh.tp, source.mesh.pp))
          .in(adapter.path)
          .hint("convert each adapter by itself, or set `config` to the base model's config.json");
  if (!request.names.empty())
    throw Error(ErrorKind::kUsage, "shards of an adapter that keep their partition keep all of its tensors and names")
        .in(source.path)
        .hint("set `config` to the base model's config.json to partition the remaining tensors again");
}

}  // namespace

std::string state_option(const TargetRequest& target) {
  for (const Layout* layout : layouts())
    for (const LayoutOption* option : layout->options())
      if (option->of_states && target.options.has(option->name)) return option->name;
  return {};
}

std::string rank_option(const TargetRequest& target) {
  const std::pair<const char*, bool> options[] = {{"tp", target.tp.has_value()},
                                                  {"pp", target.pp.has_value()},
                                                  {"vpp", target.vpp != 1},
                                                  {"ep", target.ep.has_value()},
                                                  {"pipeline-cuts", !target.pipeline_cuts.empty()}};
  for (const auto& [option, given] : options)
    if (given) return option;
  return state_option(target);
}

void validate_takes_states(const SourceRequest& source, const Layout& target) {
  if (!source.with_optimizer || target.traits().writes_states()) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("`with-optimizer`: checkpoints of layout {} have no place for optimizer states",
                          target.traits().name))
      .hint("layouts with optimizer states: " +
            layout_names([](const Layout& layout) { return layout.traits().writes_states(); }));
}

void validate_has_states(const std::string& option, const Checkpoint& checkpoint) {
  if (checkpoint.layout == nullptr || !checkpoint.layout->traits().reads_states())
    throw Error(ErrorKind::kUsage, fmt::format("`{}`: {} is not a checkpoint whose optimizer can be read", option,
                                               checkpoint.layout == nullptr
                                                   ? "a file of tensors"
                                                   : fmt::format("one in layout {}", checkpoint.layout->traits().name)))
        .in(checkpoint.path)
        .hint("it is for sources in layout " +
              layout_names([](const Layout& layout) { return layout.traits().reads_states(); }));
  if (checkpoint.states.empty())
    throw Error(ErrorKind::kBadInput, "contains a model, but no optimizer")
        .in(checkpoint.path)
        .hint(fmt::format("leave out `{}`, or give the directory that contains both", option));
}

void validate_has_tensors(const Checkpoint& checkpoint) {
  if (checkpoint.map.tensor_count() > 0) return;
  if (!checkpoint.has_training_state()) throw Error(ErrorKind::kBadInput, "contains no tensors").in(checkpoint.path);
  const std::string& model = checkpoint.model_elsewhere.string();
  throw Error(ErrorKind::kBadInput, "contains training state, such as an optimizer's, but no model tensors")
      .in(checkpoint.path)
      .hint(model.empty() ? "give the directory that contains the model"
                          : fmt::format("give the parent directory, or the model's: {}", model));
}

void validate_not_emptied(const Checkpoint& checkpoint, const NameRules& rules) {
  std::vector<std::string> names =
      emptied_parameters(checkpoint.map.logical, checkpoint.model ? &*checkpoint.model : nullptr);
  std::erase_if(names, [&](const std::string& name) {
    const auto old = checkpoint.old_names.find(name);  // rules match the names in the files
    return is_dropped(rules, old == checkpoint.old_names.end() ? name : old->second);
  });
  if (!names.empty()) throw emptied_error(names).in(checkpoint.path);
}

void validate_names(const Checkpoint& checkpoint, const Layout& target) {
  if (checkpoint.names_of.empty() || target.traits().has_ranks()) return;  // these need a model, or take any names
  throw Error(ErrorKind::kBadInput,
              fmt::format("its tensors have {}'s names, and only the model's config.json defines the model's own names",
                          checkpoint.names_of))
      .in(checkpoint.path)
      .hint(checkpoint.config.path.empty() ? "set `config` to the model's config.json" : hint_for_model(checkpoint));
}

void note_states_left(Checkpoint& checkpoint, const Layout& target) {
  if (!checkpoint.leaves_states) return;
  if (checkpoint.beside_model->files > 0)
    checkpoint.notes.left_out(left_files_text(*checkpoint.beside_model, "the optimizer"));
  if (target.traits().writes_states())
    checkpoint.notes.hint("training cannot continue from the model alone: `with-optimizer` includes its optimizer");
}

void validate_outside(Files& files, const fs::path& output_directory, const Checkpoint& source) {
  const auto validate = [&](const fs::path& output, const fs::path& folder) {
    if (lies_inside(output, folder))
      throw Error(ErrorKind::kUsage, "the output directory is inside the shards folder")
          .in(output_directory)
          .hint("choose another output directory");
  };
  for (const Adapter& adapter : source.adapters)
    validate(files.resolve(output_directory / adapter.prefix / "."), files.resolve(adapter.path));
  if (!source.has_ranks() || !source.adapters.empty()) return;
  const fs::path folder = files.resolve(source.path);
  const fs::path output = files.resolve(output_directory);
  const auto beside = source.layout->default_output(files, source.found());
  if (beside && output == folder && folder == files.resolve(*beside)) return;  // the ranks are in a folder below
  validate(output, folder);
}

void validate_shards_adapters(const Request& request) {
  const std::string of_states = state_option(request.target);
  const std::pair<std::string, bool> idle[] = {
      {of_states.empty() ? "with-optimizer" : of_states, request.source.with_optimizer || !of_states.empty()},
      {"tag", request.source.tag.has_value()},
      {"allow-missing", request.allow_missing}};
  for (const auto& [option, given] : idle)
    if (given)
      throw Error(ErrorKind::kUsage,
                  fmt::format("`{}` has no effect with `adapter`: only adapters are written", option))
          .hint("leave out one of the two");
  if (!request.source.config.empty())
    throw Error(ErrorKind::kUsage, "`config` has no effect: adapters are sharded by the config.json next to the model")
        .in(request.source.path);
  validate_adapter_request(request.target);
  validate_request(request.target);
}

void validate_adapters(const Request& request, Checkpoint& source) {
  const Layout& layout = *request.target.layout;
  const bool has_model = has_base_model(request, source);
  if (request.target.lora_fuse && !has_model)
    throw Error(ErrorKind::kUsage, "`lora-fuse` has no effect: it applies only to linears that are newly fused")
        .in(source.path);
  if (!request.names.empty() && (source.adapters.size() > 1 || !source.adapters.front().prefix.empty()))
    throw Error(ErrorKind::kUsage, "`rename`, `drop` and `keep` apply only to a single adapter")
        .in(source.path)
        .hint("give the directory of one adapter");
  if (&layout == &whole_layout()) {
    if (source.config.is_given && !source.model)
      throw Error(ErrorKind::kUsage, "`config` has no effect: a whole adapter does not depend on its base model")
          .in(source.path)
          .hint("leave out `config`");
    for (const std::string& option : request.target.options.names())
      throw Error(ErrorKind::kUsage, "`" + option + "` applies only to models: adapters have one file each")
          .in(source.path);
  } else if (!layout.traits().holds_adapters() && request.target.role.empty()) {
    throw Error(ErrorKind::kUsage, fmt::format("layout {} has no place for adapters", layout.traits().name))
        .in(source.path)
        .hint("layouts for adapters: " +
              layout_names([](const Layout& one) { return &one == &whole_layout() || one.traits().holds_adapters(); }));
  } else if (!has_model && request.target.role.empty()) {
    validate_kept_ranks(request, source);
  }
  const FamilySpec& family = request.source.family;
  if (family && !has_model)
    source.notes.no_effect(fmt::format("`{}` has no effect on adapters",
                                       builtin_family(family->model_type) == family ? "family" : "spec"));
  if (request.source.extra != ExtraTensors::kRefuse)
    source.notes.no_effect("`extra-tensors` has no effect on adapters");
}

}  // namespace reshard
