#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/specs/family/scheme.h"
#include "reshard/tensor/values/dims.h"

namespace reshard {

/// The contents of an entry of another program's checkpoint, by the model's names.
struct PackedNames {
  /// \param entry_numbers  the numbers in the entry's name.
  /// \param first_layer    value of SchemeEntry::first_layer.
  PackedNames(const SchemeEntry& rule, const std::vector<std::string>& entry_numbers, std::uint64_t first_layer = 0);

  const SchemeEntry* rule = nullptr;  // borrowed from the family
  /// The rule's parameters, with the numbers of the entry's name filled in. Stars remain for the numbered dims.
  std::vector<std::string> parameters;

  /// Returns the names of the tensors: for each index along the numbered dims of the entry, one tensor of each
  /// parameter.
  /// \param numbers  the sizes of the numbered dims.
  std::vector<std::string> tensors(const Dims& numbers) const;
};

}  // namespace reshard
