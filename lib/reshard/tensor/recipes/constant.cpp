#include "reshard/tensor/recipes/constant.h"

#include <fmt/format.h>

#include "reshard/base/error.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {

std::string Constant::key() const {
  switch (kind_) {
    case Kind::kPadding: return bits_ == 0 ? "zeros" : "lowest numbers";
    case Kind::kRankNumber: return fmt::format("rank {}", bits_);
    case Kind::kRequired: return fmt::format("constant {:#x}", bits_);
  }
  return {};
}

void Constant::validate(std::span<const Operand> inputs, const Operand& output) const {
  if (!inputs.empty() || output.dtype != dtype_)
    throw Error(ErrorKind::kInternal, "is no such constant").tensor(std::string(output.name));
}

void Constant::apply(std::span<const InputBox>, const Box&, std::span<std::byte> result, Findings&) const {
  fill_elements(dtype_, result, bits_);
}

}  // namespace reshard
