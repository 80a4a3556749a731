#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reshard/formats/pickle/pickle.h"
#include "reshard/formats/pickle/pickler.h"

namespace reshard {

/// A Python value that needs no class: None, bool, int, float, str, or a list or dict of such values. Optimizers save
/// hyperparameters in this form. Tuples are read as lists, as NxD does when it moves data to the host, and so are sets.
struct PlainValue {
  using List = std::vector<PlainValue>;
  using Dict = std::vector<std::pair<std::string, PlainValue>>;  // in insertion order; keys are unique

  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Dict>;

  Value value;

  // Defined outside the class: clang 14 would otherwise need pairs of values before the class is complete.
  PlainValue();
  PlainValue(Value held);
  PlainValue(const PlainValue& other);
  PlainValue(PlainValue&& other) noexcept;
  PlainValue& operator=(const PlainValue& other);
  PlainValue& operator=(PlainValue&& other) noexcept;
  ~PlainValue();

  /// Compares types and values: 1 and 1.0 differ. NaN equals NaN.
  friend bool operator==(const PlainValue& a, const PlainValue& b);
};

/// Reads `node`, which belongs to `what` ("lr of parameter group 0").
/// \throws Error kUnsupported, naming `path` and the class, for other values, including tensors, and for more than
///         kMaxPlainValues values; kBadInput for duplicate keys.
PlainValue read_plain_value(const Pickle& pickle, PickleRef node, const std::string& what,
                            const std::filesystem::path& path);

/// Larger values are not hyperparameters.
inline constexpr std::size_t kMaxPlainValues = 100'000;

void put_plain_value(Pickler& pickler, const PlainValue& value);

/// Returns the file that torch.save writes for the value alone (torch/serialization.py), like DCP's items of objects.
std::string plain_value_file(const std::string& archive, const PlainValue& value);

/// Number of values, including those nested in lists and dicts.
std::size_t num_values(const PlainValue& value);

/// Formats a value as Python does: "[0.9, 0.95]", "None", "1.0".
std::string to_string(const PlainValue& value);

}  // namespace reshard
