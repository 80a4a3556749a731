#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace reshard {

struct Checkpoint;
struct Model;
struct TargetPlan;

/// An option of one or several layouts. Parsing, validation, help and errors are derived from this declaration.
struct LayoutOption {
  enum class Type : std::uint8_t {
    kFlag,    // no value
    kDegree,  // a number of ranks or replicas, from 1
    kCount,   // another whole number from 1
    kRank,    // a whole number from 0
    kSize,    // bytes, such as 5GB
    kChoice,  // one of `choices`
    kText,    // anything
  };

  const char* name;  // "kv-size-multiplier"
  Type type;
  const char* help;                           // one sentence, without a full stop
  std::span<const char* const> choices = {};  // for kChoice; the first is the default
  const char* default_value = "";             // as text; empty if none, or if the layout determines it
  bool of_source = false;                     // also describes how a source was created
  const char* source_help = "";               // one sentence about the option of a source
  bool only_of_source = false;                // does not apply to targets
  bool of_states = false;                     // applies to optimizer states; giving the option includes them
  /// Returns why the option has no effect on `plan`, as a clause; empty if it has an effect. Null if the option always
  /// has an effect.
  std::string (*why_idle)(const TargetPlan& plan, const Model& model) = nullptr;
  /// Returns why the option had no effect on reading `checkpoint`, likewise.
  std::string (*why_source_idle)(const Checkpoint& checkpoint) = nullptr;
  /// Role of a further model in the same files (Layout::joined_roles), if the option applies only to that model.
  const char* role = "";
};

/// Values of layout options as text, keyed by name; "true" for a flag. Contains only options that were given.
class OptionValues {
 public:
  void set(const std::string& name, std::string value = "true") { values_[name] = std::move(value); }
  void set_number(const std::string& name, std::uint64_t value) { set(name, std::to_string(value)); }
  void set_flag(const std::string& name, bool on) {
    if (on)
      set(name);
    else
      values_.erase(name);
  }
  void erase(const std::string& name) { values_.erase(name); }
  bool has(const std::string& name) const { return values_.count(name) > 0; }
  bool empty() const { return values_.empty(); }
  std::vector<std::string> names() const;
  /// All given values, unparsed, keyed by option name.
  const std::map<std::string, std::string>& all() const { return values_; }

  bool flag(const std::string& name) const { return has(name); }
  /// Returns the value of a kDegree, kCount, kRank or kSize option, or its default; std::nullopt if it has neither.
  /// \param prefix  Precedes the option's name in errors.
  /// \throws Error kUsage if the value is not such a number.
  std::optional<std::uint64_t> number(const LayoutOption& option, const std::string& prefix = "") const;
  /// Returns the value of a kText option, or its default.
  std::string text(const LayoutOption& option) const;
  /// Returns the value of a kChoice option, or its default.
  /// \throws Error kUsage if the value is not one of `choices`.
  std::string choice(const LayoutOption& option, const std::string& prefix = "") const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace reshard
