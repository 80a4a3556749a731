#include "reshard/layouts/dcp/dcp_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/pickle/pickler.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/memory_files.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/states/optimizer_keys.h"

namespace reshard {
namespace {

constexpr std::string_view kGroups = "param_groups.";
constexpr std::string_view kStateBegin = "state.";
constexpr std::uint64_t kMaxObjectBytes = 64 << 20;  // fits the names of a million parameters

/// Returns the offset after `word` in `name`, where `word` starts a dotted part; std::nullopt if not found.
std::optional<std::size_t> end_of(std::string_view name, std::string_view word) {
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1))
    if (at == 0 || name[at - 1] == '.') return at + word.size();
  return std::nullopt;
}

Error bad_group(const GroupObject& of, const std::string& message) {
  return Error(ErrorKind::kBadInput, message).in(of.path).tensor(of.entry).hint("leave out `with-optimizer`");
}

class GroupReader {
 public:
  GroupReader(Files& files, std::span<const SourceFile> in_files, TrainingStates& states)
      : opened_(files, in_files), states_(states) {}

  void run() {
    for (std::uint32_t i = 0; i < states_.of.size(); ++i) {
      const LogicalTensor& object = states_.map.logical[i];
      const auto key = end_of(object.name, kGroups);
      if (!key) {
        if (const auto begin = end_of(object.name, kStateBegin); begin && !states_.of[i].parameter.empty())
          learn_name(i, *begin);
        continue;
      }
      if (object.role != TensorRole::kObject)
        throw fail(i, ErrorKind::kUnsupported, "is a hyperparameter stored as a tensor instead of a plain value");
      if (!states_.of[i].parameter.empty())
        add_of_parameter(i);
      else
        add_of_group(i, std::string_view(object.name).substr(*key));
    }
    for (SavedGroup& group : saved_groups(objects_)) take(std::move(group));
    for (const auto& parameter : order_) join(parameter);
    states_.grouped_by_values = !order_.empty();
  }

 private:
  /// Records the name that lists of parameters use: the same as in states, prefixes included.
  void learn_name(std::uint32_t state, std::size_t begin) {
    const TrainingState& place = states_.of[state];
    const std::string name = place.prefix + place.parameter;
    if (begin < name.size()) own_names_.emplace(name.substr(begin), place.parameter);
  }

