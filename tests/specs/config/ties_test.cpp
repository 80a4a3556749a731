#include "reshard/specs/config/ties.h"

#include "reshard/base/json.h"
#include "support/catch.h"

namespace reshard::test {
namespace {

TEST_CASE("Tied embeddings are found at each level of a nested configuration, the outermost first") {
  const Json config = Json::parse(R"({"tie_word_embeddings": false, "a": 1,
    "thinker_config": {"text_config": {"tie_word_embeddings": true}, "audio_config": {"tie_word_embeddings": false}}})");
  const auto levels = ties_by_level(config);
  REQUIRE(levels.size() == 2);
  CHECK(levels[0] == std::pair<std::string, bool>("tie_word_embeddings", false));
  CHECK(levels[1] == std::pair<std::string, bool>("thinker_config.text_config.tie_word_embeddings", true));
  CHECK(ties_by_level(Json::object()).empty());
}

TEST_CASE("Ties are set at each level of a nested configuration, and nowhere else") {
  OrderedJson config = OrderedJson::parse(R"({"tie_word_embeddings": false, "vision_config": {},
    "thinker_config": {"text_config": {"a": 1}, "audio_config": {"tie_word_embeddings": false}}})");
  set_ties(config, true);
  CHECK(config == OrderedJson::parse(R"({"tie_word_embeddings": true, "vision_config": {},
    "thinker_config": {"text_config": {"a": 1, "tie_word_embeddings": true},
                       "audio_config": {"tie_word_embeddings": false}, "tie_word_embeddings": true}})"));
}

TEST_CASE(
    "An embedding alone is tied unless that is denied, a head alone if anything says so, both if every level says so") {
  struct Row {
    SaidTies said;
    HeldWeights held;
    bool tied;
    std::size_t notes;
  };
  const SaidTies no{false, {}}, denied{false, {{"k", false}}}, yes{true, {}},
      outer{true, {{"k", false}, {"text_config.k", true}}}, inner{false, {{"k", true}, {"text_config.k", false}}};
  const Row rows[] = {
      {no, HeldWeights::kNeither, false, 0},       {yes, HeldWeights::kNeither, true, 0},
      {no, HeldWeights::kHead, false, 0},          {yes, HeldWeights::kHead, true, 1},
      {no, HeldWeights::kEmbedding, true, 1},      {yes, HeldWeights::kEmbedding, true, 0},
      {no, HeldWeights::kBoth, false, 0},          {yes, HeldWeights::kBoth, true, 0},
      {outer, HeldWeights::kBoth, false, 1},       {inner, HeldWeights::kBoth, false, 1},
      {inner, HeldWeights::kEmbedding, true, 1},   {inner, HeldWeights::kHead, true, 1},
      {denied, HeldWeights::kEmbedding, false, 0}, {denied, HeldWeights::kHead, false, 0},
  };
  for (const Row& row : rows) {
    CAPTURE(row.said.text(), static_cast<int>(row.held));
    Notes notes;
    CHECK(are_tied(row.said, row.held, "head", "embed", notes) == row.tied);
    CHECK(notes.size() == row.notes);
  }
}

}  // namespace
}  // namespace reshard::test
