#include "reshard/base/strings.h"

#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {
namespace {

using Numbers = std::vector<std::uint64_t>;
using Words = std::vector<std::string>;

TEST_CASE("Control characters are shown as their code and other text as it is") {
  CHECK(printable("model.layers.0") == "model.layers.0");
  CHECK(printable(std::string("a\0b\x1f\x7f", 5)) == "a\\x00b\\x1f\\x7f");
  CHECK(printable("\r\n\t\x1b[31m") == "\\x0d\\x0a\\x09\\x1b[31m");
  CHECK(printable("größe…") == "größe…");
  CHECK(printable("").empty());
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\xc2\\x9b31m");  // CSI as one code point
  CHECK(printable("a\xff"
                  "b\xc3") == "a\\xffb\\xc3");
}

TEST_CASE("Characters that hide or reorder others are shown as their code") {
  CHECK(printable("a\u202Eb") == "a\\xe2\\x80\\xaeb");  // right-to-left override
  const char* const hidden[] = {"\u00AD", "\u034F", "\u061C",     "\u115F",     "\u180E",    "\u200B",
                                "\u200D", "\u200F", "\u2028",     "\u2029",     "\u202A",    "\u2060",
                                "\u2066", "\u2069", "\u206F",     "\u3164",     "\uFE0F",    "\uFEFF",
                                "\uFFA0", "\uFFF9", "\U0001D173", "\U000E0001", "\U000E007F"};
  for (const std::string character : hidden) {
    const std::string shown = printable("model." + character + "weight");
    INFO(shown);
    CHECK(shown.find(character) == std::string::npos);
    CHECK(shown.size() == 12 + 4 * character.size());
    CHECK_FALSE(has_control(character));
  }
  for (const std::string plain : {"é", "\u00A0", "…", "\u2010", "\u200A", "\u202F", "\u3000", "\uFFFC", "😀"})
    CHECK(printable(plain) == plain);
}

TEST_CASE("Surrogates and code points past the last are no UTF-8") {
  for (const char* text : {"\xed\xa0\x80", "\xed\xaf\xbf", "\xed\xb0\x80", "\xed\xbf\xbf", "\xf4\x90\x80\x80",
                           "\xf5\x80\x80\x80", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xc1\xbf"}) {
    INFO(printable(text));
    CHECK(utf8_length(text) == 0);
  }
  CHECK(utf8_length("\xed\x9f\xbf") == 3);
  CHECK(utf8_length("\xee\x80\x80") == 3);
  CHECK(utf8_length("\xf4\x8f\xbf\xbf") == 4);
}

TEST_CASE("A control character is found wherever it stands") {
  for (const char* control : {"\x01", "\n", "\x1f", "\x7f", "\xc2\x80", "\xc2\x9f"}) {
    INFO(printable(control));
    CHECK(has_control(control));
    CHECK(has_control(std::string("model.") + control));
    CHECK(has_control(control + std::string(".weight")));
  }
  for (const char* plain : {"", " ~", "model.layers.0", "\xc3\xbc", "\xc2\xa0", "\xc2", "\xf0\x9f\x98\x80"}) {
    INFO(plain);
    CHECK_FALSE(has_control(plain));
  }
}

TEST_CASE("A text of more than 300 bytes is cut and its length named") {
  CHECK(printable(std::string(300, 'x')) == std::string(300, 'x'));
  const std::string cut = printable(std::string(301, 'x'));
  CHECK(cut == std::string(300, 'x') + "… (301 bytes)");
}

TEST_CASE("Sizes of files are decimal with three digits, sizes of memory binary, counts have a letter for a unit") {
  const std::pair<std::uint64_t, const char*> sizes[] = {{0, "0 B"},
                                                         {999, "999 B"},
                                                         {1000, "1.00 kB"},
                                                         {9994, "9.99 kB"},
                                                         {9995, "10.0 kB"},
                                                         {12'340, "12.3 kB"},
                                                         {99'950, "100 kB"},
                                                         {999'499, "999 kB"},
                                                         {999'500, "1.00 MB"},
                                                         {1'230'000'000, "1.23 GB"},
                                                         {16'060'000'000'000, "16.1 TB"},
                                                         {UINT64_MAX, "18447 PB"}};
  for (const auto& [size, text] : sizes) CHECK(format_bytes(size) == text);
  CHECK(format_memory(1023) == "1023 B");
  CHECK(format_memory(1024) == "1.00 KiB");
  CHECK(format_memory(std::uint64_t{256} << 20) == "256 MiB");
  CHECK(format_memory(std::uint64_t{3} << 29) == "1.50 GiB");
  CHECK(format_memory(std::uint64_t{5} << 40) == "5.00 TiB");
  CHECK(format_count(7) == "7");
  CHECK(format_count(1500) == "1.50 K");
  CHECK(format_count(8'030'000'000) == "8.03 B");
}

TEST_CASE("A size reads decimal and binary units in any case, up to 2^63 bytes") {
  constexpr std::uint64_t kGB = 1'000'000'000;
  const std::pair<const char*, std::uint64_t> sizes[] = {{"4096", 4096},
                                                         {"1B", 1},
                                                         {"5GB", 5 * kGB},
                                                         {"5gb", 5 * kGB},
                                                         {"5 GB", 5 * kGB},
                                                         {"256MiB", 256 << 20},
                                                         {"1.5GB", 1'500'000'000},
                                                         {"0.5KiB", 512},
                                                         {"2tb", 2000 * kGB},
                                                         {"3KB", 3000},
                                                         {"1TiB", std::uint64_t{1} << 40},
                                                         {"9223372036854775808", std::uint64_t{1} << 63},
                                                         {"8388608TiB", std::uint64_t{1} << 63}};
  for (const auto& [text, size] : sizes) CHECK(parse_size(text) == size);
  for (const char* text : {"9223372036854775809", "8388609TiB", "18446744073709551616"}) CHECK_FALSE(parse_size(text));
}

TEST_CASE("What is not a size is nothing") {
  const char* texts[] = {"",     " ",    "GB",    "0",    "0GB",     "0.0001KB", "-1",         "+1",   "1e9",
                         "1.5",  "1..5", "1.",    ".5GB", "1.2.3GB", "5GiBs",    "5G",         "0x10", "1,5GB",
                         " 5GB", "5GB ", "5  GB", "nan",  "infGB",   "5 ",       "99999999TB", "１GB"};
  for (const char* text : texts) {
    INFO("text: '" << text << "'");
    CHECK_FALSE(parse_size(text));
  }
}

TEST_CASE("A whole number has digits only and stays below its limit") {
  CHECK(parse_unsigned("0") == 0);
  CHECK(parse_unsigned("007") == 7);
  CHECK(parse_unsigned("18446744073709551615") == UINT64_MAX);
  CHECK(parse_unsigned("16", 16) == 16);
  CHECK_FALSE(parse_unsigned("17", 16));
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1.0", "0x1", "1e3", "18446744073709551616", "a"}) {
    INFO("text: '" << text << "'");
    CHECK_FALSE(parse_unsigned(text));
  }
}

TEST_CASE("The nearest word is the one with the fewest edits, if it is near at all") {
  const Words words = {"llama", "mistral", "qwen2", "qwen3", "granite"};
  CHECK(nearest("lama", words) == "llama");
  CHECK(nearest("mistrall", words) == "mistral");
  CHECK(nearest("qwen2", words) == "qwen3");  // nobody means the word itself, which did not help
  CHECK(nearest("granit", words) == "granite");
  CHECK(nearest("gemma", words).empty());
  CHECK(nearest("", words).empty());
  CHECK(nearest("llama", Words{}).empty());
}

TEST_CASE("Splitting keeps empty parts, and joining undoes it") {
  const std::pair<const char*, Words> texts[] = {{"a,b,,c", {"a", "b", "", "c"}}, {"", {""}}, {",", {"", ""}}};
  for (const auto& [text, words] : texts) {
    CHECK(split(text, ',') == words);
    CHECK(join(words, ",") == text);
  }
  CHECK(join(Words{}, ", ").empty());
}

TEST_CASE("Numbers in names are compared as numbers") {
  CHECK(natural_less("layers.2.a", "layers.10.a"));
  CHECK_FALSE(natural_less("layers.10.a", "layers.2.a"));
  CHECK(natural_less("layers.2.a", "layers.2.b"));
  CHECK(natural_less("layers", "layers.0"));
  CHECK(natural_less("a9", "b1"));
  CHECK_FALSE(natural_less("layers.2", "layers.2"));
}

TEST_CASE("A list is cut short with its length, and shows no control characters") {
  CHECK(list_numbers(Numbers{}).empty());
  CHECK(list_numbers(Numbers{0, 2, 4}) == "0, 2, 4");
  CHECK(list_numbers(Numbers{1, 2, 3}, 3) == "1, 2, 3");
  CHECK(list_numbers(Numbers{1, 2, 3, 4}, 3) == "1, 2, 3, … (4 in all)");
  CHECK(list_names(Words{}).empty());
  CHECK(list_names(Words{"a", "b\n"}) == "a, b\\x0a");
  CHECK(list_names(Words{"a", "b", "c"}, 2) == "a, b, … (3 in all)");
}

TEST_CASE("Neighbouring numbers are listed as ranges") {
  CHECK(list_ranges(Numbers{}).empty());
  CHECK(list_ranges(Numbers{5}) == "5");
  CHECK(list_ranges(Numbers{0, 1, 2, 3, 7, 9, 10, 11}) == "0-3, 7, 9-11");
  CHECK(list_ranges(Numbers{1, 3, 5}) == "1, 3, 5");
  CHECK(list_ranges(Numbers{UINT64_MAX - 1, UINT64_MAX}) == "18446744073709551614-18446744073709551615");
}

}  // namespace
}  // namespace reshard::test
