#include "reshard/layouts/dcp/dcp_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {
namespace {

/// Words before a parameter's name.
constexpr std::string_view kBeforeParameter[] = {"state.", "param_groups."};
/// Limit of dotted parts in the name of a state, which follows the parameter's name.
constexpr std::size_t kMostStateParts = 4;

constexpr std::size_t kMostBegins = 8;

/// Returns the offset of the first `word` that starts a dotted part of `entry`, from `from` on; npos if not found.
std::size_t find_part(std::string_view entry, std::string_view word, std::size_t from = 0) {
  for (std::size_t at = entry.find(word, from); at != entry.npos; at = entry.find(word, at + 1))
    if (at == 0 || entry[at - 1] == '.') return at;
  return entry.npos;
}

/// Whether the entry's name consists of the parts of the path, joined by dots, as torch creates it.
bool is_path_of(const DcpPath& path, std::string_view entry) {
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto* const text = std::get_if<std::string>(&path[i]);
    const std::string part = text != nullptr ? *text : std::to_string(std::get<std::int64_t>(path[i]));
    if (text == nullptr && std::get<std::int64_t>(path[i]) < 0) return false;
    if (!entry.starts_with(part)) return false;
    entry.remove_prefix(part.size());
    if (i + 1 == path.size()) break;
    if (!entry.starts_with('.')) return false;
    entry.remove_prefix(1);
  }
  return entry.empty() && !path.empty();
}

/// Returns the path with the characters [begin, end) of the entry's name replaced; std::nullopt if they are not within
/// one part of the path.
std::optional<DcpPath> replaced(DcpPath path, std::size_t begin, std::size_t end, const std::string& other) {
  std::size_t at = 0;
  for (auto& part : path) {
    auto* const text = std::get_if<std::string>(&part);
    const std::size_t size = text != nullptr ? text->size() : std::to_string(std::get<std::int64_t>(part)).size();
    if (text != nullptr && at <= begin && end <= at + size) {
      text->replace(begin - at, end - begin, other);
      return path;
    }
    at += size + 1;
  }
  return std::nullopt;
}

/// Returns the path of a state in nested dictionaries: ("optim", "state", the parameter's name, "exp_avg").
DcpPath usual_path(const std::string& before, const std::string& name, const std::string& after) {
  DcpPath path;
  for (std::string& part : split(before.substr(0, before.size() - 1), '.')) path.emplace_back(std::move(part));
  path.emplace_back(name);
  path.emplace_back(after.substr(1));
  return path;
}

bool is_in_group(std::string_view entry) {
  return find_part(entry, "param_groups.") != entry.npos;
}

}  // namespace

DcpStateFinder::DcpStateFinder(std::span<const DcpTensor> model, const StateNames& names, std::filesystem::path where)
    : model_(model), names_(names), where_(std::move(where)) {
  packed_.where = where_;
  by_name_.reserve(model.size());
  for (std::uint32_t t = 0; t < model.size(); ++t)
    if (const std::string& name = names.entries[t].name; !name.empty()) {
      by_name_.emplace(without_wrappers(model[t].name, names).substr(names.prefix.size()), t);
      if (!names.body_prefix.empty() || !names.repeated.empty()) by_name_.emplace(name, t);
    }
  const std::string& prefix = names.prefix;
  constexpr std::size_t kMost = 8;
  for (std::size_t at = prefix.size(); at-- > 0 && inner_prefixes_.size() < kMost;)
    if (at == 0 || prefix[at - 1] == '.') inner_prefixes_.push_back(prefix.substr(at));
}

std::optional<DcpStateFinder::Parameter> DcpStateFinder::parameter_called(std::string_view name) const {
  const std::string bare = without_wrappers(name, names_);
  if (const auto found = by_name_.find(bare); found != by_name_.end()) return Parameter{found->second};
  for (const std::string& inner : inner_prefixes_) {
    if (!bare.starts_with(inner)) continue;
    if (const auto found = by_name_.find(bare.substr(inner.size())); found != by_name_.end())
      return Parameter{found->second, inner};
  }
  return std::nullopt;
}

