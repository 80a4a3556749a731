#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/json_fwd.h"
#include "reshard/base/note.h"

namespace reshard {

inline constexpr const char* kTiedKey = "tie_word_embeddings";

/// Declarations of config.json about tied embeddings. Versions of Transformers read different levels of nested configs.
struct SaidTies {
  bool tied = false;  // from the language model's level, else from the outer level, else the default
  std::vector<std::pair<std::string, bool>> levels;  // "text_config.tie_word_embeddings" and its value; empty: default
  bool outer_is_silent = false;                      // declared only by inner levels, which not all classes read

  bool says(bool value) const;
  /// "\"tie_word_embeddings\" is true, \"text_config.tie_word_embeddings\" is false"
  std::string text() const;
};

/// Returns the levels of `config` that have the key, outermost first.
std::vector<std::pair<std::string, bool>> ties_by_level(const Json& config);

/// Sets the key at all levels of `config`.
void set_ties(OrderedJson& config, bool tied);

/// Which of two weights that may be tied the checkpoint contains.
enum class HeldWeights : std::uint8_t { kNeither, kHead, kEmbedding, kBoth };

/// Whether the two weights are tied. An embedding alone is tied, as many families tie by default or in code, unless all
/// levels of config.json say that it is not. A head
/// alone is tied only if a level of config.json or the family's default says so. If both are stored, all levels must
/// say so, and the caller compares their bytes. Adds a note if the files contradict config.json.
bool are_tied(const SaidTies& said, HeldWeights held, const std::string& head, const std::string& embedding,
              Notes& notes);

}  // namespace reshard
