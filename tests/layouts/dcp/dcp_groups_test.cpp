// The groups of an optimizer in a checkpoint of torch.distributed.checkpoint.

#include "reshard/layouts/dcp/dcp_groups.h"

#include <chrono>

#include "reshard/io/memory_files.h"
#include "support/catch.h"

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
    states.of.push_back({static_cast<std::uint16_t>(before.size()), static_cast<std::uint16_t>(parameter.size())});
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
