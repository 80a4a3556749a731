// Other programs' names as a user describes them: random schemes written and read back, and the files of a program that
// this one has no scheme for.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "reshard/specs/family/family_parser.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/golden.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A description of llama with these entries of a program "mytrainer".
json description(json entries) {
  return {{"like", "llama"},
          {"model_type", "llama"},
          {"other_names", {{{"program", "mytrainer"}, {"entries", std::move(entries)}}}}};
}

std::shared_ptr<const Family> family_of(const json& description) {
  Family family = parse_family_text(description.dump(), "mine.json");
  family.file = "mine.json";
  return std::make_shared<const Family>(std::move(family));
}

constexpr const char* kOfLayer = "model.layers.*.";

/// Entries for all parameters of llama, each packed in one of several ways.
json random_entries(Random& random) {
  json entries = {
      {{"entry", "emb"}, {"parameters", "model.embed_tokens.weight"}},
      {{"entry", "norm"}, {"parameters", "model.norm.weight"}},
      {{"entry", "head"}, {"parameters", "lm_head.weight"}, {"dims", "row in -> +row in"}, {"padded", true}}};
  if (random() % 2 == 0) {  // of both, since they may be tied
    entries.back()["multiple"] = fmt::format("{} * tp", pick(random, 1, 7));
    for (const char* key : {"dims", "padded", "multiple"}) entries.front()[key] = entries.back().at(key);
  }
  const auto add = [&](const std::string& name, const std::vector<std::string>& parameters, const std::string& from,
                       const std::string& to, json sizes = json::object()) {
    const bool is_stacked = random() % 2 == 0;
    json entry = {{"entry", (is_stacked ? "all." : "layers.*.") + name}, {"sizes", std::move(sizes)}};
    for (const std::string& parameter : parameters) entry["parameters"].push_back(kOfLayer + parameter);
    entry["dims"] = from + " -> " + (is_stacked ? "layer " : "") + to;
    if (!is_stacked && random() % 3 == 0) {  // the last layer has an entry of its own, as layer 0
      json later = entry;
      later["entry"] = "later.layers.*." + name;
      later["first"] = {{"layer", "num_hidden_layers - 1"}};
      entry["when"] = "layer < num_hidden_layers - 1";
      entries.push_back(std::move(later));
      if (random() % 2 == 0) std::swap(entries.back(), entry);
    }
    entries.push_back(std::move(entry));
  };
  const std::string q = "self_attn.q_proj.weight", k = "self_attn.k_proj.weight", v = "self_attn.v_proj.weight";
  switch (random() % 3) {
    case 0: add("qkv", {q, k, v}, "(group row) in", "(group +row) in", {{"group", "num_key_value_heads"}}); break;
    case 1: add("qkv", {q, k, v}, "row in", "+row in"); break;
    default:
      for (const std::string& linear : {q, k})
        add(linear, {linear}, "(head half pair) in", "(head pair half) in", {{"half", 2}, {"pair", "head_dim / 2"}});
      add("v", {v}, "row in", "row in");
  }
  if (random() % 2 == 0) {
    add("fc1", {"mlp.up_proj.weight", "mlp.gate_proj.weight"}, "row in", "+row in");
  } else {
    add("up", {"mlp.up_proj.weight"}, "row in", "row in");
    add("gate", {"mlp.gate_proj.weight"}, "row in", "row in");
  }
  add("o", {"self_attn.o_proj.weight"}, "row in", "row in");
  add("down", {"mlp.down_proj.weight"}, "row in", "row in");
  add("norm1", {"input_layernorm.weight"}, "in", "in");
  add("norm2", {"post_attention_layernorm.weight"}, "in", "in");
  return entries;
}

