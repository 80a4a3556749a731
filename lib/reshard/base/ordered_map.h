#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace reshard {

/// Object type of OrderedJson: members in the order of insertion, found by key in logarithmic time. nlohmann's
/// ordered_map compares every member, so that reading a file takes the square of its keys. A tree rather than a hash
/// table, since keys come from files and could be made to collide.
/// Invariant: `places_` is empty for up to kFewMembers members, and has the place of every key otherwise.
template <class Key, class T, class IgnoredLess = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>>
class OrderedMap : private std::vector<std::pair<const Key, T>, Allocator> {
  using Members = std::vector<std::pair<const Key, T>, Allocator>;

 public:
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<>;  // NOLINT(readability-identifier-naming): the standard library's name
  using typename Members::allocator_type;
  using typename Members::const_iterator;
  using typename Members::const_reference;
  using typename Members::difference_type;
  using typename Members::iterator;
  using typename Members::reference;
  using typename Members::size_type;
  using typename Members::value_type;

  using Members::begin;
  using Members::cbegin;
  using Members::cend;
  using Members::empty;
  using Members::end;
  using Members::max_size;
  using Members::size;

  OrderedMap() = default;
  template <class Iterator>
  OrderedMap(Iterator first, Iterator last) : Members(first, last) {
    find_places();
  }

  void clear() {
    Members::clear();
    places_.clear();
  }

  /// Adds a member unless the key is there.
  template <class AnyKey>
  std::pair<iterator, bool> emplace(AnyKey&& key, T value) {
    if (const iterator found = find(key); found != end()) return {found, false};
    Members::emplace_back(std::forward<AnyKey>(key), std::move(value));
    if (!places_.empty())
      places_.emplace(Members::back().first, size() - 1);
    else
      find_places();
    return {end() - 1, true};
  }
  std::pair<iterator, bool> insert(value_type member) { return emplace(member.first, std::move(member.second)); }
  template <class Iterator>
  void insert(Iterator first, Iterator last) {
    for (; first != last; ++first) insert(*first);
  }

  template <class AnyKey>
  T& operator[](AnyKey&& key) {
    return emplace(std::forward<AnyKey>(key), T{}).first->second;
  }
  template <class AnyKey>
  iterator find(const AnyKey& key) {
    return begin() + static_cast<difference_type>(place_of(key));
  }
  template <class AnyKey>
  const_iterator find(const AnyKey& key) const {
    return begin() + static_cast<difference_type>(place_of(key));
  }
  template <class AnyKey>
  size_type count(const AnyKey& key) const {
    return place_of(key) == size() ? 0 : 1;
  }

  /// Takes time in proportion to the members.
  iterator erase(iterator first, iterator last) {
    const difference_type place = first - begin();
    Members kept;  // keys cannot be assigned
    kept.reserve(size());
    for (iterator member = begin(); member != end(); ++member)
      if (member < first || member >= last) kept.emplace_back(member->first, std::move(member->second));
    Members::swap(kept);
    places_.clear();
    find_places();
    return begin() + place;
  }
  iterator erase(iterator member) { return erase(member, member + 1); }
  size_type erase(const Key& key) {
    const iterator found = find(key);
    if (found == end()) return 0;
    erase(found);
    return 1;
  }

  friend bool operator==(const OrderedMap& a, const OrderedMap& b) {
    return static_cast<const Members&>(a) == static_cast<const Members&>(b);
  }
  friend bool operator<(const OrderedMap& a, const OrderedMap& b) {
    return static_cast<const Members&>(a) < static_cast<const Members&>(b);
  }

 private:
  static constexpr size_type kFewMembers = 16;  // compared one by one

  void find_places() {
    if (size() <= kFewMembers) return;
    for (size_type i = 0; i < size(); ++i) places_.emplace((begin() + static_cast<difference_type>(i))->first, i);
  }

  /// The member's index; size() if the key is absent.
  template <class AnyKey>
  size_type place_of(const AnyKey& key) const {
    if (!places_.empty()) {
      const auto found = places_.find(key);
      return found == places_.end() ? size() : found->second;
    }
    size_type place = 0;
    while (place < size() && !((begin() + static_cast<difference_type>(place))->first == key)) ++place;
    return place;
  }

  std::map<Key, size_type, std::less<>> places_;
};

}  // namespace reshard
