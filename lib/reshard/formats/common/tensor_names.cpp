#include "reshard/formats/common/tensor_names.h"

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {

void validate_name_length(const std::string& name) {
  if (name.size() <= kMaxTensorNameBytes) return;
  throw Error(ErrorKind::kUnsupported, "its name has " + std::to_string(name.size()) +
                                           " bytes; names of written tensors may have at most " +
                                           std::to_string(kMaxTensorNameBytes) + " bytes")
      .tensor(name)
      .hint("give it a shorter name with convert `rename`");
}

bool is_plain_text(std::string_view name) {
  if (has_control(name)) return false;
  while (!name.empty()) {
    const std::size_t length = utf8_length(name);
    if (length == 0) return false;
    name.remove_prefix(length);
  }
  return true;
}

}  // namespace reshard
