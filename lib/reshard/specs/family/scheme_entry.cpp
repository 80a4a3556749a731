#include "reshard/specs/family/scheme_entry.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family/scheme_parser.h"

namespace reshard {
namespace {

constexpr std::string_view kArrow = " -> ";

// Caps on what a description multiplies, so that its cost stays in proportion to its size: a copy repeats its entry, a
// version each name, and a rule is compared with every parameter. Built-in schemes have at most 2 copies and 4 values
// of an entry, 8 versions and 28 rules.
constexpr std::size_t kMaxListed = 16;  // copies, values, parameters, heads or changes of an entry
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

/// Returns the number of stars in a name, except those of kAnyParts.
std::size_t stars(const std::string& name) {
  const auto begin = name.begin() + static_cast<std::ptrdiff_t>(begins_with_any(name) ? kAnyParts.size() : 0);
  return static_cast<std::size_t>(std::count(begin, name.end(), '*'));
}

/// A word of a description and its meaning.
template <typename Value>
struct SchemeWord {
  const char* word;
  Value value;
};
constexpr SchemeWord<SchemeEntry::Constant::Value> kValueWords[] = {
    {"one", SchemeEntry::Constant::Value::kOne},   {"expert_map", SchemeEntry::Constant::Value::kExpertMap},
    {"rank", SchemeEntry::Constant::Value::kRank}, {"local_experts", SchemeEntry::Constant::Value::kLocalExperts},
    {"mask", SchemeEntry::Constant::Value::kMask}, {"mask_part", SchemeEntry::Constant::Value::kMaskPart},
};
constexpr SchemeWord<SchemeEntry::Heads> kHeadWords[] = {
    {"query", SchemeEntry::Heads::kQuery},
    {"key", SchemeEntry::Heads::kKey},
    {"value", SchemeEntry::Heads::kValue},
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
std::optional<SchemeEntry::Change> parse_change(const std::string& text) {
  constexpr std::string_view kAs = "as ";
  const std::size_t as = text.starts_with(kAs) ? 0 : text.find(" as ") + 1;  // 0 also if the text has no " as "
  const bool has_order = text.substr(as).starts_with(kAs);
  SchemeEntry::Change parsed{text, {}, has_order ? AxisOrder::parse(text.substr(as + kAs.size())) : std::nullopt};
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

  SchemeEntry read() && {
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
        entry_.ranks.heads.push_back(meaning_of(kHeadWords, word, object_, "heads"));
    if (entry_.ranks.heads.size() > 1 && entry_.parameters.size() > 1 &&
        entry_.ranks.heads.size() != entry_.parameters.size())
      object_.fail("heads", "one word for each of \"parameters\"");
    if (object_.has("split")) entry_.ranks.dim = static_cast<std::uint32_t>(object_.unsigned_at("split"));
    if (object_.has("share")) entry_.ranks.share = object_.string_at("share");
    if (object_.has("kernel")) entry_.ranks.kernel = object_.string_at("kernel");
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
  SchemeEntry entry_;
};

}  // namespace

bool is_rule(const SchemeEntry& entry) {
  return !entry.parameters.empty() && begins_with_any(entry.parameters.front());
}

std::vector<std::size_t> SchemeEntry::numbered_dims() const {
  std::vector<std::size_t> numbered;
  for (const std::string_view axis : kNumberAxes)
    if (const std::size_t dim = dim_with(entry_dims, std::string(axis));
        dim < entry_dims.size() && !has_axis(parameter_dims, std::string(axis)))
      numbered.push_back(dim);
  return numbered;
}

bool SchemeEntry::is_numbered(std::size_t star, std::size_t stars) const {
  if (numbered_dims().empty()) return false;
  if (stars == 1) return true;
  const std::string axis(kNumberAxes.at(star));
  return has_axis(entry_dims, axis) && !has_axis(parameter_dims, axis);
}

bool names_match(const std::string& in_scheme, const std::string& name) {
  if (!begins_with_any(in_scheme)) return in_scheme == name;
  return name.ends_with(std::string_view(in_scheme).substr(kAnyParts.size()));
}

std::vector<SchemeEntry> parse_entries(const JsonObject& object, const std::string& key,
                                       const std::vector<std::string>& versions, bool for_ranks) {
  std::vector<SchemeEntry> entries;
  for (const JsonObject& entry : object.objects_at(key))
    entries.push_back(EntryReader(entry, versions, for_ranks).read());
  const auto rules = std::count_if(entries.begin(), entries.end(), is_rule);
  if (rules > std::ptrdiff_t{kMaxRules})
    object.fail(key,
                fmt::format("at most {} entries that begin with \"{}\" instead of {}", kMaxRules, kAnyParts, rules));
  return entries;
}

}  // namespace reshard
