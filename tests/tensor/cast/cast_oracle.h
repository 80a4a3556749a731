#pragma once

#include <cstdint>
#include <vector>

#include "reshard/tensor/values/dtype.h"

namespace reshard::test {

/// What a cast must give, found without the library's code: values as long double, the nearest by search in the sorted
/// list of all values of the target; float and double by the compiler's own conversion from long double.
struct Expected {
  std::uint64_t code;
  bool overflow;
};

class CastOracle {
 public:
  /// A float of 8 bits and more, an integer, or BOOL; to F64, F32, F16, BF16, F8_E4M3 or F8_E5M2.
  CastOracle(DType from, DType to);

  Expected cast(std::uint64_t code) const;

 private:
  std::uint64_t nan_code(std::uint64_t code) const;
  Expected nearest(long double magnitude) const;

  DType from_;
  DType to_;
  std::vector<long double> values_;  // of the codes 0, 1, … of a target of 16 bits or fewer; the last is one too many
};

/// The value of an element: of floats, integers and BOOL. NaN is NaN.
long double value_of(DType dtype, std::uint64_t code);

/// The number of mantissa bits of a float.
int mantissa_bits(DType dtype);

/// The finite values of a float of 16 bits or fewer that are not negative, in their order, and the value that would be
/// next. The index of each is its code.
std::vector<long double> ascending_values(DType dtype);

}  // namespace reshard::test