TEST_CASE("Whatever a user's scheme packs comes back from dcp, with the optimizer's states") {
  for (const std::uint64_t seed : seeds(40)) {
    Random random(seed);
    json described = description(random_entries(random));
    const char* const prefixes[] = {"", "optimizer.state.", "adam."};
    const std::string before = prefixes[random() % 3];
    if (!before.empty()) described["other_names"][0]["states"] = before + "{state}.{entry}";
    CAPTURE(seed, described.dump());
    const std::shared_ptr<const Family> family = family_of(described);
    const TinyModel tiny{
        .heads = 4 * pick(random, 1, 2), .kv_heads = 2 * pick(random, 1, 2), .tied = random() % 4 == 0};
    const TempDir temp;
    const TensorMap model = random_tensors(tiny, random);
    write_model(temp / "model", tiny, model);
    Saved run;
    for (const auto& [name, data] : model) {
      run.add(name, data);
      run.add("optimizer.state." + name + ".exp_avg", random_tensor(random, DType::kF32, data.shape));
    }
    run.write(temp / "run");
    const auto converted_run = [&](const fs::path& source, const fs::path& output, const char* names) {
      Request request =
          run_request(source, output, pick(random, 1, 5), "", static_cast<std::uint32_t>(pick(random, 1, 3)));
      request.source.config = temp / "model";
      request.source.family = family;
      if (names != nullptr) request.target.options.set("names", names);
      convert(request);
      return dcp::read(output);
    };
    const dcp::Content packed = converted_run(temp / "run", temp / "packed", "mytrainer");
    CHECK(packed.tensors.count("emb") == 1);
    CHECK(packed.tensors.count(before.empty() ? "optimizer.state.emb.exp_avg" : before + "exp_avg.emb") == 1);
    const dcp::Content back = converted_run(temp / "packed", temp / "back", nullptr);
    auto expected = dcp::read(temp / "run").tensors;
    if (tiny.tied) expected["lm_head.weight"] = expected.at("model.embed_tokens.weight");
    CHECK((back.tensors == expected));
    RequestFields fields{.config = temp / "model"};
    fields.family = family;
    CHECK((converted(temp / "packed", temp / "whole", fields) == model));
  }
}

TEST_CASE("A scheme that keeps other names and packs no experts leaves experts alone") {
  const fs::path model = testdata("golden/experts/mixtral/original");
  Family family =
      parse_family_text(json{{"like", "mixtral"},
                             {"model_type", "mixtral"},
                             {"other_names",
                              {{{"program", "mytrainer"},
                                {"keeps_others", true},
                                {"entries", {{{"entry", "norm.weight"}, {"parameters", "model.norm.weight"}}}}}}}}
                            .dump(),
                        "mine.json");
  family.file = "mine.json";
  RequestFields fields{.layout = "dcp", .options = {"names=mytrainer"}};
  fields.family = std::make_shared<const Family>(std::move(family));
  const TempDir temp;
  convert(convert_request(model, temp / "dcp", fields));
  CHECK(dcp::read(temp / "dcp").tensors.count("norm.weight") == 1);
  fields = {.config = model, .family = fields.family};
  CHECK((converted(temp / "dcp", temp / "whole", fields) == read_model(model)));
}

TEST_CASE("Megatron-Core's own checkpoint is read by a user's description of its names") {
  const fs::path golden_case = testdata("golden/megatron/llama-tp2-pp2");
  RequestFields fields{.config = golden_case / "original"};
  fields.family = read_family(local_storage(), testdata("descriptions/megatron-llama.json"));
  const TempDir temp;
  CHECK((converted(golden_case / "checkpoint", temp / "whole", fields) == read_model(golden_case / "original")));
  Request request = convert_request(golden_case / "checkpoint", temp / "noted", fields);
  CHECK_THAT(joined_notes(*plan_convert(local_storage(), request)),
             Says("removed the padding of embedding.word_embeddings.weight, from [50, 32] to [64, 32]"));
}

