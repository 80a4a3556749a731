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

/// A value of Python that needs no class: None, bool, int, float, str, or a list or dict of such values. Optimizers save
/// hyperparameters as these. Tuples are read as lists, as NxD does on the way to the host.
struct PlainValue {
  using List = std::vector<PlainValue>;
  using Dict = std::vector<std::pair<std::string, PlainValue>>;  // in its order; keys are unique

  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Dict>;

  Value value;

  // Not in the class: clang 14 would need pairs of values before there is a value.
  PlainValue();
  PlainValue(Value held);
  PlainValue(const PlainValue& other);
  PlainValue(PlainValue&& other) noexcept;
  PlainValue& operator=(const PlainValue& other);
  PlainValue& operator=(PlainValue&& other) noexcept;
  ~PlainValue();

  /// The same type and value: 1 and 1.0 differ. A NaN is equal to any other.
  friend bool operator==(const PlainValue& a, const PlainValue& b);
};

/// Reads `node`, which belongs to `what` ("lr of parameter group 0").
/// \throws Error kUnsupported, in `path`, naming the class, for anything else, tensors among them, and for more than
///         kMaxPlainValues values; kBadInput for a key that comes twice.
PlainValue read_plain_value(const Pickle& pickle, PickleRef node, const std::string& what,
                            const std::filesystem::path& path);

/// More are no hyperparameters.
inline constexpr std::size_t kMaxPlainValues = 100'000;

void put_plain_value(Pickler& pickler, const PlainValue& value);

/// The file that torch.save makes of the value alone (torch/serialization.py), as DCP's items of objects are.
std::string plain_value_file(const std::string& archive, const PlainValue& value);

/// The value itself and all that lists and dicts in it hold.
std::size_t num_values(const PlainValue& value);

/// As Python prints it: "[0.9, 0.95]", "None", "1.0".
std::string to_string(const PlainValue& value);

}  // namespace reshard
