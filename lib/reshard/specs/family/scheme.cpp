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

constexpr std::string_view kArrow = " -> ";

// Caps on what a description multiplies, so that its cost stays in proportion to its size: a copy repeats its entry, a
// version each name, and a rule is compared with every parameter. Built-in schemes have at most 2 copies and 4 values
// of an entry, 8 versions and 28 rules.
constexpr std::size_t kMaxListed = 16;  // copies, values, parameters, heads or changes of an entry
constexpr std::size_t kMaxVersions = 64;
constexpr std::size_t kMaxRules = 512;
constexpr std::size_t kMaxNameBytes = 512;

/// \throws Error kBadInput if the array or object `key` has more than `most` items.
void validate_count(const JsonObject& object, const std::string& key, std::size_t most) {
  if (object.has(key) && object.at(key).is_structured() && object.at(key).size() > most)
    object.fail(key, fmt::format("at most {} items instead of {}", most, object.at(key).size()));
}

/// Returns the dim that contains an axis; the number of dims if there is no such dim.
std::size_t dim_with(const DimAxes& dims, const std::string& axis) {
  const auto dim = std::find_if(dims.begin(), dims.end(), [&](const std::vector<std::string>& axes) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  });
  return static_cast<std::size_t>(dim - dims.begin());
}

bool has_axis(const DimAxes& dims, const std::string& axis) {
  return dim_with(dims, axis) < dims.size();
}

/// Prefix of names that matches any parts, the same in all names of an entry.
constexpr std::string_view kAnyParts = "**";

bool begins_with_any(const std::string& name) {
  return name.starts_with(kAnyParts);
}

/// Whether an entry is for every parameter whose name ends like its first.
bool is_rule(const Scheme::Entry& entry) {
  return !entry.parameters.empty() && begins_with_any(entry.parameters.front());
}

/// Returns the number of stars in a name, except those of kAnyParts.
std::size_t stars(const std::string& name) {
  const auto begin = name.begin() + static_cast<std::ptrdiff_t>(begins_with_any(name) ? kAnyParts.size() : 0);
  return static_cast<std::size_t>(std::count(begin, name.end(), '*'));
}

/// Replaces kAnyParts in the names of an entry by `parts`.
Scheme::Entry with_parts(Scheme::Entry entry, const std::string& parts) {
  const auto expand = [&](std::string& name) {
    if (begins_with_any(name)) name.replace(0, kAnyParts.size(), parts);
  };
  for (auto* names : {&entry.names, &entry.parameters}) std::for_each(names->begin(), names->end(), expand);
  for (Scheme::Constant& constant : entry.constants)
    std::for_each(constant.names.begin(), constant.names.end(), expand);
  for (Scheme::Entry& copy : entry.copies) copy = with_parts(std::move(copy), parts);
  return entry;
}

/// Removes `prefix` from the names of an entry.
void remove_prefix(Scheme::Entry& entry, const std::string& prefix) {
  const auto remove = [&](std::vector<std::string>& names) {
    for (std::string& name : names)
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
  };
  remove(entry.names);
  for (Scheme::Constant& constant : entry.constants) remove(constant.names);
  for (Scheme::Entry& copy : entry.copies) remove_prefix(copy, prefix);
}

/// Whether two entries of whole tensors may be those of other layers, or of other models.
bool may_be_apart(const Scheme::Entry& a, const Scheme::Entry& b) {
  const auto is_conditional = [](const Scheme::Entry& entry) { return entry.when || entry.first_layer; };
  return is_conditional(a) || is_conditional(b);
}

/// Returns the entry without what `settings` rule out; std::nullopt if they rule out the entry.
std::optional<Scheme::Entry> with_settings(Scheme::Entry entry, const Expression::Lookup& settings) {
  const auto is_off = [&](const auto& one) { return one.when && !one.when.holds(settings); };
  if (is_off(entry)) return std::nullopt;
  if (entry.multiple_of) entry.multiple = entry.multiple_of.size(settings);
  std::erase_if(entry.constants, is_off);
  std::erase_if(entry.copies, is_off);
  for (Scheme::Entry& copy : entry.copies) std::erase_if(copy.constants, is_off);
  return entry;
}

