#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "reshard/specs/family/scheme.h"
#include "reshard/tensor/values/dims.h"

namespace reshard {

/// What an entry of another program's checkpoint contains, by the model's names.
struct PackedNames {
  /// \param entry_numbers  those in the entry's name.
  PackedNames(const Scheme::Entry& rule, const std::vector<std::string>& entry_numbers);

  const Scheme::Entry* rule = nullptr;  // of the family, which outlives this
  std::vector<std::string> parameters;  // the rule's, with the numbers of the entry's name; stars are left for others

  /// The names of the tensors: for each index along the numbered dims of the entry, one of each parameter.
  /// \param numbers  the sizes of these dims.
  std::vector<std::string> tensors(const Dims& numbers) const;
};

}  // namespace reshard
