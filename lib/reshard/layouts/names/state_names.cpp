#include "reshard/layouts/names/state_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/names/known_names.h"
#include "reshard/layouts/names/model_body.h"
#include "reshard/specs/model/model.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {
namespace {

/// Name parts that torch.compile, FSDP1, activation checkpointing and fairscale add.
constexpr std::string_view kWrappers[] = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                          "_fpw_module"};
/// Name part that DistributedDataParallel adds. It is also a common word, so it is removed only if more names are then
/// known.
constexpr std::string_view kModuleWrapper = "module";

/// Name parts that wrap a whole model: attributes of trainers and of PEFT.
constexpr std::string_view kOuterWords[] = {
    "model", "module", "state_dict", "app", "model_state_dict", "policy", "actor", "base_model", "_forward_module"};
/// Prefixes of the names of many models. A user's own module may also be called "module".
constexpr std::string_view kStartsOfModels[] = {"model.", "lm_head.", "transformer.", "gpt_neox.", "language_model."};
/// Prefixes of names of a whole model, or of a part of a larger one, that do not occur under a model's "model.".
constexpr std::string_view kStartsOfWhole[] = {"model.", "lm_head."};

constexpr std::string_view kExtraState = "_extra_state";  // saved by TransformerEngine's modules

/// Prefixes under which training programs store entries that belong neither to the model nor to the optimizer.
constexpr std::string_view kOtherRoots[] = {"lr_scheduler", "lr_schedulers", "scheduler", "schedulers",
                                            "train_state",  "dataloader",    "rng_state", "grad_scaler"};

template <typename Words>
bool is_one_of(std::string_view word, const Words& words) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

/// Removes the dot-separated parts of `name` for which `is_left` returns true.
template <typename IsLeft>
std::string without_parts(std::string_view name, const IsLeft& is_left) {
  std::string rest;
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    if (!is_left(part)) rest += (rest.empty() ? "" : ".") + std::string(part);
    if (dot == name.npos) return rest;
    name.remove_prefix(dot + 1);
  }
}

std::string without_module_parts(const std::string& name) {
  std::string rest = without_parts(name, [](std::string_view part) { return part == kModuleWrapper; });
  return rest.empty() ? name : rest;
}

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

/// Whether at least half of the entries under the chosen prefix are votes.
bool fits_most(std::span<const std::string> entries, const Votes& votes) {
  const std::string prefix = chosen_prefix(votes);
  const auto count = std::count_if(entries.begin(), entries.end(), [&](const std::string& entry) {
    return !entry.empty() && entry.starts_with(prefix);
  });
  return 2 * most(votes) >= static_cast<std::size_t>(count);
}

/// Whether the prefix consists only of words that training programs put before a model's names.
bool is_usual_prefix(std::string_view prefix) {
  const std::vector<std::string> parts = split(prefix.substr(0, prefix.find_last_of('.')), '.');
  return std::all_of(parts.begin(), parts.end(),
                     [](const std::string& part) { return is_one_of(part + ".", kUsualPrefixes); });
}

/// Whether all non-empty names begin with `prefix`.
bool have_prefix(const std::vector<std::string>& names, std::string_view prefix) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.empty() || name.starts_with(prefix); });
}

bool begins_model(std::string_view name) {
  return std::any_of(std::begin(kStartsOfModels), std::end(kStartsOfModels),
                     [&](std::string_view start) { return name.starts_with(start); });
}

/// Whether only names of whole models begin like `name`: "model.layers", "language_model.lm_head".
bool starts_like_whole(std::string_view name) {
  for (std::size_t dot = 0; (dot = name.find('.')) != name.npos && is_one_of(name.substr(0, dot), kPartsOfLarger);)
    name.remove_prefix(dot + 1);
  return std::any_of(std::begin(kStartsOfWhole), std::end(kStartsOfWhole),
                     [&](std::string_view start) { return name.starts_with(start); });
}

/// Returns the prefix of all names that is not part of the model. It includes "model." only if names after it, or after
/// `part_prefix`, begin like those of whole models.
/// \param part_prefix  prefix of most names of the language model.
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

