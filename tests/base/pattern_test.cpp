#include "reshard/base/pattern.h"

#include <regex>
#include <string>

#include "support/refusals.h"

namespace reshard::test {
namespace {

TEST_CASE("A pattern is found anywhere in a text, and matches all of it only from end to end") {
  const Pattern pattern("layers\\.(0|1)");
  CHECK(pattern.found_in("model.layers.1.w"));
  CHECK_FALSE(pattern.found_in("model.layers.2.w"));
  CHECK(pattern.matches_all_of("layers.0"));
  CHECK_FALSE(pattern.matches_all_of("layers.0.w"));
  CHECK_FALSE(pattern.matches_all_of("model.layers.0"));
  CHECK(Pattern("").found_in(""));
  CHECK(Pattern("^a.b$").matches_all_of("a\u00fcb"));  // a dot is a character, not a byte
}

TEST_CASE("Replacements are those of ECMAScript") {
  const char* const patterns[] = {"a",     "(a)(b)?",  "^a",   "b$", "a*b",  "(a|b)+", "\\.",
                                  "(x)?a", "(?:a)(b)", "[ab]", "a+", "b{2}", "\\bb"};
  const char* const texts[] = {"", "a", "b", "ab", "aab.b", "ba.ab", "xaxa", "bbb", "a.b.a.b"};
  const char* const replacements[] = {"",      "-",      "<$1>", "$&$&", "$2$1", "$$",  "$x",
                                      "1$10$", "$1_$12", "$0",   "$",    "\\1",  "\\$1"};
  std::size_t changed = 0;
  for (const std::string pattern : patterns)
    for (const std::string text : texts)
      for (const std::string replacement : replacements) {
        INFO(pattern << " in " << text << " by " << replacement);
        const std::string expected = std::regex_replace(text, std::regex(pattern), replacement);
        CHECK(Pattern(pattern).replace_all(text, replacement) == expected);
        changed += expected != text;
      }
  CHECK(changed > 300);
  CHECK(Pattern("[ab]").replace_all("axb", "($`,$')") == "(,xb)x(ax,)");  // std::regex differs in these two
}

TEST_CASE("Empty matches are replaced once for each place, and never split a character") {
  CHECK(Pattern("x*").replace_all("ab", "-") == "-a-b-");
  CHECK(Pattern("x*").replace_all("", "-") == "-");
  CHECK(Pattern("$").replace_all("ab", "!") == "ab!");
  CHECK(Pattern("x*").replace_all("a\u00fcb", "-") == "-a-\u00fc-b-");
}

TEST_CASE("Patterns that would take an exponential time elsewhere end at once") {
  const std::string name(10'000, 'a');
  for (const char* text : {"(a*)*b", "(a+)+b", "(a|a)*b", "(.*.*.*)*x", "(a?){50}a{50}b", "((a*)*)*b"}) {
    INFO(text);
    const Pattern pattern(text);
    CHECK_FALSE(pattern.found_in(name));
    CHECK_FALSE(pattern.matches_all_of(name));
    CHECK(pattern.replace_all(name, "-") == name);
  }
  CHECK(Pattern("(a*)*b").found_in(name + "b"));
}

TEST_CASE("Names of any length are searched without recursion") {
  std::string name(5'000'000, 'a');
  CHECK(Pattern("^(a|b)*$").found_in(name));
  CHECK(Pattern("^(a|b)*$").replace_all(name, "x") == "x");
  name += '.';
  CHECK_FALSE(Pattern("^(a|b)*$").found_in(name));
}

TEST_CASE("What is no regular expression in any dialect is bad input that shows it") {
  for (const char* text : {"(", ")", "[", "*", "a{2,1}", "a{2000}", "a**", "\xff", "[z-a]", "a\\"}) {
    INFO(text);
    check_refused([&] { Pattern{text}; }, {.says = "is not a regular expression"});
  }
  check_refused([] { Pattern("a("); }, {.says = "\"a(\" is not a regular expression"});
}

TEST_CASE("Syntax of Python and ECMAScript that RE2 lacks is named, with the pattern") {
  const std::pair<const char*, const char*> cases[] = {
      {"(?=q)a", "uses look-ahead"},
      {"q(?!_proj)", "uses look-ahead"},
      {"(?<=q)a", "uses look-behind"},
      {"(?<!q)a", "uses look-behind"},
      {"(a)\\1", "uses a back reference"},
      {"(?P<n>a)(?P=n)", "uses a back reference"},
      {"(?>a)", "uses an atomic group"},
      {"(a)?(?(1)b|c)", "uses a conditional group"},
      {"a\\Z", "uses the escape \\Z"},
      {"\\u0041", "uses the escape \\u"},
      {"a{,3}", "a repetition without a lower bound"},
      {"(\\pL{500}){2}(\\pN{500}){2}", "is too large"},
  };
  for (const auto& [text, says] : cases) {
    INFO(text);
    check_refused([&, t = text] { Pattern{t}; },
                  {.kind = ErrorKind::kUnsupported, .says = {std::string("\"") + text + "\"", says}});
  }
  CHECK(Pattern("a{0,3}").matches_all_of("aa"));
  CHECK(Pattern("\\{,3}").found_in("{,3}"));
  CHECK(Pattern("(?P<n>a)b").found_in("ab"));
}

}  // namespace
}  // namespace reshard::test
