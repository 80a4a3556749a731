// Checkpoints of training runs with their optimizer, written for another mesh: what torch saved, and what the test makes
// itself.

#include <nlohmann/json.hpp>
#include <set>

#include "reshard/base/strings.h"
#include "reshard/io/local_storage.h"
#include "reshard/plan/plan.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/fault_storage.h"
#include "support/golden.h"
#include "support/input.h"
#include "support/optimizer_oracle.h"
#include "support/refusals.h"

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
  json found, expected;
  for (const auto& [name, data] : content.tensors)
    found[name] = {describe(data.dtype).torch_name, sha256_hex(data.bytes)};
  for (const auto& [name, bytes] : content.objects) found[name] = sha256_hex(bytes);
  for (const auto& [folder, saved] : golden["folders"].items()) {
    for (const auto& [name, tensor] : saved["tensors"].items()) expected[name] = {tensor["dtype"], tensor["sha256"]};
    for (const auto& [name, object] : saved["bytes"].items()) expected[name] = object["sha256"];
    if (saved["planner_data"].is_null()) continue;
    for (const auto& [name, path] : saved["planner_data"].items()) CHECK(path_json(content.paths.at(name)) == path);
  }
  CHECK(found == expected);
  CHECK(content.paths.size() == found.size());
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
      Request first = run_request(golden_case / "sharded", temp / "three", 3, run.prefix);
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
      Request again = shard_request(temp / "three", temp / "one", {.with_optimizer = true});
      again.target = run_request({}, {}, 1, run.prefix).target;
      shard(again);
      check_same_run(temp / "one", golden);
    }
}

