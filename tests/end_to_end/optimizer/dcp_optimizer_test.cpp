// Checkpoints of training runs with their optimizer, written for another mesh: what torch saved, and what the test makes
// itself.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/families.h"
#include "support/fault_storage.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/pickles.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/titan.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path dcp_case(const std::string& name) {
  return testdata("golden/dcp") / name;
}

json path_json(const DcpPath& path) {
  json parts = json::array();
  for (const auto& part : path) std::visit([&](const auto& value) { parts.push_back(value); }, part);
  return parts;
}

/// Holds all that was written against what torch has put into the case's folders.
void check_same_run(const fs::path& written, const json& golden) {
  const dcp::Content content = dcp::read(written);
  std::size_t tensors = 0, objects = 0;
  for (const auto& [folder, saved] : golden["folders"].items()) {
    for (const auto& [name, tensor] : saved["tensors"].items()) {
      INFO(name);
      REQUIRE(content.tensors.count(name) == 1);
      const TensorData& data = content.tensors.at(name);
      CHECK(describe(data.dtype).torch_name == tensor["dtype"]);
      CHECK(sha256_hex(data.bytes) == tensor["sha256"].get<std::string>());
      ++tensors;
    }
    for (const auto& [name, object] : saved["bytes"].items()) {
      INFO(name);
      REQUIRE(content.objects.count(name) == 1);
      CHECK(sha256_hex(content.objects.at(name)) == object["sha256"].get<std::string>());
      ++objects;
    }
    if (saved["planner_data"].is_null()) continue;
    for (const auto& [name, path] : saved["planner_data"].items()) {
      INFO(name);
      REQUIRE(content.paths.count(name) == 1);
      CHECK(path_json(content.paths.at(name)) == path);
    }
  }
  CHECK(content.tensors.size() == tensors);
  CHECK(content.objects.size() == objects);
  CHECK(content.paths.size() == tensors + objects);
}

struct RunCase {
  const char* name;
  const char* prefix;
  bool has_config;  // which explains all there is, and keeps the names
};
constexpr RunCase kRuns[] = {{"llama-fsdp2-optim", "model", true},
                             {"qwen3-fsdp1-accelerate", "model", true},
                             {"titan-llama3-v0.2.2", "", false},
                             {"llama-nested-files", "app.model", true},
                             {"llama-torch1.13-r3", "", true}};

TEST_CASE("A training run goes from mesh to mesh with all that torch saved of it, byte by byte") {
  for (const RunCase& run : kRuns) DYNAMIC_SECTION(run.name) {
      const fs::path golden_case = dcp_case(run.name);
      const json golden = golden_of(golden_case);
      const TempDir temp;
      ConvertRequest first = run_request(golden_case / "sharded", temp / "three", 3, run.prefix);
      if (run.has_config) {
        first.source.config = golden_case / "original";
        first.target.tp = 2;
      }
      convert(first);
      check_same_run(temp / "three", golden);
      // With the config.json that went along.
      convert(run_request(temp / "three", temp / "five", 5, run.prefix));
      check_same_run(temp / "five", golden);
      if (!run.has_config) continue;
      ShardRequest again;
      again.source = {temp / "three", {}, {}, {}, {}, true};
      again.output_directory = temp / "one";
      again.target = run_request({}, {}, 1, run.prefix).target;
      shard(again);
      check_same_run(temp / "one", golden);
    }
}

