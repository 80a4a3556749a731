#include "reshard/formats/pickle/saved_value.h"

#include "reshard/base/error.h"

namespace reshard {
namespace {

void count(const SavedValue& saved, std::uint32_t& next) {
  if (const auto* tensor = std::get_if<SavedValue::Tensor>(&saved.value)) {
    if (tensor->number > next) throw Error(ErrorKind::kInternal, "tensors of a file are not numbered in their order");
    if (tensor->number == next) ++next;
  } else if (const auto* dict = std::get_if<SavedValue::Dict>(&saved.value)) {
    for (const auto& entry : *dict) count(entry.value, next);
  }
}

}  // namespace

std::uint32_t count_tensors(const SavedValue& value) {
  std::uint32_t tensors = 0;
  count(value, tensors);
  return tensors;
}

}  // namespace reshard
