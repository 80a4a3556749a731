// States of experts that another program stacks: those of their shape are stacked, too, and of the others the stack has one.

#include <functional>

#include "reshard/engine/check/verify_manifest.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/dcp/dcp_target.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model of experts under `model`, and its run with `step` and `lr` of every parameter; all experts have the same.
Saved run_of_experts(Random& random, const fs::path& model) {
  Saved saved;
  for (const auto& [name, data] : write_case(family_case("qwen3_moe"), model)) {
    saved.add(name, data);
    saved.add("optim.state." + name + ".exp_avg", random_tensor(random, DType::kF32, data.shape));
    saved.add("optim.state." + name + ".step", {DType::kF32, {}, "step"});
    saved.add_object("optim.param_groups." + name + ".lr");
  }
  return saved;
}

const std::string kExpert = "model.layers.1.mlp.experts.1.up_proj.weight";

Request to_stacks(const fs::path& source, const fs::path& model, const fs::path& output) {
  return convert_request(
      source, output,
      {.layout = "dcp", .options = {"fsdp=2", "names=torchtitan"}, .config = model, .with_optimizer = true});
}

TEST_CASE("A manifest of a run with stacks is of what is read of them, and of what they were made of") {
  Random random(51);
  const TempDir temp;
  const Saved saved = run_of_experts(random, temp / "model");
  saved.write(temp / "run");
  const auto job = plan_convert(to_stacks(temp / "run", temp / "model", temp / "titan"));
  job->manifest = true;
  execute(*job, unsynced());
  const fs::path path = temp / "titan" / kManifestFile;
  const Manifest manifest = parse_manifest(read_file(path), path);
  CHECK(manifest.tensors.size() == saved.tensors.size() + saved.objects.size());
  for (const char* side : {"titan", "run"}) {
    CAPTURE(side);
    ReadContext context;
    context.beside = Beside::kRead;
    context.config.path = temp / "model";
    Checkpoint checkpoint = read_checkpoint(temp / side, context);
    add_states(checkpoint.map, std::move(checkpoint.states.map));
    const ManifestVerification result = verify_manifest(checkpoint.map, manifest, path, unsynced());
    CHECK(result.same());
    CHECK(result.compared_tensors == manifest.tensors.size());
  }
}

TEST_CASE("What experts do not have alike is not made one of") {
  const std::string state = "optim.state." + kExpert, lr = "optim.param_groups." + kExpert + ".lr";
  const std::string other = "model.layers.1.mlp.experts.0.up_proj.weight";
  const TempDir temp;
  check_refusals<std::function<void(Saved&)>>(
      [&](const std::function<void(Saved&)>& change) {
        Random random(52);
        Saved saved = run_of_experts(random, temp / "model");
        change(saved);
        saved.write(temp / "run");
        convert(to_stacks(temp / "run", temp / "model", temp / "out"));
      },
      {.unwritten = temp / "out"},
      {{"another count of steps",
        [&](Saved& saved) { saved.at(state + ".step").data.bytes = "more"; },
        {.says = "is a replica of optim.state." + other + ".step"}},
       {"another object",
        [&](Saved& saved) {
          for (dcp::Object& object : saved.objects)
            if (object.name == lr) object.bytes = dcp::object_bytes("y");
        },
        {.says = "is a replica of optim.param_groups." + other + ".lr"}},
       {"a count of another dtype",
        [&](Saved& saved) {
          saved.at(state + ".step").data = {DType::kF64, {}, "eight..."};
        },
        {.kind = ErrorKind::kUnsupported,
         .path = temp / "run",
         .tensor = state + ".step",
         .says = "is F64 [], and optim.state." + other + ".step is F32 []"}},
       {"no count",
        [&](Saved& saved) { saved.erase(state + ".step"); },
        {.kind = ErrorKind::kUnsupported,
         .tensor = "optim.state." + other + ".step",
         .says = "model.layers.1.mlp.experts.1.up_proj.weight has none"}},
       {"no moment",
        [&](Saved& saved) { saved.erase(state + ".exp_avg"); },
        {.says = "but model.layers.1.mlp.experts.1.up_proj.weight is missing"}},
       {"sums of rows",
        [&](Saved& saved) {
          saved.add(state + ".sums", {DType::kF32, {8}, std::string(32, 'x')});
        },
        {.kind = ErrorKind::kUnsupported,
         .tensor = state + ".sums",
         .says = "cannot be packed into layers.1.moe.routed_experts.inner_experts.w3_EFD"}}});
}

TEST_CASE("Steps that are numbers become a tensor of the stack, unless they differ or float32 has not got them") {
  const TempDir temp;
  write_case(family_case("qwen3_moe"), temp / "model");
  const Checkpoint checkpoint = read_checkpoint(local_storage(), temp / "model", {});
  REQUIRE(checkpoint.model);
  const std::string other = "model.layers.1.mlp.experts.0.up_proj.weight";
  DcpCut cut;
  const auto plan = [&](std::int64_t first, std::int64_t second) {
    TrainingStates states;
    states.numbers = {{other, "step", PlainValue(first)}, {kExpert, "step", PlainValue(second)}};
    return dcp_target_map(checkpoint.map.logical, &states, &*checkpoint.model, cut);
  };
  const auto refused = [&](std::int64_t first, std::int64_t second, const std::string& says) {
    check_refused([&] { plan(first, second); }, {.kind = ErrorKind::kUnsupported, .tensor = kExpert, .says = says});
  };
  refused(7, 16'777'217, "its state step is 16777217, which float32");
  CHECK(plan(16'777'216, 1 << 30).logical.size() == checkpoint.map.logical.size() + 2);
  cut.names = "torchtitan";
  CHECK(plan(7, 7).logical.size() == checkpoint.map.logical.size() + 1);
  refused(7, 8, "its state step is 8, and that of " + other + " is 7, but optimizer.state.");
}

}  // namespace
}  // namespace reshard::test
