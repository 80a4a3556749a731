// Objects of an optimizer that list its parameters by their names: they are moved unopened, so that no name may change.

#include <filesystem>

#include "support/checkpoints.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kList = "optim.param_groups.0.params";

/// `small_run` with a list, under names that are the model's own.
Saved run_with_list(Random& random) {
  Saved saved = small_run(random);
  for (dcp::Whole& tensor : saved.tensors)
    if (tensor.name.starts_with("model.")) tensor.name.erase(0, 6);
  saved.add_object(kList);
  return saved;
}

/// The error of a conversion to which the list is in the way.
Error list_error(const ConvertRequest& request, const fs::path& where) {
  const Error error =
      check_refused([&] { convert(request); }, {.kind = ErrorKind::kUnsupported, .path = where, .tensor = kList});
  CHECK_FALSE(fs::exists(request.output_directory));
  return error;
}

TEST_CASE("Parameters that a list names are neither dropped nor renamed") {
  Random random(31);
  const TempDir temp;
  Saved saved = run_with_list(random);
  SECTION("with states") {}
  SECTION("without, as of SGD") {
    std::erase_if(saved.tensors, [](const dcp::Whole& tensor) { return tensor.name.starts_with("optim"); });
  }
  saved.write(temp / "in");
  ConvertRequest whole = run_request(temp / "in", temp / "whole", 2);
  convert(whole);
  CHECK(dcp::read(temp / "whole").objects.count(kList) == 1);

  ConvertRequest dropped = run_request(temp / "in", temp / "out", 2);
  dropped.names.drop.emplace_back("drop", "^b");
  check_error(list_error(dropped, temp / "in"), {.kind = ErrorKind::kUnsupported,
                                                 .says = "some of which `drop` or `keep` leaves out",
                                                 .hint = "do without `drop` and `keep`, or without `with-optimizer`"});

  ConvertRequest kept = run_request(temp / "in", temp / "out", 2);
  kept.names.keep.emplace_back("keep", "^a");
  CHECK_THAT(list_error(kept, temp / "in").what(), Says("`keep` leaves out"));

  ConvertRequest renamed = run_request(temp / "in", temp / "out", 2);
  renamed.names.renames.push_back(parse_rename("rename", "^a\\.=first."));
  check_error(list_error(renamed, temp / "in"), {.kind = ErrorKind::kUnsupported,
                                                 .says = "which `rename` changes",
                                                 .hint = "do without `rename`, or without `with-optimizer`"});

  // The model alone has no list.
  dropped.source.with_optimizer = false;
  convert(dropped);
  CHECK(dcp::read(temp / "out").tensors.size() == 1);
}

TEST_CASE("Wrappers of modules leave no list that may have them") {
  Random random(32);
  const TempDir temp;
  Saved saved = run_with_list(random);
  for (dcp::Whole& tensor : saved.tensors)
    if (!tensor.name.starts_with("optim")) tensor.name.insert(0, "model._orig_mod.");
  const auto rename_states = [&](const char* wrapper) {
    for (dcp::Whole& tensor : saved.tensors)
      if (tensor.name.starts_with("optim.state.")) tensor.name.insert(12, wrapper);
  };
  SECTION("no state shows what the optimizer calls parameters") {
    std::erase_if(saved.tensors, [](const dcp::Whole& tensor) { return tensor.name.starts_with("optim"); });
    saved.write(temp / "in");
    check_error(list_error(run_request(temp / "in", temp / "out", 2), temp / "in/.metadata"),
                {.kind = ErrorKind::kUnsupported,
                 .says = "names with wrappers, which are taken out",
                 .hint = "has no wrappers"});
  }
  SECTION("states show that it has wrappers") {
    rename_states("_orig_mod.");
    saved.write(temp / "in");
    list_error(run_request(temp / "in", temp / "out", 2), temp / "in/.metadata");
  }
  SECTION("states show that it has none") {
    saved.write(temp / "in");
    convert(run_request(temp / "in", temp / "out", 2, "model"));
    const dcp::Content content = dcp::read(temp / "out");
    CHECK(content.objects.count(kList) == 1);
    CHECK(content.tensors.count("model.a.weight") == 1);
    CHECK(content.tensors.count("optim.state.a.weight.exp_avg") == 1);
  }
}

}  // namespace
}  // namespace reshard::test
