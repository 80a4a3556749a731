#pragma once

#include <string>
#include <string_view>

#include "reshard/formats/common/little_endian.h"
#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// Position of a reader in a pickle. Errors name the byte of the current opcode.
class PickleCursor {
 public:
  PickleCursor(std::string_view stream, const std::filesystem::path& path, std::uint64_t offset_bytes)
      : stream_(stream), path_(path), offset_bytes_(offset_bytes) {}

  /// Number of bytes read so far.
  std::uint64_t position() const { return at_; }

  unsigned char opcode() {
    opcode_at_ = at_;
    return static_cast<unsigned char>(take(1)[0]);
  }

  /// \throws PickleCutOff if fewer bytes are left.
  std::string_view take(std::uint64_t bytes);

  /// Reads a `Length` and returns that many bytes.
  template <typename Length>
  std::string_view take_sized() {
    return take(number<Length>());
  }

  template <typename Number>
  Number number() {
    return load_le<Number>(take(sizeof(Number)), 0);
  }

  double big_endian_double();

  /// Returns the text up to the next newline, and skips the newline.
  std::string_view line();

  Error bad(std::string message) const {
    return Error(ErrorKind::kBadInput, "the pickle " + std::move(message))
        .in(path_)
        .at_byte(offset_bytes_ + opcode_at_);
  }
  Error unsupported(std::string message) const {
    return Error(ErrorKind::kUnsupported, "the pickle " + std::move(message))
        .in(path_)
        .at_byte(offset_bytes_ + opcode_at_);
  }

 private:
  PickleCutOff cut_off() const;

  std::string_view stream_;
  const std::filesystem::path& path_;
  std::uint64_t offset_bytes_;
  std::uint64_t at_ = 0;
  std::uint64_t opcode_at_ = 0;
};

/// Removes redundant sign bytes from the end of a little-endian two's complement number.
std::string_view shortest_integer(std::string_view bytes);

/// Decodes such a number of at most 8 bytes.
std::int64_t small_integer(std::string_view bytes);

/// Decodes a STRING line: quoted, with Python's escapes. Returns false if it is not quoted or an escape is incomplete.
bool decode_quoted(std::string_view line, std::string& text);

/// Decodes a UNICODE line (raw-unicode-escape) to UTF-8. Returns false if an escape is incomplete or not a code point.
bool decode_raw_unicode(std::string_view line, std::string& text);

}  // namespace reshard