  void add_of_group(std::uint32_t object, std::string_view key) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    const std::string what =
        fmt::format("{} of parameter group {}", key.substr(dot + (dot < key.size())), key.substr(0, dot));
    objects_.push_back({states_.map.logical[object].name, path_of(object), std::string(key), value_of(object, what)});
  }

  void add_of_parameter(std::uint32_t object) {
    const auto& [prefix, parameter, key, left_out, path] = states_.of[object];
    if (key.empty()) throw fail(object, ErrorKind::kBadInput, "is not a hyperparameter");
    const auto [found, is_new] = of_parameter_.try_emplace(parameter);
    if (is_new) order_.push_back(parameter);
    found->second.emplace_back(key, value_of(object, fmt::format("{} of {}", key, printable(parameter))));
  }

  /// Adds a group, with the model's names of its parameters.
  void take(SavedGroup saved) {
    std::vector<std::string> parameters;
    for (const PlainValue& one : saved.parameters) {
      const auto* const name = std::get_if<std::string>(&one.value);
      if (name == nullptr) throw bad_group(*saved.list, "lists " + to_string(one) + ", which is not a name");
      const auto known = own_names_.find(*name);
      parameters.push_back(known == own_names_.end() ? *name : std::string(known->second));
      if (!grouped_.insert(parameters.back()).second)
        throw bad_group(*saved.list, "lists " + printable(*name) + ", which is already in a group");
    }
    by_values_.emplace(key_of(saved.values), states_.groups.size());
    states_.groups.push_back({std::move(saved.values), std::move(parameters)});
  }

  /// Adds a parameter with separately saved hyperparameters to the group with equal values.
  void join(const std::string& parameter) {
    PlainValue::Dict& values = of_parameter_.at(parameter);
    const auto [group, is_new] = by_values_.emplace(key_of(values), states_.groups.size());
    if (is_new) states_.groups.push_back({std::move(values), {}});
    states_.groups[group->second].parameters.push_back(parameter);
  }

  /// Returns a key that is unique for these values.
  static std::string key_of(const PlainValue::Dict& values) {
    Pickler pickler;
    put_plain_value(pickler, PlainValue(values));
    return pickler.finish();
  }

  PlainValue value_of(std::uint32_t object, const std::string& what) {
    const auto& pieces = states_.map.pieces[object];
    if (pieces.empty()) throw fail(object, ErrorKind::kBadInput, "no file contains it");
    const StoredTensor& stored = states_.map.stored[pieces.front().stored];
    PlainValue value = read_dcp_object(opened_.at(stored.file), stored.offset_bytes, stored.size_bytes(),
                                       states_.map.logical[object].name, what, opened_.described(stored.file).path);
    values_ += num_values(value);
    bytes_ += stored.size_bytes();
    if (values_ > bytes_ + kMaxPlainValues)
      throw fail(object, ErrorKind::kBadInput, "the hyperparameters contain the same values repeatedly");
    return value;
  }

  Error fail(std::uint32_t object, ErrorKind kind, const std::string& message) const {
    return Error(kind, message)
        .in(path_of(object))
        .tensor(states_.map.logical[object].name)
        .hint("leave out `with-optimizer`");
  }

  /// Returns an empty path if no file contains the object.
  std::filesystem::path path_of(std::uint32_t object) const {
    const auto& pieces = states_.map.pieces[object];
    if (pieces.empty()) return {};
    return opened_.described(states_.map.stored[pieces.front().stored].file).path;
  }

  OpenedFiles opened_;
  std::uint64_t values_ = 0, bytes_ = 0;  // totals; an object may contain one large value many times
  TrainingStates& states_;
  std::unordered_map<std::string, std::string_view> own_names_;  // the model's names, keyed by the optimizer's
  std::vector<GroupObject> objects_;
  std::unordered_map<std::string, PlainValue::Dict> of_parameter_;
  std::vector<std::string> order_;
  std::unordered_map<std::string, std::size_t> by_values_;  // indices of groups, keyed by key_of
  std::unordered_set<std::string> grouped_;
};

}  // namespace

PlainValue read_dcp_object(const Source& source, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                           const std::string& entry, const std::string& what, const std::filesystem::path& path) {
  if (size_bytes > kMaxObjectBytes)
    throw Error(ErrorKind::kUnsupported, "is larger than any hyperparameter")
        .in(path)
        .tensor(entry)
        .hint("leave out `with-optimizer`");
  std::string bytes(size_bytes, '\0');
  source.read_at(offset_bytes, std::as_writable_bytes(std::span(bytes)));
  try {
    const TorchFile torch = read_torch_file(MemorySource(std::move(bytes), path), path);
    return read_plain_value(torch.pickle(), torch.pickle().root(), what, path);
  } catch (Error& error) {
    if (error.tensor().empty()) error.tensor(entry);
    throw;
  }
}

void read_dcp_groups(Files& files, std::span<const SourceFile> in_files, TrainingStates& states) {
  GroupReader(files, in_files, states).run();
}

void try_dcp_groups(Files& files, std::span<const SourceFile> in_files, TrainingStates& states) {
  try {
    read_dcp_groups(files, in_files, states);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported && error.kind() != ErrorKind::kBadInput) throw;
    states.groups.clear();
  }
}

