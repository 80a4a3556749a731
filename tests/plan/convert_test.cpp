// What may not be converted, and where the outputs may not go.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/plan/target/dtypes.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model, and shards of it in both layouts: model/, ranks/ and optimum/.
struct Checkpoints {
  TempDir temp;
  TinyModel model;
  TensorMap originals;

  explicit Checkpoints(TinyModel of = {}) : model(std::move(of)) {
    Random random(7);
    originals = random_tensors(model, random);
    write_model(temp / "model", model, originals);
    for (const Layout* const kind : {layout("ranks"), layout("optimum")})
      convert(to_shards(temp / "model", temp / kind->traits().name, kind));
  }

  static ConvertRequest to_shards(const fs::path& source, const fs::path& output, const Layout* kind) {
    ConvertRequest request = convert_request(source, output);
    request.target.layout = kind;
    request.target.tp = 2;
    return request;
  }
};

/// The error of planning and running, and that it changed nothing.
Error refused(const ConvertRequest& request, const fs::path& root) {
  const auto before = snapshot(root);
  const Error error = error_of([&] { convert(request); });
  INFO(error.what());
  CHECK((snapshot(root) == before));
  return error;
}

TEST_CASE("A note of a cast names the dtype that the model was trained in, but not where float64 alone is why") {
  Job job;
  std::vector<LogicalTensor> logical{{"a", DType::kF32, {2}, {}, DType::kBF16},
                                     {"b", DType::kF64, {2}, {}, DType::kF32},
                                     {"c", DType::kF64, {2}, {}, DType::kF32},
                                     {"d", DType::kF32, {2}}};
  take_model_dtypes(job, logical);
  CHECK(logical[0].dtype == DType::kBF16);
  CHECK(logical[1].dtype == DType::kF32);
  std::sort(job.notes.begin(), job.notes.end());
  CHECK(job.notes == std::vector<std::string>{"1 tensor is cast to BF16, which the model was trained in",
                                              "2 tensors are cast from F64 to F32"});
}

TEST_CASE("Shards of what is no shards need a number of ranks") {
  const Checkpoints all;
  ConvertRequest request = convert_request(all.temp / "model", all.temp / "out");
  for (const Layout* const kind : {layout("ranks"), layout("optimum")}) {
    request.target.layout = kind;
    check_error(refused(request, all.temp.path()), {.kind = ErrorKind::kUsage, .says = "`tp` is required"});
  }
}

TEST_CASE("Shards need a model of a known family, or the metadata of ranks") {
  const Checkpoints all;
  for (const char* source : {"model", "ranks", "optimum"}) {
    INFO(source);
    auto config = all.model.config();
    config["model_type"] = "unheard_of";
    write_file(all.temp / source / "config.json", config.dump());
    ConvertRequest request = Checkpoints::to_shards(all.temp / source, all.temp / "out", layout("ranks"));
    if (std::string(source) == "model") {
      check_error(
          refused(request, all.temp.path()),
          {.path = all.temp / source, .says = "of a known family", .hint = "\"unheard_of\", which is not known"});
    } else {
      request.target.tp = 1;
      convert(request);
      CHECK(read_ranks(all.temp / "out").size() == 1);
      convert(convert_request(all.temp / "out", all.temp / "back"));
      CHECK((read_model(all.temp / "back") == all.originals));
      for (const char* made : {"out", "back"}) fs::remove_all(all.temp / made);
    }
    convert(convert_request(all.temp / source, all.temp / "whole"));  // but a whole model needs none
    CHECK((read_model(all.temp / "whole") == all.originals));
    fs::remove_all(all.temp / "whole");
  }
}

TEST_CASE("A format that the layout has not is a usage error") {
  const Checkpoints all;
  ConvertRequest request = convert_request(all.temp / "model", all.temp / "out");
  request.target.format = Format::kXser;
  CHECK_THAT(refused(request, all.temp.path()).what(), Says("layout hf does not support `format` xser"));
  request = Checkpoints::to_shards(all.temp / "model", all.temp / "out", layout("optimum"));
  request.target.format = Format::kSafetensors;
  check_error(refused(request, all.temp.path()),
              {.kind = ErrorKind::kUsage, .says = "layout optimum does not support `format` safetensors"});
}

TEST_CASE("Packed dtypes cannot become files of torch, and the tensor is named") {
  const TempDir temp;
  Random random(1);
  write_safetensors(temp / "in/model.safetensors", {{"experts.w", random_tensor(random, DType::kF4, {4})}});
  ConvertRequest request = convert_request(temp / "in", temp / "out");
  request.target.format = Format::kPytorch;
  check_error(refused(request, temp.path()), {.kind = ErrorKind::kUnsupported, .tensor = "experts.w"});
}