TEST_CASE("The optimizer is not cast, and is cut as its parameters are") {
  const fs::path golden_case = dcp_case("llama-fsdp2-optim");
  const TempDir temp;
  ConvertRequest request = run_request(golden_case / "sharded", temp / "out", 2, "model", 2);
  request.source.config = golden_case / "original";
  request.dtype = DType::kBF16;
  convert(request);
  const DcpMetadata metadata = read_dcp_metadata(*local_storage().open(temp / "out/.metadata"), temp / "out/.metadata");
  std::map<std::string, DcpTensor> tensors;
  for (const DcpTensor& tensor : metadata.tensors) tensors.emplace(tensor.name, tensor);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const DcpTensor &parameter = tensors.at("model." + name), &moment = tensors.at("optim.state." + name + ".exp_avg");
  CHECK(parameter.dtype == DType::kBF16);
  CHECK(moment.dtype == DType::kF32);
  REQUIRE(parameter.chunks.size() == 4);
  REQUIRE(moment.chunks.size() == 4);
  for (std::size_t c = 0; c < 4; ++c) {
    CHECK((moment.chunks[c].box == parameter.chunks[c].box));
    CHECK(moment.chunks[c].place.file == parameter.chunks[c].place.file);
    CHECK(parameter.chunks[c].box.size[1] == parameter.shape[1] / 2);
  }
  CHECK(tensors.at("optim.state." + name + ".step").chunks.size() == 1);
}

TEST_CASE("Without with-optimizer nothing of it is read") {
  for (const char* name : {"llama-fsdp2-optim", "qwen3-fsdp1-accelerate"}) DYNAMIC_SECTION(name) {
      const fs::path golden_case = dcp_case(name);
      const json golden = golden_of(golden_case);
      const TempDir temp;
      FaultStorage storage;
      RunOptions options = unsynced();
      options.storage = &storage;
      ConvertRequest request = run_request(golden_case / "sharded", temp / "out", 2, "model");
      request.source.with_optimizer = false;
      const auto job = plan_convert(storage, request);
      CHECK_THAT(json(job->notes).dump(), Says("`with-optimizer` takes its optimizer along"));
      execute(*job, options);
      std::size_t ranges = 0;
      const auto check_unread = [&](const fs::path& file, std::uint64_t begin, std::uint64_t end) {
        ++ranges;
        for (const FaultStorage::Range& read : storage.reads(file)) {
          const bool is_magic = read.begin_bytes == 0 && read.end_bytes < 16;  // which says what the file is
          CHECK((is_magic || read.end_bytes <= begin || read.begin_bytes >= end));
        }
      };
      for (const auto& [folder, saved] : golden["folders"].items()) {
        for (const auto& [entry, tensor] : saved["tensors"].items())
          for (const json& chunk : tensor["chunks"])
            if (entry.starts_with("optim"))
              check_unread(golden_case / folder / chunk["file"], chunk["begin"],
                           chunk["begin"].get<std::uint64_t>() + chunk["length"].get<std::uint64_t>());
        for (const auto& [entry, object] : saved["bytes"].items())
          check_unread(golden_case / folder / object["file"], object["begin"],
                       object["begin"].get<std::uint64_t>() + object["length"].get<std::uint64_t>());
      }
      CHECK(ranges > 60);
      CHECK(dcp::read(temp / "out").objects.empty());
    }
}

TEST_CASE("Any tensors, states and objects go from any mesh to any other") {
  for (const std::uint64_t seed : seeds(40)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    Saved saved;
    dcp::Content expected;
    const auto add = [&](const std::string& name, DType dtype, const Dims& shape) {
      expected.tensors[name] = random_tensor(random, dtype, shape);
      saved.add(name, expected.tensors[name], pick(random, 1, 5));
    };
    for (std::uint64_t i = pick(random, 1, 6); i > 0; --i) {
      Dims shape;
      for (std::uint64_t d = pick(random, 0, 3); d > 0; --d) shape.push_back(pick(random, 0, 7));
      const std::string name = fmt::format("part.{}.weight", i);
      add(name, DType::kBF16, shape);
      if (pick(random, 0, 3) == 0) continue;
      add("optim.state." + name + ".exp_avg", DType::kF32, shape);
      add("optim.state." + name + ".step", DType::kF32, {});
      if (pick(random, 0, 1)) add("optim.state." + name + ".row.sums", DType::kF64, {pick(random, 0, 4)});
    }
    for (std::uint64_t i = pick(random, 0, 5); i > 0; --i) {
      const std::string name = fmt::format("dataloader.dp_rank_{}", i);
      saved.add_object(name, std::string(pick(random, 0, 300), 'x'), static_cast<std::uint32_t>(pick(random, 0, 3)));
      expected.objects[name] = saved.objects.back().bytes;
    }
    add("rng", DType::kU8, {16});
    if (expected.objects.empty() && pick(random, 0, 1)) add("optim.state.7.exp_avg", DType::kF32, {3, 2});
    const TempDir temp;
    saved.write(temp / "0");
    for (const char* hop : {"1", "2", "3"}) {
      const std::string before(1, static_cast<char>(*hop - 1));
      ConvertRequest request = run_request(temp / before, temp / hop, pick(random, 1, 6));
      const bool has_states = std::any_of(expected.tensors.begin(), expected.tensors.end(),
                                          [](const auto& one) { return one.first.starts_with("optim"); });
      if (!has_states && expected.objects.empty()) {  // all else may be the model's
        CHECK_THAT(error_of([&] { convert(request); }).what(), Says("nothing of an optimizer"));
        break;
      }
      convert(request);
      const dcp::Content content = dcp::read(temp / hop);
      CHECK((content.tensors == expected.tensors));
      CHECK((content.objects == expected.objects));
    }
  }
}

