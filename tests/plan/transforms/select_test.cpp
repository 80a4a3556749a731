#include "reshard/plan/transforms/select.h"

#include "reshard/plan/transforms/against_model.h"
#include "reshard/plan/transforms/extra_tensors.h"
#include "support/catch.h"
#include "support/layouts.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

Draft draft_of(const std::vector<std::string>& names) {
  Draft draft;
  for (const std::string& name : names) draft.source.map.add_logical({name, DType::kF32, {2, 3}, {}}, "model");
  return draft;
}

NameRules rules(const std::string& rename, const std::string& drop) {
  NameRules rules;
  rules.renames.push_back(parse_rename("rename", rename));
  rules.drop.emplace_back("drop", drop);
  return rules;
}

}  // namespace

TEST_CASE("A transform changes names and which tensors are wanted, and says what it has changed") {
  Draft draft = draft_of({"a.x", "a.y", "b.x"});
  select(draft, rules("^a=c", "^b"));
  CHECK(draft.old_names == std::vector<std::string>{"a.x", "a.y", "b.x"});
  REQUIRE(draft.wanted.size() == 2);
  CHECK(draft.wanted[0].name == "c.x");
  CHECK(draft.wanted[1].name == "c.y");
  CHECK(draft.source.map.find_logical("c.y") == 1u);
  CHECK(draft.dropped == std::vector<std::string>{"b.x"});
  using enum Applied::Transform;
  CHECK(draft.transforms == std::vector<Applied>{{kRename, 2}, {kDrop, 1}});
  CHECK(draft.source.notes.empty());
}

TEST_CASE("A rule that makes names longer than tensors may have is refused, by its text") {
  Draft draft = draft_of({"a.x"});
  NameRules doubling;
  for (int i = 0; i < 30; ++i) doubling.renames.push_back(parse_rename("rename", "(.+)=$1$1"));
  check_refused(
      [&] { select(draft, doubling); },
      {.kind = ErrorKind::kUsage, .says = {"`rename` (.+)=$1$1", "6144 bytes, and at most 4096 are allowed"}});
}

TEST_CASE("Without a model other tensors are not known, and ranks need all of one's") {
  Draft draft = draft_of({"a"});
  select(draft, {});
  CHECK(draft.transforms.empty());
  Request request;
  request.target.layout = layout("nxd");
  request.allow_missing = true;
  check_refused([&] { hold_against_model(draft, request); },
                {.kind = ErrorKind::kUsage, .says = "layout nxd needs every tensor of the model"});
  request.allow_missing = false;
  check_refused([&] { hold_against_model(draft, request); }, {.says = "has no config.json of a known family"});
  apply_extra_tensors(draft, ExtraTensors::kDrop, request.target);
  CHECK(draft.source.notes.texts() ==
        std::vector<std::string>{"`extra-tensors` has no effect: there is no config.json of a known family"});
  CHECK(draft.wanted.size() == 1);
}

}  // namespace reshard::test
