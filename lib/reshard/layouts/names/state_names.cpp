#include "reshard/layouts/names/state_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/names/known_names.h"
#include "reshard/layouts/names/model_body.h"
#include "reshard/layouts/names/wrapper_words.h"
#include "reshard/specs/model/model.h"

namespace reshard {
namespace {

/// Prefixes under which training programs store entries that belong neither to the model nor to the optimizer.
constexpr std::string_view kOtherRoots[] = {"lr_scheduler", "lr_schedulers", "scheduler", "schedulers",
                                            "train_state",  "dataloader",    "rng_state", "grad_scaler"};

/// Adds other programs' names of a family's parameters.
/// \param is_known  whether this is the model's family. If not, skips schemes that keep the model's own names.
void add_other_names(const Family& family, bool is_known, std::map<std::string, Names>& by_program) {
  for (const auto& scheme : family.schemes) {
    if (!is_known && scheme->keeps_others) continue;
    Names& names = by_program[scheme->program];
    if (scheme->keeps_others) names.merge(parameter_names(family));
    for (const SchemeEntry& entry : scheme->entries)
      if (!entry.parameters.empty()) names.insert(entry.names.begin(), entry.names.end());
  }
}

/// Returns the names in a model without a head: those under "model.", without this prefix.
Names base_names(const Names& names) {
  Names bases;
  for (const std::string& name : names)
    if (name.starts_with(kModelPrefix)) bases.insert(name.substr(kModelPrefix.size()));
  return bases;
}

/// Whether the prefix consists only of words that training programs put before a model's names.
bool is_usual_prefix(std::string_view prefix) {
  const std::vector<std::string> parts = split(prefix.substr(0, prefix.find_last_of('.')), '.');
  return std::all_of(parts.begin(), parts.end(),
                     [](const std::string& part) { return is_one_of(part + ".", kUsualPrefixes); });
}

/// \throws Error kBadInput if two entries have the same name.
void validate_unique(std::span<const std::string> entries, const std::vector<NamedEntry>& named) {
  OwnNames own;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (named[i].packed == nullptr)
      own.add(named[i].name, entries[i]);
    else
      for (const std::string& parameter : named[i].packed->parameters) own.add(parameter, entries[i]);
}

using EntriesByName = std::unordered_map<std::string_view, const SchemeEntry*>;

/// The entries of a program's scheme, by all of their names.
EntriesByName entries_by_name(const Family& family, const std::string& program) {
  EntriesByName entries;
  for (const auto& scheme : family.schemes)
    for (const SchemeEntry& entry : scheme->entries)
      for (const std::string& name : entry.names)
        if (scheme->program == program) entries.emplace(name, &entry);
  return entries;
}

/// Whether some of the names after `prefix` would be replaced, or contain something else, in the scheme of `program`.
bool has_meaning_of_its_own(const Family& family, const std::string& program, std::span<const std::string> names,
                            std::string_view prefix) {
  const EntriesByName entries = entries_by_name(family, program);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    if (!name.starts_with(prefix)) return false;
    const std::string starred = with_stars(std::string_view(name).substr(prefix.size()));
    const auto found = entries.find(starred);
    return found != entries.end() &&
           (!found->second->is_plain() || found->second->parameters != std::vector<std::string>{starred});
  });
}

/// Replaces another program's names with the model's. Names that its scheme does not have stay unchanged.
/// \param part  prefix of the family's names inside a larger model.
void rename(const KnownModel& model, const std::string& part, StateNames& found) {
  const Family& family = *model.family;
  const EntriesByName entries = entries_by_name(family, found.program);
  for (const auto& scheme : family.schemes)
    if (scheme->program == found.program) found.before_state = scheme->before_state;
  for (NamedEntry& entry : found.entries) {
    if (!found.before_state.empty() && entry.name.starts_with(found.before_state)) entry.name.clear();
    if (!entry.name.starts_with(part)) continue;
    const std::string name = entry.name.substr(part.size());
    const auto known = entries.find(with_stars(name));
    if (known == entries.end()) continue;
    const Expression& first = known->second->first_layer;
    PackedNames packed(*known->second, numbers_in(name), first ? number_in(family, model.config, first) : 0);
    for (std::string& parameter : packed.parameters) parameter.insert(0, part);
    entry.name = packed.parameters.empty() ? std::string() : packed.parameters.front();
    if (!packed.parameters.empty() && !known->second->is_plain())
      entry.packed = std::make_shared<const PackedNames>(std::move(packed));
  }
  found.are_replaced = true;
}