/// A word of a description and its meaning.
template <typename Value>
struct SchemeWord {
  const char* word;
  Value value;
};
constexpr SchemeWord<Scheme::Constant::Value> kValueWords[] = {
    {"one", Scheme::Constant::Value::kOne},   {"expert_map", Scheme::Constant::Value::kExpertMap},
    {"rank", Scheme::Constant::Value::kRank}, {"local_experts", Scheme::Constant::Value::kLocalExperts},
    {"mask", Scheme::Constant::Value::kMask}, {"mask_part", Scheme::Constant::Value::kMaskPart},
};
constexpr SchemeWord<Scheme::Heads> kHeadWords[] = {
    {"query", Scheme::Heads::kQuery},
    {"key", Scheme::Heads::kKey},
    {"value", Scheme::Heads::kValue},
};

template <typename Value, std::size_t kCount>
Value meaning_of(const SchemeWord<Value> (&words)[kCount], const std::string& word, const JsonObject& object,
                 const std::string& key) {
  std::vector<std::string> known;
  for (const auto& one : words) {
    if (word == one.word) return one.value;
    known.push_back(fmt::format("\"{}\"", one.word));
  }
  object.fail(key, join(known, ", "));
}

/// Parses "[FIRST::STEP] + NUMBER / parts as ORDER", in which each of the four may be missing.
std::optional<Scheme::Change> parse_change(const std::string& text) {
  constexpr std::string_view kAs = "as ";
  const std::size_t as = text.starts_with(kAs) ? 0 : text.find(" as ") + 1;  // 0 also if the text has no " as "
  const bool has_order = text.substr(as).starts_with(kAs);
  Scheme::Change parsed{text, {}, has_order ? AxisOrder::parse(text.substr(as + kAs.size())) : std::nullopt};
  if (has_order && !parsed.order) return std::nullopt;
  ValueChange& change = parsed.values;
  const std::vector<std::string> words = split(has_order ? text.substr(0, as == 0 ? 0 : as - 1) : text, ' ');
  std::size_t at = 0;
  const auto word = [&] { return at < words.size() ? std::string_view(words[at]) : std::string_view(); };
  const auto number = [](std::string_view digits) { return parse_unsigned(digits, UINT16_MAX).value_or(0); };
  if (const std::size_t middle = word().find("::");
      middle != std::string_view::npos && word().starts_with('[') && word().ends_with(']')) {
    change.first = parse_unsigned(word().substr(1, middle - 1)).value_or(UINT64_MAX);
    change.step = number(word().substr(middle + 2, word().size() - middle - 3));
    if (change.first >= change.step) return std::nullopt;
    ++at;
  }
  if (word() == "+") {
    ++at;
    change.plus = number(word());
    if (change.plus == 0) return std::nullopt;
    ++at;
  }
  if (word() == "/") {
    ++at;
    if (word() != "parts") return std::nullopt;
    change.divisor = 0;
    ++at;
  }
  const bool is_read = at == words.size() || (has_order && as == 0);
  return is_read ? std::optional(parsed) : std::nullopt;
}

/// Reads the entries of a scheme.
class EntryReader {
 public:
  /// \param for_ranks  whether the scheme is one for ranks.
  EntryReader(const JsonObject& object, const std::vector<std::string>& versions, bool for_ranks)
      : object_(object), versions_(versions), for_ranks_(for_ranks) {
    std::vector<std::string> keys = {"entry",    "parameters", "dims",    "sizes",   "padded",
                                     "families", "when",       "changes", "multiple"};
    if (for_ranks)
      keys.insert(keys.end(), {"values", "heads", "split", "share", "kernel", "copies"});
    else
      keys.emplace_back("first");
    object.validate_keys(keys);
    for (const char* key : {"parameters", "values", "heads", "changes", "copies"})
      validate_count(object, key, kMaxListed);
  }

