#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reshard {

/// Bytes of the code point that `text` begins with; 0 if it does not begin with a whole one in UTF-8 (RFC 3629: no
/// surrogates, nothing above U+10FFFF).
std::size_t utf8_length(std::string_view text);

/// Whether `text` begins with a control character: C0, DEL, or C1 in UTF-8.
bool begins_with_control(std::string_view text);

/// Whether there is such a character in `text`.
bool has_control(std::string_view text);

/// `text` fit for a terminal: control characters, characters that hide or reorder others, and what is not UTF-8 as
/// \xNN, everything else as it is, cut after 300 bytes.
std::string printable(std::string_view text);

/// "1.23 GB", decimal (10^9): sizes of files and checkpoints.
std::string format_bytes(std::uint64_t bytes);
/// "1.23 GiB", binary (2^30): sizes of memory.
std::string format_memory(std::uint64_t bytes);
/// "8.03 B", "1.10 M": counts of parameters.
std::string format_count(std::uint64_t count);

/// A size such as 5GB, 256MiB, 1.5GB or 4096: decimal for KB MB GB TB, binary for KiB MiB GiB TiB, bytes without a
/// unit. Nothing if `text` is anything else, zero, or more than 2^63.
std::optional<std::uint64_t> parse_size(std::string_view text);

/// A whole decimal number without sign or space, at most `max`; nothing otherwise.
std::optional<std::uint64_t> parse_unsigned(std::string_view text, std::uint64_t max = UINT64_MAX);

/// The candidate nearest to `word` by edit distance, and not `word` itself; empty if none is near (more than a third of
/// the word away).
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// Whether `a` comes before `b`, numbers in them compared as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b);

std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);

/// A dotted name with a "*" for each part that is a number: model.layers.*.mlp.up_proj.weight.
std::string with_stars(std::string_view name);
/// The parts of a dotted name that are numbers, in order.
std::vector<std::string> numbers_in(std::string_view name);
/// `pattern` with numbers in place of its first stars. A star stays if its number is empty, or if there is none for it.
std::string with_numbers(std::string pattern, std::span<const std::string> numbers);

/// "0, 2, 4" ; more than `most` items are cut short with "… (N in all)".
std::string list_numbers(std::span<const std::uint64_t> numbers, std::size_t most = 16);
std::string list_names(std::span<const std::string> names, std::size_t most = 6);

/// "0-3, 7, 9-11" for ascending numbers.
std::string list_ranges(std::span<const std::uint64_t> ascending);

}  // namespace reshard
