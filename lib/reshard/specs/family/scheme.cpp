#include "reshard/specs/family/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family/builtin_files.h"
#include "reshard/specs/family/scheme_parser.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxVersions = 64;  // each repeats the names of all entries; built-in schemes have at most 8

/// Replaces kAnyParts in the names of an entry by `parts`.
SchemeEntry with_parts(SchemeEntry entry, const std::string& parts) {
  const auto expand = [&](std::string& name) {
    if (begins_with_any(name)) name.replace(0, kAnyParts.size(), parts);
  };
  for (auto* names : {&entry.names, &entry.parameters}) std::for_each(names->begin(), names->end(), expand);
  for (SchemeEntry::Constant& constant : entry.constants)
    std::for_each(constant.names.begin(), constant.names.end(), expand);
  for (SchemeEntry& copy : entry.copies) copy = with_parts(std::move(copy), parts);
  return entry;
}

/// Removes `prefix` from the names of an entry.
void remove_prefix(SchemeEntry& entry, const std::string& prefix) {
  const auto remove = [&](std::vector<std::string>& names) {
    for (std::string& name : names)
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
  };
  remove(entry.names);
  for (SchemeEntry::Constant& constant : entry.constants) remove(constant.names);
  for (SchemeEntry& copy : entry.copies) remove_prefix(copy, prefix);
}

/// Whether two entries of whole tensors may be those of other layers, or of other models.
bool may_be_apart(const SchemeEntry& a, const SchemeEntry& b) {
  const auto is_conditional = [](const SchemeEntry& entry) { return entry.when || entry.first_layer; };
  return is_conditional(a) || is_conditional(b);
}

/// Returns the entry without what `settings` rule out; std::nullopt if they rule out the entry.
std::optional<SchemeEntry> with_settings(SchemeEntry entry, const Expression::Lookup& settings) {
  const auto is_off = [&](const auto& one) { return one.when && !one.when.holds(settings); };
  if (is_off(entry)) return std::nullopt;
  if (entry.multiple_of) entry.ranks.multiple = entry.multiple_of.size(settings);
  std::erase_if(entry.constants, is_off);
  std::vector<SchemeEntry> copies = std::exchange(entry.copies, {});
  for (SchemeEntry& copy : copies)
    if (auto own = with_settings(std::move(copy), settings)) entry.copies.push_back(std::move(*own));
  return entry;
}

}  // namespace

Scheme scheme_for(const Scheme& scheme, const std::string& model_type,
                  const std::set<std::string, std::less<>>& parameters, const Expression::Lookup& settings) {
  const auto is_for_type = [&](const auto& one) {
    return one.families.empty() ||
           std::find(one.families.begin(), one.families.end(), model_type) != one.families.end();
  };
  const auto has_parameters = [&](const SchemeEntry& entry, const std::string& parts) {
    return std::all_of(entry.parameters.begin(), entry.parameters.end(), [&](const std::string& parameter) {
      return parameters.count(begins_with_any(parameter) ? parts + parameter.substr(kAnyParts.size()) : parameter) > 0;
    });
  };
  Scheme own = scheme;
  own.entries.clear();
  std::erase_if(own.refusals, [&](const Scheme::Refusal& refusal) { return !is_for_type(refusal); });
  for (auto* altered : {&own.float32, &own.factors})
    std::erase_if(*altered, [&](const Scheme::Altered& one) { return !is_for_type(one); });
  std::map<std::string, const SchemeEntry*, std::less<>> by_name, by_parameter;
  std::set<std::string, std::less<>> taken;  // parameters of own.entries
  const auto take = [&](SchemeEntry entry) {
    const bool is_for_all = scheme.is_of_ranks || (!entry.when && !entry.first_layer);  // and not for some layers
    if (is_for_all) taken.insert(entry.parameters.begin(), entry.parameters.end());
    own.entries.push_back(std::move(entry));
  };
  const Expression::Lookup defined = [&](const std::string& key) {
    const auto definition = scheme.definitions.find(key);
    return definition == scheme.definitions.end() ? settings(key) : definition->second.value(settings);
  };
  for (const SchemeEntry& listed : scheme.entries) {
    if (!is_for_type(listed)) continue;
    auto entry = scheme.is_of_ranks ? with_settings(listed, defined) : std::optional(listed);
    if (!entry) continue;
    entry->families.clear();  // not repeated by the instances of a rule
    if (!is_rule(*entry)) {
      if (has_parameters(*entry, {})) take(std::move(*entry));
      continue;
    }
    const std::string_view end = std::string_view(entry->parameters.front()).substr(kAnyParts.size());
    for (const std::string& parameter : parameters) {
      if (!parameter.ends_with(end) || taken.count(parameter) > 0) continue;  // the first rule takes precedence
      const std::string parts = parameter.substr(0, parameter.size() - end.size());
      if (has_parameters(*entry, parts)) take(with_parts(*entry, parts));
    }
  }
  const auto add = [&](auto& entries, const std::string& name, const SchemeEntry& entry) {
    const auto [other, is_new] = entries.emplace(name, &entry);
    if (!is_new && other->second != &entry &&
        (scheme.is_of_ranks || &entries == &by_name || !may_be_apart(*other->second, entry)))
      throw Error(ErrorKind::kBadInput, fmt::format("{}: {} is in another entry already ({})", entry.where,
                                                    printable(name), other->second->where));
  };
  for (const SchemeEntry& entry : own.entries) {
    for (const std::string& parameter : entry.parameters) add(by_parameter, parameter, entry);
    for (const std::string& name : entry.names)
      if (!name.empty()) add(by_name, name, entry);
  }
  std::set<std::string> others;
  for (const std::string& parameter : parameters)
    if (scheme.keeps_others && by_parameter.count(parameter) == 0) others.insert(with_stars(parameter));
  for (const std::string& parameter : others) {
    SchemeEntry& entry = own.entries.emplace_back();
    entry.names = entry.parameters = {parameter};
  }
  for (SchemeEntry& entry : own.entries) remove_prefix(entry, scheme.prefix);
  return own;
}