/// \throws Error kBadInput if two entries have the same name.
void validate_unique(std::span<const std::string> entries, const std::vector<std::string>& names,
                     const std::vector<std::shared_ptr<const PackedNames>>& packed) {
  std::unordered_map<std::string_view, std::size_t> seen;
  const auto add = [&](const std::string& name, std::size_t i) {
    const auto [other, is_new] = seen.emplace(name, i);
    if (!is_new)
      throw Error(ErrorKind::kBadInput, fmt::format("gets the name {} in the model, which {} already has",
                                                    printable(name), printable(entries[other->second])))
          .tensor(entries[i])
          .hint(kHintForPrefixes);
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (packed[i] != nullptr)
      for (const std::string& parameter : packed[i]->parameters) add(parameter, i);
    else if (!names[i].empty())
      add(names[i], i);
  }
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
  for (std::size_t i = 0; i < found.names.size(); ++i) {
    if (!found.before_state.empty() && found.names[i].starts_with(found.before_state)) found.names[i].clear();
    if (!found.names[i].starts_with(part)) continue;
    const std::string name = found.names[i].substr(part.size());
    const auto known = entries.find(with_stars(name));
    if (known == entries.end()) continue;
    const Expression& first = known->second->first_layer;
    PackedNames packed(*known->second, numbers_in(name), first ? number_in(family, model.config, first) : 0);
    for (std::string& parameter : packed.parameters) parameter.insert(0, part);
    found.names[i] = packed.parameters.empty() ? std::string() : packed.parameters.front();
    if (!packed.parameters.empty() && !known->second->is_plain())
      found.packed[i] = std::make_shared<const PackedNames>(std::move(packed));
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
    bare.names[i] = without_parts(entries[i], [&](std::string_view part) {
      const bool is_wrapper = is_one_of(part, kWrappers);
      if (is_wrapper) wrappers.emplace(part);
      return is_wrapper;
    });
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
    for (std::string& name : found.names)
      if (!name.empty()) name.insert(0, kModelPrefix);
  for (const auto& [i, bytes] : body.outside) found.names[i] = names[i].substr(bytes);
  if (is_known) validate_elsewhere(body, entries, names, known, found.names);
  if (body.outside.empty() && !replaces) return;
  std::size_t container = body.prefix.size();
  for (const auto& [i, bytes] : body.outside) container = std::min(container, bytes);
  if (body.outside.empty()) container = 0;
  for (const std::size_t i : body.others)
    if (is_known && !std::binary_search(body.elsewhere.begin(), body.elsewhere.end(), i) &&
        names[i].size() > container && names[i].starts_with(body.prefix.substr(0, container)))
      found.names[i] = names[i].substr(container);
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
    for (std::string& name : found.names)
      if (name.starts_with(twice)) name.erase(begin, word.size());
    part.erase(begin, word.size());
    repeated.insert(word.substr(0, word.size() - 1));
  }
  found.repeated.assign(repeated.begin(), repeated.end());
  return part;
}

/// Whether a model's names may begin after the first word.
bool may_be_wrapped(const std::string& name) {
  if (!name.starts_with(kModelPrefix)) return is_one_of(name.substr(0, name.find('.')), kOuterWords);
  const std::string_view rest = std::string_view(name).substr(kModelPrefix.size());
  return begins_model(rest) || is_one_of(rest.substr(0, rest.find('.')), kOuterWords);
}

/// Returns the words of `prefix` ("state_dict" and "model" for "state_dict.model.") if trainers put each of them around
/// models.
std::vector<std::string> outer_words(const std::string& prefix) {
  if (prefix.empty()) return {};
  std::vector<std::string> words = split(std::string_view(prefix).substr(0, prefix.size() - 1), '.');
  const bool are_known =
      std::all_of(words.begin(), words.end(), [](const std::string& word) { return is_one_of(word, kOuterWords); });
  return are_known ? words : std::vector<std::string>();
}

/// Whether these are the names of a LoRA adapter, to which PEFT adds a prefix. A model that contains an adapter has the
/// base layers of all adapted linears.
bool is_adapter(const std::vector<std::string>& names) {
  constexpr std::string_view kLora = ".lora_A.", kBase = ".base_layer.";
  std::unordered_set<std::string_view> with_base;
  for (const std::string_view name : names)
    if (const std::size_t at = name.find(kBase); at != name.npos) with_base.insert(name.substr(0, at));
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    const std::size_t at = name.find(kLora);
    return at != name.npos && with_base.count(name.substr(0, at)) == 0;
  });
}

/// Removes the prefix of the body, and that of each of the model's entries outside of it.
void erase_prefix(std::vector<std::string>& names, const Body& body) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto outside = body.outside.find(i);
    if (outside != body.outside.end())
      names[i].erase(0, outside->second);
    else if (names[i].size() > body.prefix.size() && names[i].starts_with(body.prefix))
      names[i].erase(0, body.prefix.size());
  }
}

