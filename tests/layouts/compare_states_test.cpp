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

TEST_CASE("Hyperparameters and numbers that two optimizers have are compared by parameter") {
  const auto number = [](std::int64_t value) { return PlainValue{value}; };
  TrainingStates a, b;
  a.groups = {{{{"lr", number(1)}, {"eps", number(3)}}, {"x", "y"}}, {{{"lr", number(2)}}, {"z"}}};
  b.groups = {{{{"lr", number(2)}}, {"z", "y", "x"}}};
  a.numbers = {{"x", "step", number(3)}, {"y", "step", number(3)}, {"z", "step", number(3)}};
  b.numbers = {{"y", "step", number(4)}, {"x", "step", number(3)}};
  CHECK(different_values(a, b) == std::vector<std::string>{"step of y: 3 and 4", "lr of x: 1 and 2"});
  CHECK(different_values(a, a).empty());
}

}  // namespace
}  // namespace reshard::test