/// Infers the prefix if no family has the names of `entries`: the prefix of the parameters that have moments in the
/// optimizer, whose entries contain the model's own names.
/// \param bare  the entries without wrappers, empty for training states.
void infer_prefix_from_optimizer(std::span<const std::string> entries, std::span<const std::string> beside,
                                 const std::vector<std::string>& bare, StateNames& names) {
  Names known;
  for (const auto some : {entries, beside})
    for (const std::string& entry : some) {
      const std::string_view parameter = names.optimizer.parameter_of(entry);
      // Older optimizers refer to their parameters by number.
      if (parameter.find_first_not_of("0123456789") != parameter.npos)
        known.insert(with_stars(without_wrappers(parameter, names)));
    }
  names.prefix = chosen_prefix(vote(bare, known));
}

/// Whether an entry belongs to the optimizer or to another part of the training state: schedulers, data loaders,
/// counters.
bool is_training_state(std::string_view entry, const OptimizerEntries& optimizer) {
  return optimizer.has(entry) || is_one_of(entry.substr(0, entry.find('.')), kOtherRoots);
}

/// The entries' names without wrappers; empty for training states.
struct BareNames {
  std::vector<std::string> names;
  std::vector<std::string> without_module;  // without kModuleWrapper, too
};

/// Adds the wrappers that it removes to `wrappers`.
BareNames bare_names(std::span<const std::string> entries, const OptimizerEntries& optimizer,
                     std::set<std::string>& wrappers) {
  BareNames bare{std::vector<std::string>(entries.size()), std::vector<std::string>(entries.size())};
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (is_training_state(entries[i], optimizer)) continue;
    bare.names[i] = without_wrappers(entries[i], wrappers);
    bare.without_module[i] = without_module_parts(bare.names[i]);
  }
  return bare;
}

/// A way to read the names.
struct NameReading {
  std::string program;          // the program that they belong to; empty: the model's own
  bool is_base = false;         // they belong to a model without a head
  bool without_module = false;  // read without kModuleWrapper
  Names known{};                // all names of the model, in that program
  Votes votes{};

  std::size_t matches() const { return most(votes); }
  std::string prefix() const { return chosen_prefix(votes); }
};

/// Returns the better way to read the entries as the model's own names.
NameReading best_own_candidate(const BareNames& bare, const Names& known) {
  NameReading best;
  for (const bool is_base : {false, true})
    for (const bool without_module : {best.without_module, !best.without_module}) {
      NameReading other{"", is_base, without_module, known};
      other.votes = vote(without_module ? bare.without_module : bare.names, is_base ? base_names(known) : known);
      if (other.matches() > best.matches()) best = std::move(other);
    }
  return best;
}

/// \throws Error kUnsupported if the names are as likely those of another program.
NameReading best_candidate(const BareNames& bare, const Family* family) {
  Names known;
  std::map<std::string, Names> other_programs;
  for (const std::string& model_type : family == nullptr ? known_model_types() : std::vector<std::string>{""}) {
    const Family& one = family == nullptr ? *builtin_family(model_type) : *family;
    known.merge(parameter_names(one));
    add_other_names(one, family != nullptr, other_programs);
  }
  NameReading best = best_own_candidate(bare, known);
  const std::vector<std::string>& names = best.without_module ? bare.without_module : bare.names;
  std::string as_good;  // another program with as many matching names
  for (auto& [program, names_there] : other_programs) {
    NameReading other{program, false, best.without_module, std::move(names_there)};
    other.votes = vote(names, other.known);
    // If the family is unknown, a few names may match by chance.
    if (family == nullptr && !fits_most(names, other.votes)) continue;
    if (other.matches() == best.matches() && best.matches() > 0 && family != nullptr &&
        (!best.program.empty() || has_meaning_of_its_own(*family, program, names, other.prefix())))
      as_good = program;
    if (other.matches() <= best.matches()) continue;
    best = std::move(other);
    as_good.clear();
  }
  if (!as_good.empty())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("its tensors may have the names of {} or of {}: equally many match either",
                            best.program.empty() ? "the model itself" : best.program, as_good))
        .hint("remove one of the programs from `other_names` in the `spec` description");
  return best;
}

