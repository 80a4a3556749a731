#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/io/files.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

struct TrainingStates;

/// What the optimizer's files of a training checkpoint hold, as their headers say it.
struct OptimizerSummary {
  /// A state of all parameters; "master" for master weights.
  struct State {
    std::string name;
    DType dtype = DType::kF32;  // of the first
    std::uint64_t tensors = 0;  // over all files: parts of ranks
    std::uint64_t bytes = 0;
  };
  struct Group {
    PlainValue::Dict values;
    std::uint64_t parameters = 0;  // of all pipeline ranks, as their files have them: fused ones are one
  };

  std::vector<State> states;
  std::vector<Group> groups;
  bool is_sharded = false;  // over `dp` data-parallel ranks: ZeRO-1
  std::uint32_t dp = 1;
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;            // of all tensors
  std::uint64_t most_rank_bytes = 0;  // of the rank that has the most
  bool has_masters = false;
  std::optional<double> step;   // the largest of the first file that has one
  std::string incomplete;       // why the states cannot be restored, as a clause; empty where they can
  std::string incomplete_hint;  // what to try then
  std::string unnamed;  // why nobody can tell which parameter a state is of, as clauses; empty where it is known
};

/// Counts tensors by the names of their states, in the order in which they come first.
class StateCounts {
 public:
  void add(const std::string& name, DType dtype, std::uint64_t bytes);
  std::vector<OptimizerSummary::State> take() { return std::move(states_); }

 private:
  std::vector<OptimizerSummary::State> states_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

/// The state that counts an optimizer's steps.
inline constexpr const char* kStep = "step";

/// A number as floating point; nothing for any other value.
std::optional<double> real_of(const PlainValue& value);

/// The groups that `states` have as values.
std::vector<OptimizerSummary::Group> groups_of(const TrainingStates& states);

/// The largest step of a parameter, be it a number or a tensor of no dims; nothing where none has one. Reads those tensors,
/// which lie in `in_files`.
/// \throws Error kIo.
std::optional<double> last_step(Files& files, std::span<const SourceFile> in_files, const TrainingStates& states);

}  // namespace reshard
