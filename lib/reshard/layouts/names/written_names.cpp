#include "reshard/layouts/names/written_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

std::string labelled(const Family::OtherNames& names, const std::string& version) {
  return names.program + "-" + version;
}

/// All that may be asked for: "torchtitan, torchtitan-main, torchtitan-0.2".
std::string choices(const Family& family) {
  std::vector<std::string> all;
  for (const Family::OtherNames& names : family.other_names) {
    all.push_back(names.program);
    for (const std::string& version : names.versions) all.push_back(labelled(names, version));
  }
  return join(all, ", ");
}

}  // namespace

WrittenNames::WrittenNames(const Model& model, const std::string& names) : label_(names) {
  for (const Family::OtherNames& one : model.family->other_names) {
    if (names == one.program) names_ = &one;
    for (std::size_t v = 0; v < one.versions.size(); ++v) {
      if (names != labelled(one, one.versions[v])) continue;
      names_ = &one;
      version_ = v;
    }
  }
  if (names_ == nullptr) {
    const std::string known = choices(*model.family);
    throw Error(ErrorKind::kUsage, fmt::format("`names`: \"{}\" is no program whose names for family {} are known",
                                               printable(names), printable(model.family->model_type)))
        .hint("of this family, there are hf" + (known.empty() ? " alone" : ", " + known));
  }
  for (const Family::OtherName& other : names_->parameters) by_parameter_.emplace(other.parameter, &other);
  for (const ModelParameter& parameter : model.parameters) parameters_.emplace(parameter.name, &parameter);
}

WrittenNames::Place WrittenNames::of(const std::string& parameter) const {
  const auto listed = parameters_.find(parameter);
  const auto other = by_parameter_.find(with_stars(parameter));
  if (listed == parameters_.end() || other == by_parameter_.end())
    throw Error(ErrorKind::kUnsupported, fmt::format("has no name in {}", label_))
        .tensor(parameter)
        .hint("leave it out with `drop`, or keep the model's own names");
  const std::vector<std::string>& names = other->second->names;
  Place place{names[std::min(version_, names.size() - 1)], other->second->interleaved};
  // The numbers of `parameter` take the places of as many stars.
  std::size_t star = 0;
  for (const std::string& part : split(parameter, '.')) {
    const auto number = parse_unsigned(part);
    if (number && (star = place.entry.find('*', star)) != place.entry.npos) place.entry.replace(star, 1, part);
  }
  if (other->second->stacked()) {
    place.stacked = listed->second->experts;
    place.index = listed->second->expert.value_or(0);
  }
  return place;
}

}  // namespace reshard