TEST_CASE("The source's own files are never written, with force or without") {
  const Checkpoints all;
  for (const bool force : {false, true}) {
    INFO("force " << force);
    ConvertRequest request = convert_request(all.temp / "model", all.temp / "model");
    request.force = force;
    check_error(refused(request, all.temp.path()), {.kind = ErrorKind::kUsage,
                                                    .path = all.temp / "model/model.safetensors",
                                                    .says = "is an input and would be written"});

    request.target.format = Format::kPytorch;  // another name, but loaders would mix the two
    CHECK(refused(request, all.temp.path()).kind() == ErrorKind::kBadInput);

    request = convert_request(all.temp / "model/model.safetensors", all.temp / "model/.");
    request.force = force;
    CHECK(refused(request, all.temp.path()).kind() == ErrorKind::kUsage);
  }
}

TEST_CASE("A shards folder is not replaced by what is read from it") {
  const Checkpoints all;
  for (const Layout* const kind : {layout("ranks"), layout("optimum")}) {
    const fs::path source = all.temp / kind->traits().name;
    for (const fs::path& path : {source, source / kind->traits().folder}) {
      ConvertRequest request = Checkpoints::to_shards(path, source, kind);
      request.force = true;
      check_error(refused(request, all.temp.path()),
                  {.kind = ErrorKind::kUsage, .says = "is an input and would be written"});
    }
  }
  ConvertRequest request = Checkpoints::to_shards(all.temp / "ranks", all.temp / "ranks", layout("ranks"));
  request.target.format = Format::kPytorch;  // in files of other names
  for (const bool force : {false, true}) {
    request.force = force;
    check_error(refused(request, all.temp.path()), {.kind = ErrorKind::kUsage,
                                                    .path = all.temp / "ranks/tensor_parallel_shards",
                                                    .says = "holds the inputs and would be replaced"});
  }
}

TEST_CASE("A file inside a shards folder that would be replaced is an input, too") {
  const Checkpoints all;
  const fs::path file = all.temp / "ranks/tensor_parallel_shards/tp_rank_00_pp_rank_00/model.safetensors";
  write_safetensors(file, read_tensors(file));  // which no longer says that it is one of several ranks
  // Only a model may be made shards of, so the folder that is to go is not the file's to replace.
  ConvertRequest request = convert_request(file, all.temp / "ranks/tensor_parallel_shards/tp_rank_00_pp_rank_00");
  request.force = true;
  CHECK(refused(request, all.temp.path()).kind() == ErrorKind::kUsage);
}

TEST_CASE("An output directory inside the shards folder that is read is refused, at any depth") {
  const Checkpoints all;
  for (const char* source : {"ranks", "ranks/tensor_parallel_shards", "optimum"})
    for (const char* inside : {"", "whole", "a/b"}) {
      const fs::path folder =
          all.temp / (std::string(source) == "optimum" ? "optimum/shards" : "ranks/tensor_parallel_shards");
      INFO(source << " " << inside);
      check_error(refused(convert_request(all.temp / source, folder / inside), all.temp.path()),
                  {.kind = ErrorKind::kUsage, .says = "the output directory is inside the shards folder"});
    }
}

TEST_CASE("An output directory inside a model's own is neither copied nor in the way") {
  const Checkpoints all;
  write_file(all.temp / "model/tokenizer.json", "{}");
  for (int round = 0; round < 2; ++round) {
    ConvertRequest request = convert_request(all.temp / "model", all.temp / "model/half");
    request.force = true;
    request.dtype = DType::kF16;
    convert(request);
    CHECK(snapshot(all.temp / "model/half").size() == 3);
  }
}

TEST_CASE("Shards of another layout may be made beside those that are read, and are told apart afterwards") {
  const Checkpoints all;
  convert(Checkpoints::to_shards(all.temp / "ranks", all.temp / "ranks", layout("optimum")));
  check_error(refused(convert_request(all.temp / "ranks", all.temp / "whole"), all.temp.path()),
              {.says = "holds two sharded checkpoints", .hint = "give the folder that is meant"});
  for (const char* folder : {"ranks/shards", "ranks/tensor_parallel_shards"}) {
    convert(convert_request(all.temp / folder, all.temp / "whole"));
    CHECK((read_model(all.temp / "whole") == all.originals));
    fs::remove_all(all.temp / "whole");
  }
}

