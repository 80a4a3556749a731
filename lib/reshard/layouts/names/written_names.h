#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/specs/model/model.h"

namespace reshard {

/// What another program calls a model's parameters, and in which order it has their rows, for checkpoints that are
/// written: Family::other_names the other way round (find_state_names).
class WrittenNames {
 public:
  /// Where a parameter is among the entries of the program's checkpoints.
  struct Place {
    std::string entry;
    bool interleaved = false;   // the rows of each head (Family::OtherName)
    std::uint64_t stacked = 0;  // how many parameters are one behind the other in a dim in front; 0: it is alone
    std::uint64_t index = 0;    // which of them it is
  };

  /// \param model  borrowed.
  /// \param names  those of a program's newest version ("torchtitan"), or of one that has a label ("torchtitan-0.2").
  /// \throws Error kUsage, with those that the family has, if there are no such names.
  WrittenNames(const Model& model, const std::string& names);

  /// \throws Error kUnsupported, naming the parameter, if the program has no name for it.
  Place of(const std::string& parameter) const;

  /// Entries of the program's checkpoints that the model has no values for.
  const std::vector<std::string>& unused() const { return names_->unused; }

 private:
  std::string label_;
  const Family::OtherNames* names_ = nullptr;
  std::size_t version_ = 0;
  std::unordered_map<std::string_view, const Family::OtherName*> by_parameter_;
  std::unordered_map<std::string_view, const ModelParameter*> parameters_;
};

}  // namespace reshard