TEST_CASE("Megatron-Core has a norm under two names, and numbers layers that predict further tokens from 0") {
  const auto family = read_family(local_storage(), testdata("descriptions/megatron-deepseek_v3.json"));
  for (const char* name : {"deepseek_v3-tp2-ep2", "deepseek_v3-mtp-pp2"}) {
    INFO(name);
    const fs::path golden_case = testdata(fs::path("golden/megatron") / name);
    const TensorMap original = read_model(golden_case / "original");
    RequestFields fields{.config = golden_case / "original", .family = family};
    const TempDir temp;
    CHECK((converted(golden_case / "checkpoint", temp / "whole", fields) == original));
    const json golden = json::parse(read_file(golden_case / "golden.json"));
    // Its vocabulary is padded to a multiple of 8 times the ranks, not of Megatron's default.
    std::string described = read_file(testdata("descriptions/megatron-deepseek_v3.json"));
    for (std::size_t at = 0; (at = described.find("128 * tp", at)) != described.npos;) described.replace(at, 3, "8");
    RequestFields to_dcp{.layout = "dcp", .options = {"names=megatron"}, .family = family_of(json::parse(described))};
    to_dcp.tp = golden.at("case").at("mesh").at("tp").get<std::uint32_t>();
    convert(convert_request(golden_case / "original", temp / "dcp", to_dcp));
    std::map<std::string, Dims> written, saved;
    for (const auto& [entry, data] : dcp::read(temp / "dcp").tensors) written.emplace(entry, data.shape);
    for (const auto& item : golden.at("folder").at("tensors").items())
      saved.emplace(item.key(), item.value().at("shape").get<Dims>());
    CHECK((written == saved));
    CHECK((converted(temp / "dcp", temp / "back", fields) == original));
  }
}

TEST_CASE("Padding that a scheme has is written as zeros, in the files of all ranks that it reaches") {
  for (const std::uint64_t multiple : {5, 40}) {  // 32 rows become 40; with two ranks, 80 of which the second has none
    CAPTURE(multiple);
    json described = description(json::array({{{"entry", "head"},
                                               {"parameters", "lm_head.weight"},
                                               {"dims", "row in -> +row in"},
                                               {"padded", true},
                                               {"multiple", fmt::format("{} * tp", multiple)}}}));
    described["other_names"][0]["keeps_others"] = true;
    const auto family = family_of(described);
    const TempDir temp;
    Random random(multiple);
    const TinyModel tiny;
    const TensorMap model = random_tensors(tiny, random);
    write_model(temp / "model", tiny, model);
    RequestFields fields{.layout = "dcp", .tp = 2, .options = {"names=mytrainer"}, .family = family};
    convert(convert_request(temp / "model", temp / "dcp", fields));
    const TensorData head = dcp::read(temp / "dcp").tensors.at("head");
    const TensorData& own = model.at("lm_head.weight");
    const std::uint64_t rows = multiple == 5 ? 40 : 80;
    CHECK(head.shape == Dims{rows, tiny.hidden});
    CHECK(head.bytes == own.bytes + std::string((rows - tiny.vocab) * tiny.hidden * 2, '\0'));
  }
  json entry = {{"entry", "head"}, {"parameters", "lm_head.weight"}, {"multiple", 8}};
  check_refused([&] { family_of(description(json::array({entry}))); }, {.says = "\"padded\""});
  entry.update({{"dims", "row in -> +row in"}, {"padded", true}, {"multiple", "hidden_size"}});
  check_refused([&] { family_of(description(json::array({entry}))); }, {.says = "numbers and tp"});
}