  Scheme::Entry read() && {
    entry_.where = fmt::format("{}: line {}", object_.file().path.string(), object_.file().line(object_.pointer()));
    entry_.names = names_at(object_);
    if (object_.has("parameters")) entry_.parameters = texts_at(object_, "parameters");
    if (object_.has("parameters") ? entry_.parameters.empty() : object_.has("dims"))
      object_.fail(object_.has("parameters") ? "parameters" : "dims", "the name of a parameter, or no such key");
    if (object_.has("families")) entry_.families = object_.strings_at("families");
    if (object_.has("values")) read_constants();
    if (object_.has("when")) entry_.when = expression_at(object_, "when");
    if (for_ranks_) read_shares();
    if (object_.has("dims")) read_dims();
    if (object_.has("changes")) read_changes();
    if (object_.has("first")) read_first();
    if (object_.has("padded")) entry_.is_padded = object_.bool_at("padded");
    if (entry_.is_padded && entry_.joined.empty() && !for_ranks_)
      object_.fail("padded", "\"dims\" with an axis marked by \"+\"");
    if (object_.has("multiple")) read_multiple();
    if (entry_.parameters.size() > 1 && entry_.joined.empty())
      object_.fail("parameters",
                   "one name, or \"dims\" with an axis marked by \"+\", along which they follow each other");
    if (object_.has("sizes")) read_sizes();
    validate_sizes();
    validate_stars();
    return std::move(entry_);
  }

 private:
  static std::vector<std::string> texts_at(const JsonObject& object, const std::string& key) {
    return object.at(key).is_string() ? std::vector{object.string_at(key)} : object.strings_at(key);
  }

