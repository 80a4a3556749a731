#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// Pickles by hand, protocol 2. Each function gives the opcodes that push one value; `stream` makes a whole pickle.
namespace reshard::test::pickles {

inline const std::string kNone = "N";
inline const std::string kFalse = "\x89";
inline const std::string kTrue = "\x88";

std::string stream(const std::string& value);
std::string text(const std::string& value);
std::string number(std::int64_t value);
std::string tuple(const std::vector<std::string>& items);
std::string numbers(const std::vector<std::int64_t>& items);
std::string list(const std::vector<std::string>& items);
std::string dict(const std::vector<std::pair<std::string, std::string>>& items);  // names → values
std::string numbered(const std::vector<std::string>& items);                      // a dict: 0, 1, … → values
std::string global(const std::string& module, const std::string& name);
std::string call(const std::string& module, const std::string& name, const std::vector<std::string>& args);
/// An object of a class with attributes.
std::string object(const std::string& module, const std::string& name, const std::string& state);
std::string ordered_dict();
std::string storage(const std::string& type, const std::string& key, std::int64_t elems);

struct View {
  std::string type = "FloatStorage";
  std::string key = "0";
  std::int64_t elems = 12;  // of the storage
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape{3, 4};
  std::vector<std::int64_t> strides{4, 1};
};
/// _rebuild_tensor_v2
std::string tensor(const View& view = {});
/// _rebuild_tensor_v3, of an untyped storage of `view.elems` bytes.
std::string tensor_v3(const View& view, const std::string& dtype);

}  // namespace reshard::test::pickles
