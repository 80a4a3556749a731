#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/dims.h"

namespace reshard {

/// Another program's names and packing of a model's parameters, for writing checkpoints: Family::schemes in reverse
/// (see find_state_names).
class WrittenNames {
 public:
  /// An entry of the program's checkpoints.
  struct Entry {
    const SchemeEntry* rule = nullptr;
    /// Set if the entry is a constant of `rule` and contains no parameters.
    const SchemeEntry::Constant* constant = nullptr;
    std::string name;
    Dims numbers;  // the sizes of its numbered dims
    std::vector<std::string>
        tensors;              // its parameters, as PackedNames::tensors lists them; empty if the model has none
    std::vector<Dims> parts;  // the shape of each parameter of the rule
  };
  /// The position of a parameter in these entries.
  struct Place {
    const Entry* entry = nullptr;
    std::size_t tensor = 0;  // index into Entry::tensors
  };

  /// \param model  borrowed.
  /// \param version  index into Scheme::versions.
  /// \throws Error kUnsupported if the model has only some of the tensors of an entry.
  WrittenNames(const Model& model, std::shared_ptr<const Scheme> scheme, std::size_t version);

  /// \param names  "torchtitan" for a program's newest version, "torchtitan-0.2" for a labelled one.
  /// \throws Error kUsage, listing the names that the family has, if these do not exist; kUnsupported as above.
  WrittenNames(const Model& model, const std::string& names);

  /// Like `find`, but the entry is null only if the scheme keeps the names of other parameters.
  /// \throws Error kUnsupported, naming the parameter, if the program has no name for it.
  Place of(const std::string& parameter) const;
  /// Returns the parameter's place; its entry is null if the program has no name for the parameter.
  Place find(std::string_view parameter) const;

  /// Whether the scheme packs the experts of a layer.
  bool packs_experts() const;

  /// Scheme::before_state.
  const std::string& before_state() const { return scheme_->before_state; }

  /// All entries for the model, sorted by their first parameters.
  const std::vector<Entry>& entries() const { return entries_; }

  /// Entries of the program's checkpoints for which the model has no values.
  std::vector<std::string> unused() const;

 private:
  struct Numbered;
  void add_entries(const Model& model);
  void place(std::size_t index, const std::vector<Numbered>& members);

  std::string label_;
  std::shared_ptr<const Scheme> scheme_;
  std::size_t version_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, std::pair<std::size_t, std::size_t>> places_;  // entry and tensor, by parameter
};

}  // namespace reshard
