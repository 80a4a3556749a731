#pragma once

#include <cstdint>
#include <initializer_list>

namespace reshard {

/// A set of enumerators. The enumeration has at most 32, numbered from 0.
template <typename Value>
class EnumSet {
 public:
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<Value> values) {
    for (const Value value : values) bits_ |= bit(value);
  }

  constexpr bool has(Value value) const { return (bits_ & bit(value)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  static constexpr std::uint32_t bit(Value value) { return std::uint32_t{1} << static_cast<std::uint32_t>(value); }

  std::uint32_t bits_ = 0;
};

}  // namespace reshard
