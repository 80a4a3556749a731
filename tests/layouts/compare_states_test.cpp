#include "reshard/layouts/compare_states.h"

#include "support/catch.h"

namespace reshard::test {
namespace {

/// States of one moment of each parameter, called after `prefix`.
TrainingStates states_of(const std::string& prefix, const std::vector<std::string>& parameters) {
  TrainingStates states;
  for (const std::string& parameter : parameters) {
    states.map.add_logical({prefix + parameter + ".exp_avg", DType::kF32, {2}, {}, {}, TensorRole::kState}, {});
    states.of.push_back({static_cast<std::uint16_t>(prefix.size()), static_cast<std::uint16_t>(parameter.size())});
  }
  return states;
}

TEST_CASE("States of the same parameters get one name, whatever the layouts put before it") {
  const TrainingStates a = states_of("optimizer.state.", {"x", "y"});
  TrainingStates b = states_of("optim.state.", {"y", "z", "x"});
  name_states_alike(a, b);
  CHECK(b.map.find_logical("optimizer.state.y.exp_avg") == 0u);
  CHECK(b.map.find_logical("optim.state.z.exp_avg") == 1u);
  CHECK(b.map.find_logical("optimizer.state.x.exp_avg") == 2u);
  CHECK_FALSE(b.map.find_logical("optim.state.x.exp_avg"));
  CHECK(b.parameter(2) == "x");
  CHECK(b.parameter(1) == "z");
}

PlainValue whole_number(std::int64_t value) {
  return PlainValue{value};
}

using Lines = std::vector<std::string>;

TEST_CASE("Hyperparameters and numbers that two optimizers have are compared by parameter") {
  TrainingStates a, b;
  a.groups = {{{{"lr", whole_number(1)}}, {"x", "y"}}, {{{"lr", whole_number(2)}}, {"z"}}};
  b.groups = {{{{"lr", whole_number(2)}}, {"z", "y", "x"}}};
  a.numbers = {{"x", "step", whole_number(3)}, {"y", "step", whole_number(3)}};
  b.numbers = {{"y", "step", whole_number(4)}, {"x", "step", whole_number(3)}};
  CHECK(different_values(a, b) == Lines{"step of y: 3 and 4", "lr of x: 1 and 2"});
  CHECK(different_values(a, a).empty());
}

TEST_CASE("Numbers that one optimizer alone has are differences, whichever it is") {
  TrainingStates a, b;
  a.numbers = {{"x", "step", whole_number(3)}, {"y", "step", whole_number(3)}};
  b.numbers = {{"y", "step", whole_number(3)}};
  CHECK(different_values(a, b) == Lines{"step of x: 3 and nothing"});
  CHECK(different_values(b, a) == Lines{"step of x: nothing and 3"});
  b.numbers.clear();
  CHECK(different_values(b, a) == Lines{"step of x: nothing and 3", "step of y: nothing and 3"});
}

TEST_CASE("Hyperparameters that one optimizer alone has are told once, and parameters of its groups each") {
  TrainingStates a, b;
  a.groups = {{{{"lr", whole_number(1)}, {"eps", whole_number(3)}}, {"x", "y", "z"}}};
  b.groups = {{{{"lr", whole_number(1)}}, {"x", "y"}}};
  CHECK(different_values(a, b) == Lines{"eps of x: only in A", "hyperparameters of z: only in A"});
  CHECK(different_values(b, a) == Lines{"eps of x: only in B", "hyperparameters of z: only in B"});
}

TEST_CASE("Nothing is told of groups where an optimizer has none that were read") {
  TrainingStates a, b;
  a.groups = {{{{"lr", whole_number(1)}}, {"x"}}};
  CHECK(different_values(a, b).empty());
  CHECK(different_values(b, a).empty());
}

}  // namespace
}  // namespace reshard::test
