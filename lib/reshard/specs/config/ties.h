#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/json_fwd.h"

namespace reshard {

inline constexpr const char* kTiedKey = "tie_word_embeddings";

/// What config.json says of tied embeddings. Versions of Transformers read different levels of nested configurations.
struct SaidTies {
  bool tied = false;  // by the language model's own level, else by the outer one, else by default
  std::vector<std::pair<std::string, bool>> levels;  // "text_config.tie_word_embeddings" and the value; empty: default
  bool outer_is_silent = false;  // only inner levels say it, which some classes read, and others do not

  bool says(bool value) const;
  /// "\"tie_word_embeddings\" is true, \"text_config.tie_word_embeddings\" is false"
  std::string text() const;
};

/// The levels of `config` that have the key, the outermost first.
std::vector<std::pair<std::string, bool>> ties_by_level(const Json& config);

/// Makes all levels of `config` say whether embeddings are tied.
void set_ties(OrderedJson& config, bool tied);

/// Which of two weights that may be tied a checkpoint has.
enum class HeldWeights : std::uint8_t { kNeither, kHead, kEmbedding, kBoth };

/// Whether the two are one: if only one of them is stored, they are; else as config.json says, if its levels agree.
/// Whoever has the bytes of both compares them. What the files decide against config.json joins `notes`.
bool are_tied(const SaidTies& said, HeldWeights held, const std::string& head, const std::string& embedding,
              std::vector<std::string>& notes);

}  // namespace reshard