TEST_CASE("The optimizer is not cast, and is cut as its parameters are") {
  const fs::path golden_case = dcp_case("llama-fsdp2-optim");
  const TempDir temp;
  Request request = run_request(golden_case / "sharded", temp / "out", 2, "model", 2);
  request.source.config = golden_case / "original";
  request.dtype = DType::kBF16;
  convert(request);
  std::map<std::string, DcpTensor> tensors;
  for (const DcpTensor& tensor : dcp::metadata_of(temp / "out").tensors) tensors.emplace(tensor.name, tensor);
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
      options.stores = storage;
      Request request = run_request(golden_case / "sharded", temp / "out", 2, "model");
      request.source.with_optimizer = false;
      const auto job = plan_convert(storage, request);
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

TEST_CASE("States follow parameters that are renamed or dropped") {
  Random random(10);
  const TempDir temp;
  const Saved saved = small_run(random, "");
  saved.write(temp / "in");
  Request request = run_request(temp / "in", temp / "out", 2);
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
}

TEST_CASE("The optimizer says what the prefix of a model is whose names nobody knows") {
  Random random(15);
  const TempDir temp;
  Saved saved = small_run(random);
  saved.add("rng", random_tensor(random, DType::kU8, {16}));
  saved.write(temp / "in");
  const auto job = plan_convert(local_storage(), run_request(temp / "in", temp / "out", 2, "state.m"));
  CHECK_THAT(join(job->notes.texts(), "\n"), Says("read without the prefix model."));
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
  const TinyModel tiny;
  Saved saved;
  TensorMap expected;
  for (const auto& [name, data] : random_tensors(tiny, random)) {
    saved.add("model._orig_mod.lm." + name, expected["model.lm." + name] = data);
    saved.add("optim.state._orig_mod.lm." + name + ".exp_avg",
              expected["optim.state.lm." + name + ".exp_avg"] = random_tensor(random, DType::kF32, data.shape));
  }
  saved.write(temp / "in");
  write_file(temp / "in/config.json", tiny.config().dump());
  convert(run_request(temp / "in", temp / "out", 2, "model.lm"));
  CHECK((dcp::read(temp / "out").tensors == expected));
}

TEST_CASE("An optimizer that does not fit is refused before anything is written") {
  Random random(12);
  const TempDir temp;
  Saved saved = small_run(random, "");
  const auto refused = [&](const Refusal& refusal, const std::string& prefix = "") {
    saved.write(temp / "in");
    check_refused([&] { convert(run_request(temp / "in", temp / "out", 2, prefix)); },
                  with_common(refusal, {.unwritten = temp / "out"}));
  };
  const auto refused_of_ranks = [&](const char* other, const Refusal& refusal) {
    saved.add_object("rng_state", "x", 0);
    saved.add_object("rng_state", other, 1);
    for (std::uint32_t rank = 0; rank < 2; ++rank) dcp::write_rank(temp / "in", saved.tensors, rank, saved.objects);
    check_refused([&] { convert(run_request(temp / "in", temp / "out", 2)); },
                  with_common(refusal, {.unwritten = temp / "out"}));
  };
  SECTION("a moment of another shape") {
    saved.add("optim.state.a.weight.exp_avg_sq", random_tensor(random, DType::kF32, {4, 2}));
    refused({.tensor = "optim.state.a.weight.exp_avg_sq",
             .says = "has the shape [4, 2], but its parameter a.weight has [4, 3]"});
  }
  SECTION("a prefix that makes a parameter's name that of a state") {
    saved.add("train.a.weight", random_tensor(random, DType::kF32, {4, 2}));
    saved.add_object("train_state.a.weight");
    refused({.kind = ErrorKind::kUsage, .says = "both have an entry train_state.a.weight"}, "train_state");
  }
  SECTION("an object that is no item of torch.save") {
    saved.objects.push_back({"rng_state", "no zip", 0});
    refused(
        {.path = temp / "in/__0_0.distcp", .tensor = "rng_state", .says = "do not begin like an item of torch.save"});
  }
  SECTION("an object whose zip goes on behind its end") {
    saved.objects.push_back({"rng_state", dcp::object_bytes("x") + "more", 0});
    refused({.tensor = "rng_state"});
  }
  SECTION("an object of another size on another rank") {
    refused_of_ranks("longer",
                     {.kind = ErrorKind::kUnsupported, .tensor = "rng_state", .says = "bytes on one rank, and of"});
  }
  SECTION("an object of other bytes on another rank") {
    refused_of_ranks("y", {.says = "is a replica of rng_state"});
  }
}

TEST_CASE("with-optimizer is refused where there is none, and where it has no place") {
  Random random(14);
  const TempDir temp;
  small_run(random).write(temp / "in");
  write_safetensors(temp / "hf/model.safetensors", {{"w", {DType::kF32, {2}, "12345678"}}});
  const Refusal common{.kind = ErrorKind::kUsage, .unwritten = temp / "out"};
  const RequestFields to_hf{.layout = "hf", .with_optimizer = true}, to_dcp{.layout = "dcp", .with_optimizer = true};
  const auto refused = [&](const fs::path& source, const RequestFields& fields, const Refusal& refusal) {
    check_refused([&] { convert(source, temp / "out", fields); }, with_common(refusal, common));
  };
  refused(temp / "in", to_hf, {.says = "of layout hf have no place for optimizer states"});
  refused(temp / "hf", to_dcp, {.says = "one in layout hf is not a checkpoint whose optimizer can be read"});
  refused(temp / "hf", {.layout = "nxd", .tp = 1, .options = {"dp=2"}}, {.says = "`dp`: one in layout hf"});
  refused(temp / "hf/model.safetensors", to_dcp, {.says = "a file of tensors"});
  refused(dcp_case("llama-plain") / "sharded", to_dcp, {.kind = ErrorKind::kBadInput, .says = "but no optimizer"});
  check_refused([&] { consolidated(temp / "in", temp / "out", {.with_optimizer = true}); }, common);
}

TEST_CASE("A mask that the model has beside its parameters is none of the optimizer's, whatever its groups") {
  const std::vector<FamilyCase> cases = family_cases();
  const auto masked =
      std::find_if(cases.begin(), cases.end(), [](const auto& c) { return c.name == "gpt_neox_masks"; });
  REQUIRE(masked != cases.end());
  Random random(5);
  const TempDir temp;
  const TensorMap tensors = write_case(*masked, temp / "run");
  fs::remove(temp / "run/model.safetensors");
  write_dcp(temp / "run", one_step(random, tensors), random, false);
  const auto moments = [](const fs::path& run) {
    std::multiset<std::string> bytes;
    for (const auto& [name, tensor] : dcp::read(run).tensors)
      if (name.ends_with(".exp_avg")) bytes.insert(tensor.bytes);
    return bytes;
  };
  for (const char* rule : {"one", "norms"})
    for (const char* layout : {"optimum", "nxd"}) {
      CAPTURE(rule, layout);
      const fs::path ranks = temp / layout / rule, back = temp / "back" / layout / rule;
      const std::string groups = std::string("optimizer-groups=") + rule;
      convert(temp / "run", ranks, {.layout = layout, .tp = 2, .pp = 2, .options = {groups}, .with_optimizer = true});
      convert(ranks, back, {.layout = "dcp", .source_options = {groups}, .with_optimizer = true});
      CHECK(moments(back) == moments(temp / "run"));
    }
}

}  // namespace
}  // namespace reshard::test
