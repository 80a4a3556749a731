// What may not be converted, and where the outputs may not go.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/plan/transforms/cast.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model, and shards of it in both layouts: model/, ranks/ and optimum/.
struct Checkpoints : Input {
  explicit Checkpoints(const TinyModel& of = {}) : Input(of, {}, 7) {
    for (const char* name : kLayouts)
      convert(temp / "model", temp / name, {.layout = name, .format = usual_format(*layout(name)), .tp = 2});
  }

  static constexpr const char* kLayouts[] = {"ranks", "optimum"};

  Request request(const fs::path& source, const fs::path& output, const RequestFields& fields = {}) const {
    return convert_request(temp / source, temp / output, fields);
  }
  /// Planning and running fails, and changes nothing.
  void check_unchanged(const Request& request, const Refusal& refusal) const {
    const auto before = snapshot(temp.path());
    check_refused([&] { convert(request); }, refusal);
    CHECK((snapshot(temp.path()) == before));
  }
  std::string config(const std::string& of = "model") const { return read_file(temp / of / "config.json"); }
  /// Sets the model's config.json to `text`.
  void set_config(const std::string& text) const { write_file(temp / "model/config.json", text); }
};

TEST_CASE("A note of a cast names the dtype of the model, but not where float64 alone is why") {
  Draft draft;
  draft.wanted = {{"a", DType::kF32, {2}}, {"b", DType::kF64, {2}}, {"c", DType::kF64, {2}}, {"d", DType::kF32, {2}}};
  draft.wanted[0].model_dtype = DType::kBF16;
  draft.wanted[1].model_dtype = draft.wanted[2].model_dtype = DType::kF32;
  Request request;
  request.target.layout = &whole_layout();
  cast(local_storage(), draft, request);
  CHECK(draft.wanted[0].dtype == DType::kBF16);
  CHECK(draft.wanted[1].dtype == DType::kF32);
  std::vector<std::string> notes = draft.source.notes.texts();
  std::sort(notes.begin(), notes.end());
  CHECK(notes ==
        std::vector<std::string>{"1 tensor is cast to BF16, the model's dtype", "2 tensors are cast from F64 to F32"});
  using enum Applied::Transform;
  std::vector<Applied> casts{{kCast, 1, DType::kBF16}, {kCast, 2, DType::kF32}};
  CHECK(std::ranges::is_permutation(draft.transforms, casts));
}

TEST_CASE("Shards of what is no shards need a number of ranks, and a format that the layout has") {
  const Checkpoints all;
  const Refusal no_ranks{.kind = ErrorKind::kUsage, .says = "`tp` is required"};
  for (const char* name : Checkpoints::kLayouts)
    all.check_unchanged(all.request("model", "out", {.layout = name}), no_ranks);
  all.check_unchanged(all.request("model", "out", {.format = Format::kXser}),
                      {.kind = ErrorKind::kUsage, .says = "layout hf does not support `format` xser"});
  all.check_unchanged(all.request("model", "out", {.layout = "optimum", .format = Format::kSafetensors, .tp = 2}),
                      {.kind = ErrorKind::kUsage, .says = "layout optimum does not support `format` safetensors"});
}

TEST_CASE("Shards need a model of a known family, or the metadata of ranks") {
  const Checkpoints all;
  auto config = all.model.config();
  config["model_type"] = "unheard_of";
  for (const char* source : {"model", "ranks", "optimum"}) {
    INFO(source);
    write_file(all / source / "config.json", config.dump());
    if (std::string(source) == "model") {
      all.check_unchanged(
          all.request(source, "out", {.layout = "ranks", .tp = 2}),
          {.path = all / source, .says = "of a known family", .hint = "the unknown model_type \"unheard_of\""});
    } else {
      fs::remove_all(all / "out");
      convert(all / source, all / "out", {.layout = "ranks", .format = Format::kSafetensors, .tp = 1});
      CHECK(read_ranks(all / "out").size() == 1);
      CHECK((converted(all / "out", all / "whole") == all.tensors));
    }
    CHECK((converted(all / source, all / "whole") == all.tensors));  // but a whole model needs none
  }
}

