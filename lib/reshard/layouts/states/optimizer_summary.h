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

/// The contents of the optimizer's files of a training checkpoint, according to their headers.
struct OptimizerSummary {
  /// A state, over all parameters; "master" for master weights.
  struct State {
    std::string name;
    DType dtype = DType::kF32;  // dtype of the first tensor
    std::uint64_t tensors = 0;  // number of stored tensors in all files
    std::uint64_t bytes = 0;
  };
  struct Group {
    PlainValue::Dict values;
    std::uint64_t parameters = 0;  // over all pipeline ranks, as stored: fused parameters count as one
  };

  std::vector<State> states;
  std::vector<Group> groups;
  bool is_sharded = false;  // over `dp` data-parallel ranks: ZeRO-1
  std::uint32_t dp = 1;
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;            // size of all tensors
  std::uint64_t most_rank_bytes = 0;  // size on the rank that has the most
  bool has_masters = false;
  std::optional<double> step;   // largest step in the first file that has one
  std::string incomplete;       // why the states cannot be restored, as a clause; empty if they can
  std::string incomplete_hint;  // what to try then
  /// Why the parameters of states are unknown, as clauses; empty if they are known.
  std::string unnamed;
};

/// Counts tensors by the names of their states, in the order of first occurrence.
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

/// Returns a number as floating point; std::nullopt for any other value.
std::optional<double> real_of(const PlainValue& value);

/// Returns the groups that `states` have as values.
std::vector<OptimizerSummary::Group> groups_of(const TrainingStates& states);

/// Returns the largest step of a parameter, either a number or a scalar tensor; std::nullopt if none has a step. Reads
/// the tensors from `in_files`.
/// \throws Error kIo.
std::optional<double> last_step(Files& files, std::span<const SourceFile> in_files, const TrainingStates& states);

}  // namespace reshard