/// Removes from the names the words that trainers put before all names of a model, and "module" anywhere if more names
/// then belong to a known family. Adds the removed words to `wrappers`.
void take_out_words(std::vector<std::string>& names, std::set<std::string>& wrappers) {
  if (names.empty()) return;
  const bool has_module = std::any_of(
      names.begin(), names.end(), [](const std::string& name) { return is_one_of(kModuleWrapper, split(name, '.')); });
  if (!has_module && std::none_of(names.begin(), names.end(), may_be_wrapped)) return;
  Names known;
  for (const std::string& model_type : known_model_types()) known.merge(parameter_names(*builtin_family(model_type)));
  Votes votes = vote(names, known);
  if (has_module) {
    std::vector<std::string> without = names;
    for (std::string& name : without) name = without_module_parts(name);
    if (Votes others = vote(without, known); most(others) > most(votes)) {
      votes = std::move(others);
      names = std::move(without);
      wrappers.emplace(kModuleWrapper);
    }
  }
  std::string prefix = votes.empty() ? std::string() : chosen_prefix(votes);
  constexpr std::string_view kFront = "module.";
  if (votes.empty() && std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return name.starts_with(kFront) && begins_model(std::string_view(name).substr(kFront.size()));
      }))
    prefix = kFront;
  const std::vector<std::string> words = outer_words(prefix);
  const bool is_one_name = is_one_of(prefix, names);  // it would become empty without the prefix
  const Body body = body_of(names, prefix, false, known);
  if (!words.empty() && !is_one_name && (have_prefix(names, prefix) || body.has_all())) {
    erase_prefix(names, body);
    wrappers.insert(words.begin(), words.end());
  }
}

/// Removes the prefix of a whole model of this family from the names, whatever it is. Does nothing if another prefix has
/// the same parameters (a student and its teacher), or if the model may belong to a larger one.
/// \returns the prefix; empty if no name changed.
std::string take_out_prefix(std::vector<std::string>& names, const Family& family) {
  const Names known = parameter_names(family);
  const Votes votes = vote(names, known);
  const std::string prefix = chosen_prefix(votes);
  if (prefix.empty() || !fits_most(names, votes)) return {};
  const auto is_copy = [&](const auto& one) { return !prefix.starts_with(one.first); };
  if (std::any_of(votes.begin(), votes.end(), is_copy)) return {};
  const Body body = body_of(names, prefix, false, known);
  if (has_part_of_larger(prefix) && !have_prefix(names, prefix) && !body.has_all()) return {};
  erase_prefix(names, body);
  return prefix;
}

/// Removes the words that trainers put before all names of a larger model that contains this family.
/// \returns the words, as a prefix; may be empty.
std::string take_out_container(std::vector<std::string>& names, const Family& family) {
  const std::string prefix = container_prefix(names, chosen_prefix(vote(names, parameter_names(family))));
  for (std::string& name : names) name.erase(0, prefix.size());
  return prefix;
}

/// Whether PEFT saved the file, whose names all begin with words that trainers put before a model's.
bool is_of_peft(const Container* file) {
  return is_peft_weights_name(file->path.filename().string());
}

bool is_extra_state(const TensorEntry& tensor) {
  return std::string_view(tensor.name).substr(tensor.name.rfind('.') + 1) == kExtraState;
}

/// Gives the tensors of a file other names, in the same order.
/// \throws Error kBadInput if two tensors would get the same name.
void change_names(Container& file, std::vector<std::string> names) {
  std::vector<std::string> entries;
  for (const TensorEntry& tensor : file.tensors) entries.push_back(tensor.name);
  try {
    validate_unique(entries, names, std::vector<std::shared_ptr<const PackedNames>>(entries.size()));
  } catch (Error& error) {
    throw error.in(file.path).hint(
        "it is stored both with and without the name of a wrapper: keep one of the two in the file");
  }
  for (std::size_t t = 0; t < names.size(); ++t) file.tensors[t].name = std::move(names[t]);
}

void note_removed(const std::set<std::string>& wrappers, std::size_t extra_states, Notes& notes) {
  if (!wrappers.empty())
    notes.changed("names of tensors are read without " + list_names(std::vector(wrappers.begin(), wrappers.end())));
  if (extra_states > 0) notes.left_out(fmt::format("left out {}, which is not a weight", kExtraState));
}

/// Whether the caller's new names reveal the model, if need be without words that trainers put before all names. Such
/// words are then removed from `names` and added to `wrappers`.
/// \param tensors  the number of names that are those of tensors.
bool reveals_inside(std::vector<std::string>& names, std::size_t tensors, const KnownModel& model,
                    std::set<std::string>& wrappers) {
  std::vector<std::string> inner = names;
  std::set<std::string> words;
  while (!inner.empty() && model.rename != nullptr) {
    if (reveals_model(std::span(inner).first(tensors), model.rename, model.family)) {
      names = std::move(inner);
      wrappers.merge(words);
      return true;
    }
    const std::string word = inner.front().substr(0, inner.front().find('.')), prefix = word + ".";
    if (!is_one_of(word, kOuterWords) || !have_prefix(inner, prefix)) return false;
    for (std::string& name : inner) name.erase(0, prefix.size());
    words.insert(word);
  }
  return false;
}

