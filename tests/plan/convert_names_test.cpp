// --rename, --drop and --keep.

#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/oracle.h"
#include "support/refusals.h"
#include "support/spoilers.h"

namespace reshard::test {
namespace {

struct Names {
  TempDir temp;
  TensorMap tensors;

  explicit Names(const std::vector<std::string>& names) {
    Random random(1);
    for (const std::string& name : names) tensors[name] = random_tensor(random, DType::kBF16, {2, pick(random, 1, 4)});
    write_safetensors(temp / "in/model.safetensors", tensors);
  }

  Request request() const { return convert_request(temp / "in", temp / "out"); }

  /// What comes out, by old name: old → new. Bytes are checked.
  std::map<std::string, std::string> run(const Request& request) const {
    convert(request);
    std::map<std::string, std::string> names;
    for (const auto& [new_name, tensor] : read_model(temp / "out"))
      for (const auto& [old_name, original] : tensors)
        if (original == tensor) names[old_name] = new_name;
    std::filesystem::remove_all(temp / "out");
    return names;
  }
};

/// The notes on a model without config.json, except the one that says so.
std::vector<std::string> notes_of(const Request& request) {
  std::vector<std::string> notes = plan_convert(request)->notes.texts();
  std::erase_if(notes, [](const std::string& note) { return note.starts_with("there is no config.json"); });
  return notes;
}

void add_rename(Request& request, const std::string& text) {
  request.names.renames.push_back(parse_rename("rename", text));
}

using Map = std::map<std::string, std::string>;

TEST_CASE("Renames are applied in order, each to what the one before it made") {
  struct Row {
    const char* what;
    std::vector<std::string> renames;
    Map names;
  };
  const Row rows[] = {
      {"one after the other", {"^a=b2", "^b2=c"}, {{"a.x", "c.x"}, {"b.x", "b.x"}}},
      {"the other way round", {"^b2=c", "^a=b2"}, {{"a.x", "b2.x"}, {"b.x", "b.x"}}},
      {"two tensors exchange their names", {"^a=c", "^b=a", "^c=b"}, {{"a.x", "b.x"}, {"b.x", "a.x"}}},
      {"every match, with groups and the whole match",
       {R"(^h\.(\d+)\.(\w+)=model.layers.$1.self_$2)", "w=[$&]"},
       {{"h.0.attn.w0", "model.layers.0.self_attn.[w]0"}, {"h.1.attn.w1", "model.layers.1.self_attn.[w]1"}}},
      {"cut at the last equals sign", {"x=y=z"}, {{"x=y.w", "z.w"}}},
      {"replaced by nothing", {"^x.y.="}, {{"x=y.w", "w"}}}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.what) {
      std::vector<std::string> old_names;
      for (const auto& [old_name, new_name] : row.names) old_names.push_back(old_name);
      const Names names(old_names);
      Request request = names.request();
      for (const std::string& rename : row.renames) add_rename(request, rename);
      CHECK(names.run(request) == row.names);
      CHECK(notes_of(request).empty() == (row.renames != std::vector<std::string>{"^b2=c", "^a=b2"}));
    }
}

TEST_CASE("A rename that makes two names one, or one empty, is a usage error that names both") {
  const Names names({"a.w", "b.w"});
  for (const auto& [rename, refusal] :
       {std::pair("^[ab]=c", Refusal{.tensor = "b.w", .says = "`rename` gives it and a.w the same name, c.w"}),
        {"^a.*=", {.tensor = "a.w"}}}) {
    Request request = names.request();
    add_rename(request, rename);
    check_refused([&] { plan_convert(request); }, with_common(refusal, {.kind = ErrorKind::kUsage}));
  }
}

TEST_CASE("What is dropped, or not kept, is left out by its old name, and its bytes are counted") {
  const Names names({"a.w", "b.w", "c.w"});
  Request request = names.request();
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
  const Input input({}, {.layout = "ranks", .tp = 2});
  Request request = convert_request(input.path(), input / "whole");
  request.names.drop.emplace_back("drop", "^model.norm.weight$");
  const auto job = plan_convert(request);
  CHECK(job->program.dropped_bytes == 2 * input.model.hidden * 2);
  std::uint64_t stored_bytes = 0;
  for (const StoredTensor& tensor : job->source.stored) stored_bytes += tensor.size_bytes();
  CHECK(job->program.read_bytes + job->program.check_bytes + job->program.dropped_bytes == stored_bytes);
}

TEST_CASE("To leave no tensor is a usage error, and a source that holds none is said to") {
  const Names names({"a.w", "b.w"}), none({});
  Request keep = names.request(), drop = names.request();
  keep.names.keep.emplace_back("keep", "nothing");
  drop.names.drop.emplace_back("drop", "w");
  for (const Request& request : {keep, drop})
    check_refused([&] { plan_convert(request); },
                  {.kind = ErrorKind::kUsage, .says = "`drop` and `keep` leave no tensor"});
  check_refused([&] { plan_convert(none.request()); }, {.path = none.temp / "in", .says = "contains no tensors"});
}

TEST_CASE("A pattern that matches nothing is noted with its option") {
  const Names names({"a.w"});
  Request request = names.request();
  request.names.drop.emplace_back("drop", "^x");
  request.names.keep.emplace_back("keep", "^y");
  request.names.keep.emplace_back("keep", "^a");
  add_rename(request, "^z=q");
  CHECK(notes_of(request) == std::vector<std::string>{"`drop` ^x matches no tensor", "`keep` ^y matches no tensor",
                                                      "`rename` ^z matches no tensor"});
}

TEST_CASE("Patterns and renames that are none are usage errors that show them") {
  check_each_refused([](const std::string& text) { parse_rename("rename", text); }, {.kind = ErrorKind::kUsage},
                     {{"no equals sign", "is not REGEX=REPLACEMENT"},
                      {"=y", "is not REGEX=REPLACEMENT"},
                      {"", "is not REGEX=REPLACEMENT"}});
  check_each_refused([](const std::string& text) { NamePattern("drop", text); }, {.kind = ErrorKind::kUsage},
                     {{"(", "`drop`: \"(\" is not a regular expression"},
                      {"[", "`drop`: \"[\" is not a regular expression"},
                      {"*", "`drop`: \"*\" is not a regular expression"},
                      {"a{2,1}", "`drop`: \"a{2,1}\" is not a regular expression"},
                      {"^(?!lm_head)", "`drop`: the pattern \"^(?!lm_head)\" uses look-ahead"}});
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
  Request request =
      convert_request(temp / "in", temp / "out", {.layout = "ranks", .format = Format::kSafetensors, .tp = 2});
  CHECK(error_of([&] { plan_convert(request); }).kind() == ErrorKind::kBadInput);
  add_rename(request, "^language_=");
  request.names.drop.emplace_back("drop", "^vision");
  convert(request);
  CHECK((read_shards(temp / "out") == expected_ranks(model, originals, {.tp = 2})));
}

TEST_CASE("What loads the files is said on the condition that its model has the names that were given") {
  const Input input;
  for (const char* layout : {"optimum", "nxd", "vllm"}) {
    CAPTURE(layout);
    Request request = convert_request(input / "model", input / "none", {.layout = layout, .tp = 2});
    CHECK_THAT(joined_notes(*plan_convert(request)), !Says("`rename`"));
    if (layout == std::string_view("vllm")) continue;  // knows no other names
    add_rename(request, "^=x.");
    CHECK_THAT(joined_notes(*plan_convert(request)), Says("must have the names that `rename` gave"));
  }
}

/// A qwen3 of four layers, whose config.json has a list with a value per layer, and one with numbers of layers.
struct FourLayers : Input {
  FourLayers() : Input({.model_type = "qwen3", .layers = 4}) {
    merge_json(*this / "model/config.json", {{"layer_types", {"a", "b", "c", "d"}},
                                             {"cross_layers", {1, 3}},
                                             {"eos_token_id", {1, 2, 3, 4}},
                                             {"limits", {0.5, 1.5, 2.5, 3.5}}});
  }
  Request request(const std::string& drop, bool renumbers, const RequestFields& target = {.layout = "hf"}) const {
    Request request = convert_request(path(), *this / "less", target);
    request.names.drop.emplace_back("drop", drop);
    request.names.renumber_layers = renumbers;
    return request;
  }
  /// The tensors with the layers of these numbers.
  TensorMap left(const std::vector<std::uint64_t>& layers, bool renumbered) const {
    TensorMap result;
    for (const auto& [name, data] : tensors)
      if (!name.starts_with("model.layers.")) result[name] = data;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::string old = "model.layers." + std::to_string(layers[i]) + ".";
      for (const auto& [name, data] : tensors)
        if (name.starts_with(old))
          result["model.layers." + std::to_string(renumbered ? i : layers[i]) + "." + name.substr(old.size())] = data;
    }
    return result;
  }
  nlohmann::json config() const { return nlohmann::json::parse(read_file(*this / "less/config.json")); }
};

TEST_CASE("Where the first layers are left, config.json is that of a model with so many") {
  const FourLayers input;
  const Request request = input.request(R"(layers\.[23]\.)", false);
  CHECK_THAT(joined_notes(*plan_convert(request)),
             Says("that of 2 of 4 layers: cross_layers, layer_types, limits, num_hidden_layers") &&
                 !Says("config.json asks for"));
  convert(request);
  CHECK((read_model(input / "less") == input.left({0, 1}, false)));
  const auto config = input.config();
  CHECK(config["num_hidden_layers"] == 2);
  CHECK(config["layer_types"] == nlohmann::json{"a", "b"});
  CHECK(config["cross_layers"] == nlohmann::json{1});
  CHECK(config["eos_token_id"].size() == 4);
  CHECK((converted(input / "less", input / "again", {.layout = "hf"}) == input.left({0, 1}, false)));
}

TEST_CASE(
    "Other layers are numbered from 0 if that is asked for, in any layout, else a note says that nothing loads them") {
  const FourLayers input;
  const std::string drop = R"(layers\.[02]\.)";
  CHECK_THAT(joined_notes(*plan_convert(input.request(drop, false))),
             Says("only layers 1, 3 are left") && Says("`renumber-layers`"));
  convert(input.request(drop, false));
  CHECK((read_model(input / "less") == input.left({1, 3}, false)));
  CHECK(input.config()["num_hidden_layers"] == 4);
  for (const char* to : {"hf", "dcp", "ranks"}) {
    CAPTURE(to);
    std::filesystem::remove_all(input / "less");
    RequestFields fields{.layout = to};
    if (to == std::string("ranks")) fields.tp = 2;
    convert(input.request(drop, true, fields));
    CHECK(input.config()["num_hidden_layers"] == 2);
    CHECK(input.config()["layer_types"] == nlohmann::json{"b", "d"});
    CHECK(input.config()["cross_layers"] == nlohmann::json{0, 1});
    CHECK(input.config()["limits"] == nlohmann::json{1.5, 3.5});
    CHECK((converted(input / "less", input / "again", {.layout = "hf"}) == input.left({1, 3}, true)));
  }
  CHECK_THAT(joined_notes(*plan_convert(input.request("lm_head", true))), Says("`renumber-layers` has no effect"));
}

TEST_CASE("A tensor that the source lacks is missing under the new number of its layer, too") {
  const FourLayers input;
  Request rest = convert_request(input.path(), input / "lacking", {.layout = "hf"});
  rest.names.drop.emplace_back("drop", R"(layers\.3\.mlp\.up_proj)");
  convert(rest);
  for (const char* drop : {R"(layers\.0\.)", R"(layers\.2\.)", R"(layers\.[02]\.)"}) {
    CAPTURE(drop);
    Request request = input.request(drop, true);
    request.source.path = input / "lacking";
    const std::string number = std::string(drop).find('[') == std::string::npos ? "2" : "1";
    check_refused([&] { (void)plan_convert(request); },
                  {.says = "missing under the new numbers of layers: model.layers." + number + ".mlp.up_proj.weight"});
    request.names.drop.emplace_back("drop", R"(layers\.3\.mlp\.up_proj)");
    CHECK_THAT(joined_notes(*plan_convert(request)), Says("leaves out 1 tensor"));
  }
}

TEST_CASE("Modules that are not quantised are named with the new numbers of their layers") {
  const FourLayers input;
  const auto quantization = [](const char* first, const char* second) {
    return nlohmann::json{{"quant_method", "torchao"},
                          {"modules_to_not_convert", {"lm_head", first, second}},
                          {"others", {{first, {{"bits", 4}}}, {"model.layers.2.mlp", nullptr}}},
                          {"ignore", {R"(re:.*layers\.0\..*)"}}};
  };
  merge_json(input / "model/config.json",
             {{"quantization_config", quantization("model.layers.1.mlp", "model.layers.3.self_attn")}});
  const Request request = input.request(R"(layers\.[02]\.)", true);
  CHECK_THAT(joined_notes(*plan_convert(request)), Says(R"(stay as they are: re:.*layers\.0\..*)"));
  convert(request);
  nlohmann::json expected = quantization("model.layers.0.mlp", "model.layers.1.self_attn");
  expected["others"].erase("model.layers.2.mlp");
  CHECK(input.config()["quantization_config"] == expected);
}

TEST_CASE("A note says which key of config.json gives layers another kind of attention under their new numbers") {
  struct Row {
    const char* config;
    const char* drop;  // layers of four
    const char* noted;
  };
  const Row rows[] = {{R"({"sliding_window_pattern": 2})", "[02]", "sliding_window_pattern"},
                      {R"({"sliding_window_pattern": 2})", "[01]", ""},
                      {R"({"sliding_window_pattern": 2})", "[23]", ""},
                      {R"({"sliding_window_pattern": 2, "layer_types": ["a", "b", "c", "d"]})", "[02]", ""},
                      {R"({"sliding_window_pattern": "LLG"})", "[02]", "sliding_window_pattern"},
                      {R"({"no_rope_layer_interval": 3})", "[13]", "no_rope_layer_interval"},
                      {R"({"no_rope_layer_interval": 0})", "[13]", ""},
                      {R"({"max_window_layers": 2, "use_sliding_window": true})", "[01]", "max_window_layers"},
                      {R"({"max_window_layers": 2, "use_sliding_window": true})", "[13]", "max_window_layers"},
                      {R"({"max_window_layers": 4, "use_sliding_window": true})", "[02]", ""},
                      {R"({"max_window_layers": 2, "use_sliding_window": false})", "[01]", ""}};
  for (const Row& row : rows) DYNAMIC_SECTION(row.config << " without layers " << row.drop) {
      const FourLayers input;
      merge_json(input / "model/config.json", {{"layer_types", nullptr}});
      merge_json(input / "model/config.json", nlohmann::json::parse(row.config));
      const std::string notes = joined_notes(*plan_convert(input.request("layers\\." + std::string(row.drop), true)));
      if (*row.noted == '\0')
        CHECK_THAT(notes, !Says("another kind of attention"));
      else
        CHECK_THAT(notes, Says(std::string("another kind of attention, according to ") + row.noted));
    }
}

TEST_CASE("A note says that layers have other names than programs look for, unless a rename gives them these") {
  const Input input;
  Request request = convert_request(input / "model", input / "bare", {.layout = "hf"});
  add_rename(request, "^model[.]=");
  CHECK_THAT(joined_notes(*plan_convert(request)),
             Says("`rename` gives layers the names layers.*") && Says("look for model.layers.*"));
  Request base = request;
  base.names.drop.emplace_back("drop", "lm_head");
  CHECK_THAT(joined_notes(*plan_convert(base)), !Says("look for"));
  convert(request);
  Request back = convert_request(input / "bare", input / "again", {.layout = "hf"});
  CHECK_THAT(joined_notes(*plan_convert(back)), Says("layers have the names layers.*") && Says("for model.layers.*"));
  CHECK_THAT(joined_notes(*plan_shard(shard_request(input / "bare", input / "ranks", {.tp = 2}))), Says("look for"));
  add_rename(back, "^(layers|embed|norm)=model.$1");
  CHECK_THAT(joined_notes(*plan_convert(back)), !Says("look for"));
}

}  // namespace
}  // namespace reshard::test
