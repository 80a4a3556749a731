#include "reshard/specs/model/planned_sizes.h"

#include "reshard/base/json.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

/// Validates an embedding of a vocabulary of 8, of rows that the plan joins to `rows`.
void validate_embedding(std::uint64_t rows, std::optional<std::uint32_t> split_dim, std::uint32_t tp,
                        const char* config = R"({"vocab_size": 8, "hidden_size": 4})") {
  Model model;
  Family family;
  family.layers = "model.layers";
  model.family = std::make_shared<const Family>(family);
  ModelParameter& embedding = model.parameters.emplace_back();
  embedding.module = "model.embed_tokens";
  embedding.name = embedding.module + ".weight";
  embedding.shape = {rows, 4};
  embedding.split_dim = split_dim;
  const ModelConfig read{"m/config.json", std::make_shared<const Json>(Json::parse(config)), "x"};
  validate_planned_sizes(model, read, read, tp, "shards");
}

TEST_CASE("Rows of an embedding that cannot be a vocabulary's show a plan that splits too much or too little") {
  CHECK_NOTHROW(validate_embedding(8, 0, 2));
  CHECK_NOTHROW(validate_embedding(14, 0, 2));  // padded
  CHECK_NOTHROW(validate_embedding(8, {}, 2));
  CHECK_NOTHROW(validate_embedding(6, 0, 2, R"({"vocab_size": 8, "hidden_size": 4, "draft_vocab_size": 6})"));
  struct Row {
    std::uint64_t rows;
    std::optional<std::uint32_t> split_dim;
    std::uint32_t tp;
    const char* says;
    const char* hint;
  };
  const Row rows[] = {
      {16, 0, 2, "each of the 2 ranks has 8 rows of it, which the plan in config.json joins to 16",
       "remove it from the plan"},
      {4,
       {},
       2,
       "each of the 2 ranks has 4 rows of it, and the plan in config.json does not split them",
       "\"colwise\""},
      {3, {}, 2, "the 2 ranks together have 3 rows of it, but config.json says vocab_size 8", "with 3 ranks"},
      {6, 0, 2, "the 2 ranks together have 6 rows of it", "with 3 ranks"},
      {4, {}, 1, "the one rank has 4 rows of it", "with 2 ranks"}};
  for (const Row& row : rows)
    check_refused([&] { validate_embedding(row.rows, row.split_dim, row.tp); },
                  {.path = "shards", .tensor = "model.embed_tokens.weight", .says = row.says, .hint = row.hint});
}

}  // namespace
}  // namespace reshard::test
