#include "reshard/base/pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

using re2::StringPiece;

StringPiece piece(std::string_view text) {
  return {text.data(), text.size()};
}

/// Returns the name of a feature of Python or ECMAScript that RE2 lacks; `wrong` is the part at which RE2 stopped.
/// Returns an empty string if the pattern is invalid in every dialect.
std::string missing_feature(std::string_view text, const std::string& wrong) {
  if (wrong.starts_with("(?=") || wrong.starts_with("(?!")) return "look-ahead";
  if (wrong.starts_with("(?<"))  // RE2 stops here whatever follows
    return text.find("(?<=") != text.npos || text.find("(?<!") != text.npos ? "look-behind" : "a group named by (?<…>)";
  if (wrong.starts_with("(?P") && text.find("(?P=") != text.npos) return "a back reference";
  if (wrong.size() == 2 && wrong[0] == '\\' && wrong[1] >= '1' && wrong[1] <= '9') return "a back reference";
  if (wrong == "\\Z" || wrong == "\\u" || wrong == "\\c") return "the escape " + wrong;
  if (wrong.starts_with("(?>")) return "an atomic group";
  if (wrong.starts_with("(?(")) return "a conditional group";
  return "";
}

/// Python reads {,3} as a repetition, RE2 as text: the only case where both accept a pattern and differ.
bool has_open_repetition(std::string_view text) {
  for (std::size_t at = text.find("{,"); at != text.npos; at = text.find("{,", at + 1)) {
    const std::size_t end = text.find_first_not_of("0123456789", at + 2);
    if (end != text.npos && end > at + 2 && text[end] == '}' && (at == 0 || text[at - 1] != '\\')) return true;
  }
  return false;
}

[[noreturn]] void refuse(std::string_view text, const RE2& regex) {
  const std::string quoted = "\"" + printable(text) + "\"";
  if (regex.error_code() == RE2::ErrorPatternTooLarge)
    throw Error(ErrorKind::kUnsupported, fmt::format("the pattern {} is too large", quoted));
  const std::string feature = missing_feature(text, regex.error_arg());
  if (!feature.empty())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("the pattern {} uses {}, which patterns here do not support", quoted, feature))
        .hint("patterns have the syntax of RE2: no look-around, no back references");
  throw Error(ErrorKind::kBadInput, fmt::format("{} is not a regular expression: {}", quoted, regex.error()));
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Appends `replacement` for a match. `groups` are its groups; the first is the match itself.
void append_replacement(std::string& out, std::string_view replacement, std::string_view text,
                        const std::vector<StringPiece>& groups) {
  const auto append = [&](StringPiece part) { out.append(part.data() ? part.data() : "", part.size()); };
  for (std::size_t i = 0; i < replacement.size(); ++i) {
    const char next = i + 1 < replacement.size() ? replacement[i + 1] : '\0';
    if (replacement[i] != '$' || next == '\0') {
      out += replacement[i];
      continue;
    }
    const auto match_begin = static_cast<std::size_t>(groups[0].data() - text.data());
    if (next == '$') {
      out += '$';
    } else if (next == '&') {
      append(groups[0]);
    } else if (next == '`') {
      out += text.substr(0, match_begin);
    } else if (next == '\'') {
      out += text.substr(match_begin + groups[0].size());
    } else if (is_digit(next)) {
      auto number = static_cast<std::size_t>(next - '0');
      if (i + 2 < replacement.size() && is_digit(replacement[i + 2]))
        number = number * 10 + static_cast<std::size_t>(replacement[++i] - '0');
      if (number < groups.size()) append(groups[number]);
    } else {
      out += '$';
      continue;
    }
    ++i;
  }
}

}  // namespace

/// Not in the header, so that RE2 is not part of the library's interface.
struct Pattern::Compiled {
  explicit Compiled(std::string_view text) : regex(piece(text), options()) {}

  static RE2::Options options() {
    RE2::Options options;
    options.set_log_errors(false);
    return options;
  }

  RE2 regex;
};

Pattern::Pattern(std::string_view text) : compiled_(std::make_shared<const Compiled>(text)) {
  if (!compiled_->regex.ok()) refuse(text, compiled_->regex);
  if (has_open_repetition(text))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("the pattern \"{}\" uses a repetition without a lower bound, which patterns here do not "
                            "support",
                            printable(text)))
        .hint("write {0,N}");
}

bool Pattern::found_in(std::string_view text) const {
  return RE2::PartialMatch(piece(text), compiled_->regex);
}

bool Pattern::matches_all_of(std::string_view text) const {
  return RE2::FullMatch(piece(text), compiled_->regex);
}

std::string Pattern::replace_all(std::string_view text, std::string_view replacement) const {
  const RE2& regex = compiled_->regex;
  std::vector<StringPiece> groups(static_cast<std::size_t>(regex.NumberOfCapturingGroups()) + 1);
  std::string out;
  std::size_t copied = 0;
  std::size_t at = 0;
  while (at <= text.size() &&
         regex.Match(piece(text), at, text.size(), RE2::UNANCHORED, groups.data(), static_cast<int>(groups.size()))) {
    const auto begin = static_cast<std::size_t>(groups[0].data() - text.data());
    out += text.substr(copied, begin - copied);
    append_replacement(out, replacement, text, groups);
    copied = begin + groups[0].size();
    // After an empty match, continues the search after the next character.
    at = groups[0].empty() ? copied + std::max<std::size_t>(utf8_length(text.substr(copied)), 1) : copied;
  }
  if (copied < text.size()) out += text.substr(copied);
  return out;
}

}  // namespace reshard
