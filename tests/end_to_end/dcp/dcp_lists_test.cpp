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
  Saved saved = small_run(random, "");
  saved.add_object(kList);
  return saved;
}

/// Checks that the list is in the way of a conversion.
void check_listed(const Request& request, const fs::path& where, const Refusal& refusal = {}) {
  check_refused([&] { convert(request); }, with_common(refusal, {.kind = ErrorKind::kUnsupported,
                                                                 .path = where,
                                                                 .tensor = kList,
                                                                 .unwritten = request.output_directory}));
}

bool is_of_optimizer(const dcp::Whole& tensor) {
  return tensor.name.starts_with("optim");
}

TEST_CASE("Parameters that a list names are neither dropped nor renamed") {
  Random random(31);
  const TempDir temp;
  Saved saved = run_with_list(random);
  SECTION("with states") {}
  SECTION("without, as of SGD") {
    std::erase_if(saved.tensors, is_of_optimizer);
  }
  saved.write(temp / "in");
  convert(run_request(temp / "in", temp / "whole", 2));
  CHECK(dcp::read(temp / "whole").objects.count(kList) == 1);

  const Request request = run_request(temp / "in", temp / "out", 2);
  Request dropped = request, kept = request, renamed = request;
  dropped.names.drop.emplace_back("drop", "^b");
  check_listed(dropped, temp / "in",
               {.says = "and `drop` or `keep` leaves some out",
                .hint = "leave out `drop` and `keep`, or leave out `with-optimizer`"});
  kept.names.keep.emplace_back("keep", "^a");
  check_listed(kept, temp / "in", {.says = "and `drop` or `keep` leaves some out"});
  renamed.names.renames.push_back(parse_rename("rename", "^a\\.=first."));
  check_listed(renamed, temp / "in",
               {.says = "and `rename` or `renumber-layers` changes names",
                .hint = "leave out `rename` and `renumber-layers`, or leave out `with-optimizer`"});

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
    if (!is_of_optimizer(tensor)) tensor.name.insert(0, "model._orig_mod.");
  const Request request = run_request(temp / "in", temp / "out", 2, "model");
  SECTION("no state shows what the optimizer calls parameters") {
    std::erase_if(saved.tensors, is_of_optimizer);
    saved.write(temp / "in");
    check_listed(request, temp / "in/.metadata",
                 {.says = "names with wrappers, which are removed", .hint = "has no wrappers"});
  }
  SECTION("states show that it has wrappers") {
    for (dcp::Whole& tensor : saved.tensors)
      if (is_of_optimizer(tensor)) tensor.name.insert(std::string("optim.state.").size(), "_orig_mod.");
    saved.write(temp / "in");
    check_listed(request, temp / "in/.metadata");
  }
  SECTION("states show that it has none") {
    saved.write(temp / "in");
    convert(request);
    const dcp::Content content = dcp::read(temp / "out");
    CHECK(content.objects.count(kList) == 1);
    CHECK(content.tensors.count("model.a.weight") == 1);
    CHECK(content.tensors.count("optim.state.a.weight.exp_avg") == 1);
  }
}

}  // namespace
}  // namespace reshard::test
