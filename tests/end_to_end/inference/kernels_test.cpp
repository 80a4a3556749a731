// Weights of models that were compiled with NxD Inference's kernels are stored transposed. testdata/golden/nxdi_kernels
// is what NxD Inference's own classes wrote, with the neuron_config.json that says so.

#include "reshard/engine/check/verify_manifest.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("Fused linears of a training checkpoint become transposed ones, over other ranks and back") {
  // As many key/value heads as heads, so that o_proj is square at one rank.
  const Input input({.kv_heads = 4}, {.layout = "ranks", .tp = 2, .options = {"fuse-qkv"}});
  const auto check = [&](const fs::path& source, const fs::path& output, std::uint32_t tp,
                         const std::vector<std::string>& options) {
    convert(source, output, {.layout = "nxdi", .tp = tp, .options = options});
    CHECK((consolidated(output, input / "whole") == input.tensors));
  };
  check(input.path(), input / "one", 1, {"fuse-qkv", "kernels=mlp,qkv,out-proj"});
  check(input.path(), input / "three", 3, {"fuse-qkv", "kernels=mlp,qkv,out-proj"});
  check(input / "three", input / "recut", 2, {"kernels=mlp"});
}

TEST_CASE("The manifest of transposed weights is one of the model, whatever is verified with it") {
  const Input input({.intermediate = 96});
  Request request = shard_request(input.path(), input / "out", {.layout = "nxdi", .tp = 2});
  request.target.options.set("kernels", "mlp,out-proj");
  const auto job = plan_shard(request);
  job->manifest = true;
  execute(*job, unsynced());
  const fs::path path = input / "out" / kManifestFile;
  const Manifest manifest = parse_manifest(read_file(path), path);
  for (const fs::path& side : {input.path(), input / "out"}) {
    CAPTURE(side);
    const ManifestVerification result = verify_manifest(read_checkpoint(side, {}).map, manifest, path, unsynced());
    CHECK(result.same());
    CHECK(result.compared_tensors == input.tensors.size());
  }
}