TEST_CASE("Norms that a program stores plus 1 are written so, and read back, with their moments as they are") {
  json entries = {{{"entry", "final"}, {"parameters", "model.norm.weight"}, {"dims", "in -> in"}, {"changes", "+ 1"}},
                  {{"entry", "norms"},
                   {"parameters", "model.layers.*.input_layernorm.weight"},
                   {"dims", "in -> layer in"},
                   {"changes", "+ 1"}}};
  json described = description(entries);
  described["other_names"][0]["keeps_others"] = true;
  const auto family = family_of(described);
  const TempDir temp;
  Random random(11);
  const TinyModel tiny;
  TensorMap model = random_tensors(tiny, random, DType::kF32);
  const auto norm = [&](float first) {
    std::vector<float> values(tiny.hidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i) / 8;
    return values;
  };
  model["model.norm.weight"] = floats({tiny.hidden}, norm(-1));
  model["model.layers.0.input_layernorm.weight"] = floats({tiny.hidden}, norm(2));
  model["model.layers.1.input_layernorm.weight"] = floats({tiny.hidden}, norm(3));
  write_model(temp / "model", tiny, model);
  Saved run;
  for (const auto& [name, data] : model) {
    run.add(name, data);
    run.add("optimizer.state." + name + ".exp_avg", data);
  }
  run.write(temp / "run");
  const auto converted_run = [&](const fs::path& source, const fs::path& output, const char* names) {
    Request request = run_request(source, output, 2);
    request.source.config = temp / "model";
    request.source.family = family;
    if (names != nullptr) request.target.options.set("names", names);
    convert(request);
    return dcp::read(output);
  };
  const dcp::Content written = converted_run(temp / "run", temp / "written", "mytrainer");
  CHECK((written.tensors.at("final") == floats({tiny.hidden}, norm(0))));
  std::vector<float> both = norm(3), last = norm(4);
  both.insert(both.end(), last.begin(), last.end());
  CHECK((written.tensors.at("norms") == floats({2, tiny.hidden}, both)));
  CHECK((written.tensors.at("optimizer.state.final.exp_avg") == floats({tiny.hidden}, norm(-1))));
  CHECK((converted_run(temp / "written", temp / "back", nullptr).tensors == dcp::read(temp / "run").tensors));
  RequestFields fields{.config = temp / "model", .family = family};
  CHECK((converted(temp / "written", temp / "whole", fields) == model));
  CHECK_THAT(joined_notes(*plan_convert(local_storage(), convert_request(temp / "written", temp / "noted", fields))),
             Says("norms contains sums (model.layers.*.input_layernorm.weight + 1), which were rounded"));
  fields.tp = 2;
  fields.layout = "ranks";
  convert(convert_request(temp / "written", temp / "ranks", fields));
  CHECK((converted(temp / "ranks", temp / "of_ranks", {.config = temp / "model"}) == model));

  for (const char* state : {"exp_avg", "fp32_param"}) {  // a weight would need the change, too
    Saved with_state;
    for (const auto& [name, data] : written.tensors)
      if (name.find("exp_avg") == name.npos) with_state.add(name, data);
    with_state.add(fmt::format("optimizer.state.norms.{}", state), written.tensors.at("norms"));
    with_state.write(temp / state);
    Request request = run_request(temp / state, temp / "out" / state, 2);
    request.source.config = temp / "model";
    request.source.family = family;
    if (state == std::string("exp_avg"))
      CHECK_NOTHROW(plan_convert(local_storage(), request));
    else
      check_refused([&] { plan_convert(local_storage(), request); },
                    {.kind = ErrorKind::kUnsupported, .says = "other than moments", .hint = "`with-optimizer`"});
  }
  for (const char* change : {"[1::2] + 1", "/ parts", "+ 0"}) {
    entries[0]["changes"] = change;
    check_refused([&] { family_of(description(entries)); }, {.says = "+ 1"});
  }
}

