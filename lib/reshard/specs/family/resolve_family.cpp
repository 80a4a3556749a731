#include "reshard/specs/family/resolve_family.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/specs/family/builtin_files.h"
#include "reshard/specs/family/family.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLike = "like";
constexpr const char* kDefaultParameter = "weight";

/// Returns the position of `part` in `name`, from `from` on, delimited by dots or the ends of the name; npos if absent.
std::size_t find_part(std::string_view name, std::string_view part, std::size_t from = 0) {
  for (std::size_t at = name.find(part, from); at != name.npos; at = name.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return at;
  }
  return std::string_view::npos;
}

/// Renames parts of names. Replaces each part of a name once.
class Renames {
 public:
  Renames(const OrderedJson& derived, const JsonFile& file) : file_(file) {
    const auto found = derived.find("rename");
    if (found == derived.end()) return;
    if (!found->is_object())
      throw file.error("/rename", "\"rename\" is " + brief(Json(*found)) + ", expected an object");
    for (const auto& [from, to] : found->items()) {
      if (from.empty() || !to.is_string() || to.get_ref<const std::string&>().empty())
        throw file.error("/rename/" + pointer_part(from), "\"rename\": \"" + printable(from) + "\" has no new name");
      renames_.emplace_back(from, to.get<std::string>());
    }
    // Longest first: "self_attn.o_proj" before "self_attn".
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
      if (used_.count(from) == 0)
        throw file_.error("/rename/" + pointer_part(from),
                          "\"rename\": no module has \"" + printable(from) + "\" in its name");
  }

 private:
  const JsonFile& file_;
  std::vector<std::pair<std::string, std::string>> renames_;
  std::set<std::string> used_;
};