TEST_CASE("Packed dtypes cannot become files of torch, and the tensor is named") {
  const TempDir temp;
  Random random(1);
  write_safetensors(temp / "in/model.safetensors", {{"experts.w", random_tensor(random, DType::kF4, {4})}});
  check_refused([&] { convert(temp / "in", temp / "out", {.format = Format::kPytorch}); },
                {.kind = ErrorKind::kUnsupported, .tensor = "experts.w", .unwritten = temp / "out"});
}

TEST_CASE("The source's own files are never written, with force or without") {
  const Checkpoints all;
  for (const bool force : {false, true}) {
    INFO("force " << force);
    all.check_unchanged(all.request("model", "model", {.force = force}),
                        {.kind = ErrorKind::kUsage,
                         .path = all / "model/model.safetensors",
                         .says = "is an input and would be overwritten"});
    // Another name, but loaders would mix the two.
    all.check_unchanged(all.request("model", "model", {.format = Format::kPytorch, .force = force}), {});
    all.check_unchanged(all.request("model/model.safetensors", "model/.", {.force = force}),
                        {.kind = ErrorKind::kUsage});
  }
}

TEST_CASE("A shards folder is not replaced by what is read from it, or from a file in it") {
  const Checkpoints all;
  for (const std::string name : Checkpoints::kLayouts)
    for (const std::string& path : {name, name + "/" + layout(name)->traits().folder})
      all.check_unchanged(all.request(path, name, {.layout = name, .tp = 2, .force = true}),
                          {.kind = ErrorKind::kUsage, .says = "is an input and would be overwritten"});
  for (const bool force : {false, true})  // in files of other names
    all.check_unchanged(
        all.request("ranks", "ranks", {.layout = "ranks", .format = Format::kPytorch, .tp = 2, .force = force}),
        {.kind = ErrorKind::kUsage,
         .path = all / "ranks/tensor_parallel_shards",
         .says = "contains the inputs and would be replaced"});
  const fs::path rank = "ranks/tensor_parallel_shards/tp_rank_00_pp_rank_00";
  write_safetensors(all / rank / "model.safetensors",
                    read_tensors(all / rank / "model.safetensors"));  // no longer says that it is one of several ranks
  all.check_unchanged(all.request(rank / "model.safetensors", rank, {.force = true}),
                      {.path = all / rank / "model.safetensors", .says = "is one rank of a sharded checkpoint"});
}

TEST_CASE("An output directory inside the shards folder that is read is refused, at any depth") {
  const Checkpoints all;
  const std::string ranks = "ranks/tensor_parallel_shards";
  for (const std::string& folder : {ranks, std::string("optimum/shards")})
    for (const std::string& inside : {folder, folder + "/whole", folder + "/a/b", folder + "/tp_rank_00_pp_rank_00",
                                      folder + "/../" + fs::path(folder).filename().string() + "/x"})
      for (const std::string& source : {folder, fs::path(folder).parent_path().string()}) {
        INFO(source << " " << inside);
        all.check_unchanged(all.request(source, inside),
                            {.kind = ErrorKind::kUsage, .says = "the output directory is inside the shards folder"});
      }
}

TEST_CASE("An output directory inside a model's own is neither copied nor in the way") {
  const Checkpoints all;
  write_file(all / "model/tokenizer.json", "{}");
  for (int round = 0; round < 2; ++round) {
    convert(all / "model", all / "model/half", {.dtype = DType::kF16, .force = true});
    CHECK(snapshot(all / "model/half").size() == 3);
  }
}

TEST_CASE("Shards of another layout may be made beside those that are read, and are told apart afterwards") {
  const Checkpoints all;
  convert(all / "ranks", all / "ranks", {.layout = "optimum", .tp = 2});
  all.check_unchanged(
      all.request("ranks", "whole"),
      {.path = all / "ranks", .says = "contains two sharded checkpoints", .hint = "give the folder of one of them"});
  for (const char* folder : {"ranks/shards", "ranks/tensor_parallel_shards"})
    CHECK((converted(all / folder, all / "whole") == all.tensors));
}

