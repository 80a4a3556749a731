#pragma once

#include <string>
#include <string_view>

#include "reshard/formats/common/little_endian.h"
#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// Where a reader of a pickle stands. Errors name the byte of the opcode that is being read.
class PickleCursor {
 public:
  PickleCursor(std::string_view stream, const std::filesystem::path& path, std::uint64_t offset_bytes)
      : stream_(stream), path_(path), offset_bytes_(offset_bytes) {}

  /// Bytes read so far.
  std::uint64_t position() const { return at_; }

  unsigned char opcode() {
    opcode_at_ = at_;
    return static_cast<unsigned char>(take(1)[0]);
  }

  /// \throws PickleCutOff if the stream has fewer bytes left.
  std::string_view take(std::uint64_t bytes);

  /// What follows a length that is stored as a `Length`.
  template <typename Length>
  std::string_view take_sized() {
    return take(number<Length>());
  }

  template <typename Number>
  Number number() {
    return load_le<Number>(take(sizeof(Number)), 0);
  }

  double big_endian_double();

  /// Up to the next newline, which is taken but not returned.
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

/// A little-endian number in two's complement, without the bytes at its end that only repeat the sign.
std::string_view shortest_integer(std::string_view bytes);

/// Such a number of at most 8 bytes.
std::int64_t small_integer(std::string_view bytes);

/// The text of a STRING line: quoted, with Python's escapes. False if it is not quoted or an escape is cut off.
bool decode_quoted(std::string_view line, std::string& text);

/// The text of a UNICODE line (raw-unicode-escape), as UTF-8. False if an escape is cut off or no code point.
bool decode_raw_unicode(std::string_view line, std::string& text);

}  // namespace reshard