TEST_CASE("A tied parameter is not stored twice if a scheme changes the values of one of the two") {
  const auto family = family_of(description({{{"entry", "emb"},
                                              {"parameters", "model.embed_tokens.weight"},
                                              {"dims", "row in -> row in"},
                                              {"changes", "+ 1"}},
                                             {{"entry", "head"}, {"parameters", "lm_head.weight"}},
                                             {{"entry", "**"}, {"parameters", "**"}}}));
  const TempDir temp;
  Random random(3);
  const TinyModel tiny{.tied = true};
  const TensorMap model = random_tensors(tiny, random, DType::kF32);
  write_model(temp / "model", tiny, model);
  const RequestFields to_dcp{.layout = "dcp", .options = {"names=mytrainer"}, .family = family};
  check_refused([&] { plan_convert(local_storage(), convert_request(temp / "model", temp / "dcp", to_dcp)); },
                {.kind = ErrorKind::kUnsupported, .says = "would be stored differently in head"});
  Saved saved;
  for (const auto& [name, data] : model) saved.add(name == "model.embed_tokens.weight" ? "emb" : name, data);
  saved.add("head", model.at("model.embed_tokens.weight"));
  saved.write(temp / "saved");
  const RequestFields fields{.config = temp / "model", .family = family};
  check_refused([&] { plan_convert(local_storage(), convert_request(temp / "saved", temp / "out", fields)); },
                {.kind = ErrorKind::kUnsupported,
                 .path = temp / "saved/__0_0.distcp",
                 .says = "changes the values of one of them",
                 .hint = "`drop`"});
}

TEST_CASE("Layers with other numbers are read without config.json by the numbers of the description, or refused") {
  const fs::path golden_case = testdata("golden/megatron/deepseek_v3-mtp-pp2");
  json described = json::parse(read_file(testdata("descriptions/megatron-deepseek_v3.json")));
  const json config = json::parse(read_file(golden_case / "original/config.json"));
  const TempDir temp;
  RequestFields fields{.family = family_of(described)};
  check_refused(
      [&] { plan_convert(local_storage(), convert_request(golden_case / "checkpoint", temp / "no", fields)); },
      {.says = "is missing"});
  for (const auto& [key, value] : config.items())
    if (value.is_number() || value.is_boolean()) described["defaults"][key] = value;
  fields.family = family_of(described);
  CHECK((converted(golden_case / "checkpoint", temp / "out", fields) == read_model(golden_case / "original")));
  for (json& entry : described.at("other_names").at(0).at("entries"))
    if (entry.contains("first")) entry["first"]["layer"] = "18446744073709551615";
  fields.family = family_of(described);
  check_refused(
      [&] { plan_convert(local_storage(), convert_request(golden_case / "checkpoint", temp / "no", fields)); },
      {.says = "more than any model has"});
}

TEST_CASE("A rule for names applies to layers that an entry with a condition leaves, and a sum is noted") {
  const auto family = family_of(description(
      {{{"entry", "late.*"}, {"parameters", "model.layers.*.self_attn.q_proj.weight"}, {"when", "layer >= 1"}},
       {{"entry", "**.qq"}, {"parameters", "**.q_proj.weight"}, {"when", "layer < 1"}},
       {{"entry", "norm"}, {"parameters", "model.norm.weight"}, {"dims", "in -> in"}, {"changes", "+ 1"}},
       {{"entry", "**"}, {"parameters", "**"}}}));
  const TempDir temp;
  Random random(4);
  const TinyModel tiny;
  write_model(temp / "model", tiny, random_tensors(tiny, random));
  const RequestFields fields{.layout = "dcp", .options = {"names=mytrainer"}, .family = family};
  Request request = convert_request(temp / "model", temp / "dcp", fields);
  for (const std::optional<DType> dtype : {std::optional(DType::kF32), std::optional<DType>()}) {
    request.dtype = dtype;
    CHECK_THAT(joined_notes(*plan_convert(local_storage(), request)),
               Says("lose digits") && Says("model.norm.weight + 1"));
  }
  convert(request);
  const auto written = dcp::read(temp / "dcp").tensors;
  CHECK(written.count("late.1") == 1);
  CHECK(written.count("model.layers.0.self_attn.qq") == 1);
}