/// What torchtitan calls a tensor of the model.
std::string titan_name(const std::string& name) {
  return titan_tensors({{name, {DType::kF32, {2, 1}, "12345678"}}}, false, 0, false).begin()->first;
}

/// A model as torchtitan has it, with states of its optimizer in the flattened form.
struct Titan {
  TensorMap model, moments;  // under the model's own names
  std::uint64_t head_dim = 0;
  Saved saved;

  void save(const fs::path& directory) {
    using namespace pickles;
    const auto add_moment = [&](const std::string& name, const TensorData& data) {
      const std::string state = "state." + name + ".exp_avg";
      saved.add("optimizer." + state, data);
      saved.paths["optimizer." + state] = tuple({text("optimizer"), text(state)});
      saved.add("optimizer.state." + name + ".step", step_of(name));
      saved.add_object("optimizer.param_groups." + name + ".lr", "lr of " + name);
    };
    for (const auto& [name, data] : titan_tensors(model, false, head_dim, false)) saved.add(name, data, 3);
    for (const auto& [name, data] : titan_tensors(moments, false, head_dim, false)) add_moment(name, data);
    saved.write(directory);
  }

  static TensorData step_of(const std::string& titan) {
    TensorData step{DType::kF32, {}, std::string(4, 's')};
    step.bytes[0] = static_cast<char>(titan.size());
    return step;
  }

  /// Holds what was written against the model's own names.
  void check(const dcp::Content& content) const {
    CHECK(content.tensors.size() == 3 * model.size());
    for (const auto& [name, data] : model) {
      INFO(name);
      const std::string state = "optimizer.state." + name + ".exp_avg";
      CHECK((content.tensors.at(name) == data));
      CHECK((content.tensors.at(state) == moments.at(name)));
      CHECK(path_json(content.paths.at(state)) == json({"optimizer", "state." + name + ".exp_avg"}));
      CHECK((content.tensors.at("optimizer.state." + name + ".step") == step_of(titan_name(name))));
      CHECK(content.objects.at("optimizer.param_groups." + name + ".lr") ==
            dcp::object_bytes("lr of " + titan_name(name)));
    }
  }
};

Titan titan_llama(Random& random, const fs::path& model_directory) {
  TinyModel tiny;
  tiny.head_dim = 4;
  Titan titan{random_tensors(tiny, random), random_tensors(tiny, random), tiny.head_dim, {}};
  write_model(model_directory, tiny, titan.model);
  return titan;
}

TEST_CASE("States of torchtitan's optimizer get the model's names and order as their parameters do, and back") {
  Random random(7);
  const TempDir temp;
  Titan titan = titan_llama(random, temp / "model");
  titan.save(temp / "step-7");
  ConvertRequest request = run_request(temp / "step-7", temp / "hf", 3);
  request.source.config = temp / "model";
  convert(request);
  titan.check(dcp::read(temp / "hf"));

  ConvertRequest back = run_request(temp / "hf", temp / "titan", 2, "", 2);
  back.target.options.set("names", "torchtitan-0.2");
  convert(back);
  const dcp::Content first = dcp::read(temp / "step-7"), last = dcp::read(temp / "titan");
  CHECK((last.tensors == first.tensors));
  CHECK((last.objects == first.objects));
  CHECK((last.paths == first.paths));
}

