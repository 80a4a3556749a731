#include "reshard/formats/pickle/pickle_contents.h"

#include <memory>

#include "support/catch.h"
#include "support/growth.h"
#include "support/pickles.h"

namespace reshard::test {
namespace {

struct NameRow {
  std::string name;
  std::uint64_t objects;
  PickleName::Is is;
  friend bool operator==(const NameRow&, const NameRow&) = default;
};

std::vector<NameRow> rows_of(const std::string& value) {
  const std::string stream = pickles::stream(value);
  std::vector<NameRow> rows;
  for (const PickleName& name : pickle_names(read_pickle(stream, "f")))
    rows.push_back({name.name, name.objects, name.is});
  return rows;
}

}  // namespace

TEST_CASE("A pickle's names are listed with the number of objects and what they are") {
  const std::string step = pickles::object("pkg.run", "Step", pickles::number(3));
  CHECK(rows_of(pickles::list({step, step, pickles::call("signal", "Signals", {pickles::number(2)}),
                               pickles::object("pkg", "Holder", pickles::dict({{"weight", pickles::tensor()}})),
                               pickles::ordered_dict(), pickles::global("torch", "float32")})) ==
        std::vector<NameRow>{{"pkg.run.Step", 2, PickleName::Is::kRecorded},
                             {"signal.Signals", 1, PickleName::Is::kRecorded},
                             {"pkg.Holder", 1, PickleName::Is::kRecordedWithStorages},
                             {"collections.OrderedDict", 2, PickleName::Is::kKnown},  // the tensor has one of hooks
                             {"torch._utils._rebuild_tensor_v2", 1, PickleName::Is::kKnown},
                             {"torch.FloatStorage", 0, PickleName::Is::kOnlyNamed},
                             {"torch.float32", 0, PickleName::Is::kOnlyNamed}});
  CHECK(rows_of(pickles::list({pickles::global("subprocess", "Popen"), pickles::global("pkg", "run")})) ==
        std::vector<NameRow>{{"subprocess.Popen", 0, PickleName::Is::kOnlyNamedCode},
                             {"pkg.run", 0, PickleName::Is::kOnlyNamed}});
  CHECK(rows_of(pickles::number(1)).empty());
}

TEST_CASE("A long list that many objects share is not searched for each of them") {
  const auto make = [](std::size_t items) {
    auto stream =
        std::make_shared<std::string>(pickles::stream(pickles::list(std::vector<std::string>(items, pickles::kNone))));
    return std::pair(stream, std::make_shared<Pickle>(read_pickle(*stream, "f")));
  };
  const auto search_for_each = [](const auto& input) {
    const Pickle& pickle = *input.second;
    for (std::size_t i = 0; i < pickle.items(pickle.root()).size(); ++i)
      CHECK(may_contain_storage(pickle, pickle.root()));
  };
  CHECK(growth(500, make, search_for_each) < kMostGrowth);
}

}  // namespace reshard::test