TEST_CASE("Two entries have one parameter only if something tells them apart") {
  const auto entries = [](json more) {
    json norm = {{"entry", "a.*"}, {"parameters", "model.layers.*.input_layernorm.weight"}};
    json other = {{"entry", "b.*"}, {"parameters", "model.layers.*.input_layernorm.weight"}};
    other.update(more);
    return json{norm, other};
  };
  check_refused([&] { family_of(description(entries(json::object()))); }, {.says = "is in another entry already"});
  CHECK_NOTHROW(family_of(description(entries({{"when", "layer > 0"}}))));
  CHECK_NOTHROW(family_of(description(entries({{"first", {{"layer", 1}}}}))));
  check_refused([&] { family_of(description(entries({{"first", {{"expert", 1}}}}))); }, {.says = "expert"});
  check_refused([&] { family_of(description(entries({{"first", {{"layer", "layer"}}}}))); }, {.says = "config.json"});
  json defining = description(entries({{"when", "late"}}));
  defining["other_names"][0]["define"] = {{"late", "layer > 0"}};
  check_refused([&] { family_of(defining); }, {.says = "define"});
  for (const char* entry : {"stacked", "norm"}) {
    json wrong = {{"entry", entry}, {"parameters", "model.norm.weight"}, {"first", {{"layer", 1}}}};
    if (entry == std::string("stacked")) {
      wrong["parameters"] = "model.layers.*.input_layernorm.weight";
      wrong["dims"] = "in -> layer in";
    }
    check_refused([&] { family_of(description(json::array({wrong}))); }, {.says = "first number is the layer"});
  }
}

TEST_CASE("An entry that a description of other names lacks is told as that, not as of an unsupported program") {
  const fs::path golden_case = testdata("golden/megatron/llama-tp2-pp2");
  json described = json::parse(read_file(testdata("descriptions/megatron-llama.json")));
  json& entries = described.at("other_names").at(0).at("entries");
  for (auto entry = entries.begin(); entry != entries.end(); ++entry)
    if (entry->at("entry") == "decoder.layers.mlp.linear_fc2.weight") {
      entries.erase(entry);
      break;
    }
  const TempDir temp;
  write_file(temp / "mine.json", described.dump());
  RequestFields fields{.config = golden_case / "original"};
  fields.family = read_family(local_storage(), temp / "mine.json");
  check_refused(
      [&] { plan_convert(local_storage(), convert_request(golden_case / "checkpoint", temp / "out", fields)); },
      {.says = {"unexpected decoder.layers.mlp.linear_fc2.weight", "missing model.layers.0.mlp.down_proj.weight"},
       .hint = "description"});
}

TEST_CASE("Megatron-Core's optimizer, whose states come before their parameters, goes along") {
  const auto family = read_family(local_storage(), testdata("descriptions/megatron-llama.json"));
  for (const char* name : {"llama-optim-fp32-pp2", "llama-optim-fully_reshardable-dp2"}) {
    INFO(name);
    const fs::path golden_case = testdata(fs::path("golden/megatron") / name);
    const TempDir temp;
    Request request = run_request(golden_case / "checkpoint", temp / "out", 3);
    request.source.config = golden_case / "original";
    request.source.family = family;
    CHECK_THAT(joined_notes(*plan_convert(local_storage(), request)), Says("no parameter groups of its optimizer"));
    convert(request);
    const dcp::Content written = dcp::read(temp / "out");
    const json golden = json::parse(read_file(golden_case / "golden.json"));
    std::size_t found = 0;
    for (const auto& [state, tensors] : golden.at("optimizer").items())
      for (const auto& [parameter, facts] : tensors.items()) {
        // The float32 weights of an optimizer that is not distributed have another name.
        const std::string other = state == "param" ? "fp32_param" : state;
        auto tensor = written.tensors.find("optimizer.state." + parameter + "." + state);
        if (tensor == written.tensors.end())
          tensor = written.tensors.find("optimizer.state." + parameter + "." + other);
        INFO(parameter << " " << state);
        REQUIRE(tensor != written.tensors.end());
        CHECK(tensor->second.shape == facts.at("shape").get<Dims>());
        CHECK(sha256_hex(tensor->second.bytes) == facts.at("sha256").get<std::string>());
        ++found;
      }
    CHECK(found == 3 * golden.at("original").size());
    CHECK(written.tensors.size() == found + golden.at("original").size());
    const Checkpoint read = read_checkpoint(local_storage(), golden_case / "checkpoint",
                                            {.family = family, .config = {golden_case / "original", false}});
    CHECK(read.leaves_states);
    REQUIRE(read.beside_model.has_value());
    std::set<std::string> states;
    for (const OptimizerSummary::State& state : read.beside_model->states) states.insert(state.name);
    CHECK(states.size() == 3);
    CHECK(states.count("exp_avg_sq") == 1);
  }
}