TEST_CASE("A list of names that change is refused, and so are states that cannot follow the order of rows") {
  Random random(8);
  const TempDir temp;
  Titan titan = titan_llama(random, temp / "model");
  const auto error = [&](const ConvertRequest& request) {
    const Error found = error_of([&] { convert(request); });
    CHECK(found.kind() == ErrorKind::kUnsupported);
    CHECK_FALSE(fs::exists(request.output_directory));
    return found;
  };
  const auto to_hf = [&] {
    titan.save(temp / "step-7");
    ConvertRequest request = run_request(temp / "step-7", temp / "out", 3);
    request.source.config = temp / "model";
    return error(request);
  };
  const auto to_titan = [&](const std::string& name) {
    Saved saved;
    for (const auto& [parameter, data] : titan.model) saved.add(parameter, data);
    saved.add("optim.state." + name + ".sums", random_tensor(random, DType::kF32, {8}));
    if (name.find("norm") != name.npos) saved.add_object("optim.param_groups.0.params");
    saved.write(temp / "hf");
    ConvertRequest request = run_request(temp / "hf", temp / "out2", 2);
    request.source.config = temp / "model";
    request.target.options.set("names", "torchtitan");
    return error(request);
  };
  SECTION("a list") {
    titan.saved.add_object("optimizer.param_groups.0.params");
    check_error(to_hf(), {.kind = ErrorKind::kUnsupported,
                          .tensor = "optimizer.param_groups.0.params",
                          .says = "under their names in torchtitan, which become the model's own"});
    check_error(
        to_titan("model.norm.weight"),
        {.kind = ErrorKind::kUnsupported, .tensor = "optim.param_groups.0.params", .says = "which `names` changes"});
  }
  SECTION("sums of rows") {
    titan.saved.add("optimizer.state.layers.0.attention.wq.weight.sums", random_tensor(random, DType::kF32, {8}));
    check_error(to_hf(), {.kind = ErrorKind::kUnsupported,
                          .tensor = "optimizer.state.layers.0.attention.wq.weight.sums",
                          .says = "layers.0.attention.wq.weight has"});
    check_error(to_titan("model.layers.0.self_attn.q_proj.weight"),
                {.kind = ErrorKind::kUnsupported,
                 .tensor = "optim.state.model.layers.0.self_attn.q_proj.weight.sums",
                 .says = "has its rows in another order"});
  }
}

TEST_CASE("A stack of experts has a state, and each expert gets its part of it, or a copy") {
  Random random(9);
  const TempDir temp;
  Titan titan{write_case(family_case("qwen3_moe"), temp / "model"), {}, 0, {}};
  for (const auto& [name, data] : titan.model) titan.moments[name] = random_tensor(random, DType::kF32, data.shape);
  titan.save(temp / "step-1");
  ConvertRequest request = run_request(temp / "step-1", temp / "out", 2);
  request.source.config = temp / "model";
  convert(request);
  titan.check(dcp::read(temp / "out"));

  // And back: what the experts have alike, the stack has once.
  for (const bool check_replicas : {true, false}) {
    const TempDir again;
    ConvertRequest back = run_request(temp / "out", again / "titan", 3, "", 2);
    back.target.options.set("names", "torchtitan-0.2");
    back.check_replicas = check_replicas;
    convert(back);
    const dcp::Content first = dcp::read(temp / "step-1"), last = dcp::read(again / "titan");
    CHECK((last.tensors == first.tensors));
    CHECK((last.objects == first.objects));
    CHECK((last.paths == first.paths));
  }
}

