// The table of layouts: one declaration and one list entry per layout.
#include "reshard/layouts/layout_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/hf/hf.h"

namespace reshard {

const Layout& ranks_layout();
const Layout& optimum_layout();
const Layout& nxd_layout();
const Layout& presharded_layout();
const Layout& nxdi_layout();
const Layout& vllm_layout();
const Layout& deepspeed_layout();
const Layout& dcp_layout();
const Layout& fsdp_ranks_layout();
const Layout& megatron_ranks_layout();

// If two layouts use the same file names, the more specific layout comes first.
std::span<const Layout* const> layouts() {
  static const Layout* const kLayouts[] = {
      &hf_layout(),   &ranks_layout(),      &optimum_layout(),        &nxd_layout(),
      &nxdi_layout(), &presharded_layout(), &vllm_layout(),           &deepspeed_layout(),
      &dcp_layout(),  &fsdp_ranks_layout(), &megatron_ranks_layout(),
  };
  return kLayouts;
}

namespace {

namespace fs = std::filesystem;

template <typename Wanted>
const Layout& only_layout(Wanted&& wanted) {
  for (const Layout* layout : layouts())
    if (wanted(layout->traits())) return *layout;
  throw Error(ErrorKind::kInternal, "the table of layouts lacks a layout that the program needs");
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

/// \throws Error kUsage if the layout does not support the requested format, or is read-only.
void validate_format(const TargetRequest& request) {
  const LayoutTraits& traits = request.layout->traits();
  if (!traits.is_written())
    throw Error(ErrorKind::kUsage, fmt::format("layout {} is read-only", traits.name))
        .hint("writable layouts: " + layout_names([](const Layout& layout) { return layout.traits().is_written(); }));
  const Format format = format_of(request);
  if (std::find(traits.formats.begin(), traits.formats.end(), format) != traits.formats.end()) return;
  std::vector<std::string> names;
  for (const Format one : traits.formats) names.emplace_back(name(one));
  throw Error(ErrorKind::kUsage, fmt::format("layout {} does not support `format` {}", traits.name, name(format)))
      .hint(fmt::format("formats of layout {}: {}", traits.name, join(names, ", ")));
}

}  // namespace

const Layout* layout_named(std::string_view name) {
  for (const Layout* layout : layouts())
    if (layout->traits().name == name) return layout;
  return nullptr;
}

const Layout& whole_layout() {
  return only_layout([](const LayoutTraits& traits) { return !traits.has_ranks(); });
}

const Layout& default_rank_layout() {
  return only_layout([](const LayoutTraits& traits) { return traits.has_ranks(); });
}

const Layout& adapter_layout() {
  return only_layout([](const LayoutTraits& traits) { return traits.holds_adapters(); });
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

void validate_source_options(const OptionValues& values, const std::string& prefix) {
  for (const Layout* layout : layouts())
    for (const LayoutOption* option : layout->options())
      if (option->of_source && values.has(option->name)) validate_value(values, *option, prefix);
}

void validate_request(const TargetRequest& request) {
  const LayoutTraits& traits = request.layout->traits();
  const auto refuse = [&](const char* what, bool (LayoutTraits::*has)() const) {
    throw Error(ErrorKind::kUsage, fmt::format("layout {} has no {}", traits.name, what))
        .hint("layouts that have them: " + layout_names([&](const Layout& layout) {
                return (layout.traits().*has)() && layout.traits().is_written();
              }));
  };
  validate_format(request);
  const bool stages = request.pp.value_or(1) != 1 || request.vpp != 1 || !request.pipeline_cuts.empty();
  if (stages && !traits.has_stages())
    refuse("pipeline stages (`pp`, `vpp`, `pipeline-cuts`)", &LayoutTraits::has_stages);
  if (request.ep.value_or(1) != 1 && !traits.has_experts())
    refuse("expert-parallel ranks (`ep`)", &LayoutTraits::has_experts);
  if (request.tp && !traits.has_ranks()) refuse("ranks (`tp`)", &LayoutTraits::has_ranks);
  validate_options(request);
}

}  // namespace reshard