TEST_CASE("States of an optimizer under names that no scheme explains are refused") {
  Random random(7);
  const TempDir temp;
  const TinyModel tiny;
  const TensorMap model = random_tensors(tiny, random);
  write_model(temp / "model", tiny, model);
  const auto family = family_of(description(random_entries(random)));
  Request request = convert_request(temp / "model", temp / "packed", {.layout = "dcp"});
  request.source.family = family;
  request.target.options.set("names", "mytrainer");
  convert(request);
  Saved run;
  for (const auto& [name, data] : dcp::read(temp / "packed").tensors) {
    run.add(name, data);
    run.add("optimizer.state.exp_avg." + name, data);  // the state before the parameter, as Megatron has it
  }
  run.write(temp / "run");
  Request back = run_request(temp / "run", temp / "out", 2);
  back.source.config = temp / "model";
  back.source.family = family;
  check_refused([&] { convert(back); },
                {.kind = ErrorKind::kUnsupported,
                 .says = {"belong to no parameter", "but the names of mytrainer are replaced by the model's own"},
                 .hint = "`with-optimizer`",
                 .unwritten = temp / "out"});
  RequestFields fields{.config = temp / "model", .family = family};
  CHECK((converted(temp / "run", temp / "whole", fields) == model));
}

TEST_CASE("A head that has another name is not taken for one that is tied") {
  Random random(6);
  const TempDir temp;
  const TinyModel tiny;
  TensorMap model = random_tensors(tiny, random);
  write_model(temp / "model", tiny, model);
  const auto saved = [&](const std::string& name, const TensorData& data) {
    Saved run;
    for (const auto& [own, tensor] : model)
      if (own != "lm_head.weight") run.add(own, tensor);
    run.add(name, data);
    fs::remove_all(temp / "run");
    run.write(temp / "run");
  };
  saved("output.weight.head", model.at("lm_head.weight"));
  check_refused([&] { converted(temp / "run", temp / "out", {.config = temp / "model"}); },
                {.kind = ErrorKind::kBadInput,
                 .tensor = "lm_head.weight",
                 .says = {"is missing", "output.weight.head [32, 16] may be this tensor"},
                 .hint = "`rename`",
                 .unwritten = temp / "out"});
  OrderedJson config = OrderedJson::parse(read_file(temp / "model/config.json"));
  config.erase("tie_word_embeddings");  // Transformers' default ties the embeddings
  write_file(temp / "model/config.json", config.dump());
  saved("v_head.weight", {DType::kBF16, {1, 16}, std::string(32, 'v')});
  CHECK(converted(temp / "run", temp / "out", {.config = temp / "model"}).count("v_head.weight") == 1);
}

