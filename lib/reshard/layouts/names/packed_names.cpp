#include "reshard/layouts/names/packed_names.h"

#include <utility>

#include "reshard/base/strings.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

std::vector<std::string> PackedNames::tensors(const Dims& numbers) const {
  std::vector<std::string> names;
  std::vector<std::string> at(numbers.size(), "0");
  Dims index(numbers.size());
  for (std::uint64_t i = 0, count = num_elems(numbers).value_or(0); i < count; ++i) {
    for (const std::string& parameter : parameters) names.push_back(with_numbers(parameter, at));
    for (std::size_t d = numbers.size(); d-- > 0;) {
      index[d] = index[d] + 1 == numbers[d] ? 0 : index[d] + 1;
      at[d] = std::to_string(index[d]);
      if (index[d] != 0) break;
    }
  }
  return names;
}

}  // namespace reshard
