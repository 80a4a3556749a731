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

/// Returns the names of the layouts that have this option for targets.
std::string layouts_with(const std::string& option) {
  return layout_names([&](const Layout& layout) {
    const auto options = layout.options();
    return std::any_of(options.begin(), options.end(),
                       [&](const LayoutOption* o) { return option == o->name && !o->only_of_source; });
  });
}

void validate_value(const OptionValues& values, const LayoutOption& option, const std::string& prefix) {
  if (option.type == LayoutOption::Type::kChoice)
    values.choice(option, prefix);
  else if (option.type != LayoutOption::Type::kFlag && option.type != LayoutOption::Type::kText)
    values.number(option, prefix);
}

void validate_options(const TargetRequest& request) {
  const auto options = request.layout->options();
  for (const std::string& name : request.options.names()) {
    const auto found = std::find_if(options.begin(), options.end(),
                                    [&](const LayoutOption* o) { return name == o->name && !o->only_of_source; });
    if (found == options.end()) {
      const std::string others = layouts_with(name);
      throw Error(ErrorKind::kUsage, fmt::format("layout {} has no option `{}`", request.layout->traits().name, name))
          .hint(others.empty() ? "" : fmt::format("layouts with `{}`: {}", name, others));
    }
    try {
      validate_value(request.options, **found, "");
    } catch (Error& error) {
      const bool is_of_source = std::any_of(options.begin(), options.end(), [&](const LayoutOption* o) {
        const std::string value = request.options.text(*o);
        return name == o->name && o->only_of_source &&
               std::find(o->choices.begin(), o->choices.end(), value) != o->choices.end();
      });
      if (is_of_source) error.hint(fmt::format("it applies to the source: `from-{}`", name));
      throw;
    }
  }
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

const Layout* layout_named(std::string_view name) {
  for (const Layout* layout : layouts())
    if (layout->traits().name == name) return layout;
  return nullptr;
}

namespace {

template <typename Wanted>
const Layout& only_layout(Wanted&& wanted) {
  for (const Layout* layout : layouts())
    if (wanted(layout->traits())) return *layout;
  throw Error(ErrorKind::kInternal, "the table of layouts lacks a layout that the program needs");
}

/// Returns the checkpoints that `path` may refer to, in layouts for which `wanted` is true. If several layouts match
/// one folder, returns the first match that is not empty.
template <typename Wanted>
std::vector<FoundLayout> find_all(Files& files, const fs::path& path, Wanted&& wanted) {
  std::vector<FoundLayout> all;
  for (const Layout* layout : layouts()) {
    if (!wanted(layout->traits())) continue;
    for (FoundLayout& found : layout->recognise(files, path)) {
      const auto known =
          std::find_if(all.begin(), all.end(), [&](const FoundLayout& other) { return other.path == found.path; });
      if (known == all.end())
        all.push_back(std::move(found));
      else if (known->is_empty && !found.is_empty)
        *known = std::move(found);
    }
  }
  return all;
}

}  // namespace

const Layout& whole_layout() {
  return only_layout([](const LayoutTraits& traits) { return !traits.has_ranks(); });
}

const Layout& default_rank_layout() {
  return only_layout([](const LayoutTraits& traits) { return traits.has_ranks(); });
}

const Layout& adapter_layout() {
  return only_layout([](const LayoutTraits& traits) { return traits.holds_adapters(); });
}

std::optional<FoundLayout> find_shards(Files& files, const fs::path& path) {
  if (!files.is_directory(path)) return std::nullopt;
  auto found = find_all(files, path, [](const LayoutTraits& traits) { return traits.has_ranks(); });
  if (std::any_of(found.begin(), found.end(), [](const FoundLayout& one) { return !one.is_empty; }))
    std::erase_if(found, [](const FoundLayout& one) { return one.is_empty; });
  if (found.size() > 1)
    throw Error(ErrorKind::kBadInput, fmt::format("contains two sharded checkpoints, {} and {}", found[0].path.string(),
                                                  found[1].path.string()))
        .in(path)
        .hint("give the folder of one of them");
  if (!found.empty()) return found.front();
  return std::nullopt;
}

std::optional<FoundLayout> find_whole(Files& files, const fs::path& path) {
  if (!files.is_directory(path)) return std::nullopt;
  const auto found = find_all(files, path, [](const LayoutTraits& traits) { return !traits.has_ranks(); });
  if (found.empty()) return std::nullopt;
  return found.front();
}

void validate_written(const CompiledModel& compiled) {
  for (const CompiledModel& one : compiled.joined) validate_written(one);
  if (compiled.unwritten.empty()) return;
  throw Error(ErrorKind::kUnsupported, fmt::format("has {}, which are not written", compiled.unwritten))
      .in(compiled.file)
      .hint("let NxD Inference shard these weights, or compile the model with another value of the setting");
}

CompiledModel complete_for(Files& files, const std::filesystem::path& path, TargetRequest& request, bool layout_given) {
  if (!files.exists(path)) throw Error(ErrorKind::kBadInput, "does not exist").in(path);
  const fs::path directory = files.is_directory(path) ? path : path.parent_path();
  for (const Layout* layout : layouts()) {
    const auto compiled = layout->compiled_model(files, directory);
    if (!compiled) continue;
    validate_written(*compiled);
    const auto refuse = [&](const std::string& name, const std::string& asked, const std::string& found) {
      std::string hint = fmt::format("leave out `{}`", name);
      for (const CompiledModel& one : compiled->joined)
        if (one.options.has(name) && !compiled->options.has(name))
          hint += fmt::format(": `{}` alone has it, and `for` takes its settings", one.role);
      throw Error(ErrorKind::kUsage,
                  fmt::format("`{}` {} contradicts the compiled model, which has {}", name, asked, found))
          .in(compiled->file)
          .hint(hint);
    };
    if (layout_given && request.layout != layout)
      refuse("layout", request.layout->traits().name, layout->traits().name);
    request.layout = layout;
    request.compiled = directory;
    if (request.tp && compiled->tp && *request.tp != *compiled->tp)
      refuse("tp", std::to_string(*request.tp), std::to_string(*compiled->tp));
    if (!request.tp) request.tp = compiled->tp;
    const auto options = layout->options();
    std::map<std::string, std::string> settings = compiled->options.all();
    for (const CompiledModel& one : compiled->joined)
      for (const LayoutOption* option : options) {
        if (one.role != option->role) continue;
        settings.erase(option->name);
        if (one.options.has(option->name)) settings[option->name] = one.options.all().at(option->name);
      }
    for (const std::string& name : request.options.names()) {
      const auto has_type = [&](LayoutOption::Type type) {
        return std::any_of(options.begin(), options.end(),
                           [&](const LayoutOption* option) { return name == option->name && option->type == type; });
      };
      const bool may_be_idle = std::any_of(options.begin(), options.end(), [&](const LayoutOption* option) {
        return name == option->name && option->why_idle != nullptr;
      });
      const auto needed = settings.find(name);
      const std::string asked = request.options.all().at(name);
      if (needed == settings.end() && !may_be_idle && !has_type(LayoutOption::Type::kRank))
        refuse(name, asked == "true" ? "(given)" : asked, "no such setting");
      if (has_type(LayoutOption::Type::kText) || needed == settings.end()) continue;  // one text in several spellings
      if (needed->second != asked) refuse(name, asked, needed->second);
      request.options.erase(name);  // may be of a further model alone
    }
    for (const auto& [name, value] : compiled->options.all())
      if (!request.options.has(name)) request.options.set(name, value);
    return *compiled;
  }
  throw Error(ErrorKind::kBadInput, "contains no compiled model that reshard knows")
      .in(directory)
      .hint("give the folder that contains neuron_config.json");
}

Format format_of(const TargetRequest& request) {
  const LayoutTraits& traits = request.layout->traits();
  if (!traits.is_written())
    throw Error(ErrorKind::kUsage, fmt::format("layout {} is read-only", traits.name))
        .hint("writable layouts: " + layout_names([](const Layout& layout) { return layout.traits().is_written(); }));
  const Format format = request.format.value_or(traits.formats.front());
  if (std::find(traits.formats.begin(), traits.formats.end(), format) != traits.formats.end()) return format;
  std::vector<std::string> names;
  for (const Format one : traits.formats) names.emplace_back(name(one));
  throw Error(ErrorKind::kUsage, fmt::format("layout {} does not support `format` {}", traits.name, name(format)))
      .hint(fmt::format("formats of layout {}: {}", traits.name, join(names, ", ")));
}

void validate_source_options(const OptionValues& values, const std::string& prefix) {
  for (const Layout* layout : layouts())
    for (const LayoutOption* option : layout->options())
      if (option->of_source && values.has(option->name)) validate_value(values, *option, prefix);
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

void validate_request(const TargetRequest& request) {
  const LayoutTraits& traits = request.layout->traits();
  const auto refuse = [&](const char* what, bool (LayoutTraits::*has)() const) {
    throw Error(ErrorKind::kUsage, fmt::format("layout {} has no {}", traits.name, what))
        .hint("layouts that have them: " + layout_names([&](const Layout& layout) {
                return (layout.traits().*has)() && layout.traits().is_written();
              }));
  };
  format_of(request);
  const bool stages = request.pp.value_or(1) != 1 || request.vpp != 1 || !request.pipeline_cuts.empty();
  if (stages && !traits.has_stages())
    refuse("pipeline stages (`pp`, `vpp`, `pipeline-cuts`)", &LayoutTraits::has_stages);
  if (request.ep.value_or(1) != 1 && !traits.has_experts())
    refuse("expert-parallel ranks (`ep`)", &LayoutTraits::has_experts);
  if (request.tp && !traits.has_ranks()) refuse("ranks (`tp`)", &LayoutTraits::has_ranks);
  validate_options(request);
}

}  // namespace reshard