TEST_CASE("One file is converted by itself, whatever its format") {
  const Checkpoints all;
  convert(all / "model/model.safetensors", all / "bin", {.format = Format::kPytorch});
  for (const char* file : {"model/model.safetensors", "bin/pytorch_model.bin"}) {
    INFO(file);
    CHECK((converted(all / file, all / "whole") == all.tensors));
  }
  const std::string rank = "optimum/shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  all.check_unchanged(all.request(rank, "rank"),
                      {.path = all / rank, .says = "records that it is tensor-parallel rank 0 of "});
}

TEST_CASE("One file is split if its config.json is beside it, and not without") {
  const Checkpoints all;
  const Request request = all.request("model/model.safetensors", "again", {.layout = "ranks", .tp = 2});
  const auto job = plan_convert(request);
  CHECK(job->family == "llama");
  CHECK(job->target.logical.size() == job->source.logical.size());
  fs::rename(all / "model/config.json", all / "model/config.old");
  all.check_unchanged(request, {.path = all / "model", .says = "no config.json"});
}

TEST_CASE("A tied matrix is said once to be left out of a whole model, and not of shards") {
  const Checkpoints all({.tied = true});
  const auto count_of = [](const Request& request) {
    const auto notes = plan_convert(request)->notes;
    CHECK(std::set<std::string>(notes.begin(), notes.end()).size() == notes.size());
    CHECK_FALSE(notes.empty());
    return std::count_if(notes.begin(), notes.end(), [](const std::string& note) {
      return note.find("lm_head.weight is tied to ") == 0 && note.find("it is left out") != note.npos;
    });
  };
  CHECK(count_of(all.request("ranks", "whole")) == 1);
  CHECK(count_of(all.request("ranks", "again", {.layout = "optimum", .tp = 2})) == 0);
}

TEST_CASE("A tied matrix that the source holds twice is left out with a note, unless the two differ") {
  const Input input({.tied = true});
  TensorMap twice = input.tensors;
  twice["lm_head.weight"] = twice["model.embed_tokens.weight"];
  write_model(input / "model", input.model, twice);
  const auto notes = plan_convert(convert_request(input / "model", input / "whole"))->notes;
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Says("lm_head.weight"));
  CHECK((converted(input / "model", input / "whole") == input.tensors));
  twice["lm_head.weight"].bytes[5] ^= 1;
  write_model(input / "model", input.model, twice);
  CHECK((converted(input / "model", input / "whole") == twice));
}

TEST_CASE("config.json says the dtype that tensors were cast to, and nothing else of it changes") {
  const Checkpoints all;
  auto config = nlohmann::ordered_json::parse(all.config());
  config["torch_dtype"] = "bfloat16";
  // Of the new dtype already, or of none, it is copied, also in one line as no writer of ours has it.
  auto half = config;
  half["torch_dtype"] = "float16";
  for (const auto& [given, expected] : {std::pair(config.dump(), half.dump(2) + "\n"),
                                        {half.dump(), half.dump()},
                                        {all.config() + "\n\n  ", all.config() + "\n\n  "}}) {
    all.set_config(given);
    fs::remove_all(all / "half");
    convert(all / "model", all / "half", {.dtype = DType::kF16});
    CHECK(all.config("half") == expected);
  }
}

TEST_CASE("The configurations of a model's parts say the new dtype too, and nothing else that is called dtype does") {
  const Checkpoints all;
  const auto config = nlohmann::ordered_json::parse(all.config());
  for (const bool whole_has_one : {true, false}) {
    auto given = nlohmann::ordered_json::parse(R"({
      "text_config": {"torch_dtype": "bfloat16", "x": 1, "vision_config": {"dtype": "float32"}},
      "encoder": {"model_type": "t5", "dtype": "bfloat16", "torch_dtype": null},
      "vision_config": {"dtype": null, "hidden_size": 8},
      "audio_config": {"dtype": 7, "torch_dtype": "half"},
      "vocabulary_map": {"dtype": "bfloat16"},
      "rope_scaling": {"dtype": "float32", "some_config": {"dtype": "float32"}},
      "quantization_config": {"quant_method": "torchao", "dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}},
      "compression_config": {"dtype": "bfloat16"},
      "decoder": {"model_type": "t5", "quantization_config": {"torch_dtype": "bfloat16"}},
      "dtypes": ["bfloat16", {"model_type": "x", "dtype": "bfloat16"}]
    })");
    if (whole_has_one) given["dtype"] = "bfloat16";
    given.update(config);
    all.set_config(given.dump());
    const std::string output = whole_has_one ? "half" : "parts";
    convert(all / "model", all / output, {.dtype = DType::kF16});
    auto expected = given;
    if (whole_has_one) expected["dtype"] = "float16";
    expected["text_config"]["torch_dtype"] = "float16";
    expected["text_config"]["vision_config"]["dtype"] = "float16";
    expected["encoder"]["dtype"] = "float16";
    CHECK(all.config(output) == expected.dump(2) + "\n");
  }
}