std::string text_at(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Joins the names of a module and of a linear.
std::string joined(const std::string& module, const std::string& linear) {
  return module + "." + linear;
}

/// Renames `module` and the linears under `keys` of `object` consistently.
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

/// Whether an item of "modules" is only the name of a layer's module that was removed, which insert_modules needs.
bool is_removed(const OrderedJson& module) {
  return module.is_string();
}

/// Returns the name of a module or removed module, with its parameter if it is not the module's weight and bias.
std::string full_name(const OrderedJson& module) {
  if (is_removed(module)) return module.get<std::string>();
  return module.contains("parameter") ? joined(text_at(module, "name"), text_at(module, "parameter"))
                                      : text_at(module, "name");
}

/// See Family::Module::is_layered.
bool is_layered(const OrderedJson& module) {
  if (is_removed(module)) return true;
  const std::string name = text_at(module, "name");
  const bool is_list = module.contains("items") || module.contains("experts");
  return std::count(name.begin(), name.end(), '*') > (is_list ? 1 : 0);
}

void remove_modules(OrderedJson& family, const OrderedJson& derived, const JsonFile& file) {
  const auto removed = derived.find("remove");
  if (removed == derived.end()) return;
  if (!removed->is_array()) throw file.error("/remove", "\"remove\" is not an array of names");
  for (const OrderedJson& part : *removed) {
    if (!part.is_string() || part.get_ref<const std::string&>().empty())
      throw file.error("/remove", "\"remove\" is not an array of names");
    const auto& name = part.get_ref<const std::string&>();
    bool is_used = false;
    OrderedJson left = OrderedJson::array();
    for (OrderedJson& module : family["modules"]) {
      if (is_removed(module) || find_part(full_name(module), name) == std::string::npos) {
        left.push_back(std::move(module));
        continue;
      }
      is_used = true;
      if (is_layered(module)) left.push_back(full_name(module));
    }
    if (!is_used) throw file.error("/remove", "\"remove\": no module has \"" + printable(name) + "\" in its name");
    family["modules"] = std::move(left);
  }
}

/// Removes references to modules that no longer exist.
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

/// Returns the parents of a module, "", "model.", "model.layers." and so on, up to a depth that no family has.
std::vector<std::string_view> parents_of(std::string_view name) {
  constexpr std::size_t kMost = 12;
  std::vector<std::string_view> parents = {""};
  for (std::size_t dot = name.find('.'); dot != name.npos && parents.size() < kMost; dot = name.find('.', dot + 1))
    parents.push_back(name.substr(0, dot + 1));
  return parents;
}

/// Inserts new modules. In layers, the order is that of the state dict: a new module follows the last one below the same
/// parent, or takes the place of what was removed there altogether; the nearest parent with modules counts. A
/// module's own parameters precede the modules in it. Modules directly in the layer, such as norms, follow its last
/// one. New modules of the first and last stage follow theirs.
void insert_modules(OrderedJson& modules, const std::vector<const OrderedJson*>& added) {
  const auto is_last = [](const OrderedJson& module) { return text_at(module, "stage") == "last"; };
  struct Place {
    std::size_t first = 0, removed = SIZE_MAX, after_last = 0;
  };
  std::set<std::string, std::less<>> left;  // modules and their parents
  for (const OrderedJson& module : modules) {
    if (is_removed(module) || !is_layered(module)) continue;
    const std::string name = full_name(module);
    for (const std::string_view parent : parents_of(name)) left.emplace(parent);
    left.insert(name);
  }
  std::map<std::string, Place, std::less<>> places;  // keyed by parent
  std::size_t first_stage = modules.size();
  for (std::size_t i = modules.size(); i > 0; --i) {
    const OrderedJson& module = modules[i - 1];
    if (is_layered(module) || is_last(module)) first_stage = i - 1;
    if (!is_layered(module)) continue;
    const std::string name = full_name(module);
    const std::vector<std::string_view> parents = parents_of(name);
    for (std::size_t p = 0; p < parents.size(); ++p) {
      Place& place = places[std::string(parents[p])];
      place.first = i - 1;
      place.after_last = std::max(place.after_last, i);
      const std::string_view child = p + 1 < parents.size() ? parents[p + 1] : name;
      if (is_removed(module) && left.find(child) == left.end()) place.removed = i - 1;
    }
    if (!is_removed(module)) places.try_emplace(name + ".", Place{i, SIZE_MAX, i});
  }
  std::vector<std::vector<const OrderedJson*>> before(modules.size() + 1);
  for (const OrderedJson* module : added) {
    if (!is_layered(*module)) {
      before[is_last(*module) ? modules.size() : first_stage].push_back(module);
      continue;
    }
    const std::string name = full_name(*module);
    const std::vector<std::string_view> parents = parents_of(name);
    Place place{first_stage, SIZE_MAX, first_stage};
    bool is_in_it = false;  // the module whose parameter it is has a place
    for (const std::string_view parent : parents)
      if (const auto found = places.find(parent); found != places.end()) {
        place = found->second;
        is_in_it = parent == parents.back();
      }
    std::size_t at = place.after_last;
    if (parents.back().ends_with("*."))
      at = place.after_last;
    else if (place.removed != SIZE_MAX)
      at = place.removed;
    else if (is_in_it && module->contains("parameter"))
      at = place.first;
    before[at].push_back(module);
    for (const std::string_view parent : parents) places.try_emplace(std::string(parent), Place{at, SIZE_MAX, at});
  }
  OrderedJson all = OrderedJson::array();
  for (std::size_t i = 0; i <= modules.size(); ++i) {
    for (const OrderedJson* module : before[i]) all.push_back(*module);
    if (i < modules.size() && !is_removed(modules[i])) all.push_back(std::move(modules[i]));
  }
  modules = std::move(all);
}

/// Whether `module` is complete as a new module; otherwise it was meant to change an existing one.
bool is_whole(const OrderedJson& module) {
  const auto optional = module.find("optional");
  return module.contains("plan") && (module.contains("shape") || (optional != module.end() && *optional == true));
}

/// Returns the error that a family has no module to which `change`, at `pointer`, applies.
Error no_such_module(const OrderedJson& change, const OrderedJson& modules, const std::string& like,
                     const JsonFile& file, const std::string& pointer) {
  const std::string name = text_at(change, "name");
  Error error = file.error(pointer, "the family \"" + printable(like) + "\" has no module " + printable(name) +
                                        (change.contains("parameter") ? " with that \"parameter\"" : "") +
                                        " to change, and a new one needs \"plan\" and \"shape\"");
  std::vector<std::string> names;
  for (const OrderedJson& module : modules)
    if (!is_removed(module)) names.push_back(text_at(module, "name"));
  const std::string guess = nearest(name, names);
  return error.hint(guess.empty() || guess == name ? std::string() : "did you mean " + guess + "?");
}

void change_modules(OrderedJson& family, const OrderedJson& derived, const JsonFile& file) {
  const OrderedJson none = OrderedJson::array();
  const OrderedJson* const changes = derived.contains("modules") ? &derived.at("modules") : &none;
  if (!changes->is_array())
    throw file.error("/modules", "\"modules\" is " + brief(Json(*changes)) + ", expected an array");
  OrderedJson& modules = family["modules"];
  std::vector<const OrderedJson*> added;
  std::set<std::string> before;
  for (const OrderedJson& module : modules)
    if (!is_removed(module)) before.insert(joined(text_at(module, "name"), parameter_of(module)));
  for (std::size_t i = 0; i < changes->size(); ++i) {
    const OrderedJson& change = changes->at(i);
    const std::string pointer = "/modules/" + std::to_string(i);
    if (!change.is_object() || text_at(change, "name").empty())
      throw file.error(pointer, "\"modules\" has an item without a \"name\"");
    const std::string name = joined(text_at(change, "name"), parameter_of(change));
    if (before.count(name) == 0) {
      if (!is_whole(change)) throw no_such_module(change, modules, text_at(derived, kLike), file, pointer);
      added.push_back(&change);
      continue;
    }
    std::vector<OrderedJson*> same;
    for (OrderedJson& module : modules)
      if (!is_removed(module) && joined(text_at(module, "name"), parameter_of(module)) == name) same.push_back(&module);
    if (same.size() > 1)
      throw file.error(pointer,
                       "\"modules\": " + printable(name) + " is listed " + std::to_string(same.size()) +
                           " times in the family that this one extends: delete it with \"remove\" and add it again");
    for (const auto& [key, value] : change.items()) {
      if (value.is_null())
        same.front()->erase(key);
      else
        (*same.front())[key] = value;
    }
  }
  insert_modules(modules, added);
}

void merge_keys(OrderedJson& family, const OrderedJson& derived, const std::string& key, const JsonFile& file) {
  const auto given = derived.find(key);
  if (given == derived.end()) return;
  if (!given->is_object())
    throw file.error("/" + key, "\"" + key + "\" is " + brief(Json(*given)) + ", expected an object");
  if (!family.contains(key)) family[key] = OrderedJson::object();
  for (const auto& [name, value] : given->items()) family[key][name] = value;
}

/// Writes JSON on one line, with a space after each comma and colon.
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

const std::vector<FamilyKey>& family_keys() {
  static const std::vector<FamilyKey> kKeys = {
      {"model_type", Inherit::kNever},     {"layers", Inherit::kReplace},
      {"num_layers", Inherit::kReplace},   {"defaults", Inherit::kMerge},
      {"class_defaults", Inherit::kNever}, {"define", Inherit::kMerge},
      {"modules", Inherit::kModules},      {"attention", Inherit::kMerge, true},
      {"fused", Inherit::kReplace},        {"whole", Inherit::kReplace},
      {"float32", Inherit::kReplace},      {"float32_in_float16", Inherit::kReplace},
      {"nxd_inference", Inherit::kNever},  {"other_names", Inherit::kNever},
  };
  return kKeys;
}

OrderedJson resolve_family(const OrderedJson& derived, const FindResolved& find, const JsonFile& file) {
  if (!derived.is_object() || !derived.contains(kLike)) return derived;
  std::vector<std::string> known = {"$schema", kLike, "rename", "remove"};
  for (const FamilyKey& key : family_keys()) known.emplace_back(key.name);
  for (const auto& [key, value] : derived.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string guess = nearest(key, known);
      throw file.error("/" + pointer_part(key), "the key \"" + printable(key) + "\" is not known")
          .hint(guess.empty() ? "known are " + join(known, ", ") : "did you mean \"" + guess + "\"?");
    }
  if (!derived.contains("model_type")) throw file.error("", "the key \"model_type\" is missing");
  if (!derived.at(kLike).is_string())
    throw file.error(std::string("/") + kLike,
                     "\"like\" is " + brief(Json(derived.at(kLike))) + ", expected the name of a family");
  const std::string like = text_at(derived, kLike);
  auto parent = find(like);
  if (parent && parent->contains("language_model")) parent = find(text_at(*parent, "language_model"));
  if (!parent) {
    Error error = file.error(std::string("/") + kLike,
                             "\"like\" names the family \"" + printable(like) + "\", which is not known");
    if (const std::string guess = nearest(like, known_model_types()); !guess.empty())
      error.hint("did you mean \"" + guess + "\"?");
    throw error;
  }

  OrderedJson family = OrderedJson::object();
  family["model_type"] = text_at(derived, "model_type");
  for (const FamilyKey& key : family_keys())
    if (key.inherit != Inherit::kNever && parent->contains(key.name)) family[key.name] = parent->at(key.name);
  Renames rename(derived, file);
  rename_all(family, rename);
  rename.validate_used();
  remove_modules(family, derived, file);
  change_modules(family, derived, file);
  drop_dangling(family);
  for (const FamilyKey& key : family_keys()) {
    const auto given = derived.find(key.name);
    if (given == derived.end() || key.inherit == Inherit::kModules) continue;
    if (key.inherit != Inherit::kMerge)
      family[key.name] = *given;
    else if (given->is_null() && key.may_be_null)
      family.erase(key.name);
    else
      merge_keys(family, derived, key.name, file);
  }
  return family;
}

std::optional<OrderedJson> builtin_description(const std::string& model_type) {
  for (const BuiltinFile& file : kBuiltinFamilies) {
    if (fs::path(file.name).stem() != model_type) continue;
    const fs::path path = fs::path("built-in family") / file.name;
    return resolve_family(parse_ordered_json(file.json, path), builtin_description, {path});
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
