#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "reshard/layouts/names/known_names.h"

namespace reshard {

/// Remedy for names whose prefixes are not clear.
inline constexpr const char* kHintForPrefixes =
    "give it its name in the model with `rename`, or leave it out with `drop`";

/// Language models inside larger models, whose other parts have other names.
inline constexpr std::string_view kPartsOfLarger[] = {"language", "language_model", "text_model",
                                                      "thinker",  "talker",         "llm"};

/// Whether a prefix ends inside a larger model, which has other parts.
bool has_part_of_larger(std::string_view prefix);

/// The entries of a model's body, under the prefix of most names, and those around it. Wrappers of the body alone have
/// a prefix that the head lacks: model.model.layers next to lm_head.
struct Body {
  std::string prefix;
  bool is_base = false;                          // the names after the prefix lack the base model's own, "model."
  std::map<std::size_t, std::size_t> outside{};  // other entries of the model, and the size of the prefix of each
  std::vector<std::size_t> others{};             // entries that do not have the name of one of the model's modules
  std::vector<std::size_t> elsewhere{};          // entries that do, behind an unrelated prefix, ascending

  /// Whether all entries belong to the model, and the prefix to the body alone or to no whole model of its family.
  bool has_all() const;
};

/// \param prefix   Prefix of most of `names`.
/// \param is_base  Whether the names after it lack the base model's own prefix.
/// \param known    All names of the model.
Body body_of(const std::vector<std::string>& names, std::string prefix, bool is_base, const Names& known);

/// Validates that parameters behind unrelated prefixes belong to copies of the model, such as an average, which have
/// parameters that the model has, too.
/// \throws Error kBadInput for a parameter that the model lacks.
/// \param entries, names  The entries, and their names without wrappers.
/// \param own             Names of the model's entries.
void validate_elsewhere(const Body& body, std::span<const std::string> entries, const std::vector<std::string>& names,
                        const Names& known, const std::unordered_set<std::string_view>& own);

/// Returns the prefix of all names that is not part of the model. It includes "model." only if names after it, or after
/// `part_prefix`, begin like those of whole models.
/// \param part_prefix  prefix of most names of the language model.
std::string container_prefix(const std::vector<std::string>& names, std::string_view part_prefix);

/// The names that entries have in the model. All differ.
class OwnNames {
 public:
  /// Borrows both names. No-op if `name` is empty.
  /// \throws Error kBadInput, naming the entry, if another entry has the same name.
  void add(const std::string& name, const std::string& entry);

 private:
  std::unordered_map<std::string_view, std::string_view> entry_of_;
};

}  // namespace reshard
