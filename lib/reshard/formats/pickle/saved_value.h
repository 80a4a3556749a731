#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reshard/formats/pickle/plain_value.h"

namespace reshard {

/// A nested state dict as torch.save writes it: dicts whose leaves are tensors or plain values. Optimizer states are
/// saved in this form.
struct SavedValue {
  struct Tensor {
    std::uint32_t number = 0;  // index of the tensor, in order of first occurrence in the value
  };
  using Key = std::variant<std::int64_t, std::string>;
  struct Item;
  using Dict = std::vector<Item>;  // in insertion order; keys are unique

  std::variant<PlainValue, Tensor, Dict> value;
};

struct SavedValue::Item {
  Key key;
  SavedValue value;
};

/// Number of distinct tensors in `value`, which must be numbered in order.
/// \throws Error kInternal if they are not.
std::uint32_t count_tensors(const SavedValue& value);

/// Writes the value; `put_tensor` writes the tensor with a given number.
template <typename PutTensor>
void put_saved_value(Pickler& pickler, const SavedValue& saved, const PutTensor& put_tensor) {
  if (const auto* plain = std::get_if<PlainValue>(&saved.value)) return put_plain_value(pickler, *plain);
  if (const auto* tensor = std::get_if<SavedValue::Tensor>(&saved.value)) return put_tensor(tensor->number);
  const auto& dict = std::get<SavedValue::Dict>(saved.value);
  pickler.op('}');
  if (dict.empty()) return;
  pickler.op('(');
  for (const auto& [key, item] : dict) {
    if (const auto* text = std::get_if<std::string>(&key))
      pickler.shared_string(*text);
    else
      pickler.signed_integer(std::get<std::int64_t>(key));
    put_saved_value(pickler, item, put_tensor);
  }
  pickler.op('u');
}

}  // namespace reshard
