// The groups of an optimizer in a checkpoint of torch.distributed.checkpoint.

#include "reshard/layouts/dcp/dcp_groups.h"

#include <chrono>

#include "reshard/io/memory_files.h"
#include "support/catch.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

/// An optimizer that saved the hyperparameters of each of `learning_rates` by itself.
TrainingStates flat_groups(MemoryFiles& files, std::vector<SourceFile>& in_files,
                           const std::vector<double>& learning_rates) {
  TrainingStates states;
  std::string content;
  for (std::size_t i = 0; i < learning_rates.size(); ++i) {
    const std::string parameter = "w" + std::to_string(i);
    const std::string before = "optim.param_groups.", name = before + parameter + ".lr";
    const std::string bytes = plain_value_file("archive", PlainValue(learning_rates[i]));
    const std::uint32_t logical = states.map.add_logical({name, DType::kU8, {bytes.size()}}, {});
    states.map.logical[logical].role = TensorRole::kObject;
    states.map.stored.push_back({name, DType::kU8, {bytes.size()}, 0, content.size()});
    states.map.pieces[logical].push_back({});
    states.map.pieces[logical].back().stored = static_cast<std::uint32_t>(i);
    states.of.push_back({before, parameter, "lr"});
    content += bytes;
  }
  in_files.push_back({{"d/__0_0.distcp", content.size()}});
  files.write("d/__0_0.distcp", std::move(content));
  return states;
}

TEST_CASE("Parameters of the same hyperparameters are a group, in the order in which they come") {
  MemoryFiles files;
  std::vector<SourceFile> in_files;
  TrainingStates states = flat_groups(files, in_files, {0.5, 0.25, 0.5, 0.125, 0.25});
  read_dcp_groups(files, in_files, states);
  REQUIRE(states.groups.size() == 3);
  CHECK(states.groups[0].parameters == std::vector<std::string>{"w0", "w2"});
  CHECK(states.groups[1].parameters == std::vector<std::string>{"w1", "w4"});
  CHECK(states.groups[2].parameters == std::vector<std::string>{"w3"});
  CHECK(states.groups[2].values == PlainValue::Dict{{"lr", PlainValue(0.125)}});
  CHECK(states.grouped_by_values);
}

GroupObject group_object(const std::string& key, PlainValue value) {
  return {"optim.param_groups." + key, "d/.metadata", key, std::move(value)};
}

TEST_CASE("Groups that were saved are read from an object for each hyperparameter, or from one for all") {
  const PlainValue::List names{PlainValue(std::string("w"))};
  const PlainValue rate(0.5), list(names);
  const std::vector<GroupObject> flat{group_object("0.params", list), group_object("0.lr", rate),
                                      group_object("0.lr", rate)};  // of a second rank
  std::vector<SavedGroup> groups = saved_groups(flat);
  REQUIRE(groups.size() == 1);
  CHECK((groups[0].values == PlainValue::Dict{{"lr", rate}}));
  CHECK((groups[0].parameters == names));
  CHECK(groups[0].list == &flat[0]);
  const std::vector<GroupObject> whole{
      group_object("", PlainValue(PlainValue::List{PlainValue(PlainValue::Dict{{"lr", rate}, {"params", list}})}))};
  groups = saved_groups(whole);
  REQUIRE(groups.size() == 1);
  CHECK((groups[0].values == PlainValue::Dict{{"lr", rate}}));

  struct Row {
    std::vector<GroupObject> objects;
    const char* tensor;
    const char* says;
  };
  const Row rows[] = {
      {{group_object("0.params", list), group_object("0.lr", rate), group_object("0.lr", PlainValue(0.25))},
       "optim.param_groups.0.lr",
       "is a second lr of parameter group 0, from another optimizer"},
      {{group_object("", PlainValue(PlainValue::List{PlainValue(PlainValue::Dict{{"lr", rate}, {"params", list}})})),
        group_object("0.lr", PlainValue(0.25))},
       "optim.param_groups.0.lr",
       "is a second lr of parameter group 0, from another optimizer"},
      {{group_object("1.params", list)}, "optim.param_groups.1.params", "there is no parameter group 0"},
      {{group_object("0.lr", rate)}, "optim.param_groups.0.lr", "parameter group 0 has no list of parameters"},
      {{group_object("0.params", rate), group_object("0.zeta", rate)},
       "optim.param_groups.0.params",
       "is not a list of the parameters of group 0"},
      {{group_object("lr", rate)}, "optim.param_groups.lr", "does not belong to a numbered group"},
      {{group_object("", PlainValue(PlainValue::List{rate}))}, "optim.param_groups.", "group 0 is not a dict"}};
  for (const Row& row : rows)
    check_refused([&] { saved_groups(row.objects); }, {.path = "d/.metadata", .tensor = row.tensor, .says = row.says});
}

TEST_CASE("A group may have many hyperparameters") {
  std::vector<GroupObject> objects{group_object("0.params", PlainValue(PlainValue::List{}))};
  constexpr std::size_t kMany = 200'000;  // which compared with each other would take minutes
  for (std::size_t i = 0; i < kMany; ++i)
    objects.push_back(group_object("0.key" + std::to_string(i), PlainValue(std::int64_t{1})));
  const std::vector<SavedGroup> groups = saved_groups(objects);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].values.size() == kMany);
}

TEST_CASE("Thousands of parameters may each have hyperparameters of their own") {
  MemoryFiles files;
  std::vector<SourceFile> in_files;
  std::vector<double> learning_rates;
  for (int i = 0; i < 10'000; ++i) learning_rates.push_back(i);
  TrainingStates states = flat_groups(files, in_files, learning_rates);
  const auto begin = std::chrono::steady_clock::now();
  read_dcp_groups(files, in_files, states);
  CHECK(states.groups.size() == learning_rates.size());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

}  // namespace
}  // namespace reshard::test
