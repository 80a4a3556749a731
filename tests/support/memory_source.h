#pragma once

#include <algorithm>
#include <string>

#include "reshard/io/storage.h"

namespace reshard::test {

/// A file in memory. Like a real one it refuses to be read past its end, with the error of a file that was cut.
class MemorySource final : public Source {
 public:
  explicit MemorySource(std::string content) : content_(std::move(content)) {}

  std::uint64_t size_bytes() const override { return content_.size(); }

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (out.empty()) return;
    if (offset_bytes > content_.size() || out.size() > content_.size() - offset_bytes)
      throw Error(ErrorKind::kIo, "read past the end").at_byte(offset_bytes);
    std::copy_n(content_.data() + offset_bytes, out.size(), reinterpret_cast<char*>(out.data()));
  }

 private:
  std::string content_;
};

}  // namespace reshard::test
