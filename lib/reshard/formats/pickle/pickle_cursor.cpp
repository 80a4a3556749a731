#include "reshard/formats/pickle/pickle_cursor.h"

#include <algorithm>
#include <charconv>

namespace reshard {
namespace {

constexpr std::uint32_t kEndOfUnicode = 0x110000;

void append_utf8(std::uint32_t code, std::string& text) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// Parses exactly `digits` characters of `text` from `at`.
bool read_digits(std::string_view text, std::size_t at, std::size_t digits, int base, std::uint32_t& number) {
  if (text.size() < at + digits) return false;
  const char* begin = text.data() + at;
  const auto [end, error] = std::from_chars(begin, begin + digits, number, base);
  return error == std::errc() && end == begin + digits;
}

bool is_octal(std::string_view text, std::size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '7';
}

}  // namespace

PickleCutOff PickleCursor::cut_off() const {
  PickleCutOff error(ErrorKind::kBadInput, "the pickle ends before it is complete");
  error.in(path_).at_byte(offset_bytes_ + opcode_at_).hint("the file is cut off or damaged; fetch or save it again");
  return error;
}

std::string_view PickleCursor::take(std::uint64_t bytes) {
  if (bytes > stream_.size() - at_) throw cut_off();
  const std::string_view taken = stream_.substr(at_, bytes);
  at_ += bytes;
  return taken;
}

double PickleCursor::big_endian_double() {
  std::string bytes(take(sizeof(double)));
  std::reverse(bytes.begin(), bytes.end());
  return load_le<double>(bytes, 0);
}

std::string_view PickleCursor::line() {
  const std::size_t end = stream_.find('\n', at_);
  if (end == stream_.npos) throw cut_off();
  const std::string_view text = stream_.substr(at_, end - at_);
  at_ = end + 1;
  return text;
}

std::string_view shortest_integer(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  while (bytes.size() > 1) {
    const bool negative = byte(bytes.size() - 2) >= 0x80;
    if (byte(bytes.size() - 1) != (negative ? 0xFF : 0)) break;
    bytes.remove_suffix(1);
  }
  return bytes;
}

std::int64_t small_integer(std::string_view bytes) {
  const bool negative = !bytes.empty() && static_cast<unsigned char>(bytes.back()) >= 0x80;
  std::string padded(sizeof(std::int64_t), negative ? '\xFF' : '\0');
  std::copy(bytes.begin(), bytes.end(), padded.begin());
  return load_le<std::int64_t>(padded, 0);
}

bool decode_quoted(std::string_view line, std::string& text) {
  if (line.size() < 2 || (line.front() != '\'' && line.front() != '"') || line.back() != line.front()) return false;
  line = line.substr(1, line.size() - 2);
  constexpr std::string_view kLetters = "abfnrtv\\'\"";
  constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] != '\\') {
      text += line[at++];
      continue;
    }
    if (++at == line.size()) return false;
    std::uint32_t code = 0;
    if (const std::size_t letter = kLetters.find(line[at]); letter != kLetters.npos) {
      text += kMeanings[letter];
      ++at;
    } else if (line[at] == 'x') {
      if (!read_digits(line, at + 1, 2, 16, code)) return false;
      text += static_cast<char>(code);
      at += 3;
    } else if (is_octal(line, at)) {
      for (std::size_t digits = 0; digits < 3 && is_octal(line, at); ++digits)
        code = code * 8 + static_cast<std::uint32_t>(line[at++] - '0');
      text += static_cast<char>(code);
    } else {
      text += '\\';  // Python keeps unknown escapes unchanged
    }
  }
  return true;
}

bool decode_raw_unicode(std::string_view line, std::string& text) {
  for (std::size_t at = 0; at < line.size();) {
    const bool escaped = line[at] == '\\' && at + 1 < line.size() && (line[at + 1] == 'u' || line[at + 1] == 'U');
    if (!escaped) {
      append_utf8(static_cast<unsigned char>(line[at++]), text);  // the other bytes are Latin-1
      continue;
    }
    const std::size_t digits = line[at + 1] == 'u' ? 4 : 8;
    std::uint32_t code = 0;
    if (!read_digits(line, at + 2, digits, 16, code) || code >= kEndOfUnicode) return false;
    append_utf8(code, text);
    at += 2 + digits;
  }
  return true;
}

}  // namespace reshard
