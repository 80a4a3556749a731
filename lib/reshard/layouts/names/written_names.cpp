#include "reshard/layouts/names/written_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/names/packed_experts.h"

namespace reshard {
namespace {

std::string labelled(const Scheme& scheme, const std::string& version) {
  return scheme.program + "-" + version;
}

/// Lists all valid values of `names`: "torchtitan, torchtitan-main, torchtitan-0.2".
std::string choices(const Family& family) {
  std::vector<std::string> all;
  for (const auto& scheme : family.schemes) {
    all.push_back(scheme->program);
    for (const std::string& version : scheme->versions) all.push_back(labelled(*scheme, version));
  }
  return join(all, ", ");
}

/// Whether a program has the parameter with `numbers` in this entry. Changes the number of its layer to that in the entry.
bool is_entry_of(const Model& model, const SchemeEntry& rule, std::vector<std::string>& numbers) {
  const auto layer = numbers.empty() ? std::nullopt : parse_unsigned(numbers.front());
  if (rule.when && !holds_in(model, rule.when, layer)) return false;
  if (!rule.first_layer) return true;
  const std::uint64_t first = number_in(*model.family, model.config, rule.first_layer);
  if (!layer || *layer < first) return false;
  numbers.front() = std::to_string(*layer - first);
  return true;
}

}  // namespace

/// A parameter of the model that an entry contains.
struct WrittenNames::Numbered {
  const ModelParameter* parameter;
  std::size_t part;  // index into the rule's parameters
  Dims numbers;      // indices along the numbered dims
};

WrittenNames::WrittenNames(const Model& model, const std::string& names) : label_(names) {
  for (const auto& scheme : model.family->schemes) {
    if (names == scheme->program) scheme_ = scheme;
    for (std::size_t v = 0; v < scheme->versions.size(); ++v) {
      if (names != labelled(*scheme, scheme->versions[v])) continue;
      scheme_ = scheme;
      version_ = v;
    }
  }
  if (scheme_ == nullptr) {
    const std::string known = choices(*model.family);
    throw Error(ErrorKind::kUsage, fmt::format("`names`: \"{}\" is not a program with known names for family {}",
                                               printable(names), printable(model.family->model_type)))
        .hint("known for this family: hf" + (known.empty() ? " alone" : ", " + known));
  }
  add_entries(model);
}

WrittenNames::WrittenNames(const Model& model, std::shared_ptr<const Scheme> scheme, std::size_t version)
    : label_(scheme->program), scheme_(std::move(scheme)), version_(version) {
  add_entries(model);
}

void WrittenNames::add_entries(const Model& model) {
  struct Rule {
    const SchemeEntry* entry;
    std::size_t part;  // index into its parameters
  };
  std::unordered_map<std::string_view, std::vector<Rule>> rules;  // by parameter
  const auto add = [&](const SchemeEntry& rule) {
    for (std::size_t p = 0; p < rule.parameters.size() && !rule.name(version_).empty(); ++p)
      rules[rule.parameters[p]].push_back({&rule, p});
  };
  for (const SchemeEntry& rule : scheme_->entries) {
    add(rule);
    for (const SchemeEntry& copy : rule.copies) add(copy);
  }
  std::unordered_map<std::string, std::size_t> by_name;
  std::vector<std::vector<Numbered>> members;  // by entry
  for (const ModelParameter& parameter : model.parameters) {
    const auto found = rules.find(with_stars(parameter.name));
    if (found == rules.end()) continue;
    bool is_written = false;
    for (const auto& [rule, part] : found->second) {
      std::vector<std::string> numbers;  // numbers in the entry's name
      Dims along;                        // indices along its numbered dims
      std::vector<std::string> all = numbers_in(parameter.name);
      if (!scheme_->is_of_ranks && (is_written || !is_entry_of(model, *rule, all))) continue;
      is_written = true;
      for (std::size_t s = 0; s < all.size(); ++s)
        if (rule->is_numbered(s, all.size()))
          along.push_back(parse_unsigned(all[s]).value_or(0));
        else
          numbers.push_back(all[s]);
      const auto [entry, is_new] = by_name.emplace(with_numbers(rule->name(version_), numbers), entries_.size());
      if (is_new) {
        entries_.push_back({rule, nullptr, entry->first, Dims(rule->numbered_dims().size()), {}, {}});
        for (const SchemeEntry::Constant& constant : rule->constants)
          if (const std::string& name = SchemeEntry::name_of(constant.names, version_); !name.empty())
            entries_.push_back({rule, &constant, with_numbers(name, numbers), {}, {}, {}});
        members.resize(entries_.size());
      }
      members[entry->second].push_back({&parameter, part, std::move(along)});
    }
  }
  for (std::size_t e = 0; e < entries_.size(); ++e)
    if (!members[e].empty()) place(e, members[e]);
}

/// Fills in an entry.
void WrittenNames::place(std::size_t index, const std::vector<Numbered>& members) {
  Entry& entry = entries_[index];
  const std::size_t parts = entry.rule->parameters.size();
  entry.parts.resize(parts);
  std::set<std::size_t> tensors;                                   // tensors of the entry that the model has
  std::vector<std::pair<const ModelParameter*, std::size_t>> own;  // with the index of each
  for (const Numbered& one : members) {
    entry.parts[one.part] = one.parameter->shape;
    for (std::size_t n = 0; n < one.numbers.size(); ++n)
      entry.numbers[n] = std::max(entry.numbers[n], one.numbers[n] + 1);
  }
  for (const Numbered& one : members) {
    std::size_t tensor = 0;
    for (std::size_t n = 0; n < one.numbers.size(); ++n) tensor = tensor * entry.numbers[n] + one.numbers[n];
    tensor = tensor * parts + one.part;
    tensors.insert(tensor);
    own.emplace_back(one.parameter, tensor);
    places_.emplace(one.parameter->name, std::pair(index, tensor));
  }
  const auto count = checked_mul(num_elems(entry.numbers).value_or(UINT64_MAX), parts);
  if (count != tensors.size())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is in {} of {}, which contains {} tensors, but the model has {} of them ({})",
                            printable(entry.name), label_, count ? std::to_string(*count) : "too many", tensors.size(),
                            entry.rule->where))
        .tensor(members.front().parameter->name)
        .hint("keep the model's own names");
  entry.tensors.resize(tensors.size());
  for (const auto& [parameter, tensor] : own) entry.tensors[tensor] = parameter->name;
}

WrittenNames::Place WrittenNames::find(std::string_view parameter) const {
  const auto found = places_.find(parameter);
  if (found == places_.end()) return {};
  return {&entries_[found->second.first], found->second.second};
}

WrittenNames::Place WrittenNames::of(const std::string& parameter) const {
  const Place place = find(parameter);
  if (place.entry == nullptr && !scheme_->keeps_others)
    throw Error(ErrorKind::kUnsupported, fmt::format("has no name in {}", label_))
        .tensor(parameter)
        .hint("leave it out with `drop`, or keep the model's own names");
  return place;
}

bool WrittenNames::packs_experts() const {
  return std::any_of(scheme_->entries.begin(), scheme_->entries.end(), [](const SchemeEntry& entry) {
    return !entry.is_plain() && PackedExperts::is_of_expert(entry.parameters.front());
  });
}

std::vector<std::string> WrittenNames::unused() const {
  std::vector<std::string> names;
  for (const SchemeEntry& rule : scheme_->entries)
    if (rule.parameters.empty() && !rule.name(version_).empty()) names.push_back(rule.name(version_));
  return names;
}

}  // namespace reshard