TEST_CASE("A note names code that config.json asks for and the output lacks") {
  const Checkpoints all;
  auto config = nlohmann::ordered_json::parse(all.config());
  config["auto_map"] = {{"AutoConfig", "configuration_x.XConfig"}, {"AutoModel", "modeling_x.X"}};
  all.set_config(config.dump());
  write_file(all / "model/modeling_x.py", "x = 1\n");
  Request request = all.request("model", "out");
  const std::string missing = "code of the model is missing next to config.json: configuration_x.py;";
  const std::string left = "`companions` none leaves out code of the model: modeling_x.py;";
  CHECK_THAT(joined_notes(*plan_convert(request)), Says(missing) && !Says("modeling_x.py"));
  request.companions = CompanionFiles::kNone;
  CHECK_THAT(joined_notes(*plan_convert(request)), Says(missing) && Says(left));
  write_file(all / "out/modeling_x.py", "x = 1\n");
  CHECK_THAT(joined_notes(*plan_convert(request)), Says(missing) && !Says(left));
  write_file(all / "model/configuration_x.py", "x = 1\n");
  request.companions = CompanionFiles::kModel;
  CHECK_THAT(joined_notes(*plan_convert(request)), !Says("code of the model"));
}

TEST_CASE("NaN and infinities in config.json come through every command, byte for byte where it is copied") {
  const Checkpoints all;
  const std::string odd = R"("low": -Infinity, "odd": {"NaN": NaN, "s": "Infinity"},)", plain = all.config().substr(1);
  all.set_config("{" + odd + plain);
  shard(all / "model", all / "shards", {.tp = 2});
  CHECK(all.config("shards") == all.config());
  for (const auto& convert_it : {converted, consolidated}) {
    CHECK((convert_it(all / "shards", all / "whole", {}) == all.tensors));
    CHECK(all.config("whole") == all.config());
  }
  all.set_config(R"({"torch_dtype": "bfloat16", )" + odd + plain);
  convert(all / "model", all / "half", {.dtype = DType::kF16});
  CHECK_THAT(all.config("half"), Catch::Matchers::StartsWith(R"({
  "torch_dtype": "float16",
  "low": -Infinity,
  "odd": {
    "NaN": NaN,
    "s": "Infinity"
  },
)"));
}

TEST_CASE("An infinite number that is needed as a size is refused with its key") {
  const Checkpoints all;
  std::string text = all.config();
  const std::size_t key = text.find("\"num_hidden_layers\":") + 20;
  all.set_config(text.substr(0, key) + " Infinity" + text.substr(text.find_first_of(",}", key)));
  all.check_unchanged(all.request("model", "out"),
                      {.path = all / "model/config.json",
                       .says = "\"num_hidden_layers\" is Infinity, expected a positive whole number"});
}

TEST_CASE("Copies of other data-parallel ranks are not this program's to delete") {
  const Checkpoints all;
  const fs::path folder = all / "optimum/shards/model";
  fs::copy_file(folder / "dp_rank_00_tp_rank_00_pp_rank_00.pt", folder / "dp_rank_01_tp_rank_00_pp_rank_00.pt");
  all.check_unchanged(all.request("model", "optimum", {.layout = "optimum", .tp = 2, .force = true}),
                      {.says = "dp_rank_01_tp_rank_00_pp_rank_00.pt"});
}

}  // namespace
}  // namespace reshard::test
