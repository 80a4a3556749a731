// --rename, --drop and --keep.

#include <algorithm>

#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/oracle.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

struct Names {
  TempDir temp;
  TensorMap tensors;

  explicit Names(std::initializer_list<const char*> names) {
    Random random(1);
    for (const char* name : names) tensors[name] = random_tensor(random, DType::kBF16, {2, pick(random, 1, 4)});
    write_safetensors(temp / "in/model.safetensors", tensors);
  }

  ConvertRequest request() const { return convert_request(temp / "in", temp / "out"); }

  /// What comes out, by old name: old → new. Bytes are checked.
  std::map<std::string, std::string> run(const ConvertRequest& request) const {
    convert(request);
    std::map<std::string, std::string> names;
    for (const auto& [new_name, tensor] : read_model(temp / "out"))
      for (const auto& [old_name, original] : tensors)
        if (original == tensor) names[old_name] = new_name;
    std::filesystem::remove_all(temp / "out");
    return names;
  }
};

void add_rename(ConvertRequest& request, const std::string& text) {
  request.names.renames.push_back(parse_rename("rename", text));
}

using Map = std::map<std::string, std::string>;

TEST_CASE("Renames are applied in order, each to what the one before it made") {
  const Names names{"a.x", "b.x"};
  ConvertRequest request = names.request();
  add_rename(request, "^a=b2");
  add_rename(request, "^b2=c");
  CHECK(names.run(request) == Map{{"a.x", "c.x"}, {"b.x", "b.x"}});
  request = names.request();
  add_rename(request, "^b2=c");
  add_rename(request, "^a=b2");
  CHECK(names.run(request) == Map{{"a.x", "b2.x"}, {"b.x", "b.x"}});
}

TEST_CASE("Renames replace every match, and know groups and the whole match") {
  const Names names{"h.0.attn.w0", "h.1.attn.w1"};
  ConvertRequest request = names.request();
  add_rename(request, R"(^h\.(\d+)\.(\w+)=model.layers.$1.self_$2)");
  add_rename(request, "w=[$&]");
  CHECK(names.run(request) ==
        Map{{"h.0.attn.w0", "model.layers.0.self_attn.[w]0"}, {"h.1.attn.w1", "model.layers.1.self_attn.[w]1"}});
}

TEST_CASE("A rename is cut at its last equals sign, and may replace by nothing") {
  const Names names{"x=y.w"};
  ConvertRequest request = names.request();
  add_rename(request, "x=y=z");
  CHECK(names.run(request) == Map{{"x=y.w", "z.w"}});
  request = names.request();
  add_rename(request, "^x.y.=");
  CHECK(names.run(request) == Map{{"x=y.w", "w"}});
}

TEST_CASE("Two tensors may exchange their names") {
  const Names names{"a.w", "b.w"};
  ConvertRequest request = names.request();
  add_rename(request, "^a=c");
  add_rename(request, "^b=a");
  add_rename(request, "^c=b");
  CHECK(names.run(request) == Map{{"a.w", "b.w"}, {"b.w", "a.w"}});
}

TEST_CASE("A rename that makes two names one, or one empty, is a usage error that names both") {
  const Names names{"a.w", "b.w"};
  ConvertRequest request = names.request();
  add_rename(request, "^[ab]=c");
  check_refused([&] { plan_convert(request); },
                {.kind = ErrorKind::kUsage, .tensor = "b.w", .says = "`rename` gives it and a.w the same name, c.w"});
  request = names.request();
  add_rename(request, "^a.*=");
  check_refused([&] { plan_convert(request); }, {.kind = ErrorKind::kUsage, .tensor = "a.w"});
}

TEST_CASE("What is dropped, or not kept, is left out by its old name, and its bytes are counted") {
  const Names names{"a.w", "b.w", "c.w"};
  ConvertRequest request = names.request();
  request.names.drop.emplace_back("drop", "^b");
  CHECK(plan_convert(request)->program.dropped_bytes == names.tensors.at("b.w").bytes.size());
  CHECK(names.run(request) == Map{{"a.w", "a.w"}, {"c.w", "c.w"}});
  request.names.keep.emplace_back("keep", "^a");
  request.names.keep.emplace_back("keep", "^b");  // dropped all the same
  CHECK(names.run(request) == Map{{"a.w", "a.w"}});
  const auto job = plan_convert(request);
  CHECK(job->program.dropped_bytes == names.tensors.at("b.w").bytes.size() + names.tensors.at("c.w").bytes.size());
  CHECK(job->program.read_bytes == names.tensors.at("a.w").bytes.size());

  request = names.request();
  add_rename(request, "^a=z");
  request.names.drop.emplace_back("drop", "^a");
  CHECK(names.run(request) == Map{{"b.w", "b.w"}, {"c.w", "c.w"}});
}

