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

/// What another program calls a model's parameters and how it packs them, for checkpoints that are written: Family::schemes
/// in reverse (find_state_names).
class WrittenNames {
 public:
  /// An entry of the program's checkpoints.
  struct Entry {
    const Scheme::Entry* rule = nullptr;
    /// Set if it has a value and no parameters: a constant of `rule`.
    const Scheme::Constant* constant = nullptr;
    std::string name;
    Dims numbers;  // the sizes of its numbered dims
    std::vector<std::string>
        tensors;              // its parameters, as PackedNames::tensors lists them; empty where the model has none
    std::vector<Dims> parts;  // the shape of each parameter of the rule
  };
  /// Where a parameter is among these.
  struct Place {
    const Entry* entry = nullptr;
    std::size_t tensor = 0;  // index into Entry::tensors
  };

  /// \param model  borrowed.
  /// \param version  index into Scheme::versions.
  /// \throws Error kUnsupported if the model has only some of the tensors of an entry.
  WrittenNames(const Model& model, std::shared_ptr<const Scheme> scheme, std::size_t version);

  /// \param names  those of a program's newest version ("torchtitan"), or of one that has a label ("torchtitan-0.2").
  /// \throws Error kUsage, with those that the family has, if there are no such names; kUnsupported as above.
  WrittenNames(const Model& model, const std::string& names);

  /// As `find` if the scheme keeps the names of other parameters.
  /// \throws Error kUnsupported, naming the parameter, if the program has no name for it.
  Place of(const std::string& parameter) const;
  /// The same; its entry is null if the program has no name for it.
  Place find(std::string_view parameter) const;

  /// Whether the scheme packs the experts of a layer.
  bool packs_experts() const;

  /// Scheme::before_state.
  const std::string& before_state() const { return scheme_->before_state; }

  /// All entries for the model, in the order of their first parameters.
  const std::vector<Entry>& entries() const { return entries_; }

  /// Entries of the program's checkpoints that the model has no values for.
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
