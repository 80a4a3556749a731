#include "reshard/layouts/core/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

Error value_error(const LayoutOption& option, const std::string& prefix, const std::string& value,
                  const std::string& expected) {
  return Error(ErrorKind::kUsage, fmt::format("`{}{}`: \"{}\" is {}", prefix, option.name, printable(value), expected));
}

}  // namespace

std::vector<std::string> OptionValues::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : values_) names.push_back(name);
  return names;
}

std::optional<std::uint64_t> OptionValues::number(const LayoutOption& option, const std::string& prefix) const {
  const auto found = values_.find(option.name);
  const std::string text = found != values_.end() ? found->second : option.default_value;
  if (text.empty() && found == values_.end()) return std::nullopt;
  if (option.type == LayoutOption::Type::kSize) {
    const auto bytes = parse_size(text);
    if (bytes) return bytes;
    throw value_error(option, prefix, text, "not a size")
        .hint("write a number with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)");
  }
  const bool count = option.type == LayoutOption::Type::kCount;
  const std::uint64_t max = count ? kMaxParallelDegree : kMaxParallelDegree - 1;
  const auto value = parse_unsigned(text, max);
  if (value && (!count || *value != 0)) return value;
  throw value_error(option, prefix, text,
                    count ? fmt::format("not a whole number from 1 to {}", max) : "not a rank number");
}

std::string OptionValues::text(const LayoutOption& option) const {
  const auto found = values_.find(option.name);
  return found == values_.end() ? option.default_value : found->second;
}

std::string OptionValues::choice(const LayoutOption& option, const std::string& prefix) const {
  const auto found = values_.find(option.name);
  if (found == values_.end()) return option.choices.front();
  for (const char* choice : option.choices)
    if (found->second == choice) return choice;
  throw value_error(option, prefix, found->second, fmt::format("not one of {}", fmt::join(option.choices, ", ")));
}

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

std::vector<std::string> idle_option_notes(const TargetRequest& request, const Model& model, const TargetPlan& plan) {
  std::vector<std::string> notes;
  for (const LayoutOption* option : request.layout->options()) {
    if (option->why_idle == nullptr || !request.options.has(option->name)) continue;
    if (*option->default_value != '\0' && request.options.text(*option) == option->default_value) continue;
    const std::string why = option->why_idle(plan, model);
    if (!why.empty()) notes.push_back(fmt::format("`{}` has no effect: {}", option->name, why));
  }
  return notes;
}

}  // namespace reshard