TEST_CASE("Names that mean two things are refused where they are read, and where they are written") {
  Random random(3);
  const TempDir temp;
  const TinyModel tiny;
  const TensorMap model = random_tensors(tiny, random);
  write_model(temp / "model", tiny, model);
  // The model's own names for what has another order.
  json entries;
  for (const auto& [name, data] : model) {
    const std::string starred = with_stars(name);
    const bool is_known =
        std::any_of(entries.begin(), entries.end(), [&](const json& entry) { return entry.at("entry") == starred; });
    if (is_known) continue;
    entries.push_back({{"entry", starred}, {"parameters", starred}});
    if (starred.find("q_proj") != starred.npos) {
      entries.back()["dims"] = "(half pair) in -> (pair half) in";
      entries.back()["sizes"] = {{"half", 2}};
    }
  }
  const auto write_dcp = [&](const std::shared_ptr<const Family>& family, const char* names) {
    Request request = convert_request(temp / "model", temp / "out", {.layout = "dcp"});
    request.source.family = family;
    if (names != nullptr) request.target.options.set("names", names);
    request.force = true;
    convert(request);
  };
  const auto family = family_of(description(entries));
  check_refused(
      [&] { write_dcp(family, "mytrainer"); },
      {.kind = ErrorKind::kUnsupported, .says = "the model itself or of mytrainer: equally many match either"});
  write_dcp(nullptr, nullptr);
  RequestFields fields{.config = temp / "model"};
  fields.family = family;
  check_refused([&] { converted(temp / "out", temp / "whole", fields); },
                {.kind = ErrorKind::kUnsupported, .says = "equally many match either", .hint = "`other_names`"});
}

TEST_CASE("What a program cannot pack of a model is refused with the entry and its line") {
  Random random(4);
  const TempDir temp;
  const TinyModel tiny{.tied = true};
  write_model(temp / "model", tiny, random_tensors(tiny, random));
  const auto refused = [&](const json& changed, const Refusal& refusal) {
    json entries = json::array();
    for (const std::string& name : parameter_names(*builtin_family("llama"))) {
      const bool is_changed = std::any_of(changed.begin(), changed.end(), [&](const json& entry) {
        return entry.at("parameters") == name ||
               (entry.at("parameters").is_array() &&
                std::find(entry.at("parameters").begin(), entry.at("parameters").end(), name) !=
                    entry.at("parameters").end());
      });
      if (!is_changed) entries.push_back({{"entry", name + ".t"}, {"parameters", name}});
    }
    for (const json& entry : changed) entries.push_back(entry);
    Request request = convert_request(temp / "model", temp / "out", {.layout = "dcp"});
    request.source.family = family_of(description(entries));
    request.target.options.set("names", "mytrainer");
    check_refused([&] { convert(request); }, refusal);
  };
  const std::string up = "model.layers.*.mlp.up_proj.weight", down = "model.layers.*.mlp.down_proj.weight";
  refused({{{"entry", "up"}, {"parameters", up}, {"dims", "row in -> layer in row"}}},
          {.kind = ErrorKind::kUnsupported, .says = {"is stored permuted in up (mine.json: line 1)", "not written"}});
  refused({{{"entry", "both"}, {"parameters", {up, down}}, {"dims", "row in -> layer +row in"}}},
          {.kind = ErrorKind::kBadInput, .says = "expected \"row in\""});
  refused({{{"entry", "up"}, {"parameters", up}, {"dims", "(a b) in -> layer (b a) in"}, {"sizes", {{"a", 5}}}}},
          {.kind = ErrorKind::kBadInput, .says = "expected \"(a b) in\" with a = 5 (mine.json: line 1)"});
  refused(
      {{{"entry", "head"}, {"parameters", "lm_head.weight"}, {"dims", "(a b) in -> (b a) in"}, {"sizes", {{"a", 2}}}}},
      {.kind = ErrorKind::kUnsupported, .tensor = "lm_head.weight", .says = "would be stored differently"});
  refused({{{"entry", "layers.*.biased"},
            {"parameters", {"model.layers.*.self_attn.q_proj.bias", "model.layers.*.self_attn.q_proj.weight"}},
            {"dims", "row in -> +row in"}}},
          {.kind = ErrorKind::kUnsupported,
           .says = {"contains 2 tensors, but the model has 1 of them (mine.json: line 1)"}});
}

}  // namespace
}  // namespace reshard::test
