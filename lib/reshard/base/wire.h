#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace reshard {

/// Puts numbers and texts into bytes, for another process of the same program, or a later one: numbers little-endian,
/// a text as its length and its bytes.
class WireWriter {
 public:
  /// Whole numbers and enums take eight bytes.
  template <typename Number>
  requires std::is_integral_v<Number> || std::is_enum_v<Number>
  void add(Number number) { add_bits(static_cast<std::uint64_t>(number)); }
  void add(double number);
  void add(std::string_view text);
  void add(const char* text) { add(std::string_view(text)); }
  void add(const std::string& text) { add(std::string_view(text)); }
  /// As they are, without their length.
  void add_raw(std::string_view bytes) { bytes_ += bytes; }

  std::string& bytes() { return bytes_; }

 private:
  void add_bits(std::uint64_t bits);

  std::string bytes_;
};

/// Takes out what a WireWriter put in, in the same order.
class WireReader {
 public:
  /// Borrowed.
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  /// Each \throws Error kBadInput if there are too few bytes left.
  std::uint64_t number();
  double real();
  std::string_view text();
  std::string_view raw(std::uint64_t size_bytes);

  /// The number of items that follow, each of `least_bytes` or more.
  /// \throws Error kBadInput if there is no room for them.
  std::uint64_t count(std::uint64_t least_bytes = 8);
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace reshard
