#include "support/pickles.h"

#include "support/zips.h"

namespace reshard::test::pickles {

std::string stream(const std::string& value) {
  return "\x80\2" + value + ".";
}

std::string text(const std::string& value) {
  return "X" + le_bytes(static_cast<std::uint32_t>(value.size())) + value;
}

std::string number(std::int64_t value) {
  return "\x8a\x08" + le_bytes(value);
}

std::string tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}

std::string numbers(const std::vector<std::int64_t>& items) {
  std::string all = "(";
  for (const std::int64_t item : items) all += number(item);
  return all + "t";
}

std::string list(const std::vector<std::string>& items) {
  std::string all = "](";
  for (const std::string& item : items) all += item;
  return all + "e";
}

std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string all = "}(";
  for (const auto& [name, value] : items) all += text(name) + value;
  return all + "u";
}

std::string numbered(const std::vector<std::string>& items) {
  std::string pushed;
  for (std::size_t i = 0; i < items.size(); ++i) pushed += number(static_cast<std::int64_t>(i)) + items[i];
  return "}(" + pushed + "u";
}

std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

std::string call(const std::string& module, const std::string& name, const std::vector<std::string>& args) {
  return global(module, name) + tuple(args) + "R";
}

std::string object(const std::string& module, const std::string& name, const std::string& state) {
  return global(module, name) + ")\x81" + state + "b";
}

std::string ordered_dict() {
  return call("collections", "OrderedDict", {});
}

std::string storage(const std::string& type, const std::string& key, std::int64_t elems) {
  const std::string module = type == "UntypedStorage" ? "torch.storage" : "torch";
  return tuple({text("storage"), global(module, type), text(key), text("cpu"), number(elems)}) + "Q";
}

std::string tensor(const View& view) {
  return call("torch._utils", "_rebuild_tensor_v2",
              {storage(view.type, view.key, view.elems), number(view.offset), numbers(view.shape),
               numbers(view.strides), kFalse, ordered_dict()});
}

std::string tensor_v3(const View& view, const std::string& dtype) {
  return call("torch._utils", "_rebuild_tensor_v3",
              {storage("UntypedStorage", view.key, view.elems), number(view.offset), numbers(view.shape),
               numbers(view.strides), kFalse, ordered_dict(), global("torch", dtype)});
}

}  // namespace reshard::test::pickles
