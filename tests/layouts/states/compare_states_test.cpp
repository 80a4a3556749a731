#include "reshard/layouts/states/compare_states.h"

#include "reshard/io/memory_files.h"
#include "support/catch.h"

namespace reshard::test {
namespace {

/// States of one moment of each parameter, called after `prefix`.
TrainingStates states_of(const std::string& prefix, const std::vector<std::string>& parameters) {
  TrainingStates states;
  for (const std::string& parameter : parameters) {
    states.of.push_back({prefix, parameter, "exp_avg"});
    states.map.add_logical({states.of.back().name_with(parameter), DType::kF32, {2}, {}, TensorRole::kState}, {});
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
  CHECK(b.of[2].parameter == "x");
  CHECK(b.of[1].parameter == "z");
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

/// Adds a state of no dims of parameter "x" that lies in file 0.
void add_number_tensor(TrainingStates& states, const std::string& state, DType dtype,
                       const std::vector<std::uint64_t>& offsets) {
  states.of.push_back({"optim.state.", "x", state});
  const std::uint32_t index = states.map.add_logical({"optim.state.x." + state, dtype, {}, {}, TensorRole::kState}, {});
  for (const std::uint64_t offset : offsets) {
    const std::uint32_t stored = states.map.add_stored(StoredTensor{"s", dtype, {}, 0, offset});
    states.map.pieces[index].push_back({stored, {}, {}});
  }
}

TEST_CASE("Tensors of no dims are compared by value with numbers, in replicas that differ with the one that does") {
  const std::string three("\0\0\x40\x40", 4), tenth("\xcd\xcc\xcc\x3d", 4), seven("\7\0\0\0\0\0\0\0", 8);
  MemoryFiles files;
  files.write("f", three + tenth + seven);
  const SourceFile file{{"f", 16}};
  TrainingStates a, b;
  a.numbers = {{"x", "step", whole_number(3)}, {"x", "tenth", PlainValue{0.1}}, {"x", "seven", whole_number(6)}};
  add_number_tensor(b, "seven", DType::kI64, {8});
  add_number_tensor(b, "more", DType::kF32, {0});
  add_number_tensor(b, "step", DType::kF32, {0, 0});
  add_number_tensor(b, "tenth", DType::kF32, {4});
  read_number_tensors(files, std::span(&file, 1), b, a);
  CHECK(different_values(a, b) == Lines{"seven of x: 6 and 7.0"});
  REQUIRE(b.map.logical.size() == 1);  // which a has no number for
  CHECK(b.map.logical[0].name == "optim.state.x.more");
  CHECK(b.state(0) == "more");
  CHECK(b.map.stored.size() == 1);
  CHECK(b.map.pieces[0].front().stored == 0);

  TrainingStates c;
  add_number_tensor(c, "step", DType::kF32, {0, 4, 0});
  read_number_tensors(files, std::span(&file, 1), c, a);
  REQUIRE(c.numbers.size() == 1);
  CHECK(c.numbers[0].value != whole_number(3));
}

TEST_CASE("Master weights are left out where the other optimizer has none, with the padding that only they have") {
  const auto with_masters = [] {
    TrainingStates states = states_of("optimizer.state.", {"x"});
    states.groups = {{{}, {"x"}}};
    const std::uint32_t master =
        states.map.add_logical({"optimizer.state.x.master", DType::kF32, {2}, {}, TensorRole::kState}, {});
    states.of.push_back({"optimizer.state.", "x", kMasterState});
    for (const std::uint32_t logical : {0u, master}) {
      const std::uint32_t stored = states.map.add_stored(StoredTensor{"s", DType::kF32, {3}});
      states.map.pieces[logical].push_back({stored, {{0}, {2}}, {0}});
      states.map.add_constant(stored, {{2}, {1}}, Constant::Kind::kPadding, 0);
    }
    states.of.resize(states.map.logical.size());
    return states;
  };
  TrainingStates a = with_masters(), b = with_masters();
  CHECK(leave_lone_masters(a, b) == 0);
  CHECK(a.map.logical.size() == with_masters().map.logical.size());
  TrainingStates none = states_of("optimizer.state.", {"x"});
  CHECK(leave_lone_masters(a, none) == 0);  // whose groups were not read
  none.groups = a.groups;
  CHECK(leave_lone_masters(none, a) == 0);
  CHECK(leave_lone_masters(a, none) == 1);
  CHECK_FALSE(a.map.find_logical("optimizer.state.x.master"));
  CHECK(a.map.find_logical("optimizer.state.x.exp_avg"));
  CHECK(a.map.stored.size() == 1);
  CHECK(a.of.size() == a.map.logical.size());
  CHECK_NOTHROW(validate_tiling(a.map));
}

TEST_CASE("Objects of groups are left out of both where both have groups as values, and of none else") {
  const auto with_objects = [] {
    TrainingStates states = states_of("optim.state.", {"x"});
    states.map.add_logical({"optim.param_groups.0.lr", DType::kU8, {4}, {}, TensorRole::kObject}, {});
    states.map.add_logical({"scheduler.last_lr", DType::kU8, {4}, {}, TensorRole::kObject}, {});
    states.of.resize(3);
    return states;
  };
  TrainingStates a = with_objects(), b = with_objects();
  a.groups = {{{{"lr", whole_number(1)}}, {"x"}}};
  leave_group_objects(a, b);
  CHECK(a.map.logical.size() == 3);
  CHECK(b.map.logical.size() == 3);
  b.groups = a.groups;
  leave_group_objects(a, b);
  for (const TrainingStates* states : {&a, &b}) {
    CHECK(states->map.logical.size() == 2);
    CHECK(states->map.find_logical("scheduler.last_lr"));
  }
}

TEST_CASE("Hyperparameters with a key that comes twice are the same as themselves") {
  const PlainValue::Dict twice{{"lr", PlainValue(0.5)}, {"lr", PlainValue(0.5)}};
  CHECK(different_hyperparameters(twice, twice).empty());
  CHECK(different_hyperparameters(twice, {}).size() == 2);
}

}  // namespace
}  // namespace reshard::test
