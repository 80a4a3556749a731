#include "reshard/layouts/core/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

}  // namespace

TargetPlan Layout::plan(const TargetRequest&, const TargetContext&) const {
  throw Error(ErrorKind::kInternal, fmt::format("layout {} is only read", traits().name));
}

void Layout::validate_beside(Files&, const TargetPlan&, const fs::path&) const {}

std::optional<fs::path> Layout::default_output(Files&, const FoundLayout& found) const {
  if (*traits().folder == '\0') return std::nullopt;
  return found.directory;
}

void validate_no_leftovers(Files& files, const TargetPlan& plan, const fs::path& directory,
                           const std::function<bool(const std::string&)>& is_ours, const std::string& what) {
  if (!files.is_directory(directory)) return;
  std::vector<std::string> leftover;
  for (const DirectoryEntry& entry : files.list(directory)) {
    const auto written = [&](const auto& file) { return file.path == entry.name; };
    const bool replaced = std::any_of(plan.map.files.begin(), plan.map.files.end(), written) ||
                          std::any_of(plan.text_files.begin(), plan.text_files.end(), written);
    if (is_ours(entry.name) && !replaced) leftover.push_back(entry.name);
  }
  if (leftover.empty()) return;
  std::sort(leftover.begin(), leftover.end(), natural_less);
  throw Error(ErrorKind::kBadInput,
              fmt::format("contains {} that would not be replaced, and that loaders would mix with the new files: {}",
                          what, list_names(leftover)))
      .in(directory)
      .hint("choose another output directory, or move them away");
}

void validate_written(const CompiledModel& compiled) {
  for (const CompiledModel& one : compiled.joined) validate_written(one);
  if (compiled.unwritten.empty()) return;
  throw Error(ErrorKind::kUnsupported, fmt::format("has {}, which are not written", compiled.unwritten))
      .in(compiled.file)
      .hint("let NxD Inference shard these weights, or compile the model with another value of the setting");
}

Format format_of(const TargetRequest& request) {
  return request.format.value_or(request.layout->traits().formats.front());
}

std::string why_padding_idle(const TargetPlan& plan, const Model&) {
  return plan.map.is_padded() ? "" : fmt::format("nothing needs padding for {} ranks", plan.mesh.tp);
}

Notes idle_option_notes(const TargetRequest& request, const Model& model, const TargetPlan& plan) {
  Notes notes;
  for (const LayoutOption* option : request.layout->options()) {
    if (option->why_idle == nullptr || !request.options.has(option->name)) continue;
    if (*option->default_value != '\0' && request.options.text(*option) == option->default_value) continue;
    const std::string why = option->why_idle(plan, model);
    if (!why.empty()) notes.no_effect(fmt::format("`{}` has no effect: {}", option->name, why));
  }
  return notes;
}

}  // namespace reshard