  /// The names of an entry: "b", ["b", "a"], or {"main": "b", "0.2": "a"}, where a version that is not listed has the name of
  /// the next newer one that is. With null, it has no such entry.
  std::vector<std::string> names_at(const JsonObject& object) const {
    std::vector<std::string> names;
    if (object.at("entry").is_object()) {
      const JsonObject listed = object.object_at("entry");
      listed.validate_keys(versions_);
      std::string name;
      for (const std::string& version : versions_) {
        if (listed.has(version)) name = listed.at(version).is_null() ? std::string() : listed.string_at(version);
        names.push_back(name);
      }
    } else {
      names = texts_at(object, "entry");
    }
    if (names.empty() || (names.size() > 1 && names.size() != versions_.size()))
      object.fail("entry", "one name, or one for each of \"versions\"");
    if (std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.size() > kMaxNameBytes; }))
      object.fail("entry", fmt::format("names of at most {} bytes", kMaxNameBytes));
    return names;
  }

  void read_constants() {
    for (const Json& item : object_.array_at("values")) {
      const JsonObject constant = object_.child(item, "values", fmt::format("values/{}", entry_.constants.size()));
      constant.validate_keys({"entry", "value", "when"});
      entry_.constants.push_back({names_at(constant),
                                  meaning_of(kValueWords, constant.string_at("value"), constant, "value"),
                                  constant.has("when") ? expression_at(constant, "when") : Expression()});
    }
  }

  void read_multiple() {
    entry_.multiple_of = expression_at(object_, "multiple");
    if (for_ranks_) return;
    const std::vector<std::string> keys = entry_.multiple_of.keys();
    const bool has_others = std::any_of(keys.begin(), keys.end(), [](auto& key) { return key != kRanksKey; });
    if (!entry_.is_padded || has_others)
      object_.fail("multiple", fmt::format("numbers and {}, of an entry with \"padded\"", kRanksKey));
  }

  /// How ranks share the entry.
  void read_shares() {
    if (object_.has("heads"))
      for (const std::string& word : texts_at(object_, "heads"))
        entry_.heads.push_back(meaning_of(kHeadWords, word, object_, "heads"));
    if (entry_.heads.size() > 1 && entry_.parameters.size() > 1 && entry_.heads.size() != entry_.parameters.size())
      object_.fail("heads", "one word for each of \"parameters\"");
    if (object_.has("split")) entry_.split = static_cast<std::uint32_t>(object_.unsigned_at("split"));
    if (object_.has("share")) entry_.share = object_.string_at("share");
    if (object_.has("kernel")) entry_.kernel = object_.string_at("kernel");
    if (!object_.has("copies")) return;
    for (const Json& item : object_.array_at("copies")) {  // each has what this entry has, but for the keys it gives
      const std::string pointer = fmt::format("copies/{}", entry_.copies.size());
      Json copy = Json::object();
      for (const auto& own : object_.items())
        if (own.key() != "copies" && own.key() != "values" && own.key() != "families") copy[own.key()] = own.value();
      for (const auto& own : object_.child(item, "copies", pointer).items()) copy[own.key()] = own.value();
      entry_.copies.push_back(EntryReader(object_.child(copy, "copies", pointer), versions_, true).read());
    }
  }

  /// One text per parameter: "[1::2] + 1", "/ parts".
  void read_changes() {
    for (const std::string& text : texts_at(object_, "changes")) {
      const auto change = parse_change(text);
      const bool is_sum = change && !change->order && change->values.step == 1 && change->values.divisor == 1;
      if (!for_ranks_ && (!is_sum || entry_.is_plain())) object_.fail("changes", "texts such as \"+ 1\", and \"dims\"");
      if (!change || (object_.has("heads") && !change->order))
        object_.fail("changes",
                     "texts such as \"[1::2] + 1\", \"/ parts\" or \"as (a b:4) -> (b a)\", of which only the last "
                     "may have \"heads\"");
      entry_.changes.push_back(*change);
    }
    if (entry_.changes.size() != entry_.parameters.size())
      object_.fail("changes", "one text for each of \"parameters\"");
  }

  /// {"layer": "num_hidden_layers"}
  void read_first() {
    const std::string layer(kNumberAxes.front());
    const JsonObject first = object_.object_at("first");
    first.validate_keys({layer});
    const bool has_layer = !entry_.parameters.empty() && stars(entry_.parameters.front()) > 0 &&
                           !entry_.is_numbered(0, stars(entry_.parameters.front()));
    if (!has_layer || begins_with_any(entry_.parameters.front()))
      object_.fail("first",
                   fmt::format("parameters whose first number is the {}, which the entry's name has, too", layer));
    entry_.first_layer = expression_at(first, layer);
    const std::vector<std::string> keys = entry_.first_layer.keys();
    if (std::find(keys.begin(), keys.end(), layer) != keys.end()) first.fail(layer, "keys of config.json");
  }

  /// "(head half pair) in -> (head pair half) in"
  void read_dims() {
    const std::string& text = object_.string_at("dims");
    const std::size_t arrow = text.find(kArrow);
    if (arrow == text.npos)
      object_.fail("dims", "the dims of a parameter and those of the entry: \"row in -> expert row in\"");
    entry_.parameter_dims = axes_of(text.substr(0, arrow), false);
    entry_.entry_dims = axes_of(text.substr(arrow + kArrow.size()), true);
    for (const std::vector<std::string>& axes : entry_.parameter_dims)
      for (const std::string& axis : axes)
        if (!has_axis(entry_.entry_dims, axis))
          object_.fail("dims", fmt::format("the axis {} in the entry as well", axis));
    for (const std::vector<std::string>& axes : entry_.entry_dims)
      for (const std::string& axis : axes) {
        const bool is_own = !has_axis(entry_.parameter_dims, axis);
        if (is_own && (axes.size() > 1 || std::find(kNumberAxes.begin(), kNumberAxes.end(), axis) == kNumberAxes.end()))
          object_.fail("dims", fmt::format("an axis of parameters, {}, each a dim of its own, and not {}",
                                           fmt::join(kNumberAxes, " or "), axis));
        if (!is_own && dim_with(entry_.parameter_dims, axis) != dim_with(entry_.parameter_dims, axes.front()))
          object_.fail("dims", fmt::format("the axis {} in a dim of the entry without axes of other dims", axis));
      }
  }

  /// Validates that at most one axis per dim has an unknown size.
  void validate_sizes() const {
    for (const std::vector<std::string>& axes : entry_.parameter_dims) {
      const auto unknown = std::count_if(axes.begin(), axes.end(), [&](const std::string& axis) {
        const bool is_experts = for_ranks_ && axis == kNumberAxes.back();  // the model has their number
        return entry_.sizes.count(axis) == 0 && !is_experts;
      });
      if (unknown > 1)
        object_.fail("dims", fmt::format("\"sizes\" for all axes of ({}) but one", fmt::join(axes, " ")));
    }
  }

  /// \param marks  whether "+" may mark the axis along which the parameters are concatenated.
  DimAxes axes_of(const std::string& text, bool marks) {
    std::set<std::string> seen;
    const auto fail = [&] { object_.fail("dims", "names of axes, each once, with those of one dim in parentheses"); };
    auto dims = words_of_dims(text);
    if (!dims) fail();
    for (std::vector<std::string>& axes : *dims)
      for (std::string& word : axes) {
        if (word.starts_with('+')) {
          word.erase(0, 1);
          if (!marks || !entry_.joined.empty() || !has_axis(entry_.parameter_dims, word)) fail();
          entry_.joined = word;
        }
        const bool is_name = !word.empty() && std::all_of(word.begin(), word.end(),
                                                          [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
        if (!is_name || !seen.insert(word).second) fail();
      }
    return *dims;
  }

  void read_sizes() {
    const JsonObject sizes = object_.child(object_.at("sizes"), "sizes", "sizes");
    for (const auto& item : sizes.items()) {
      const std::string& axis = item.key();
      if (!has_axis(entry_.parameter_dims, axis) || axis == entry_.joined)
        throw object_.file().error(
            sizes.pointer_to(axis),
            fmt::format("\"sizes\" has {}, which is no axis of parameters, or the one that is marked",
                        printable(axis)));
      Expression size = expression_at(sizes, axis);
      for (const std::string& key : size.keys())
        if (std::find(kModelNumbers.begin(), kModelNumbers.end(), key) == kModelNumbers.end())
          sizes.fail(axis, fmt::format("numbers and {}", fmt::join(kModelNumbers, ", ")));
      entry_.sizes.emplace(axis, std::move(size));
    }
  }

  /// Validates that each number in a parameter's name is also in the entry's name, or is an index along one of its
  /// dims.
  void validate_stars() const {
    const std::size_t numbers = entry_.numbered_dims().size();
    const auto are_parts = [](const std::string& name) {
      const std::vector<std::string> parts = split(name, '.');
      return static_cast<std::size_t>(std::count(parts.begin(), parts.end(), "*")) == stars(name);
    };
    for (const std::string& parameter : entry_.parameters) {
      const bool begins = begins_with_any(parameter);
      for (const auto* names : {&entry_.names, &entry_.parameters})
        for (const std::string& name : *names)
          if (begins_with_any(name) != begins)
            object_.fail("entry", fmt::format("names that all begin with \"{}\", or none", kAnyParts));
      if (parameter.empty() || with_stars(parameter) != parameter)
        object_.fail("parameters", "names with \"*\" for each number");
      if (!are_parts(parameter) || stars(parameter) > kNumberAxes.size())
        object_.fail("parameters", "names with at most two stars, each alone between dots");
      if (stars(parameter) < numbers)
        object_.fail("dims", fmt::format("no axis that {} has no number for", printable(parameter)));
      for (const std::string& name : entry_.names)
        if (!name.empty() &&
            (!are_parts(name) || with_stars(name) != name || stars(name) + numbers != stars(parameter)))
          object_.fail("entry", fmt::format("a name with the numbers of {} that are not in \"dims\": \"*\" {} times",
                                            printable(parameter), stars(parameter) - numbers));
    }
  }

  const JsonObject& object_;
  const std::vector<std::string>& versions_;
  bool for_ranks_;
  Scheme::Entry entry_;
};

std::vector<Scheme::Entry> read_entries(const JsonObject& object, const std::string& key,
                                        const std::vector<std::string>& versions, bool for_ranks) {
  std::vector<Scheme::Entry> entries;
  for (const JsonObject& entry : object.objects_at(key))
    entries.push_back(EntryReader(entry, versions, for_ranks).read());
  const auto rules = std::count_if(entries.begin(), entries.end(), is_rule);
  if (rules > std::ptrdiff_t{kMaxRules})
    object.fail(key,
                fmt::format("at most {} entries that begin with \"{}\" instead of {}", kMaxRules, kAnyParts, rules));
  return entries;
}

}  // namespace