/// Gives the entries outside the body their names in the model. All other entries around the body are then the model's,
/// too, unless they are copies of it.
void join_outside(const Body& body, std::span<const std::string> entries, const std::vector<std::string>& names,
                  const Names& known, bool is_known, StateNames& found) {
  const bool replaces = body.is_base && (!body.outside.empty() || has_part_of_larger(body.prefix)) && is_known;
  if (replaces)
    for (NamedEntry& entry : found.entries)
      if (!entry.name.empty()) entry.name.insert(0, kModelPrefix);
  for (const auto& [i, bytes] : body.outside) found.entries[i].name = names[i].substr(bytes);
  if (is_known) {
    std::unordered_set<std::string_view> own;
    for (const NamedEntry& entry : found.entries) own.insert(entry.name);
    validate_elsewhere(body, entries, names, known, own);
  }
  if (body.outside.empty() && !replaces) return;
  std::size_t container = body.prefix.size();
  for (const auto& [i, bytes] : body.outside) container = std::min(container, bytes);
  if (body.outside.empty()) container = 0;
  for (const std::size_t i : body.others)
    if (is_known && !std::binary_search(body.elsewhere.begin(), body.elsewhere.end(), i) &&
        names[i].size() > container && names[i].starts_with(body.prefix.substr(0, container)))
      found.entries[i].name = names[i].substr(container);
  found.prefix = body.prefix.substr(0, container);
  found.body_prefix = body.prefix.substr(container);
  if (replaces) found.body = kModelPrefix;
}

/// Removes repetitions of words from `part`, the prefix of the language model in a larger model, and from names that
/// begin with them: "model.language_model.language_model." becomes "model.language_model.".
/// \returns `part` without repetitions.
std::string take_out_repeats(std::string part, StateNames& found) {
  std::set<std::string> repeated;
  for (std::size_t begin = 0, dot = 0; (dot = part.find('.', begin)) != part.npos;) {
    const std::string word = part.substr(begin, dot + 1 - begin);
    if (part.compare(dot + 1, word.size(), word) != 0) {
      begin = dot + 1;
      continue;
    }
    const std::string twice = part.substr(0, dot + 1) + word;
    for (NamedEntry& entry : found.entries)
      if (entry.name.starts_with(twice)) entry.name.erase(begin, word.size());
    part.erase(begin, word.size());
    repeated.insert(word.substr(0, word.size() - 1));
  }
  found.repeated.assign(repeated.begin(), repeated.end());
  return part;
}

/// Returns the names of the model's entries in `entries` as the caller renames them, if that reveals the model; empty
/// otherwise. Entries of the training state keep their names. Adds words that it removes to `wrappers`.
std::vector<std::string> renamed_entries(std::span<const std::string> entries, const KnownModel& model,
                                         const OptimizerEntries& optimizer, std::set<std::string>& wrappers) {
  std::vector<std::string> bare;
  for (const std::string& entry : entries)
    if (!is_training_state(entry, optimizer)) bare.push_back(without_parts(entry, is_wrapper));
  if (!reveals_model(bare, bare.size(), model.rename, model.family, wrappers)) return {};
  std::vector<std::string> renamed;
  auto name = bare.begin();
  for (const std::string& entry : entries)
    renamed.push_back(is_training_state(entry, optimizer) ? entry : model.rename(*name++));
  return renamed;
}

}  // namespace

std::string without_wrappers(std::string_view name, const StateNames& names) {
  const bool is_module_one = is_one_of(kModuleWrapper, names.wrappers);
  return without_parts(
      name, [&](std::string_view part) { return is_wrapper(part) || (is_module_one && part == kModuleWrapper); });
}