/// Returns the names of the model's entries in `entries` as the caller renames them, if that reveals the model; empty
/// otherwise. Entries of the training state keep their names. Adds words that it removes to `wrappers`.
std::vector<std::string> renamed_entries(std::span<const std::string> entries, const KnownModel& model,
                                         const OptimizerEntries& optimizer, std::set<std::string>& wrappers) {
  std::vector<std::string> bare;
  for (const std::string& entry : entries)
    if (!is_training_state(entry, optimizer))
      bare.push_back(without_parts(entry, [](std::string_view part) { return is_one_of(part, kWrappers); }));
  if (!reveals_inside(bare, bare.size(), model, wrappers)) return {};
  std::vector<std::string> renamed;
  auto name = bare.begin();
  for (const std::string& entry : entries)
    renamed.push_back(is_training_state(entry, optimizer) ? entry : model.rename(*name++));
  return renamed;
}

}  // namespace

std::string without_wrappers(std::string_view name, const StateNames& names) {
  const bool is_module_one = is_one_of(kModuleWrapper, names.wrappers);
  return without_parts(name, [&](std::string_view part) {
    return is_one_of(part, kWrappers) || (is_module_one && part == kModuleWrapper);
  });
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
  found.names.resize(entries.size());
  found.packed.resize(entries.size());
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
      found.names[i] = names[i].substr(found.prefix.size());
  std::string part;  // prefix of the language model in a larger one
  if (is_part) part = prefix_of_family.substr(std::min(found.prefix.size(), prefix_of_family.size()));
  if (is_part && model.family != nullptr)
    part = take_out_repeats(std::move(part), found);
  else if (!is_part && found.fits)
    join_outside(body, entries, names, best.known, model.family != nullptr, found);
  if (model.family != nullptr && !found.program.empty()) rename(model, part, found);
  validate_unique(entries, found.names, found.packed);
  for (std::size_t i = 0; i < renamed.size(); ++i)
    if (!found.names[i].empty() && renamed[i] != stored[i]) found.old_names.emplace(found.names[i], stored[i]);
  return found;
}

StateNames names_as_stored(std::span<const std::string> entries, std::span<const std::string> beside) {
  StateNames stored;
  stored.optimizer = OptimizerEntries(entries, beside);
  for (const std::string& entry : entries)
    stored.names.push_back(is_training_state(entry, stored.optimizer) ? std::string() : entry);
  stored.packed.resize(entries.size());
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

OldNames take_out_wrappers(std::span<Container* const> containers, const KnownModel& model, Notes& notes,
                           std::span<std::string* const> further) {
  std::set<std::string> wrappers;
  const auto without_words = [&](const std::string& name) {
    std::string rest = without_parts(name, [&](std::string_view part) {
      const bool is_wrapper = is_one_of(part, kWrappers);
      if (is_wrapper) wrappers.emplace(part);
      return is_wrapper;
    });
    return rest.empty() ? name : rest;
  };
  std::size_t extra_states = 0;
  std::vector<std::string> old;
  for (Container* file : containers) {
    extra_states += std::erase_if(file->tensors, is_extra_state);
    for (const TensorEntry& tensor : file->tensors) old.push_back(without_words(tensor.name));
  }
  const std::size_t tensors = old.size();
  for (const std::string* name : further) old.push_back(without_words(*name));
  const bool renames = reveals_inside(old, tensors, model, wrappers);
  std::vector<std::string> names = old;
  if (renames)
    for (std::string& name : names) name = model.rename(name);
  std::string prefix;
  if (std::none_of(containers.begin(), containers.end(), is_of_peft) && !is_adapter(old)) {
    take_out_words(names, wrappers);
    if (model.family != nullptr)
      prefix = model.is_part ? take_out_container(names, *model.family) : take_out_prefix(names, *model.family);
  }
  note_removed(wrappers, extra_states, notes);
  if (!prefix.empty()) notes.changed("names of tensors are read without the prefix " + printable(prefix));
  if (!renames && wrappers.empty() && prefix.empty()) return {};
  OldNames old_names;
  for (std::size_t i = 0; i < tensors && renames; ++i)
    if (names[i] != old[i]) old_names.emplace(names[i], old[i]);
  auto name = names.begin();
  for (Container* file : containers) {
    change_names(*file, {name, name + static_cast<std::ptrdiff_t>(file->tensors.size())});
    name += static_cast<std::ptrdiff_t>(file->tensors.size());
  }
  for (std::string* one : further) *one = std::move(*name++);
  return old_names;
}

OldNames take_out_wrappers(std::span<Container> containers, const KnownModel& model, Notes& notes) {
  std::vector<Container*> files;
  for (Container& file : containers) files.push_back(&file);
  return take_out_wrappers(files, model, notes);
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
