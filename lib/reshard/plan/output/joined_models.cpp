// Several models in the same files: the target of a speculation and its draft.
#include "reshard/plan/output/joined_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/specs/family/expression.h"

namespace reshard {
namespace {

std::string prefix_of(const std::string& role) {
  return role + ".";
}

bool has_role(const Layout& layout, const std::string& role) {
  return layout.joined_roles().count(role) > 0;
}

}  // namespace

void complete_joined(Request& request, const CompiledModel& compiled) {
  for (const CompiledModel& needed : compiled.joined) {
    const auto model = std::find_if(request.joined.begin(), request.joined.end(),
                                    [&](const JoinedModel& one) { return one.role == needed.role; });
    if (model == request.joined.end())
      throw Error(ErrorKind::kUsage, fmt::format("the compiled model also loads weights of `{}`", needed.role))
          .in(compiled.file)
          .hint(fmt::format("set `{}` to their path", needed.role));
    if (!model->source.family) model->source.family = needed.family;
    model->options = needed.options;
    for (const LayoutOption* option : request.target.layout->options())  // both have the ranks of the request
      if (option->type == LayoutOption::Type::kRank && request.target.options.has(option->name))
        model->options->set(option->name, request.target.options.all().at(option->name));
    model->dtype = needed.dtype;
  }
  for (const JoinedModel& model : request.joined)
    if (std::none_of(compiled.joined.begin(), compiled.joined.end(),
                     [&](const CompiledModel& needed) { return needed.role == model.role; }))
      throw Error(ErrorKind::kUsage, fmt::format("`{}` has no place in the compiled model", model.role))
          .in(compiled.file)
          .hint(fmt::format("leave out `{}`, or give a model that was compiled with it", model.role));
}

void take_roles(Request& request) {
  const Layout& layout = *request.target.layout;
  for (const JoinedModel& model : request.joined) {
    if (has_role(layout, model.role)) continue;
    const std::string able = layout_names([&](const Layout& one) { return has_role(one, model.role); });
    throw Error(ErrorKind::kUsage,
                fmt::format("`{}` has no place in the files of layout {}", model.role, layout.traits().name))
        .hint(fmt::format("shard it by itself, or choose layout {}", able));
  }
  std::set<std::string> roles;  // that the model itself may have
  for (const JoinedModel& model : request.joined) roles.insert(layout.joined_roles().at(model.role));
  if (roles.size() > 1)
    throw Error(ErrorKind::kUsage, fmt::format("`{}` and `{}` do not apply to the same files",
                                               request.joined.front().role, request.joined.back().role))
        .hint("leave out one of the two");
  if (!roles.empty()) request.target.role = *roles.begin();
}

Request request_for(const Request& request, const JoinedModel& model) {
  Request one = request;
  one.joined.clear();
  one.adapters = model.adapters;
  if (model.adapters.empty()) one.source = model.source;
  one.target.role = model.role;
  if (model.options) one.target.options = *model.options;
  if (model.dtype) one.dtype = model.dtype;
  one.names = {};
  return one;
}

void validate_same_sizes(const JoinedModel& model, const Draft& joined, const Draft& base) {
  if (model.options || !joined.model || !base.model) return;
  if (joined.model->config == nullptr || base.model->config == nullptr) return;
  const auto size_in = [](const Model& of, const char* key) -> std::optional<std::uint64_t> {
    const Json* value = find_key(*of.config, key);
    if (value == nullptr) value = find_key(*of.family->defaults, key);
    if (value != nullptr && value->is_string()) value = find_key(*of.config, value->get<std::string>());
    return value != nullptr && value->is_number_unsigned() ? std::optional(value->get<std::uint64_t>()) : std::nullopt;
  };
  constexpr const char* kTargetHidden = "target_hidden_size";  // its default is another key
  for (const auto& [own_key, key] : {std::pair("vocab_size", "vocab_size"), std::pair(kTargetHidden, "hidden_size")}) {
    const auto own = size_in(*joined.model, own_key), needed = size_in(*base.model, key);
    if (!own || !needed || *own == *needed) continue;
    throw Error(ErrorKind::kBadInput, fmt::format("belongs to another model: its {} is {}, but the {} of {} is {}",
                                                  own_key, *own, key, base.source.directory.string(), *needed))
        .in(joined.source.directory)
        .hint(fmt::format("give the {0} that belongs to the model; if both were compiled together, set `for` to the "
                          "directory of the compiled model",
                          model.role));
  }
}

void join_plans(TargetPlan& plan, std::vector<TargetPlan> joined) {
  for (TargetPlan& one : joined) {
    std::map<const OriginalShapes*, std::shared_ptr<const OriginalShapes>> renamed;  // shared by the ranks
    for (TargetFile& file : one.map.files) {
      if (!file.record) continue;
      std::shared_ptr<const OriginalShapes>& originals = renamed[file.record->originals.get()];
      if (!originals) {
        OriginalShapes shapes;
        for (const auto& [name, shape] : *file.record->originals) shapes.emplace(prefix_of(one.role) + name, shape);
        originals = std::make_shared<const OriginalShapes>(std::move(shapes));
      }
      file.record->originals = originals;
    }
    plan.map.append(std::move(one.map), prefix_of(one.role));
  }
  if (!joined.empty()) merge_files(plan.map);
  plan.joined = std::move(joined);
}

void join_draft(Draft& draft, Draft model, const std::string& role) {
  const std::string prefix = prefix_of(role);
  draft.source.map.append(std::move(model.source.map), prefix);
  for (const std::string& name : model.dropped) draft.dropped.push_back(prefix + name);
  model.source.notes.remove(draft.source.notes);
  for (Note note : model.source.notes) {
    note.text = role + ": " + note.text;
    for (std::string& tensor : note.tensors) tensor.insert(0, prefix);
    draft.source.notes.add(std::move(note));
  }
}

}  // namespace reshard
