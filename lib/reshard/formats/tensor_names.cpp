#include "reshard/formats/tensor_names.h"

#include "reshard/base/error.h"

namespace reshard {

void validate_name_length(const std::string& name) {
  if (name.size() <= kMaxTensorNameBytes) return;
  throw Error(ErrorKind::kUnsupported, "its name has " + std::to_string(name.size()) +
                                           " bytes; tensors are written with names of at most " +
                                           std::to_string(kMaxTensorNameBytes) + " bytes")
      .tensor(name)
      .hint("give it a shorter name with convert `rename`");
}

}  // namespace reshard
