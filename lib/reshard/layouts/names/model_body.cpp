#include "reshard/layouts/names/model_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/model/other_heads.h"

namespace reshard {
namespace {

/// Prefixes of names of a whole model, or of a part of a larger one, that do not occur under a model's "model.".
constexpr std::string_view kStartsOfWhole[] = {"model.", "lm_head."};

/// Whether only names of whole models begin like `name`: "model.layers", "language_model.lm_head".
bool starts_like_whole(std::string_view name) {
  for (std::size_t dot = 0; (dot = name.find('.')) != name.npos && is_one_of(name.substr(0, dot), kPartsOfLarger);)
    name.remove_prefix(dot + 1);
  return std::any_of(std::begin(kStartsOfWhole), std::end(kStartsOfWhole),
                     [&](std::string_view start) { return name.starts_with(start); });
}

/// Returns the module of a parameter's name; empty if it has none.
std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view() : name.substr(0, dot);
}

std::size_t dots_in(std::string_view name) {
  return static_cast<std::size_t>(std::count(name.begin(), name.end(), '.'));
}

/// The modules of a model, with stars for numbers.
class Modules {
 public:
  explicit Modules(const Names& known) {
    for (const std::string& name : known)
      if (const std::string_view module = module_of(name); !module.empty()) {
        names_.emplace(module);
        most_dots_ = std::max(most_dots_, dots_in(name));
      }
  }

  bool has_module_of(std::string_view name) const { return names_.count(with_stars(module_of(name))) > 0; }
  /// The largest number of dots in a parameter's name.
  std::size_t most_dots() const { return most_dots_; }

 private:
  Names names_;
  std::size_t most_dots_ = 0;
};

/// Returns the size of the prefix of `entry` if this is the beginning of `prefix`, and one of `modules` or another head
/// follows it.
std::optional<std::size_t> begin_outside(std::string_view entry, std::string_view prefix, const Modules& modules) {
  if (prefix.empty()) return std::nullopt;
  const auto common = std::mismatch(entry.begin(), entry.end(), prefix.begin(), prefix.end()).first - entry.begin();
  std::size_t end = std::min(static_cast<std::size_t>(common), prefix.size() - 1);
  std::optional<std::size_t> dots;  // in what follows the prefix, which has one more each time
  while (true) {
    const std::size_t dot = end == 0 ? prefix.npos : prefix.rfind('.', end - 1);
    const std::size_t size = dot == prefix.npos ? 0 : dot + 1;
    const std::string_view name = entry.substr(size);
    dots = dots ? *dots + 1 : dots_in(name);
    const bool is_of_module = *dots <= modules.most_dots() && modules.has_module_of(name);
    if (is_of_module || (*dots > 0 && is_other_head(name.substr(0, name.find('.'))))) return size;
    if (size == 0) return std::nullopt;
    end = dot;
  }
}

}  // namespace

bool has_part_of_larger(std::string_view prefix) {
  const std::vector<std::string> parts = split(prefix, '.');
  return std::any_of(parts.begin(), parts.end(),
                     [](const std::string& part) { return is_one_of(part, kPartsOfLarger); });
}

bool Body::has_all() const {
  return others.empty() && !prefix.empty() && (!outside.empty() || has_part_of_larger(prefix));
}

Body body_of(const std::vector<std::string>& names, std::string prefix, bool is_base, const Names& known) {
  Body body{std::move(prefix), is_base};
  const Modules modules(known);
  const KnownNames known_names(known);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (name.empty()) continue;
    const bool is_inside = name.size() > body.prefix.size() && name.starts_with(body.prefix);
    const auto known_at = known_names.prefix_bytes(name);
    if (is_inside && modules.has_module_of(std::string_view(name).substr(body.prefix.size()))) continue;
    const bool is_behind = known_at && (!is_inside || *known_at > body.prefix.size());
    if (is_inside && (body.is_base || body.prefix.empty())) {
      if (is_behind) body.elsewhere.push_back(i);
      continue;
    }
    if (const auto bytes = begin_outside(name, body.prefix, modules))
      body.outside.emplace(i, *bytes);
    else if (!is_inside)
      body.others.push_back(i);
    if (is_behind && body.outside.count(i) == 0) body.elsewhere.push_back(i);
  }
  return body;
}

void validate_elsewhere(const Body& body, std::span<const std::string> entries, const std::vector<std::string>& names,
                        const Names& known, const std::unordered_set<std::string_view>& own) {
  const KnownNames known_names(known);
  std::set<std::string, std::less<>> copies;
  for (const bool looks_for_copies : {true, false})
    for (const std::size_t i : body.elsewhere) {
      const std::size_t bytes = known_names.prefix_bytes(names[i]).value();
      std::string prefix = names[i].substr(0, bytes);
      const std::string name = names[i].substr(bytes);
      if (looks_for_copies && (own.count(name) > 0 || is_of_average(prefix)))
        copies.insert(std::move(prefix));
      else if (!looks_for_copies && copies.count(prefix) == 0)
        throw Error(
            ErrorKind::kBadInput,
            fmt::format("may be the model's {}, but has the prefix {}, and the other tensors {}", printable(name),
                        printable(prefix), body.prefix.empty() ? "none" : printable(body.prefix)))
            .tensor(entries[i])
            .hint(kHintForPrefixes);
    }
}

std::string container_prefix(const std::vector<std::string>& names, std::string_view part_prefix) {
  const auto first = std::find_if(names.begin(), names.end(), [](const std::string& name) { return !name.empty(); });
  std::string prefix;
  while (first != names.end()) {
    const std::size_t dot = first->find('.', prefix.size());
    if (dot == first->npos) return prefix;
    const std::string longer = first->substr(0, dot + 1);
    const std::string word = longer.substr(prefix.size());
    if (!is_one_of(word, kUsualPrefixes) || !have_prefix(names, longer)) return prefix;
    const bool part_is_inside = part_prefix.starts_with(longer);
    const auto shows_whole = [&](std::string_view name) {
      return starts_like_whole(name.substr(std::min(longer.size(), name.size()))) ||
             (part_is_inside && name.starts_with(part_prefix) && starts_like_whole(name.substr(part_prefix.size())));
    };
    if (word == kModelPrefix && std::none_of(names.begin(), names.end(), shows_whole)) return prefix;
    prefix = longer;
  }
  return prefix;
}

void OwnNames::add(const std::string& name, const std::string& entry) {
  if (name.empty()) return;
  const auto [other, is_new] = entry_of_.emplace(name, entry);
  if (!is_new)
    throw Error(ErrorKind::kBadInput, fmt::format("gets the name {} in the model, which {} already has",
                                                  printable(name), printable(other->second)))
        .tensor(entry)
        .hint(kHintForPrefixes);
}

}  // namespace reshard
