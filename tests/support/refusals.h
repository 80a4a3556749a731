#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "support/catch.h"
#include "support/errors.h"

namespace reshard::test {

/// Parts of a message: none, one, or several that must all be there.
struct Texts {
  Texts() = default;
  Texts(const char* text) : parts{text} {}
  Texts(std::string text) : parts{std::move(text)} {}
  Texts(std::initializer_list<std::string> texts) : parts(texts) {}

  std::vector<std::string> parts;
};

/// How an input is refused. The kind is always compared, and bad input unless another is given; fields that are left
/// out are not.
struct Refusal {
  std::optional<ErrorKind> kind{};
  std::optional<std::filesystem::path> path{};
  std::optional<std::string> tensor{};
  Texts says{};                       // in what()
  std::optional<std::string> what{};  // all of what()
  Texts hint{};
  std::optional<std::string> hint_end{};
  std::optional<std::uint64_t> offset_bytes{};
  std::optional<std::filesystem::path> unwritten{};  // does not exist afterwards
};

/// Compares `error` with all that `refusal` says. The caller's line is in the report.
void check_error(const Error& error, const Refusal& refusal, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE());

/// Runs `action`, which must throw a reshard::Error, and compares that. \returns the error.
Error check_refused(const std::function<void()>& action, const Refusal& refusal, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE());

/// Reads `good` with each of its bytes replaced by each of `bytes`. CHECKs that every error is of bad or unsupported
/// input. \returns the number of errors.
std::size_t check_byte_patches(const std::string& good, const std::string& bytes,
                               const std::function<void(const std::string& patched)>& read);

/// A row of a table of inputs that are refused, each for a reason of its own.
template <typename Input>
struct Refused {
  std::string title;
  Input input;
  Refusal refusal;
};

/// `row`, with what it leaves out taken from `common`.
Refusal with_common(Refusal row, const Refusal& common);

/// Reads the input of each row in a section of its title, and compares the error. What rows leave out is as in `common`.
/// The input is a text, such as the bytes of a file, unless `Input` says what else it is: a patch, or a request.
template <typename Input = std::string, typename Read>
void check_refusals(const Read& read, const Refusal& common, const std::vector<Refused<Input>>& rows) {
  std::set<std::string> titles;
  for (const Refused<Input>& row : rows) REQUIRE(titles.insert(row.title).second);  // a section is entered by its name
  for (const Refused<Input>& row : rows) DYNAMIC_SECTION(row.title) {
      check_refused([&] { read(row.input); }, with_common(row.refusal, common));
    }
}

/// Reads each input, whose message must contain the texts beside it. All else is as in `common`.
template <typename Input = std::string, typename Read>
void check_each_refused(const Read& read, const Refusal& common, const std::vector<std::pair<Input, Texts>>& rows,
                        const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  for (const auto& row : rows) {
    INFO(Catch::Detail::stringify(row.first));
    Refusal refusal = common;
    refusal.says = row.second;
    check_refused([&] { read(row.first); }, refusal, file, line);
  }
}

}  // namespace reshard::test