/// Finds the parameter in an entry of a program that puts the state's name first (StateNames::before_state).
std::optional<DcpStateFinder::Parameter> DcpStateFinder::parameter_behind_state(std::string_view entry) const {
  const std::string_view before = names_.before_state;
  if (before.empty() || !entry.starts_with(before)) return std::nullopt;
  const std::size_t dot = entry.find('.', before.size());
  if (dot == entry.npos) return std::nullopt;
  std::optional<Parameter> found = parameter_called(entry.substr(dot + 1));
  if (!found) return std::nullopt;
  found->begin = dot + 1;
  found->end = entry.size();
  found->before = kStatePrefix;
  found->after = "." + std::string(names_.state_of(entry));
  return found;
}

std::optional<DcpStateFinder::Parameter> DcpStateFinder::parameter_in(std::string_view entry) const {
  if (auto found = parameter_behind_state(entry)) return found;
  for (const std::string_view word : kBeforeParameter) {
    // The same words may occur in keys around the optimizer, and in names of modules.
    std::size_t begins = 0;
    for (std::size_t at = find_part(entry, word); at != entry.npos && begins < kMostBegins;
         at = find_part(entry, word, at + 1), ++begins) {
      const std::size_t begin = at + word.size();
      std::size_t end = entry.rfind('.');
      for (std::size_t parts = 0; parts < kMostStateParts && end != entry.npos && end > begin; ++parts) {
        if (auto found = parameter_called(entry.substr(begin, end - begin))) {
          found->begin = begin;
          found->end = end;
          found->before = entry.substr(0, begin);
          found->after = entry.substr(end);
          return found;
        }
        end = entry.rfind('.', end - 1);
      }
    }
  }
  return std::nullopt;
}

/// Records that a state is packed like its parameter.
void DcpStateFinder::take_packing(const DcpState& state, std::uint32_t parameter) {
  const DcpTensor& own = model_[parameter];
  const auto& packed = names_.entries[parameter].packed;
  if (packed != nullptr) packed_.by_name.emplace(state.name, PackedEntry{packed, state.entry(), own.shape});
  if (state.tensor == nullptr || state.tensor->shape == own.shape) return;
  if (is_moment(state.name.substr(state.name.rfind('.') + 1)))
    throw Error(ErrorKind::kBadInput,
                fmt::format("has the shape {}, but its parameter {} has {}", to_string(state.tensor->shape),
                            printable(own.name), to_string(own.shape)))
        .in(where_)
        .tensor(state.tensor->name)
        .hint("the model and the optimizer belong to two runs, or this version does not support the optimizer");
  if (packed != nullptr && num_elems(state.tensor->shape) != 1u)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("has the shape {}, and its parameter {} has {}, whose elements are in another order in the "
                            "model: the order of the state's elements is unknown",
                            to_string(state.tensor->shape), printable(own.name), to_string(own.shape)))
        .in(where_)
        .tensor(state.tensor->name)
        .hint("without config.json, names and order are kept");
}

std::uint32_t DcpStateFinder::path_number(DcpPath path) {
  return numbers_.emplace(std::move(path), static_cast<std::uint32_t>(numbers_.size())).first->second;
}

