#include "reshard/layouts/names/renames.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

#include "reshard/base/strings.h"
#include "reshard/specs/family/resolve_family.h"

namespace reshard {
namespace {

/// Returns the names of a model's parameters, with stars for numbers, also as a model without a head has them.
std::unordered_set<std::string> names_of_models(const Family* family) {
  constexpr std::string_view kBase = "model.";
  std::unordered_set<std::string> known;
  const auto add = [&](const Family& one) {
    for (const std::string& name : parameter_names(one)) {
      known.insert(name);
      if (name.starts_with(kBase)) known.insert(name.substr(kBase.size()));
    }
  };
  if (family != nullptr)
    add(*family);
  else
    for (const std::string& model_type : known_model_types()) add(*builtin_family(model_type));
  return known;
}

constexpr std::size_t kUnknown = 4096;  // more parts than any name has

/// Returns the number of parts before the longest suffix of `name` that is known; kUnknown if none is.
std::size_t unknown_parts(const std::string& name, const std::unordered_set<std::string>& known) {
  std::string_view rest = name;
  std::size_t parts = 0;
  while (known.count(with_stars(rest)) == 0) {
    ++parts;
    const std::size_t dot = rest.find('.');
    if (dot == rest.npos) return kUnknown;
    rest.remove_prefix(dot + 1);
  }
  return parts;
}

}  // namespace

bool reveals_model(std::span<const std::string> names, const Rename& rename, const Family* family) {
  if (rename == nullptr) return false;
  const std::set<std::string_view> distinct(names.begin(), names.end());
  std::unordered_set<std::string> renamed;
  bool changes = false;
  for (const std::string_view name : distinct) {
    std::string other = rename(std::string(name));
    changes = changes || other != name;
    if (other.empty() || !renamed.insert(std::move(other)).second) return false;
  }
  if (!changes) return false;
  const std::unordered_set<std::string> known = names_of_models(family);
  std::size_t before = 0, after = 0;
  for (const std::string_view name : distinct) before += unknown_parts(std::string(name), known);
  for (const std::string& name : renamed) after += unknown_parts(name, known);
  return after < before;
}

}  // namespace reshard
