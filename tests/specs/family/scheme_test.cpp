#include "reshard/specs/family/scheme.h"

#include <algorithm>
#include <map>
#include <set>

#include "reshard/base/strings.h"
#include "reshard/specs/family/family.h"
#include "support/catch.h"
#include "support/errors.h"
#include "support/growth.h"
#include "support/schemes.h"

namespace reshard::test {
namespace {

/// What a model of the family always has: no biases, which config.json may add, and nothing that a checkpoint may lack.
std::set<std::string> weights_of(const Family& family) {
  std::set<std::string> weights;
  for (const Family::Module& module : family.modules)
    if (!module.optional) weights.insert(module.name + (module.parameter.empty() ? "" : "." + module.parameter));
  return weights;
}

/// Layers that predict further tokens, which torchtitan does not have.
const std::set<std::string> kWithoutPlace{"model.layers.*.eh_proj.weight", "model.layers.*.enorm.weight",
                                          "model.layers.*.hnorm.weight", "model.layers.*.shared_head.norm.weight"};

std::set<std::string> parameters_of(const Scheme& scheme) {
  std::set<std::string> parameters;
  for (const SchemeEntry& entry : scheme.entries)
    for (const std::string& parameter : entry.parameters) CHECK(parameters.insert(parameter).second);
  return parameters;
}

TEST_CASE("A built-in scheme has one entry for each parameter of the families that it claims, and none for others") {
  REQUIRE_FALSE(builtin_schemes().empty());
  for (const auto& scheme : builtin_schemes()) {
    std::set<std::string> used;
    // Families say themselves whether NxD Inference knows them.
    REQUIRE(scheme->families.empty() == (scheme->program == "nxd_inference"));
    for (const auto& other : builtin_schemes())
      if (other->program == scheme->program) CHECK(other->versions == scheme->versions);
    for (const std::string& model_type : scheme->families) {
      CAPTURE(scheme->program, model_type);
      const auto family = builtin_family(model_type);
      REQUIRE(family != nullptr);
      const auto own = builtin_scheme(scheme->program, *family, [](const std::string&) { return true; });
      REQUIRE(own != nullptr);
      const bool is_found_by_names = std::any_of(family->schemes.begin(), family->schemes.end(),
                                                 [&](const auto& one) { return one->program == scheme->program; });
      CHECK(is_found_by_names != scheme->is_of_ranks);
      const std::set<std::string> named = parameters_of(*own);
      std::set<std::string> all;
      for (const std::string& parameter : parameter_names(*family)) all.insert(with_stars(parameter));
      const bool is_torchtitan = scheme->program == "torchtitan";
      const bool names_all = !scheme->is_of_ranks || scheme->keeps_others;
      for (const std::string& weight : names_all ? weights_of(*family) : std::set<std::string>{})
        CHECK((named.count(with_stars(weight)) == 1) == !(is_torchtitan && kWithoutPlace.count(weight) == 1));
      for (const std::string& parameter : named) CHECK(all.count(parameter) == 1);
      for (std::size_t v = 0; v < std::max<std::size_t>(1, scheme->versions.size()); ++v) {
        std::set<std::string> names;
        for (const SchemeEntry& entry : own->entries) {
          CHECK(names.insert(entry.name(v)).second);
          for (const SchemeEntry::Constant& constant : entry.constants)
            if (const std::string& name = SchemeEntry::name_of(constant.names, v); !name.empty())
              CHECK(names.insert(name).second);
        }
      }
      for (const SchemeEntry& entry : own->entries) used.insert(entry.where);
    }
    for (const SchemeEntry& entry : scheme->entries)
      CHECK((used.count(entry.where) == 1 || entry.when || scheme->families.empty()));
  }
}

TEST_CASE("A rule is for all parameters that end like its first, and the first rule counts") {
  const Scheme scheme = scheme_of(R"({"program": "p", "entries": [
      {"entry": "**.gate_up", "parameters": ["**.e.*.gate", "**.e.*.up"], "dims": "row in -> expert +row in"},
      {"entry": "**.router", "parameters": "**.gate", "families": ["other"]},
      {"entry": "**.g", "parameters": "**.gate"}]})");
  const Scheme own = scheme_for(scheme, "mine", {"l.*.a.e.*.gate", "l.*.a.e.*.up", "l.*.b.e.*.gate", "l.*.gate"});
  std::map<std::string, std::vector<std::string>> entries;
  for (const SchemeEntry& entry : own.entries) entries[entry.names.front()] = entry.parameters;
  CHECK(entries ==
        std::map<std::string, std::vector<std::string>>{{"l.*.a.gate_up", {"l.*.a.e.*.gate", "l.*.a.e.*.up"}},
                                                        {"l.*.b.e.*.g", {"l.*.b.e.*.gate"}},
                                                        {"l.*.g", {"l.*.gate"}}});
}