Scheme parse_scheme(const JsonObject& object) {
  object.validate_keys({"program", "versions", "families", "of_ranks", "keeps_others", "prefix", "options", "models",
                        "wrapper", "left_out", "states", "entries", "refusals", "float32", "factors", "define"});
  Scheme scheme;
  scheme.program = object.string_at("program");
  if (scheme.program.empty()) object.fail("program", "a name");
  if (object.has("versions")) scheme.versions = object.strings_at("versions");
  if (scheme.versions.size() > kMaxVersions)
    object.fail("versions", fmt::format("at most {} items instead of {}", kMaxVersions, scheme.versions.size()));
  if (std::set<std::string>(scheme.versions.begin(), scheme.versions.end()).size() != scheme.versions.size())
    object.fail("versions", "labels that differ");
  if (object.has("families")) scheme.families = object.strings_at("families");
  if (object.has("options")) scheme.options = object.strings_at("options");
  scheme.is_of_ranks = object.has("of_ranks") && object.bool_at("of_ranks");
  scheme.keeps_others = object.has("keeps_others") && object.bool_at("keeps_others");
  if (object.has("prefix")) scheme.prefix = object.string_at("prefix");
  if (object.has("models")) {
    const JsonObject models = object.object_at("models");
    for (const auto& item : models.items()) scheme.models.emplace(item.key(), models.string_at(item.key()));
  }
  if (object.has("wrapper")) scheme.wrapper = object.string_at("wrapper");
  if (object.has("left_out")) scheme.left_out = object.strings_at("left_out");
  if (object.has("states")) {
    constexpr std::string_view kEnd = "{state}.{entry}";
    const std::string& form = object.string_at("states");
    const std::string words = form.substr(0, form.size() - std::min(form.size(), kEnd.size()));
    const bool are_words = words.size() > 1 && words.ends_with('.') && !words.starts_with('.') &&
                           words.find("..") == words.npos && words.find_first_of("*{}") == words.npos;
    if (!form.ends_with(kEnd) || !are_words)
      object.fail("states", "words and behind them {state}.{entry}, such as \"optimizer.state.{state}.{entry}\"");
    scheme.before_state = words;
  }
  scheme.entries = parse_entries(object, "entries", scheme.versions, scheme.is_of_ranks);
  if (object.has("define") && !scheme.is_of_ranks) object.fail("define", "no such key: \"when\" has the family's own");
  if (object.has("define")) {
    const JsonObject definitions = object.object_at("define");
    for (const auto& item : definitions.items())
      scheme.definitions.emplace(item.key(), expression_at(definitions, item.key()));
  }
  for (const auto& [key, altered] : {std::pair("float32", &scheme.float32), std::pair("factors", &scheme.factors)})
    for (const JsonObject& one : object.has(key) ? object.objects_at(key) : std::vector<JsonObject>())
      altered->push_back({one.strings_at("parameters"), one.strings_at("families"),
                          one.has("factor") ? one.string_at("factor") : "",
                          one.has("kernel") ? one.string_at("kernel") : ""});
  if (!object.has("refusals")) return scheme;
  for (const JsonObject& refusal : object.objects_at("refusals")) {
    refusal.validate_keys({"parameter", "families", "when", "reason", "hint"});
    scheme.refusals.push_back({refusal.string_at("parameter"),
                               refusal.has("families") ? refusal.strings_at("families") : std::vector<std::string>(),
                               refusal.has("when") ? expression_at(refusal, "when") : Expression(),
                               refusal.string_at("reason"),
                               refusal.has("hint") ? refusal.string_at("hint") : std::string()});
  }
  return scheme;
}

const std::vector<std::shared_ptr<const Scheme>>& builtin_schemes() {
  static const std::vector<std::shared_ptr<const Scheme>> kSchemes = [] {
    std::vector<std::shared_ptr<const Scheme>> schemes;
    for (const BuiltinFile& file : kBuiltinSchemes) {
      const std::filesystem::path path = std::filesystem::path("built-in scheme") / file.name;
      const LocatedJson located = parse_located_json(std::string(file.json), path);
      const JsonFile description{path, [&](const std::string& pointer) { return located.places.line_of(pointer); }};
      schemes.push_back(std::make_shared<const Scheme>(parse_scheme(JsonObject(located.json, description))));
    }
    return schemes;
  }();
  return kSchemes;
}

}  // namespace reshard
