#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>

#include "reshard/tensor/values/shape.h"

namespace reshard {

/// Writes a pickle of protocol 2, opcode by opcode (Python's Lib/pickletools.py).
class Pickler {
 public:
  Pickler() { text_ = "\x80\x02"; }

  /// Reserves `bytes`.
  void reserve(std::size_t bytes) { text_.reserve(bytes); }
  void op(char code) { text_ += code; }
  void global(const char* module, const char* name) {
    text_ += 'c';
    text_ += module;
    text_ += '\n';
    text_ += name;
    text_ += '\n';
  }
  void string(const std::string& value) {
    text_ += 'X';
    number<std::uint32_t>(value.size());
    text_ += value;
  }
  void integer(std::uint64_t value) {
    if (value < 0x100) {
      text_ += 'K';
      number<std::uint8_t>(value);
    } else if (value < 0x10000) {
      text_ += 'M';
      number<std::uint16_t>(value);
    } else if (value < 0x80000000) {
      text_ += 'J';
      number<std::uint32_t>(value);
    } else {
      text_ += '\x8a';
      text_ += '\x09';  // one byte more than 64 bits, so that the sign is positive
      number<std::uint64_t>(value);
      text_ += '\0';
    }
  }
  void signed_integer(std::int64_t value) {
    if (value >= 0) return integer(static_cast<std::uint64_t>(value));
    text_ += '\x8a';
    text_ += '\x08';
    number<std::uint64_t>(static_cast<std::uint64_t>(value));
  }
  void real(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    text_ += 'G';
    for (int shift = 56; shift >= 0; shift -= 8) text_ += static_cast<char>(bits >> shift & 0xff);  // big-endian
  }
  void tuple(const Dims& values) {
    text_ += '(';
    for (const std::uint64_t value : values) integer(value);
    text_ += 't';
  }

  /// Pushes the object that was pushed last with this key. `make` pushes it the first time.
  template <typename Make>
  void shared(const std::string& key, Make&& make) {
    const auto known = memo_.find(key);
    if (known != memo_.end()) {
      memo('h', 'j', known->second);
      return;
    }
    make();
    const auto place = static_cast<std::uint32_t>(memo_.size());
    memo_.emplace(key, place);
    memo('q', 'r', place);
  }
  void shared_global(const char* module, const char* name) {
    shared(std::string("c") + module + '.' + name, [&] { global(module, name); });
  }
  void shared_string(const std::string& value) {
    shared("X" + value, [&] { string(value); });
  }

  /// Fills the list ('e') or dict ('u') on top of the stack with the items that `put(next)` pushes; it calls `next()`
  /// before each item or pair. Adds a thousand at a time, as Python does, so that readers need no large stacks.
  template <typename Put>
  void fill(char code, Put&& put) {
    constexpr std::size_t kAtOnce = 1000;
    std::size_t count = 0;
    op('(');
    put([&] {
      if (++count % kAtOnce != 1 || count == 1) return;
      op(code);
      op('(');
    });
    op(code);
  }

  std::string finish() {
    text_ += '.';
    return std::move(text_);
  }

 private:
  template <typename T>
  void number(std::uint64_t value) {
    const T narrow = static_cast<T>(value);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &narrow, sizeof(T));
    text_.append(bytes, sizeof(T));
  }
  void memo(char small, char large, std::uint32_t place) {
    text_ += place < 0x100 ? small : large;
    if (place < 0x100)
      number<std::uint8_t>(place);
    else
      number<std::uint32_t>(place);
  }

  std::string text_;
  std::unordered_map<std::string, std::uint32_t> memo_;
};

}  // namespace reshard
