#pragma once

#include <optional>
#include <string>

#include "reshard/base/error.h"
#include "support/catch.h"

namespace reshard::test {

/// The reshard::Error that `action` throws; the test fails if it throws none. Other exceptions pass through, and fail
/// the test too.
template <typename Action>
Error error_of(Action&& action) {
  std::optional<Error> caught;
  try {
    action();
  } catch (const Error& error) {
    caught = error;
  }
  if (!caught) FAIL("no reshard::Error was thrown");
  return *caught;
}

/// Matches a text that holds `part`. Catch2 2 and 3 name this matcher differently.
inline auto Says(const std::string& part) {
#if __has_include(<catch2/catch_all.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

}  // namespace reshard::test
