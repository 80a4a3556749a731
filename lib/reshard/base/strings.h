#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// Length in bytes of the first code point of `text`; 0 if `text` does not begin with a complete code point in UTF-8
/// (RFC 3629: no surrogates, nothing above U+10FFFF).
std::size_t utf8_length(std::string_view text);

/// Whether `text` begins with a control character: C0, DEL, or C1 in UTF-8.
bool begins_with_control(std::string_view text);

/// Whether `text` contains a control character.
bool has_control(std::string_view text);

/// Returns `text` for display on a terminal, truncated after 300 bytes. Control characters, characters that hide or
/// reorder others, and bytes that are not UTF-8 become \xNN.
std::string printable(std::string_view text);

/// "1.23 GB", decimal (10^9); for sizes of files and checkpoints.
std::string format_bytes(std::uint64_t bytes);
/// "1.23 GiB", binary (2^30); for sizes of memory.
std::string format_memory(std::uint64_t bytes);
/// "8.03 B", "1.10 M"; for counts of parameters.
std::string format_count(std::uint64_t count);

/// Parses a size such as 5GB, 256MiB, 1.5GB or 4096: KB MB GB TB are decimal, KiB MiB GiB TiB binary, and a number
/// without a unit is in bytes. Returns std::nullopt for any other text, for zero, and for more than 2^63.
std::optional<std::uint64_t> parse_size(std::string_view text);

/// Parses an unsigned decimal integer of at most `max`; std::nullopt for any other text.
std::optional<std::uint64_t> parse_unsigned(std::string_view text, std::uint64_t max = UINT64_MAX);

/// Returns the candidate nearest to `word` by edit distance, excluding `word` itself. Empty if every candidate differs
/// by more than a third of the length of `word`.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// Natural order: compares numbers by value, so that layers.2 comes before layers.10.
bool natural_less(std::string_view a, std::string_view b);

std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);

/// Replaces each numeric part of a dotted name by "*": model.layers.*.mlp.up_proj.weight.
std::string with_stars(std::string_view name);
/// Returns the numeric parts of a dotted name, in order.
std::vector<std::string> numbers_in(std::string_view name);
/// Replaces the stars of `pattern` by `numbers`, in order. A star stays if its number is empty or missing.
std::string with_numbers(std::string pattern, std::span<const std::string> numbers);

/// "0, 2, 4"; lists longer than `most` end with "… (N in all)".
std::string list_numbers(std::span<const std::uint64_t> numbers, std::size_t most = 16);
std::string list_names(std::span<const std::string> names, std::size_t most = 6);

/// "0-3, 7, 9-11". The numbers must be ascending.
std::string list_ranges(std::span<const std::uint64_t> ascending);

}  // namespace reshard