std::vector<SavedGroup> saved_groups(std::span<const GroupObject> objects) {
  struct Group {
    PlainValue::Dict values;
    std::unordered_map<std::string, std::size_t> places;  // indices into `values`, by key
    const GroupObject* last = nullptr;
    const GroupObject* list = nullptr;  // the object that contains "params"
  };
  std::map<std::uint64_t, Group> by_number;
  const auto add = [&](std::uint64_t number, const std::string& key, const PlainValue& value,
                       const GroupObject& object) {
    Group& group = by_number[number];
    const auto [known, is_new] = group.places.emplace(key, group.values.size());
    if (is_new)
      group.values.emplace_back(key, value);
    else if (group.values[known->second].second != value)
      throw bad_group(
          object, fmt::format("is a second {} of parameter group {}, from another optimizer", printable(key), number));
    if (key == kGroupParametersKey) group.list = &object;
  };
  for (const GroupObject& object : objects) {
    if (object.key.empty()) {
      const auto* const list = std::get_if<PlainValue::List>(&object.value.value);
      for (std::size_t g = 0; list != nullptr && g < list->size(); ++g) {
        const auto* const group = std::get_if<PlainValue::Dict>(&(*list)[g].value);
        if (group == nullptr) throw bad_group(object, fmt::format("group {} is not a dict", g));
        by_number[g].last = &object;
        for (const auto& [key, value] : *group) add(g, key, value, object);
      }
      continue;
    }
    const std::size_t dot = object.key.find('.');
    const auto number = parse_unsigned(std::string_view(object.key).substr(0, dot), kMaxParameterGroups);
    if (dot == object.key.npos || !number) throw bad_group(object, "does not belong to a numbered group");
    by_number[*number].last = &object;
    add(*number, object.key.substr(dot + 1), object.value, object);
  }
  std::vector<SavedGroup> groups;
  for (auto& [number, group] : by_number) {
    if (number != groups.size())
      throw bad_group(*group.last, fmt::format("there is no parameter group {}", groups.size()));
    const auto params = std::find_if(group.values.begin(), group.values.end(),
                                     [](const auto& value) { return value.first == kGroupParametersKey; });
    auto* const list = params == group.values.end() ? nullptr : std::get_if<PlainValue::List>(&params->second.value);
    if (list == nullptr)
      throw params == group.values.end()
          ? bad_group(*group.last, fmt::format("parameter group {} has no list of parameters", number))
          : bad_group(*group.list, fmt::format("is not a list of the parameters of group {}", number));
    SavedGroup& saved = groups.emplace_back(SavedGroup{{}, std::move(*list), group.list});
    group.values.erase(params);
    saved.values = std::move(group.values);
  }
  return groups;
}

std::vector<DcpGroupObject> dcp_group_objects(std::span<const OptimizerGroup> groups,
                                              const std::function<std::string(const std::string&)>& name_of,
                                              bool flat) {
  constexpr const char *kOptimizer = "optimizer", *kList = kGroupsKey, *kItemArchive = "archive";
  std::vector<DcpGroupObject> objects;
  std::unordered_map<std::string, std::size_t> known;  // indices of groups, keyed by the written name of a parameter
  for (std::size_t g = 0; g < groups.size(); ++g) {
    PlainValue::List names;
    for (const std::string& parameter : groups[g].parameters) {
      std::string name = name_of(parameter);
      const auto [found, is_new] = known.emplace(name, g);
      if (!is_new && groups[found->second].values != groups[g].values)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("is packed into {} with a parameter that has other hyperparameters", printable(name)))
            .tensor(parameter)
            .hint("leave out `names` or `with-optimizer`");
      if (!is_new) continue;
      if (flat)
        for (const auto& [key, value] : groups[g].values)
          objects.push_back({fmt::format("{}.{}.{}.{}", kOptimizer, kList, name, key),
                             fmt::format("{}.{}.{}.{}", kOptimizer, kList, parameter, key),
                             {kOptimizer, fmt::format("{}.{}.{}", kList, name, key)},
                             plain_value_file(kItemArchive, value)});
      names.push_back({std::move(name)});
    }
    if (flat) continue;
    const auto add = [&](const std::string& key, const PlainValue& value) {
      const std::string name = fmt::format("{}.{}.{}.{}", kOptimizer, kList, g, key);
      objects.push_back(
          {name, name, {kOptimizer, kList, static_cast<std::int64_t>(g), key}, plain_value_file(kItemArchive, value)});
    };
    for (const auto& [key, value] : groups[g].values) add(key, value);
    add(kGroupParametersKey, {std::move(names)});
  }
  return objects;
}

}  // namespace reshard
