#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace reshard {

// Values as bytes for another process of this program, or a later one. Numbers and enums take eight bytes,
// little-endian. A text or a list begins with its size. An optional begins with whether it has a value. Arrays of bytes,
// tuples and records are their members, one after another.

/// A struct whose `static auto fields(auto& self)` returns std::tie of its members: the one description of its bytes.
template <typename Value>
concept WireRecord = requires(Value& value) {
  Value::fields(value);
};

template <typename Value>
concept WireTuple = requires {
  std::tuple_size<Value>::value;
};

template <typename Value>
inline constexpr bool kIsRaw = false;
template <std::size_t kSize>
inline constexpr bool kIsRaw<std::array<std::byte, kSize>> = true;

template <typename Value>
concept WirePath = requires(Value& value) {
  value.generic_string();
};

template <typename Value>
inline constexpr bool kIsOptional = false;
template <typename Value>
inline constexpr bool kIsOptional<std::optional<Value>> = true;

/// The fewest bytes that a value takes.
template <typename Value>
constexpr std::uint64_t least_wire_bytes() {
  if constexpr (kIsRaw<Value>)
    return sizeof(Value);
  else if constexpr (WireRecord<Value>)
    return least_wire_bytes<decltype(Value::fields(std::declval<Value&>()))>();
  else if constexpr (WireTuple<Value>)
    return []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
      return (least_wire_bytes<std::remove_cvref_t<std::tuple_element_t<kIndex, Value>>>() + ...);
    }
  (std::make_index_sequence<std::tuple_size_v<Value>>());
  else return 8;
}

/// An item as it is read before it is inserted into its container: the keys of a map are constant.
template <typename Item>
Item mutable_item(Item item);
template <typename Key, typename Mapped>
std::pair<Key, Mapped> mutable_item(std::pair<const Key, Mapped> item);

class WireWriter {
 public:
  template <typename Value>
  void add(const Value& value) {
    if constexpr (std::is_integral_v<Value> || std::is_enum_v<Value>) {
      add_bits(static_cast<std::uint64_t>(value));
    } else if constexpr (std::is_same_v<Value, double>) {
      add_bits(std::bit_cast<std::uint64_t>(value));
    } else if constexpr (kIsRaw<Value>) {
      bytes_.append(reinterpret_cast<const char*>(value.data()), value.size());
    } else if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
      const std::string_view text = value;
      add_bits(text.size());
      bytes_ += text;
    } else if constexpr (WirePath<Value>) {
      add(value.generic_string());
    } else if constexpr (kIsOptional<Value>) {
      add(value.has_value());
      add(value.value_or(typename Value::value_type{}));
    } else if constexpr (WireRecord<Value>) {
      add(Value::fields(value));
    } else if constexpr (WireTuple<Value>) {
      std::apply([this](const auto&... members) { (this->add(members), ...); }, value);
    } else {
      add_bits(value.size());
      for (const auto& item : value) add(item);
    }
  }

  std::string& bytes() { return bytes_; }

 private:
  void add_bits(std::uint64_t bits);

  std::string bytes_;
};

template <typename... Values>
std::string wire_bytes(const Values&... values) {
  WireWriter wire;
  (wire.add(values), ...);
  return std::move(wire.bytes());
}

/// Reads values in the order in which they were written.
class WireReader {
 public:
  /// Borrows the bytes.
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  /// A std::string_view borrows its text.
  /// \throws Error kBadInput if too few bytes are left, or a number does not fit its type.
  template <typename Value>
  Value read() {
    Value value{};
    read(value);
    return value;
  }

  template <typename Value>
  void read(Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      value = number() != 0;
    } else if constexpr (std::is_integral_v<Value>) {
      const std::uint64_t bits = number();
      value = static_cast<Value>(bits);
      if (static_cast<std::uint64_t>(value) != bits) fail("has a number that is too large");
    } else if constexpr (std::is_enum_v<Value>) {
      value = static_cast<Value>(number());
    } else if constexpr (std::is_same_v<Value, double>) {
      value = std::bit_cast<double>(number());
    } else if constexpr (kIsRaw<Value>) {
      std::memcpy(value.data(), raw(value.size()).data(), value.size());
    } else if constexpr (std::is_convertible_v<Value, std::string_view> || WirePath<Value>) {
      value = raw(number());
    } else if constexpr (kIsOptional<Value>) {
      const bool has_value = number() != 0;
      value = read<typename Value::value_type>();
      if (!has_value) value.reset();
    } else if constexpr (WireRecord<Value>) {
      auto fields = Value::fields(value);
      read(fields);
    } else if constexpr (WireTuple<Value>) {
      std::apply([this](auto&... members) { (this->read(members), ...); }, value);
    } else {
      using Item = decltype(mutable_item(std::declval<typename Value::value_type>()));
      std::uint64_t left = number();
      if (left > rest_.size() / least_wire_bytes<Item>()) fail("ends too early");
      for (; left > 0; --left) value.insert(value.end(), read<Item>());
    }
  }

  bool at_end() const { return rest_.empty(); }

 private:
  std::uint64_t number();
  std::string_view raw(std::uint64_t size_bytes);
  [[noreturn]] static void fail(const char* why);

  std::string_view rest_;
};

}  // namespace reshard
