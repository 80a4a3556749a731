#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/formats/common/container.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/rules/layout_option.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// The tensors of rank files by name, each as the first rank with it has it. Borrows the files.
class HeldTensors {
 public:
  explicit HeldTensors(const Container& file) { add(file); }
  /// \param files  by stage and rank.
  explicit HeldTensors(const std::vector<std::vector<Container>>& files);

  /// Returns null if no rank has a tensor of this name.
  const TensorEntry* find(std::string_view name) const;
  bool has(std::string_view name) const { return by_name_.count(name) > 0; }
  /// Returns an error about a tensor that a rank has, with its file.
  Error error(ErrorKind kind, std::string_view name, const std::string& message) const;

 private:
  void add(const Container& file);

  struct Place {
    const TensorEntry* tensor;
    const Container* file;
  };
  std::unordered_map<std::string_view, Place> by_name_;
};

/// The shapes of a model's tensors in rank files, according to rules. Borrows the model.
class RuleShapes {
 public:
  explicit RuleShapes(const Model& model);

  /// Returns the shape of the rule's tensor in the file of a rank; std::nullopt if the rule does not fit the model.
  std::optional<Dims> of(const PartitionRule& rule, std::uint32_t rank = 0) const;

 private:
  std::unordered_map<std::string_view, const Dims*> shapes_;
};

/// How a file of a rank differs from rules.
struct FileMisfits {
  std::string strange, missing;  // a tensor that only the file has, and one that it lacks; empty if there is none
  std::size_t count = 0;         // of these, and of tensors of other shapes
};

/// Compares the file of the first rank of a stage with the rules of that stage.
FileMisfits file_misfits(const Container& file, const std::vector<PartitionRule>& rules, const RuleShapes& shapes);

/// A setting that files do not state, and its values in order of trial; an empty one: the setting is absent.
struct Unknown {
  const LayoutOption* option;  // need not be one of Layout::options(), such as the version of a scheme
  std::vector<std::string> values;
};

/// Sets `unknowns` to the first values for which `misfits` is 0, trying those of the last one first. If no form fits, sets
/// those for which it is least.
/// \param misfits  returns the number of tensors that a form does not fit; called with one form at a time. A form for
///                 which it throws an Error kUsage is one that ranks cannot have.
/// \returns whether the form fits.
bool fit_form(OptionValues& form, std::span<const Unknown> unknowns,
              const std::function<std::size_t(const OptionValues& form)>& misfits);

}  // namespace reshard