void DcpStateFinder::name_state(DcpState& state, const DcpPath* path) {
  const std::string& entry = state.entry();
  if (path != nullptr && !is_path_of(*path, entry)) path = nullptr;
  const auto parameter = parameter_in(entry);
  if (!parameter) {
    state.name = entry;
    state.state.path = path_number(path != nullptr ? *path : DcpPath{entry});
    if (state.tensor == nullptr && lists_parameters(entry)) list_ = entry;
    if (names_.is_of_optimizer(entry) && !is_in_group(entry)) strangers_.push_back(entry);
    return;
  }
  const std::string &before = parameter->before, &after = parameter->after;
  const std::string& own = names_.entries[parameter->tensor].name;
  const std::string whole = parameter->inner + own;
  state.state = {before + parameter->inner, own, after.substr(1)};
  state.name = state.state.name_with(own);
  const std::string marked_name = parameter->inner + kParameterMark;
  std::optional<DcpPath> own_path;
  if (path != nullptr && std::string_view(entry).substr(0, parameter->begin) == before)
    own_path = replaced(*path, parameter->begin, parameter->end, marked_name);
  state.state.path = path_number(own_path ? std::move(*own_path) : usual_path(before, marked_name, after));
  const bool has_model_name = entry.compare(parameter->begin, parameter->end - parameter->begin, whole) == 0;
  renames_ = renames_ || !has_model_name;
  has_own_names_ = has_own_names_ || (has_model_name && is_renamed(parameter->tensor));
  take_packing(state, parameter->tensor);
}

/// Whether the model's name of a parameter differs from its entry's name without the prefix.
bool DcpStateFinder::is_renamed(std::uint32_t parameter) const {
  const std::string& entry = model_[parameter].name;
  return without_wrappers(entry, names_) != entry ||
         std::string_view(entry).substr(names_.prefix.size()) != names_.entries[parameter].name;
}

/// Whether names in a list of parameters differ from the model's. If no state shows this, compares the names of the
/// model's entries.
bool DcpStateFinder::changes_list() const {
  if (renames_ || has_own_names_) return renames_;
  for (std::uint32_t t = 0; t < model_.size(); ++t)
    if (!names_.entries[t].name.empty() && is_renamed(t)) return true;
  return false;
}

void DcpStateFinder::refuse_list(const std::string& entry) const {
  throw Error(ErrorKind::kUnsupported,
              names_.program.empty()
                  ? std::string("lists parameters under names with wrappers, which are removed from the model's names")
                  : "lists parameters under their names in " + names_.program + ", which become the model's own")
      .in(where_)
      .tensor(entry)
      .hint(names_.program.empty() ? "save it again with torch.distributed.checkpoint.state_dict, which has no wrappers"
                                   : "save it with flatten_optimizer_state_dict=True, or convert it without "
                                     "config.json, which keeps the names");
}

std::vector<DcpState> DcpStateFinder::find(const DcpMetadata& metadata, std::span<const NamedEntry> named) {
  std::unordered_map<std::string_view, const DcpPath*> paths;
  paths.reserve(metadata.paths.size());
  for (const auto& [name, path] : metadata.paths) paths.emplace(name, &path);
  const auto path_of = [&](const std::string& entry) -> const DcpPath* {
    const auto found = paths.find(entry);
    return found == paths.end() ? nullptr : found->second;
  };
  std::vector<DcpState> states;
  for (std::size_t t = 0; t < metadata.tensors.size(); ++t) {
    if (!named.empty() && !named[t].name.empty()) continue;
    DcpState& state = states.emplace_back();
    state.tensor = &metadata.tensors[t];
    name_state(state, path_of(state.entry()));
  }
  std::unordered_map<std::string_view, std::size_t> objects;  // index into `states`, by name; ranks may share a name
  for (const DcpBytes& object : metadata.bytes) {
    const auto [found, is_new] = objects.emplace(object.name, states.size());
    if (is_new) states.emplace_back();
    states[found->second].objects.push_back(&object);
    if (is_new) name_state(states.back(), path_of(object.name));
  }
  if (!list_.empty() && changes_list()) refuse_list(list_);
  return states;
}

std::vector<DcpPath> DcpStateFinder::take_paths() {
  std::vector<DcpPath> paths(numbers_.size());
  for (auto& [path, number] : numbers_) paths[number] = path;
  numbers_.clear();
  return paths;
}

}  // namespace reshard
