#include "reshard/specs/resolve_family.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/builtin_files.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLike = "like";
constexpr const char* kDefaultParameter = "weight";

Error bad(const fs::path& path, const std::string& message) {
  return Error(ErrorKind::kBadInput, message).in(path);
}

/// Where `part` stands in `name` between dots or at its ends, from `from` on; npos where it does not.
std::size_t find_part(std::string_view name, std::string_view part, std::size_t from = 0) {
  for (std::size_t at = name.find(part, from); at != name.npos; at = name.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return at;
  }
  return std::string_view::npos;
}

/// Other names for parts of names. Each part of a name is replaced once.
class Renames {
 public:
  Renames(const OrderedJson& derived, const fs::path& path) : path_(path) {
    const auto found = derived.find("rename");
    if (found == derived.end()) return;
    if (!found->is_object()) throw bad(path, "\"rename\" is not an object");
    for (const auto& [from, to] : found->items()) {
      if (from.empty() || !to.is_string() || to.get_ref<const std::string&>().empty())
        throw bad(path, "\"rename\": \"" + printable(from) + "\" has no new name");
      renames_.emplace_back(from, to.get<std::string>());
    }
    // The longest first: "self_attn.o_proj" before "self_attn".
    std::stable_sort(renames_.begin(), renames_.end(),
                     [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  }

  std::string operator()(std::string name) {
    std::size_t at = 0;
    while (at < name.size()) {
      const auto fits = [&](const auto& rename) { return find_part(name, rename.first, at) == at; };
      const auto rename = std::find_if(renames_.begin(), renames_.end(), fits);
      if (rename != renames_.end()) {
        name.replace(at, rename->first.size(), rename->second);
        at += rename->second.size();
        used_.insert(rename->first);
      } else {
        at = name.find('.', at);
      }
      if (at == name.npos || at == name.size()) break;
      ++at;
    }
    return name;
  }

  void validate_used() const {
    for (const auto& [from, to] : renames_)
      if (used_.count(from) == 0) throw bad(path_, "\"rename\": no module has \"" + printable(from) + "\" in its name");
  }

 private:
  const fs::path& path_;
  std::vector<std::pair<std::string, std::string>> renames_;
  std::set<std::string> used_;
};

std::string text_at(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// A linear's name, from that of its module and its own.
std::string joined(const std::string& module, const std::string& linear) {
  return module + "." + linear;
}

/// `module` and the linears under `keys` of `object`, renamed together.
void rename_linears(OrderedJson& object, const std::vector<std::string>& keys, Renames& rename) {
  const std::string module = text_at(object, "module");
  std::string renamed_module = rename(module);
  for (const std::string& key : keys) {
    const std::string linear = rename(joined(module, text_at(object, key.c_str())));
    object[key] = linear.substr(linear.rfind('.') + 1);
    renamed_module = linear.substr(0, linear.rfind('.'));
  }
  object["module"] = renamed_module;
}

void rename_all(OrderedJson& family, Renames& rename) {
  family["layers"] = rename(text_at(family, "layers"));
  for (OrderedJson& module : family["modules"])
    for (const char* key : {"name", "tied_to"})
      if (module.contains(key)) module[key] = rename(text_at(module, key));
  if (family.contains("attention")) rename_linears(family["attention"], {"query", "key", "value", "output"}, rename);
  if (!family.contains("fused")) return;
  for (OrderedJson& fused : family["fused"]) {
    const std::string module = text_at(fused, "module");
    fused["module"] = rename(module);
    for (OrderedJson& linear : fused["linears"]) {
      const std::string name = rename(joined(module, linear.get<std::string>()));
      linear = name.substr(name.rfind('.') + 1);
      fused["module"] = name.substr(0, name.rfind('.'));
    }
  }
}

void remove_modules(OrderedJson& family, const OrderedJson& derived, const fs::path& path) {
  const auto removed = derived.find("remove");
  if (removed == derived.end()) return;
  if (!removed->is_array()) throw bad(path, "\"remove\" is not an array of names");
  for (const OrderedJson& part : *removed) {
    if (!part.is_string() || part.get_ref<const std::string&>().empty())
      throw bad(path, "\"remove\" is not an array of names");
    const auto& name = part.get_ref<const std::string&>();
    OrderedJson left = OrderedJson::array();
    for (const OrderedJson& module : family["modules"]) {
      const std::string parameter = module.contains("parameter") ? text_at(module, "parameter") : std::string();
      const std::string full = parameter.empty() ? text_at(module, "name") : joined(text_at(module, "name"), parameter);
      if (find_part(full, name) == std::string::npos) left.push_back(module);
    }
    if (left.size() == family["modules"].size())
      throw bad(path, "\"remove\": no module has \"" + printable(name) + "\" in its name");
    family["modules"] = std::move(left);
  }
}

/// Drops what speaks of modules that are gone.
void drop_dangling(OrderedJson& family) {
  std::set<std::string> names;
  for (const OrderedJson& module : family["modules"]) names.insert(text_at(module, "name"));
  const auto has = [&](const OrderedJson& object, const std::string& linear) {
    return names.count(joined(text_at(object, "module"), linear)) > 0;
  };
  if (family.contains("attention")) {
    const OrderedJson& attention = family["attention"];
    for (const char* key : {"query", "key", "value", "output"})
      if (!has(attention, text_at(attention, key))) {
        family.erase("attention");
        break;
      }
  }
  if (!family.contains("fused")) return;
  OrderedJson left = OrderedJson::array();
  for (const OrderedJson& fused : family["fused"]) {
    const OrderedJson& linears = fused["linears"];
    if (std::all_of(linears.begin(), linears.end(),
                    [&](const OrderedJson& linear) { return has(fused, linear.get<std::string>()); }))
      left.push_back(fused);
  }
  family["fused"] = std::move(left);
}

std::string parameter_of(const OrderedJson& module) {
  return module.contains("parameter") ? text_at(module, "parameter") : kDefaultParameter;
}

bool is_layered(const OrderedJson& module) {
  return text_at(module, "name").find('*') != std::string::npos;
}

/// Puts a new module behind those of its kind: of the layers, of the first stage, of the last.
void insert_module(OrderedJson& modules, const OrderedJson& module) {
  const bool layered = is_layered(module);
  const bool last = text_at(module, "stage") == "last";
  std::size_t at = modules.size();
  for (std::size_t i = 0; i < modules.size() && !last; ++i) {
    const bool behind = layered ? !is_layered(modules[i]) && text_at(modules[i], "stage") == "last"
                                : is_layered(modules[i]) || text_at(modules[i], "stage") == "last";
    if (!behind) continue;
    at = i;
    break;
  }
  modules.insert(modules.begin() + static_cast<std::ptrdiff_t>(at), module);
}

void change_modules(OrderedJson& family, const OrderedJson& derived, const fs::path& path) {
  const auto changes = derived.find("modules");
  if (changes == derived.end()) return;
  if (!changes->is_array()) throw bad(path, "\"modules\" is not an array");
  OrderedJson& modules = family["modules"];
  std::set<std::string> before;
  for (const OrderedJson& module : modules) before.insert(joined(text_at(module, "name"), parameter_of(module)));
  for (const OrderedJson& change : *changes) {
    if (!change.is_object() || text_at(change, "name").empty())
      throw bad(path, "\"modules\" has an item without a \"name\"");
    const std::string name = joined(text_at(change, "name"), parameter_of(change));
    if (before.count(name) == 0) {
      insert_module(modules, change);
      continue;
    }
    std::vector<OrderedJson*> same;
    for (OrderedJson& module : modules)
      if (joined(text_at(module, "name"), parameter_of(module)) == name) same.push_back(&module);
    if (same.size() > 1)
      throw bad(path, "\"modules\": " + printable(name) + " is there " + std::to_string(same.size()) +
                          " times in the family that this one is like: take it away with \"remove\" and add it anew");
    for (const auto& [key, value] : change.items()) {
      if (value.is_null())
        same.front()->erase(key);
      else
        (*same.front())[key] = value;
    }
  }
}

void merge_keys(OrderedJson& family, const OrderedJson& derived, const char* key, const fs::path& path) {
  const auto given = derived.find(key);
  if (given == derived.end()) return;
  if (!given->is_object()) throw bad(path, std::string("\"") + key + "\" is not an object");
  if (!family.contains(key)) family[key] = OrderedJson::object();
  for (const auto& [name, value] : given->items()) family[key][name] = value;
}

/// JSON on one line, with a blank behind each comma and colon.
void write_line(const OrderedJson& value, std::string& text) {
  const char* separator = "";
  if (value.is_object()) {
    text += '{';
    for (const auto& [key, item] : value.items()) {
      text += std::exchange(separator, ", ") + json_text(OrderedJson(key)) + ": ";
      write_line(item, text);
    }
    text += '}';
  } else if (value.is_array()) {
    text += '[';
    for (const OrderedJson& item : value) {
      text += std::exchange(separator, ", ");
      write_line(item, text);
    }
    text += ']';
  } else {
    text += json_text(value);
  }
}

}  // namespace

OrderedJson resolve_family(const OrderedJson& derived, const FindResolved& find, const fs::path& path) {
  if (!derived.is_object() || !derived.contains(kLike)) return derived;
  static const std::vector<std::string> kKnown = {
      "$schema", "whole",     "model_type", kLike,    "rename",     "remove",         "modules",      "defaults",
      "define",  "attention", "fused",      "layers", "num_layers", "class_defaults", "nxd_inference"};
  for (const auto& [key, value] : derived.items())
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end())
      throw bad(path, "the key \"" + printable(key) + "\" is not known").hint("known are " + join(kKnown, ", "));
  if (!derived.contains("model_type")) throw bad(path, "the key \"model_type\" is missing");
  const std::string like = text_at(derived, kLike);
  auto parent = find(like);
  if (parent && parent->contains("language_model")) parent = find(text_at(*parent, "language_model"));
  if (!parent) throw bad(path, "\"like\" names the family \"" + printable(like) + "\", which is not known");

  OrderedJson family = OrderedJson::object();
  family["model_type"] = text_at(derived, "model_type");
  for (const auto& [key, value] : parent->items())
    if (key != "model_type" && key != "nxd_inference" && key != "class_defaults") family[key] = value;
  Renames rename(derived, path);
  rename_all(family, rename);
  rename.validate_used();
  remove_modules(family, derived, path);
  change_modules(family, derived, path);
  for (const char* key : {"defaults", "define"}) merge_keys(family, derived, key, path);
  drop_dangling(family);
  if (const auto attention = derived.find("attention"); attention != derived.end() && attention->is_null())
    family.erase("attention");
  else
    merge_keys(family, derived, "attention", path);
  for (const char* key : {"layers", "num_layers", "class_defaults", "fused", "whole", "nxd_inference"})
    if (derived.contains(key)) family[key] = derived.at(key);
  return family;
}

std::optional<OrderedJson> builtin_description(const std::string& model_type) {
  for (const BuiltinFile& file : kBuiltinFamilies) {
    if (fs::path(file.name).stem() != model_type) continue;
    const fs::path path = fs::path("built-in family") / file.name;
    return resolve_family(parse_ordered_json(file.json, path), builtin_description, path);
  }
  return std::nullopt;
}

std::string family_text(const OrderedJson& family) {
  std::string text = "{";
  const char* separator = "\n";
  for (const auto& [key, value] : family.items()) {
    text += std::exchange(separator, ",\n") + std::string("  ") + json_text(OrderedJson(key)) + ": ";
    const bool lines = (value.is_object() && key != "attention") || (value.is_array() && !value.empty());
    if (!lines || value.empty()) {
      write_line(value, text);
      continue;
    }
    const char* item_separator = "\n";
    text += value.is_object() ? '{' : '[';
    for (const auto& [name, item] : value.items()) {
      text += std::exchange(item_separator, ",\n") + std::string("    ");
      if (value.is_object()) text += json_text(OrderedJson(name)) + ": ";
      write_line(item, text);
    }
    text += value.is_object() ? "\n  }" : "\n  ]";
  }
  return text + "\n}\n";
}

}  // namespace reshard