StateNames find_state_names(std::span<const std::string> stored, const KnownModel& model,
                            std::span<const std::string> beside) {
  StateNames found;
  found.optimizer = OptimizerEntries(stored, beside);
  std::set<std::string> wrappers;
  const std::vector<std::string> renamed = renamed_entries(stored, model, found.optimizer, wrappers);
  const std::span<const std::string> entries = renamed.empty() ? stored : std::span(renamed);
  BareNames bare = bare_names(entries, found.optimizer, wrappers);
  const NameReading best = best_candidate(bare, model.family);
  if (best.without_module) {
    bare.names.swap(bare.without_module);
    wrappers.emplace(kModuleWrapper);
  }
  const std::vector<std::string>& names = bare.names;
  found.wrappers.assign(wrappers.begin(), wrappers.end());
  found.program = best.program;
  found.fits = !best.votes.empty();
  found.prefix = best.prefix();
  const std::string prefix_of_family = found.prefix;
  found.entries.resize(entries.size());
  const Body body = body_of(names, found.prefix, best.is_base, best.known);
  const bool is_alone = model.family != nullptr && !model.is_part && body.has_all();
  const bool is_part =
      !is_alone &&
      (has_part_of_larger(found.prefix) ||
       ((best.is_base || (model.is_part && !is_usual_prefix(found.prefix))) && !have_prefix(names, found.prefix)));
  if (is_part) found.prefix = container_prefix(names, found.prefix);
  if (!found.fits) infer_prefix_from_optimizer(entries, beside, names, found);
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (names[i].size() > found.prefix.size() && names[i].starts_with(found.prefix))
      found.entries[i].name = names[i].substr(found.prefix.size());
  std::string part;  // prefix of the language model in a larger one
  if (is_part) part = prefix_of_family.substr(std::min(found.prefix.size(), prefix_of_family.size()));
  if (is_part && model.family != nullptr)
    part = take_out_repeats(std::move(part), found);
  else if (!is_part && found.fits)
    join_outside(body, entries, names, best.known, model.family != nullptr, found);
  if (model.family != nullptr && !found.program.empty()) rename(model, part, found);
  validate_unique(entries, found.entries);
  for (std::size_t i = 0; i < renamed.size(); ++i)
    if (const std::string& name = found.entries[i].name; !name.empty() && renamed[i] != stored[i])
      found.old_names.emplace(name, stored[i]);
  return found;
}

StateNames names_as_stored(std::span<const std::string> entries, std::span<const std::string> beside) {
  StateNames stored;
  stored.optimizer = OptimizerEntries(entries, beside);
  for (const std::string& entry : entries)
    stored.entries.push_back({is_training_state(entry, stored.optimizer) ? std::string() : entry});
  return stored;
}

bool StateNames::is_of_optimizer(std::string_view entry) const {
  return optimizer.has(entry) || (!before_state.empty() && entry.starts_with(before_state));
}

std::string_view StateNames::state_of(std::string_view entry) const {
  if (before_state.empty() || !entry.starts_with(before_state)) return entry.substr(entry.rfind('.') + 1);
  entry.remove_prefix(before_state.size());
  return entry.substr(0, entry.find('.'));
}

std::string state_names_note(const StateNames& names) {
  std::vector<std::string> changes;
  const std::string prefix = printable(names.prefix + names.body_prefix);
  if (!names.body.empty())
    changes.push_back(fmt::format("with the prefix {} instead of {}", names.body, prefix));
  else if (!prefix.empty())
    changes.push_back("without the prefix " + prefix + (names.fits ? "" : ", as in the optimizer,"));
  if (!names.wrappers.empty()) changes.push_back("without " + list_names(names.wrappers));
  if (!names.repeated.empty()) changes.push_back("without repetitions of " + list_names(names.repeated));
  std::string note = changes.empty() ? "" : "names of tensors are read " + join(changes, " and ");
  if (note.ends_with(',')) note.pop_back();
  if (names.program.empty()) return note;
  if (!note.empty()) note += "; ";
  return note + (!names.are_replaced
                     ? fmt::format(
                           "kept the names of {0}: with a config.json (`config`), they are replaced by the model's own",
                           names.program)
                     : fmt::format("replaced the names of {} by the model's own", names.program));
}

}  // namespace reshard
