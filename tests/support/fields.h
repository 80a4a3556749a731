#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace reshard::test {

/// The fields of a JSON object of testdata, each of which some code must ask for.
class Fields {
 public:
  /// \param what  the object, for error messages.
  Fields(const nlohmann::json& object, std::string what) : object_(object), what_(std::move(what)) {}

  /// The field, or nullptr.
  const nlohmann::json* find(const std::string& name) {
    asked_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  template <typename T>
  T get(const std::string& name, T otherwise = {}) {
    const nlohmann::json* field = find(name);
    return field == nullptr ? otherwise : field->get<T>();
  }
  /// An object's fields by name, or an array's numbers; no loop if the field is missing.
  const nlohmann::json& all(const std::string& name) {
    static const nlohmann::json kNoFields = nlohmann::json::object();
    const nlohmann::json* field = find(name);
    return field == nullptr ? kNoFields : *field;
  }
  /// \throws std::invalid_argument for a field that nothing has asked for: a misspelt one is never ignored.
  void validate() const {
    for (const auto& [name, value] : object_.items())
      if (asked_.count(name) == 0) throw std::invalid_argument(what_ + ": unknown field \"" + name + "\"");
  }

 private:
  const nlohmann::json& object_;
  std::string what_;
  std::set<std::string> asked_;
};

}  // namespace reshard::test
