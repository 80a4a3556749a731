#include "reshard/plan/target/checks.h"

#include <fmt/format.h>

#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/io/files.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

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
              fmt::format("`with-optimizer`: checkpoints of layout {} have no place for the states of "
                          "an optimizer",
                          target.traits().name))
      .hint("of the layouts, these have: " +
            layout_names([](const Layout& layout) { return layout.traits().writes_states(); }));
}

void validate_has_states(const SourceRequest& request, const Checkpoint& checkpoint) {
  if (!request.with_optimizer) return;
  if (checkpoint.layout == nullptr || !checkpoint.layout->traits().reads_states())
    throw Error(ErrorKind::kUsage, fmt::format("`with-optimizer`: {} is no checkpoint whose optimizer can be read",
                                               checkpoint.layout == nullptr
                                                   ? "a file of tensors"
                                                   : fmt::format("one in layout {}", checkpoint.layout->traits().name)))
        .in(checkpoint.path)
        .hint("it is for sources in layout " +
              layout_names([](const Layout& layout) { return layout.traits().reads_states(); }));
  if (checkpoint.states.empty())
    throw Error(ErrorKind::kBadInput, "holds a model, and nothing of an optimizer")
        .in(checkpoint.path)
        .hint("do without `with-optimizer`, or give the directory that holds both");
}

void validate_has_tensors(const Checkpoint& checkpoint) {
  if (checkpoint.map.tensor_count() > 0) return;
  const bool has_optimizer =
      !checkpoint.states.empty() || (checkpoint.beside_model && !checkpoint.beside_model->empty());
  if (!has_optimizer) throw Error(ErrorKind::kBadInput, "holds no tensors").in(checkpoint.path);
  const std::string& model = checkpoint.model_elsewhere.string();
  throw Error(ErrorKind::kBadInput, "holds states of a training run, such as an optimizer's, and no tensors of a model")
      .in(checkpoint.path)
      .hint(model.empty() ? "give the directory that holds the model"
                          : fmt::format("give the directory above, or the model's: {}", model));
}

void validate_names(const Checkpoint& checkpoint, const Layout& target) {
  if (checkpoint.names_of.empty() || target.traits().has_ranks()) return;  // these need a model, or take any names
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("its tensors have {}'s names, and only the model's config.json says what the model calls them",
                  checkpoint.names_of))
      .in(checkpoint.path)
      .hint(checkpoint.config.empty() ? "say with `config` where the model's config.json is"
                                      : hint_for_model(checkpoint));
}

void note_states_left(Checkpoint& checkpoint, const Layout& target) {
  if (checkpoint.leaves_states && target.traits().writes_states())
    checkpoint.notes.push_back(
        "training cannot go on from the model alone: `with-optimizer` takes its optimizer along");
}

void validate_outside(Files& files, const fs::path& output_directory, const Checkpoint& source) {
  if (!source.has_ranks()) return;
  const fs::path folder = files.resolve(source.path);
  const fs::path output = files.resolve(output_directory);
  const auto beside = source.layout->default_output(files, source.found());
  if (beside && output == folder && folder == files.resolve(*beside)) return;  // the ranks are in a folder below
  if (lies_inside(output, folder))
    throw Error(ErrorKind::kUsage, "the output directory is inside the shards folder")
        .in(output_directory)
        .hint("choose another output directory");
}

}  // namespace reshard