TEST_CASE("Leaves of a transposed matrix, which are its rows, are written in ranges and not by element") {
  const Input input({.hidden = 256, .intermediate = 9000, .layers = 1});  // 4.6 MB a matrix, more than a leaf
  Request request = shard_request(input.path(), input / "out", {.layout = "nxdi", .tp = 2});
  request.target.options.set("kernels", "mlp");
  const auto job = plan_shard(request);
  job->manifest = true;
  FaultStorage storage;
  execute(*job, {.stores = storage, .sync = false});
  CHECK(storage.count(FaultStorage::Operation::kWrite) < 30'000);  // of 6.9 million elements
  CHECK((consolidated(input / "out", input / "whole") == input.tensors));
  const fs::path path = input / "out" / kManifestFile;
  CHECK(verify_manifest(read_checkpoint(input / "out", {}).map, parse_manifest(read_file(path), path), path, unsynced())
            .same());
}

TEST_CASE("What the metadata says of square matrices is not overruled") {
  const Input input({.hidden = 64, .intermediate = 128}, {.layout = "nxdi", .tp = 2, .options = {"kernels=mlp"}});
  const auto refused = [&](const std::vector<std::string>& options, const char* says) {
    check_refused([&] { consolidated(input.path(), input / "whole", {.source_options = options}); },
                  {.path = input.rank_file(0),
                   .says = std::string("its metadata records `kernels` mlp, but ") + says,
                   .hint = "set `from-kernels` mlp"});
  };
  refused({"kernels=none"}, "neuron_config.json or `from-kernels` has none");
  write_file(input.path() / "neuron_config.json", R"({"neuron_config": {"tp_degree": 2}})");
  refused({}, "neuron_config.json or `from-kernels` has none");
  CHECK((consolidated(input.path(), input / "whole", {.source_options = {"kernels=mlp"}}) == input.tensors));
}

TEST_CASE("Ranks that become others of the same layout without their form are told so") {
  const Input input({.kv_heads = 4}, {.layout = "nxdi", .tp = 2, .options = {"fuse-qkv", "kernels=mlp,qkv"}});
  const auto notes = [&](const std::vector<std::string>& options) {
    return joined_notes(
        *plan_convert(convert_request(input.path(), input / "again", {.layout = "nxdi", .tp = 1, .options = options})));
  };
  CHECK_THAT(notes({}), Says("the source was written with `fuse-qkv` and `kernels` mlp,qkv, but the output is written "
                             "without: use the same options to keep its format"));
  CHECK_THAT(notes({"fuse-qkv"}), Says("the source was written with `kernels` mlp,qkv, but"));
  CHECK_THAT(notes({"fuse-qkv", "kernels=none"}), !Says("the source was written"));
}

TEST_CASE("Weights next to the neuron_config.json of another model get advice that helps") {
  const TempDir temp;
  const fs::path none = testdata("golden/nxdi_kernels/none-square-llama-tp4"),
                 all = testdata("golden/nxdi_kernels/all-square-llama-tp4");
  fs::create_directories(temp / "files");
  fs::copy(none / "weights", temp / "files/weights");
  fs::copy_file(all / "neuron_config.json", temp / "files/neuron_config.json");
  const char* const hint =
      "leave out `from-kernels`; or, if neuron_config.json belongs to another compiled model, remove it and set "
      "`config`";
  check_refused([&] { consolidated(temp / "files", temp / "whole"); }, {.says = "not transposed", .hint = hint});
  check_refused([&] { consolidated(temp / "files", temp / "whole", {.source_options = {"kernels=none"}}); },
                {.kind = ErrorKind::kUsage, .says = "contradicts the compiled model", .hint = hint});
  fs::remove(temp / "files/neuron_config.json");
  CHECK_NOTHROW(
      consolidated(temp / "files", temp / "whole", {.config = none / "original", .source_options = {"kernels=none"}}));
}

TEST_CASE("All kernels of a compiled model are named at once, also that of the fused projection") {
  const TempDir temp;
  const fs::path golden_case = testdata("golden/nxdi_kernels/all-square-llama-tp4");
  fs::copy_file(golden_case / "neuron_config.json", temp / "neuron_config.json");
  check_refused([&] { plan_shard(shard_request(golden_case / "original", temp.path(), {.layout = "nxdi", .tp = 4})); },
                {.path = temp / "neuron_config.json", .hint = "with `fuse-qkv` and with `kernels` mlp,out-proj,qkv"});
}

TEST_CASE("Kernels that contradict the shapes, the compiled model or the options are errors") {
  const fs::path golden_case = testdata("golden/nxdi_kernels/mlp-out-bias-llama-tp2");
  const TempDir temp;
  fs::create_directories(temp / "compiled");
  fs::copy(golden_case / "weights", temp / "compiled/weights");
  fs::copy_file(golden_case / "original/config.json", temp / "compiled/config.json");
  const auto refused = [&](const char* kernels, const Refusal& refusal) {
    check_refused(
        [&] {
          consolidated(temp / "compiled", temp / "whole", {.source_options = {std::string("kernels=") + kernels}});
        },
        refusal);
  };
  refused("out-proj",
          {.tensor = "layers.0.mlp.gate_proj.weight", .says = "so it is transposed for NxD Inference's kernels, but"});
  refused("mlp,attention", {.kind = ErrorKind::kUsage,
                            .says = "`from-kernels`: \"attention\" is not an NxD Inference kernel",
                            .hint = "write none, or a comma-separated list of qkv, out-proj, mlp"});
  refused("out_proj", {.kind = ErrorKind::kUsage,
                       .says = "\"out_proj\" is not an NxD Inference kernel",
                       .hint = "did you mean out-proj?"});
  refused("qkv,MLP",
          {.kind = ErrorKind::kUsage, .says = "\"MLP\" is not an NxD Inference kernel", .hint = "did you mean mlp?"});

  fs::create_directories(temp / "traced");
  fs::copy_file(golden_case / "neuron_config.json", temp / "traced/neuron_config.json");
  RequestFields fields{.layout = "nxdi", .tp = 2};
  check_refused([&] { shard(golden_case / "original", temp / "traced", fields); },
                {.path = temp / "traced/neuron_config.json", .hint = "with `kernels` mlp,out-proj"});
  fields.options = {"kernels=qkv"};
  check_refused([&] { shard(golden_case / "original", temp / "out", fields); },
                {.kind = ErrorKind::kUsage, .says = "`kernels` qkv applies only to the fused projection"});
}

}  // namespace
}  // namespace reshard::test
