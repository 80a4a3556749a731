#include "reshard/base/strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace reshard {
namespace {

constexpr std::size_t kPrintableBytes = 300;  // a hostile name must not flood the terminal

std::string format_scaled(double value, double base, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (unit + 1 < units.size() && value >= base * 0.9995) {
    value /= base;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}{}", value, units[0]);
  const char* digits = value < 9.995 ? "{:.2f}{}" : value < 99.95 ? "{:.1f}{}" : "{:.0f}{}";
  return fmt::format(fmt::runtime(digits), value, units[unit]);
}

/// Number of letters inserted, deleted, changed, or swapped with their neighbour.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> rows(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) rows[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  return rows[a.size()][b.size()];
}

/// Code points that a terminal does not show, or that reorder others: Unicode's general categories Cf, Zl and Zp, and
/// the property Default_Ignorable_Code_Point (version 15).
struct CodePoints {
  std::uint32_t first, last;
};
constexpr CodePoints kHidden[] = {
    {0x00AD, 0x00AD},   {0x034F, 0x034F},   {0x0600, 0x0605},   {0x061C, 0x061C},   {0x06DD, 0x06DD},
    {0x070F, 0x070F},   {0x0890, 0x0891},   {0x08E2, 0x08E2},   {0x115F, 0x1160},   {0x17B4, 0x17B5},
    {0x180B, 0x180F},   {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},   {0x3164, 0x3164},
    {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFFB},   {0x110BD, 0x110BD},
    {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF}};

bool is_hidden(std::string_view character) {
  if (character.size() < 2) return false;
  constexpr std::uint32_t kFirstBits[] = {0x1F, 0x0F, 0x07};  // for 2, 3, 4 bytes
  std::uint32_t code = static_cast<unsigned char>(character[0]) & kFirstBits[character.size() - 2];
  for (const char c : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  return std::any_of(std::begin(kHidden), std::end(kHidden),
                     [&](CodePoints range) { return range.first <= code && code <= range.last; });
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first >= 0xC2 && first < 0xE0) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first < 0xF0) {
    const bool allowed = first == 0xE0 ? byte(1) >= 0xA0 : first != 0xED || byte(1) < 0xA0;  // no surrogates
    return continues(1) && continues(2) && allowed ? 3 : 0;
  }
  if (first >= 0xF0 && first < 0xF5) {
    const bool allowed = first == 0xF0 ? byte(1) >= 0x90 : first != 0xF4 || byte(1) < 0x90;
    return continues(1) && continues(2) && continues(3) && allowed ? 4 : 0;
  }
  return 0;
}

bool begins_with_control(std::string_view text) {
  if (text.empty()) return false;
  const auto first = static_cast<unsigned char>(text[0]);
  const bool c1 = first == 0xC2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xA0;
  return first < 0x20 || first == 0x7F || c1;
}

bool has_control(std::string_view text) {
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~'; };
  for (std::size_t i = 0; i < text.size(); ++i)
    if (!is_plain(text[i]) && begins_with_control(text.substr(i))) return true;
  return false;
}

std::string printable(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size() && at < kPrintableBytes) {
    const std::string_view rest = text.substr(at);
    const std::size_t length = std::max<std::size_t>(1, utf8_length(rest));
    if (utf8_length(rest) == 0 || begins_with_control(rest) || is_hidden(rest.substr(0, length))) {
      for (std::size_t i = 0; i < length; ++i) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(rest[i]));
    } else {
      out += rest.substr(0, length);
    }
    at += length;
  }
  if (at < text.size()) out += fmt::format("… ({} bytes)", text.size());
  return out;
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits{" B", " kB", " MB", " GB", " TB", " PB"};
  return format_scaled(static_cast<double>(bytes), 1000.0, kUnits);
}

std::string format_memory(std::uint64_t bytes) {
  static constexpr std::array kUnits{" B", " KiB", " MiB", " GiB", " TiB"};
  return format_scaled(static_cast<double>(bytes), 1024.0, kUnits);
}

std::string format_count(std::uint64_t count) {
  static constexpr std::array kUnits{"", " K", " M", " B", " T"};
  return format_scaled(static_cast<double>(count), 1000.0, kUnits);
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  struct Unit {
    const char* name;
    double bytes;
  };
  static constexpr Unit kUnits[] = {
      {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, digits);
  std::string_view unit = digits == std::string_view::npos ? std::string_view() : text.substr(digits);
  if (unit == " ") return std::nullopt;
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (number.empty() || number.front() == '.' || number.back() == '.') return std::nullopt;
  for (const Unit& candidate : kUnits) {
    if (!equal_ignoring_case(unit, candidate.name)) continue;
    const bool whole = number.find('.') == std::string_view::npos;
    if (candidate.bytes == 1) {
      const auto bytes = parse_unsigned(number, std::uint64_t{1} << 63);
      return bytes && *bytes > 0 ? bytes : std::nullopt;
    }
    if (!whole && std::count(number.begin(), number.end(), '.') > 1) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
    const double bytes = std::round(value * candidate.bytes);
    if (!(bytes >= 1) || bytes > 9223372036854775808.0) return std::nullopt;
    return static_cast<std::uint64_t>(bytes);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> parse_unsigned(std::string_view text, std::uint64_t max) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 10);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kLongestGuess = 64;  // the edit distance takes quadratic time
  if (word.size() > kLongestGuess) return {};
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance > 0 && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      std::size_t i_end = i;
      std::size_t j_end = j;
      while (i_end < a.size() && digit(a[i_end])) ++i_end;
      while (j_end < b.size() && digit(b[j_end])) ++j_end;
      if (i_end - i != j_end - j) return i_end - i < j_end - j;
      if (const int order = a.substr(i, i_end - i).compare(b.substr(j, j_end - j))) return order < 0;
      i = i_end;
      j = j_end;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts.begin(), parts.end(), separator));
}

std::string with_stars(std::string_view name) {
  std::vector<std::string> parts = split(name, '.');
  for (std::string& part : parts)
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) part = "*";
  return join(parts, ".");
}

std::vector<std::string> numbers_in(std::string_view name) {
  std::vector<std::string> numbers = split(name, '.');
  std::erase_if(numbers, [](const std::string& part) { return with_stars(part) != "*"; });
  return numbers;
}

std::string with_numbers(std::string pattern, std::span<const std::string> numbers) {
  std::size_t star = 0;
  for (const std::string& number : numbers) {
    star = pattern.find('*', star);
    if (star == pattern.npos) break;
    if (number.empty())
      ++star;
    else
      pattern.replace(star, 1, number);
  }
  return pattern;
}

std::string list_numbers(std::span<const std::uint64_t> numbers, std::size_t most) {
  const auto shown = numbers.subspan(0, std::min(most, numbers.size()));
  std::string out = fmt::format("{}", fmt::join(shown.begin(), shown.end(), ", "));
  if (numbers.size() > most) out += fmt::format(", … ({} in all)", numbers.size());
  return out;
}

std::string list_names(std::span<const std::string> names, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) out += (i ? ", " : "") + printable(names[i]);
  if (names.size() > most) out += fmt::format(", … ({} in all)", names.size());
  return out;
}

std::string list_ranges(std::span<const std::uint64_t> ascending) {
  std::string out;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (!out.empty()) out += ", ";
    out += last == i ? fmt::format("{}", ascending[i]) : fmt::format("{}-{}", ascending[i], ascending[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace reshard
