#include "reshard/layouts/rules/rank_rules.h"

#include "support/catch.h"
#include "support/refusals.h"
#include "support/schemes.h"

namespace reshard::test {
namespace {

/// A model of matrices with 7 rows each, which 4 ranks split into 2 parts.
struct Matrices {
  Model model;
  RankShares shares;

  Matrices(std::size_t count, std::uint64_t padded_rows) {
    auto padded = std::make_shared<std::unordered_map<std::string, Dims>>();
    for (std::size_t i = 0; i < count; ++i) {
      ModelParameter& matrix = model.parameters.emplace_back();
      matrix.name = "m" + std::string(i + 1, 'a') + ".weight";
      matrix.shape = {7, 1};
      matrix.split_dim = 0;
      padded->emplace(matrix.name, Dims{padded_rows + 2 * i, 1});
    }
    RankShare& share = shares.usual[""];
    share.parts = 2;
    share.of_rank = {0, 1, 0, 1};
    share.padded_shapes = padded;
    shares.padded = [](const ModelParameter& parameter, std::uint32_t) { return parameter.shape[0]; };
  }

  std::vector<PartitionRule> rules() const {
    const Scheme scheme = scheme_of(R"({"program": "p", "of_ranks": true, "keeps_others": true, "entries": []})");
    std::set<std::string, std::less<>> names;
    for (const ModelParameter& parameter : model.parameters) names.insert(parameter.name);
    const WrittenNames written(model, std::make_shared<const Scheme>(scheme_for(scheme, "", names)), 0);
    return RankRules(model, written, shares, 4).run([](const std::string&) { return true; });
  }
};

TEST_CASE("Padded sizes that make more chunks than any model has are refused") {
  constexpr std::uint64_t kRows = (1 << 20) - 64;  // the chunks are as many as the rows, since 7 does not divide them
  CHECK(Matrices(2, kRows).rules().size() == 2);
  check_refused([&] { Matrices(9, kRows).rules(); }, {.kind = ErrorKind::kUsage,
                                                      .tensor = "maaaaaaaaa.weight",
                                                      .says = "more chunks over the ranks than any model has",
                                                      .hint = "choose a smaller padded size"});
}

}  // namespace
}  // namespace reshard::test