TEST_CASE("One file is converted by itself, whatever its format") {
  const Checkpoints all;
  for (const char* file : {"model/model.safetensors", "bin/pytorch_model.bin"}) {
    INFO(file);
    ConvertRequest request = convert_request(all.temp / file, all.temp / "whole");
    convert(request);
    CHECK((read_model(all.temp / "whole") == all.originals));
    fs::remove_all(all.temp / "whole");
    request = convert_request(all.temp / file, all.temp / "bin");
    request.target.format = Format::kPytorch;
    if (!fs::exists(all.temp / "bin")) convert(request);
  }
  const fs::path rank = all.temp / "optimum/shards/model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  check_error(refused(convert_request(rank, all.temp / "rank"), all.temp.path()),
              {.path = rank, .says = "records that it is tensor-parallel rank 0 of "});
}

TEST_CASE("One file is split if its config.json is beside it, and not without") {
  const Checkpoints all;
  const fs::path file = all.temp / "model/model.safetensors";
  const auto job = plan_convert(Checkpoints::to_shards(file, all.temp / "again", layout("ranks")));
  CHECK(job->family == "llama");
  CHECK(job->target.logical.size() == job->source.logical.size());
  fs::rename(all.temp / "model/config.json", all.temp / "model/config.old");
  check_error(refused(Checkpoints::to_shards(file, all.temp / "again", layout("ranks")), all.temp.path()),
              {.path = all.temp / "model", .says = "no config.json"});
}

TEST_CASE("A tied matrix in the shards of many ranks is noted once when they are sharded anew") {
  TinyModel model;
  model.tied = true;
  const Checkpoints all(model);
  const ConvertRequest request = Checkpoints::to_shards(all.temp / "ranks", all.temp / "again", layout("optimum"));
  std::set<std::string> unique;
  const auto job = plan_convert(request);
  for (const std::string& note : job->notes) CHECK(unique.insert(note).second);
  CHECK_FALSE(unique.empty());
}

TEST_CASE("A tied matrix is said to be left out where it is: of a whole model, not of shards") {
  TinyModel model;
  model.tied = true;
  const Checkpoints all(model);
  const auto says_left_out = [](const ConvertRequest& request) {
    const auto notes = plan_convert(request)->notes;
    return std::count_if(notes.begin(), notes.end(), [](const std::string& note) {
      return note.find("lm_head.weight is tied to ") == 0 && note.find("it is left out") != note.npos;
    });
  };
  CHECK(says_left_out(convert_request(all.temp / "ranks", all.temp / "whole")) == 1);
  CHECK(says_left_out(Checkpoints::to_shards(all.temp / "ranks", all.temp / "again", layout("optimum"))) == 0);
}

TEST_CASE("Of safetensors and torch's files side by side the safetensors are taken, as transformers does") {
  const Checkpoints all;
  ConvertRequest request = convert_request(all.temp / "model", all.temp / "bin");
  request.target.format = Format::kPytorch;
  convert(request);
  TensorMap changed = all.originals;
  changed.at("model.norm.weight").bytes[0] ^= 1;
  write_safetensors(all.temp / "bin/model.safetensors", changed);
  convert(convert_request(all.temp / "bin", all.temp / "whole"));
  CHECK((read_model(all.temp / "whole") == changed));
}

TEST_CASE("A tied matrix that the source holds twice is left out with a note, unless the two differ") {
  TinyModel model;
  model.tied = true;
  const Checkpoints all(model);
  TensorMap twice = all.originals;
  twice["lm_head.weight"] = twice["model.embed_tokens.weight"];
  write_model(all.temp / "model", model, twice);
  const ConvertRequest request = convert_request(all.temp / "model", all.temp / "whole");
  const auto notes = plan_convert(request)->notes;
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Says("lm_head.weight"));
  convert(request);
  CHECK((read_model(all.temp / "whole") == all.originals));
  twice["lm_head.weight"].bytes[5] ^= 1;
  write_model(all.temp / "model", model, twice);
  fs::remove_all(all.temp / "whole");
  convert(request);
  CHECK((read_model(all.temp / "whole") == twice));
}

TEST_CASE("config.json says the dtype that tensors were cast to, and nothing else of it changes") {
  const Checkpoints all;
  auto config = nlohmann::ordered_json::parse(read_file(all.temp / "model/config.json"));
  config["torch_dtype"] = "bfloat16";
  write_file(all.temp / "model/config.json", config.dump());
  ConvertRequest request = convert_request(all.temp / "model", all.temp / "half");
  request.dtype = DType::kF16;
  convert(request);
  config["torch_dtype"] = "float16";
  CHECK(nlohmann::ordered_json::parse(read_file(all.temp / "half/config.json")) == config);
  const std::string as_it_was = config.dump();
  write_file(all.temp / "model/config.json", as_it_was);  // in one line, as no writer of ours has it
  fs::remove_all(all.temp / "half");
  convert(request);
  CHECK(read_file(all.temp / "half/config.json") == as_it_was);
}