TEST_CASE("States follow parameters that are renamed or dropped") {
  Random random(10);
  const TempDir temp;
  Saved saved = small_run(random);
  // Under a name that makes the prefix one, and the optimizer's names the model's.
  for (dcp::Whole& tensor : saved.tensors)
    if (tensor.name.starts_with("model.")) tensor.name.erase(0, 6);
  saved.write(temp / "in");
  ConvertRequest request = run_request(temp / "in", temp / "out", 2);
  request.names.renames.push_back(parse_rename("rename", "^a\\.=first.one."));
  request.names.drop.emplace_back("drop", "^b");
  convert(request);
  const dcp::Content content = dcp::read(temp / "out");
  CHECK(content.tensors.size() == 2);
  CHECK((content.tensors.at("first.one.weight") == saved.tensors[0].data));
  CHECK((content.tensors.at("optim.state.first.one.weight.exp_avg") == saved.tensors[1].data));
  CHECK(path_json(content.paths.at("optim.state.first.one.weight.exp_avg")) ==
        json({"optim.state.first.one.weight.exp_avg"}));
  CHECK(content.objects.size() == 1);

  saved.add_object("optim.param_groups.0.params");
  saved.write(temp / "in");
  request.output_directory = temp / "out2";
  check_refused([&] { convert(request); }, {.kind = ErrorKind::kUnsupported, .tensor = "optim.param_groups.0.params"});
}

TEST_CASE("The optimizer says what the prefix of a model is whose names nobody knows") {
  Random random(15);
  const TempDir temp;
  Saved saved = small_run(random);
  saved.add("rng", random_tensor(random, DType::kU8, {16}));
  saved.write(temp / "in");
  const auto job = plan_convert(local_storage(), run_request(temp / "in", temp / "out", 2, "state.m"));
  CHECK_THAT(json(job->notes).dump(), Says("read without the prefix model."));
  execute(*job, unsynced());
  const dcp::Content content = dcp::read(temp / "out");
  CHECK(content.tensors.size() == 5);
  CHECK((content.tensors.at("state.m.a.weight") == saved.tensors[0].data));
  CHECK((content.tensors.at("optim.state.a.weight.exp_avg") == saved.tensors[1].data));
  CHECK((content.tensors.at("rng") == saved.tensors.back().data));
  CHECK(content.paths.at("state.m.a.weight") ==
        DcpPath{std::string("state"), std::string("m"), std::string("a.weight")});
}

TEST_CASE("States are found under a prefix that the modules have themselves, and behind wrappers") {
  Random random(11);
  const TempDir temp;
  TinyModel tiny;
  const TensorMap model = random_tensors(tiny, random), moments = random_tensors(tiny, random);
  write_model(temp / "model", tiny, model);
  Saved saved;
  for (const auto& [name, data] : model) {
    saved.add("model._orig_mod.lm." + name, data);
    saved.add("optim.state._orig_mod.lm." + name + ".exp_avg", moments.at(name));
  }
  saved.write(temp / "in");
  ConvertRequest request = run_request(temp / "in", temp / "out", 2, "model.lm");
  request.source.config = temp / "model";
  convert(request);
  const dcp::Content content = dcp::read(temp / "out");
  CHECK(content.tensors.size() == 2 * model.size());
  for (const auto& [name, data] : model) {
    INFO(name);
    CHECK((content.tensors.at("model.lm." + name) == data));
    CHECK((content.tensors.at("optim.state.lm." + name + ".exp_avg") == moments.at(name)));
  }
}

