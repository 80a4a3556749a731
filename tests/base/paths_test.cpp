#include "reshard/base/paths.h"

#include "support/catch.h"

namespace reshard::test {
namespace {

TEST_CASE("A path lies inside its folder and those above, by whole names") {
  CHECK(lies_inside("/a/b", "/a/b"));
  CHECK(lies_inside("/a/b/c/d", "/a/b"));
  CHECK(lies_inside("a/b", "a"));
  CHECK_FALSE(lies_inside("/a/bc", "/a/b"));
  CHECK_FALSE(lies_inside("/a", "/a/b"));
  CHECK_FALSE(lies_inside("/b/a", "/a"));
  CHECK_FALSE(lies_inside("a/b", "/a"));
}

}  // namespace
}  // namespace reshard::test
