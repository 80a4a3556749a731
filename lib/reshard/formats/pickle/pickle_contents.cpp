#include "reshard/formats/pickle/pickle_contents.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "reshard/formats/pickle/pickle_globals.h"

namespace reshard {
namespace {

constexpr std::size_t kMostSearched = 256;

/// Searches nodes for storages, and visits each only once over all searches.
class StorageSearch {
 public:
  explicit StorageSearch(const Pickle& pickle) : pickle_(pickle) {}

  bool finds(PickleRef start, std::size_t most_nodes = SIZE_MAX) {
    bool found = false;
    for (open(start); !open_.empty();) {
      const PickleRef node = open_.back();
      open_.pop_back();
      found = found || pickle_.kind(node) == PickleKind::kPersistentId;
      if (seen_.size() + pickle_.items(node).size() + pickle_.pairs(node).size() > most_nodes) return true;
      if (pickle_.is_object_of(node, "torch.distributed.device_mesh", "DeviceMesh")) continue;
      open(pickle_.args(node));
      open(pickle_.state(node));
      for (const PickleRef item : pickle_.items(node)) open(item);
      for (const auto& [key, value] : pickle_.pairs(node)) {
        open(key);
        open(value);
      }
    }
    return found;
  }

 private:
  void open(PickleRef node) {
    if (node != kNoNode && seen_.insert(node).second) open_.push_back(node);
  }

  const Pickle& pickle_;
  std::unordered_set<PickleRef> seen_;
  std::vector<PickleRef> open_;
};

}  // namespace

std::vector<PickleName> pickle_names(const Pickle& pickle) {
  using Is = PickleName::Is;
  std::unordered_map<PickleRef, PickleRef> unknown;  // object: its class
  for (const Pickle::UnknownObject& object : pickle.unknown_objects()) unknown.emplace(object.node, object.of);
  std::unordered_map<PickleRef, std::uint64_t> objects;  // by class or function
  for (PickleRef node = 0; node < pickle.num_nodes(); ++node) {
    if (pickle.kind(node) == PickleKind::kGlobal) objects.try_emplace(node);
    if (pickle.kind(node) != PickleKind::kObject) continue;
    const auto known = unknown.find(node);
    ++objects[known == unknown.end() ? pickle.callee(node) : known->second];
  }
  std::set<PickleRef> unknown_classes;
  for (const auto& [node, of] : unknown) unknown_classes.insert(of);
  const std::vector<std::string> with_storages = unknown_classes_with_storages(pickle);
  std::map<std::string, PickleName> names;  // a global may have several nodes
  for (const auto& [of, count] : objects) {
    PickleName& entry = names.try_emplace(pickle.class_name(of)).first->second;
    entry.objects += count;
    if (unknown_classes.count(of) > 0)
      entry.is = Is::kRecorded;
    else if (count > 0)
      entry.is = std::min(entry.is, Is::kKnown);
    else if (judge(pickle.global(of), PickleUse::kBuilt) == PickleVerdict::kRefused)
      entry.is = Is::kOnlyNamedCode;
  }
  for (const std::string& name : with_storages) names.at(name).is = Is::kRecordedWithStorages;
  std::vector<PickleName> sorted;
  for (auto& [name, entry] : names) {
    entry.name = name;
    sorted.push_back(std::move(entry));
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const PickleName& a, const PickleName& b) { return a.is < b.is; });
  return sorted;
}

std::vector<std::string> unknown_classes_with_storages(const Pickle& pickle) {
  if (pickle.unknown_objects().empty()) return {};
  StorageSearch search(pickle);
  std::unordered_set<PickleRef> classes;
  for (const Pickle::UnknownObject& object : pickle.unknown_objects())
    if (search.finds(object.node)) classes.insert(object.of);
  std::set<std::string> names;
  for (const PickleRef of : classes) names.insert(pickle.class_name(of));
  return {names.begin(), names.end()};
}

bool may_contain_storage(const Pickle& pickle, PickleRef node) {
  return StorageSearch(pickle).finds(node, kMostSearched);
}

}  // namespace reshard
