#include "reshard/layouts/names/packed_names.h"

#include <algorithm>
#include <utility>

#include "reshard/base/strings.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

PackedNames::PackedNames(const SchemeEntry& entry, const std::vector<std::string>& entry_numbers,
                         std::uint64_t first_layer)
    : rule(&entry), parameters(entry.parameters) {
  for (std::string& parameter : parameters) {
    const auto stars = static_cast<std::size_t>(std::count(parameter.begin(), parameter.end(), '*'));
    std::vector<std::string> numbers(stars);
    auto next = entry_numbers.begin();
    for (std::size_t s = 0; s < stars && next != entry_numbers.end(); ++s)
      if (!entry.is_numbered(s, stars)) numbers[s] = *next++;
    if (first_layer != 0)
      if (const auto layer = parse_unsigned(numbers.at(0), UINT32_MAX))
        numbers[0] = std::to_string(*layer + first_layer);
    parameter = with_numbers(std::move(parameter), numbers);
  }
}

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
