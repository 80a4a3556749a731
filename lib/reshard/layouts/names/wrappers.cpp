#include "reshard/layouts/names/wrappers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/names/known_names.h"
#include "reshard/layouts/names/model_body.h"
#include "reshard/layouts/names/wrapper_words.h"
#include "reshard/specs/family/resolve_family.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {
namespace {

/// Prefixes of the names of many models. A user's own module may also be called "module".
constexpr std::string_view kStartsOfModels[] = {"model.", "lm_head.", "transformer.", "gpt_neox.", "language_model."};
constexpr std::string_view kExtraState = "_extra_state";  // saved by TransformerEngine's modules

bool begins_model(std::string_view name) {
  return std::any_of(std::begin(kStartsOfModels), std::end(kStartsOfModels),
                     [&](std::string_view start) { return name.starts_with(start); });
}

/// Whether a model's names may begin after the first word.
bool may_be_wrapped(const std::string& name) {
  if (!name.starts_with(kModelPrefix)) return is_outer_word(name.substr(0, name.find('.')));
  const std::string_view rest = std::string_view(name).substr(kModelPrefix.size());
  return begins_model(rest) || is_outer_word(rest.substr(0, rest.find('.')));
}

/// Returns the words of `prefix` ("state_dict" and "model" for "state_dict.model.") if trainers put each of them around
/// models.
std::vector<std::string> outer_words(const std::string& prefix) {
  if (prefix.empty()) return {};
  std::vector<std::string> words = split(std::string_view(prefix).substr(0, prefix.size() - 1), '.');
  return std::all_of(words.begin(), words.end(), is_outer_word) ? words : std::vector<std::string>();
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

/// Removes the prefix of a whole model of this family from the names, whatever it is. No-op if another prefix has
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
  OwnNames own;
  try {
    for (std::size_t t = 0; t < names.size(); ++t) own.add(names[t], file.tensors[t].name);
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

}  // namespace

OldNames take_out_wrappers(std::span<Container* const> containers, const KnownModel& model, Notes& notes,
                           std::span<std::string* const> further) {
  std::set<std::string> wrappers;
  const auto without_words = [&](const std::string& name) {
    std::string rest = without_wrappers(name, wrappers);
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
  const bool renames = reveals_model(old, tensors, model.rename, model.family, wrappers);
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

}  // namespace reshard