TEST_CASE("What is dropped from shards is counted as often as ranks hold it") {
  const TempDir temp;
  Random random(3);
  TinyModel model;
  write_model(temp / "model", model, random_tensors(model, random));
  ConvertRequest request = convert_request(temp / "model", temp / "ranks");
  request.target.layout = layout("ranks");
  request.target.tp = 2;
  convert(request);
  request = convert_request(temp / "ranks", temp / "whole");
  request.names.drop.emplace_back("drop", "^model.norm.weight$");
  const auto job = plan_convert(request);
  CHECK(job->program.dropped_bytes == 2 * model.hidden * 2);
  std::uint64_t stored_bytes = 0;
  for (const StoredTensor& tensor : job->source.stored) stored_bytes += tensor.size_bytes;
  CHECK(job->program.read_bytes + job->program.check_bytes + job->program.dropped_bytes == stored_bytes);
}

TEST_CASE("To leave no tensor is a usage error") {
  const Names names{"a.w", "b.w"};
  for (const bool keep : {false, true}) {
    ConvertRequest request = names.request();
    if (keep)
      request.names.keep.emplace_back("keep", "nothing");
    else
      request.names.drop.emplace_back("drop", "w");
    check_refused([&] { plan_convert(request); },
                  {.kind = ErrorKind::kUsage, .says = "`drop` and `keep` leave no tensor"});
  }
}

TEST_CASE("A source that holds no tensors is said to, whatever is dropped and kept") {
  const Names names{};
  check_refused([&] { plan_convert(names.request()); }, {.path = names.temp / "in", .says = "holds no tensors"});
}

TEST_CASE("A pattern that matches nothing is noted with its option") {
  const Names names{"a.w"};
  ConvertRequest request = names.request();
  request.names.drop.emplace_back("drop", "^x");
  request.names.keep.emplace_back("keep", "^y");
  request.names.keep.emplace_back("keep", "^a");
  add_rename(request, "^z=q");
  CHECK(plan_convert(request)->notes == std::vector<std::string>{"`drop` ^x matches no tensor",
                                                                 "`keep` ^y matches no tensor",
                                                                 "`rename` ^z matches no tensor"});
}

TEST_CASE("A rename that works on what an earlier one made is of use, and is not noted") {
  const Names names{"a.w"};
  ConvertRequest request = names.request();
  add_rename(request, "^a=b");
  add_rename(request, "^b=c");
  CHECK(plan_convert(request)->notes.empty());
}

TEST_CASE("Patterns and renames that are none are usage errors that show them") {
  for (const char* text : {"no equals sign", "=y", ""})
    check_refused([&] { parse_rename("rename", text); },
                  {.kind = ErrorKind::kUsage, .says = "is not REGEX=REPLACEMENT"});
  for (const char* text : {"(", "[", "*", "a{2,1}"})
    check_refused(
        [&] { NamePattern("drop", text); },
        {.kind = ErrorKind::kUsage, .says = "`drop`: \"" + std::string(text) + "\" is not a regular expression"});
  check_refused([] { NamePattern("keep", "^(?!lm_head)"); },
                {.kind = ErrorKind::kUsage, .says = "`keep`: the pattern \"^(?!lm_head)\" uses look-ahead"});
}

TEST_CASE("A checkpoint of other names is sharded once they are renamed to the family's") {
  const TempDir temp;
  Random random(5);
  const TinyModel model;
  const TensorMap originals = random_tensors(model, random);
  TensorMap prefixed;
  for (const auto& [name, tensor] : originals) prefixed["language_" + name] = tensor;
  prefixed["vision.w"] = random_tensor(random, DType::kF32, {3});
  write_model(temp / "in", model, prefixed);
  ConvertRequest request = convert_request(temp / "in", temp / "out");
  request.target.layout = layout("ranks");
  request.target.tp = 2;
  CHECK(error_of([&] { plan_convert(request); }).kind() == ErrorKind::kBadInput);
  add_rename(request, "^language_=");
  request.names.drop.emplace_back("drop", "^vision");
  convert(request);
  CHECK((read_shards(temp / "out") == expected_ranks(model, originals, {.tp = 2})));
}

}  // namespace
}  // namespace reshard::test