TEST_CASE("An optimizer that does not fit is refused before anything is written") {
  Random random(12);
  const TempDir temp;
  Saved saved = small_run(random);
  for (dcp::Whole& tensor : saved.tensors)
    if (tensor.name.starts_with("model.")) tensor.name.erase(0, 6);
  std::string prefix;
  const auto error = [&] {
    if (!fs::exists(temp / "in")) saved.write(temp / "in");
    const Error found = error_of([&] { convert(run_request(temp / "in", temp / "out", 2, prefix)); });
    CHECK_FALSE(fs::exists(temp / "out"));
    return found;
  };
  SECTION("a moment of another shape") {
    saved.add("optim.state.a.weight.exp_avg_sq", random_tensor(random, DType::kF32, {4, 2}));
    check_error(error(), {.tensor = "optim.state.a.weight.exp_avg_sq",
                          .says = "has the shape [4, 2], but its parameter a.weight has [4, 3]"});
  }
  SECTION("a prefix that makes a parameter's name that of a state") {
    saved.add("train.a.weight", random_tensor(random, DType::kF32, {4, 2}));
    saved.objects.push_back({"train_state.a.weight", dcp::object_bytes("x"), 0});
    prefix = "train_state";
    check_error(error(), {.kind = ErrorKind::kUsage, .says = "both have an entry train_state.a.weight"});
  }
  SECTION("an object that is no item of torch.save") {
    saved.objects.push_back({"rng_state", "no zip", 0});
    check_error(
        error(),
        {.path = temp / "in/__0_0.distcp", .tensor = "rng_state", .says = "do not begin like an item of torch.save"});
  }
  SECTION("an object whose zip goes on behind its end") {
    saved.objects.push_back({"rng_state", dcp::object_bytes("x") + "more", 0});
    CHECK(error().tensor() == "rng_state");
  }
  SECTION("an object of another size on another rank") {
    saved.add_object("rng_state", "x", 0);
    saved.add_object("rng_state", "longer", 1);
    for (std::uint32_t rank = 0; rank < 2; ++rank) dcp::write_rank(temp / "in", saved.tensors, rank, saved.objects);
    check_error(error(), {.kind = ErrorKind::kUnsupported, .tensor = "rng_state", .says = "bytes on one rank, and of"});
  }
  SECTION("an object of other bytes on another rank") {
    saved.add_object("rng_state", "x", 0);
    saved.add_object("rng_state", "y", 1);
    for (std::uint32_t rank = 0; rank < 2; ++rank) dcp::write_rank(temp / "in", saved.tensors, rank, saved.objects);
    check_error(error(), {.says = "is a replica of rng_state"});
  }
}

TEST_CASE("An object that all ranks have is written once") {
  Random random(13);
  const TempDir temp;
  Saved saved = small_run(random);
  saved.add_object("rng_state", "x", 0);
  saved.add_object("rng_state", "x", 1);
  for (std::uint32_t rank = 0; rank < 2; ++rank) dcp::write_rank(temp / "in", saved.tensors, rank, saved.objects);
  convert(run_request(temp / "in", temp / "out", 2));
  CHECK(dcp::read(temp / "out").objects.at("rng_state") == dcp::object_bytes("x"));
}

TEST_CASE("with-optimizer is refused where there is none, and where it has no place") {
  Random random(14);
  const TempDir temp;
  small_run(random).write(temp / "in");
  const auto error = [&](ConvertRequest request) {
    const Error found = error_of([&] { convert(request); });
    CHECK_FALSE(fs::exists(temp / "out"));
    return found;
  };
  ConvertRequest to_hf = run_request(temp / "in", temp / "out", 2);
  to_hf.target = {};
  to_hf.target.layout = layout("hf");
  CHECK(error(to_hf).kind() == ErrorKind::kUsage);
  CHECK_THAT(error(to_hf).what(), Says("of layout hf have no place for the states"));

  write_safetensors(temp / "hf/model.safetensors", {{"w", {DType::kF32, {2}, "12345678"}}});
  check_error(error(run_request(temp / "hf", temp / "out", 2)),
              {.kind = ErrorKind::kUsage, .says = "one in layout hf is no checkpoint whose optimizer can be read"});
  CHECK_THAT(error(run_request(temp / "hf/model.safetensors", temp / "out", 2)).what(), Says("a file of tensors"));

  check_error(error(run_request(dcp_case("llama-plain") / "sharded", temp / "out", 2)),
              {.says = "nothing of an optimizer"});

  ConsolidateRequest consolidated;
  consolidated.source.path = temp / "in";
  consolidated.source.with_optimizer = true;
  consolidated.output_directory = temp / "out";
  CHECK(error_of([&] { consolidate(consolidated); }).kind() == ErrorKind::kUsage);
}

}  // namespace
}  // namespace reshard::test