std::vector<std::size_t> Scheme::Entry::numbered_dims() const {
  std::vector<std::size_t> numbered;
  for (const std::string_view axis : kNumberAxes)
    if (const std::size_t dim = dim_with(entry_dims, std::string(axis));
        dim < entry_dims.size() && !has_axis(parameter_dims, std::string(axis)))
      numbered.push_back(dim);
  return numbered;
}

bool Scheme::Entry::is_numbered(std::size_t star, std::size_t stars) const {
  if (numbered_dims().empty()) return false;
  if (stars == 1) return true;
  const std::string axis(kNumberAxes.at(star));
  return has_axis(entry_dims, axis) && !has_axis(parameter_dims, axis);
}

bool names_match(const std::string& in_scheme, const std::string& name) {
  if (!begins_with_any(in_scheme)) return in_scheme == name;
  return name.ends_with(std::string_view(in_scheme).substr(kAnyParts.size()));
}

Scheme scheme_for(const Scheme& scheme, const std::string& model_type,
                  const std::set<std::string, std::less<>>& parameters, const Expression::Lookup& settings) {
  const auto is_for_type = [&](const auto& one) {
    return one.families.empty() ||
           std::find(one.families.begin(), one.families.end(), model_type) != one.families.end();
  };
  const auto has_parameters = [&](const Scheme::Entry& entry, const std::string& parts) {
    return std::all_of(entry.parameters.begin(), entry.parameters.end(), [&](const std::string& parameter) {
      return parameters.count(begins_with_any(parameter) ? parts + parameter.substr(kAnyParts.size()) : parameter) > 0;
    });
  };
  Scheme own = scheme;
  own.entries.clear();
  std::erase_if(own.refusals, [&](const Scheme::Refusal& refusal) { return !is_for_type(refusal); });
  for (auto* altered : {&own.float32, &own.factors})
    std::erase_if(*altered, [&](const Scheme::Altered& one) { return !is_for_type(one); });
  std::map<std::string, const Scheme::Entry*, std::less<>> by_name, by_parameter;
  std::set<std::string, std::less<>> taken;  // parameters of own.entries
  const auto take = [&](Scheme::Entry entry) {
    const bool is_for_all = scheme.is_of_ranks || (!entry.when && !entry.first_layer);  // and not for some layers
    if (is_for_all) taken.insert(entry.parameters.begin(), entry.parameters.end());
    own.entries.push_back(std::move(entry));
  };
  const Expression::Lookup defined = [&](const std::string& key) {
    const auto definition = scheme.definitions.find(key);
    return definition == scheme.definitions.end() ? settings(key) : definition->second.value(settings);
  };
  for (const Scheme::Entry& listed : scheme.entries) {
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
  const auto add = [&](auto& entries, const std::string& name, const Scheme::Entry& entry) {
    const auto [other, is_new] = entries.emplace(name, &entry);
    if (!is_new && other->second != &entry &&
        (scheme.is_of_ranks || &entries == &by_name || !may_be_apart(*other->second, entry)))
      throw Error(ErrorKind::kBadInput, fmt::format("{}: {} is in another entry already ({})", entry.where,
                                                    printable(name), other->second->where));
  };
  for (const Scheme::Entry& entry : own.entries) {
    for (const std::string& parameter : entry.parameters) add(by_parameter, parameter, entry);
    for (const std::string& name : entry.names)
      if (!name.empty()) add(by_name, name, entry);
  }
  std::set<std::string> others;
  for (const std::string& parameter : parameters)
    if (scheme.keeps_others && by_parameter.count(parameter) == 0) others.insert(with_stars(parameter));
  for (const std::string& parameter : others) {
    Scheme::Entry& entry = own.entries.emplace_back();
    entry.names = entry.parameters = {parameter};
  }
  for (Scheme::Entry& entry : own.entries) remove_prefix(entry, scheme.prefix);
  return own;
}

Scheme parse_scheme(const JsonObject& object) {
  object.validate_keys({"program", "versions", "families", "of_ranks", "keeps_others", "prefix", "options", "models",
                        "wrapper", "left_out", "states", "entries", "refusals", "float32", "factors", "define"});
  Scheme scheme;
  scheme.program = object.string_at("program");
  if (scheme.program.empty()) object.fail("program", "a name");
  validate_count(object, "versions", kMaxVersions);
  if (object.has("versions")) scheme.versions = object.strings_at("versions");
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
  scheme.entries = read_entries(object, "entries", scheme.versions, scheme.is_of_ranks);
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

std::vector<Scheme::Entry> parse_rank_entries(const JsonObject& object, const std::string& key) {
  return read_entries(object, key, {}, true);
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
