#include "reshard/layouts/names/renames.h"

#include <algorithm>
#include <compare>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "reshard/layouts/names/known_names.h"
#include "reshard/layouts/names/wrapper_words.h"
#include "reshard/specs/family/resolve_family.h"

namespace reshard {
namespace {

/// Returns the names of a model's parameters, also as a model without a head has them.
Names names_of_models(const Family* family) {
  Names known;
  const auto add = [&](const Family& one) {
    for (const std::string& name : parameter_names(one)) {
      known.insert(name);
      if (name.starts_with(kModelPrefix)) known.insert(name.substr(kModelPrefix.size()));
    }
  };
  if (family != nullptr)
    add(*family);
  else
    for (const std::string& model_type : known_model_types()) add(*builtin_family(model_type));
  return known;
}

/// How far names are from those of a model: first the number of unknown names, then that of parts before known ones.
struct Distance {
  std::size_t unknown = 0, parts = 0;

  friend auto operator<=>(const Distance&, const Distance&) = default;
};

template <typename AnyNames>
Distance distance_of(const AnyNames& names, const KnownNames& known) {
  Distance distance;
  for (const auto& name : names) {
    const auto prefix = known.prefix_bytes(std::string(name));
    if (prefix)
      distance.parts +=
          static_cast<std::size_t>(std::count(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(*prefix), '.'));
    else
      ++distance.unknown;
  }
  return distance;
}

/// Whether names with `rename` are nearer to the model's. Returns false if it gives two of them the same name.
bool are_nearer(std::span<const std::string> names, const Rename& rename, const Family* family) {
  const std::set<std::string_view> distinct(names.begin(), names.end());
  std::unordered_set<std::string> renamed;
  bool changes = false;
  for (const std::string_view name : distinct) {
    std::string other = rename(std::string(name));
    changes = changes || other != name;
    if (other.empty() || !renamed.insert(std::move(other)).second) return false;
  }
  if (!changes) return false;
  const Names of_models = names_of_models(family);
  const KnownNames known(of_models);
  return distance_of(renamed, known) < distance_of(distinct, known);
}

}  // namespace

bool reveals_model(std::vector<std::string>& names, std::size_t tensors, const Rename& rename, const Family* family,
                   std::set<std::string>& wrappers) {
  std::vector<std::string> inner = names;
  std::set<std::string> words;
  while (!inner.empty() && rename != nullptr) {
    if (are_nearer(std::span(inner).first(tensors), rename, family)) {
      names = std::move(inner);
      wrappers.merge(words);
      return true;
    }
    const std::string word = inner.front().substr(0, inner.front().find('.')), prefix = word + ".";
    if (!is_outer_word(word) || !have_prefix(inner, prefix)) return false;
    for (std::string& name : inner) name.erase(0, prefix.size());
    words.insert(word);
  }
  return false;
}

}  // namespace reshard