TEST_CASE("A version that is not listed has the name of the next newer one, and null is no entry") {
  const Scheme scheme = scheme_of(R"({"program": "p", "of_ranks": true, "versions": ["3", "2", "1"], "entries": [
      {"entry": {"3": "new", "1": "old"}, "parameters": "w", "values": [{"entry": {"3": null, "2": "map"}, "value": "expert_map"}]}]})");
  const SchemeEntry& entry = scheme.entries.front();
  CHECK(entry.names == std::vector<std::string>{"new", "new", "old"});
  CHECK(entry.constants.front().names == std::vector<std::string>{"", "map", "map"});
  CHECK(entry.constants.front().value == SchemeEntry::Constant::Value::kExpertMap);
}

TEST_CASE("Changes say how an entry follows from its parameters") {
  const auto read = [](const std::string& changes) {
    return scheme_of(R"({"program": "p", "of_ranks": true, "entries": [{"entry": "e", "parameters": ["w", "w"],
        "dims": "row -> +row", "multiple": "8 * size", "copies": [{"entry": "copy"}], "changes": )" +
                     changes + "}]}");
  };
  const Scheme scheme = scheme_for(read(R"(["[0::2]", "[1::2] + 1 / parts"])"), "mine", {"w"},
                                   [](const std::string&) { return std::uint64_t{3}; });
  const SchemeEntry& entry = scheme.entries.front();
  const ValueChange &even = entry.changes.at(0).values, &odd = entry.changes.at(1).values;
  CHECK((even.first == 0 && even.step == 2 && even.plus == 0 && even.divisor == 1));
  CHECK((odd.first == 1 && odd.step == 2 && odd.plus == 1 && odd.divisor == 0));
  CHECK(entry.ranks.multiple == 24);
  CHECK(entry.copies.at(0).ranks.multiple == 24);
  for (const std::string changes : {R"(["[2::2]", "+ 1"])", R"(["[0::2]"])", R"(["+ 0", "+ 1"])", R"(["/ 2", "+ 1"])",
                                    R"(["1 + 1", "+ 1"])", R"(["+ 1 [0::2]", "+ 1"])"})
    CHECK_THAT(error_of([&] { read(changes); }).what(), Says("\"changes\""));
}

/// `count` times `item`, with commas between them; "#" stands for the number.
std::string times(std::size_t count, const std::string& item) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += i == 0 ? "" : ", ";
    for (const char c : item) text += c == '#' ? std::to_string(i) : std::string(1, c);
  }
  return text;
}

TEST_CASE("A description that multiplies its size is refused, with its numbers") {
  const std::string begin = R"({"program": "p", "of_ranks": true, "entries": [)";
  const auto says = [&](const std::string& text, const std::string& key, const std::string& expected) {
    const Error error = error_of([&] { scheme_of(text); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_THAT(error.what(), Says("\"" + key + "\""));
    CHECK_THAT(error.what(), Says(expected));
  };
  says(begin + R"({"entry": "a", "parameters": "w", "families": [)" + times(1000, R"("y#")") + R"(], "copies": [)" +
           times(1000, R"({"entry": "c#"})") + "]}]}",
       "copies", "at most 16 items instead of 1000");
  says(begin + R"({"entry": "a", "parameters": "w", "values": [)" + times(17, R"({"entry": "c#", "value": "one"})") +
           "]}]}",
       "values", "at most 16 items instead of 17");
  says(R"({"program": "p", "versions": [)" + times(65, R"("v#")") + R"(], "entries": []})", "versions",
       "at most 64 items instead of 65");
  says(begin + times(513, R"({"entry": "**.e#", "parameters": "**.w#"})") + "]}", "entries",
       "at most 512 entries that begin with \"**\" instead of 513");
  says(begin + R"({"entry": ")" + std::string(513, 'a') + R"(", "parameters": "w"}]})", "entry", "at most 512 bytes");
}

TEST_CASE("Rules take time in proportion to the parameters") {
  const Scheme scheme = scheme_of(R"({"program": "p", "entries": [{"entry": "**.e", "parameters": "**.w"}]})");
  const auto make = [](std::size_t count) {
    std::set<std::string, std::less<>> parameters;
    for (std::size_t i = 0; i < count; ++i) parameters.insert(std::string(i / 26, 'z') + char('a' + i % 26) + ".w");
    return parameters;
  };
  CHECK(growth(200, make, [&](const std::set<std::string, std::less<>>& parameters) {
          CHECK(scheme_for(scheme, "mine", parameters).entries.size() == parameters.size());
        }) < kMostGrowth);
}

TEST_CASE("Dims of an entry are read as einops writes them") {
  const SchemeEntry entry = scheme_entry(R"("entry": "w.*", "parameters": ["a.*.*", "b.*.*"],
                                              "dims": "(group row) in -> (group +row) expert in",
                                              "sizes": {"group": "num_key_value_heads"})");
  CHECK(entry.parameter_dims == DimAxes{{"group", "row"}, {"in"}});
  CHECK(entry.entry_dims == DimAxes{{"group", "row"}, {"expert"}, {"in"}});
  CHECK(entry.joined == "row");
  CHECK(entry.numbered_dims() == std::vector<std::size_t>{1});
  CHECK_FALSE(entry.is_plain());
  CHECK(scheme_entry(R"("entry": "norm", "parameters": "norm.weight")").is_plain());
}

}  // namespace
}  // namespace reshard::test