/// config.json of the model `all`, with more members in front, as text.
void add_to_config(const Checkpoints& all, const std::string& members) {
  std::string text = read_file(all.temp / "model/config.json");
  write_file(all.temp / "model/config.json", text.replace(text.find('{'), 1, "{" + members + ","));
}

TEST_CASE("The configurations of a model's parts say the new dtype too, and nothing else that is called dtype does") {
  const Checkpoints all;
  const auto config = nlohmann::ordered_json::parse(read_file(all.temp / "model/config.json"));
  const char* const parts = R"({
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
  })";
  for (const bool whole_has_one : {true, false}) {
    auto given = nlohmann::ordered_json::parse(parts);
    if (whole_has_one) given["dtype"] = "bfloat16";
    given.update(config);
    write_file(all.temp / "model/config.json", given.dump());
    ConvertRequest request = convert_request(all.temp / "model", all.temp / (whole_has_one ? "half" : "parts"));
    request.dtype = DType::kF16;
    convert(request);
    auto expected = given;
    if (whole_has_one) expected["dtype"] = "float16";
    expected["text_config"]["torch_dtype"] = "float16";
    expected["text_config"]["vision_config"]["dtype"] = "float16";
    expected["encoder"]["dtype"] = "float16";
    CHECK(read_file(request.output_directory / "config.json") == expected.dump(2) + "\n");
  }
}

TEST_CASE("A config.json without a dtype is copied as it is, also where tensors are cast") {
  const Checkpoints all;
  ConvertRequest request = convert_request(all.temp / "model", all.temp / "half");
  request.dtype = DType::kF16;
  write_file(all.temp / "model/config.json", read_file(all.temp / "model/config.json") + "\n\n  ");
  convert(request);
  CHECK(read_file(all.temp / "half/config.json") == read_file(all.temp / "model/config.json"));
}

TEST_CASE("NaN and infinities in config.json come through every command, byte for byte where it is copied") {
  const Checkpoints all;
  add_to_config(all, R"("time_step_limit": [0.0, Infinity], "low": -Infinity, "odd": {"NaN": NaN, "s": "Infinity"})");
  const std::string config = read_file(all.temp / "model/config.json");
  execute(*plan_shard(shard_request(all.temp / "model", all.temp / "shards", 2)), unsynced());
  CHECK(read_file(all.temp / "shards/config.json") == config);
  convert(convert_request(all.temp / "shards", all.temp / "plain"));
  CHECK(read_file(all.temp / "plain/config.json") == config);
  CHECK((consolidated(all.temp / "shards", all.temp / "whole") == all.originals));
  CHECK(read_file(all.temp / "whole/config.json") == config);
}

TEST_CASE("NaN and infinities in config.json are written again where --dtype rewrites it") {
  const Checkpoints all;
  add_to_config(all, R"("torch_dtype": "bfloat16", "low": -Infinity, "odd": {"NaN": NaN, "s": "Infinity"})");
  ConvertRequest request = convert_request(all.temp / "model", all.temp / "half");
  request.dtype = DType::kF16;
  convert(request);
  const std::string half = read_file(all.temp / "half/config.json");
  const std::string begin = R"({
  "torch_dtype": "float16",
  "low": -Infinity,
  "odd": {
    "NaN": NaN,
    "s": "Infinity"
  },
)";
  CHECK(half.substr(0, begin.size()) == begin);
}

TEST_CASE("An infinite number that is needed as a size is refused with its key") {
  const Checkpoints all;
  std::string text = read_file(all.temp / "model/config.json");
  const std::size_t key = text.find("\"num_hidden_layers\":") + 20;
  write_file(all.temp / "model/config.json",
             text.substr(0, key) + " Infinity" + text.substr(text.find_first_of(",}", key)));
  ConvertRequest request = convert_request(all.temp / "model", all.temp / "out");
  check_error(refused(request, all.temp.path()),
              {.path = all.temp / "model/config.json",
               .says = "\"num_hidden_layers\" is Infinity, expected a positive whole number"});
}

TEST_CASE("Copies of other data-parallel ranks are not this program's to delete") {
  const Checkpoints all;
  const fs::path folder = all.temp / "optimum/shards/model";
  fs::copy_file(folder / "dp_rank_00_tp_rank_00_pp_rank_00.pt", folder / "dp_rank_01_tp_rank_00_pp_rank_00.pt");
  ConvertRequest request = Checkpoints::to_shards(all.temp / "model", all.temp / "optimum", layout("optimum"));
  request.force = true;
  check_error(refused(request, all.temp.path()), {.says = "dp_rank_01_tp_rank_00_pp_rank_00.pt"});
}

}  // namespace
}  // namespace reshard::test
