// Digests of tensors: independent of layout, format, mesh, shares, threads; and what a manifest is compared with.

#include "reshard/engine/check/digests.h"

#include <filesystem>

#include "reshard/engine/check/verify_manifest.h"
#include "reshard/engine/execute.h"
#include "reshard/engine/job_run.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLeaf = 4 << 20;

Sha256Digest hash(std::string_view bytes) {
  return sha256(std::as_bytes(std::span(bytes)));
}

void add_leaves(std::string_view bytes, const Dims& shape, std::size_t dim, std::vector<Sha256Digest>& leaves) {
  const std::size_t row = bytes.size() / shape[dim];
  if (row > kLeaf) {
    for (std::uint64_t i = 0; i < shape[dim]; ++i) add_leaves(bytes.substr(i * row, row), shape, dim + 1, leaves);
    return;
  }
  const std::size_t leaf = kLeaf / row * row;
  for (std::size_t at = 0; at < bytes.size(); at += leaf) leaves.push_back(hash(bytes.substr(at, leaf)));
}

/// As the rule says, and in the simplest way.
TensorDigest expected_digest(const TensorData& tensor) {
  std::vector<Sha256Digest> leaves;
  if (!tensor.shape.empty() && !tensor.bytes.empty()) add_leaves(tensor.bytes, tensor.shape, 0, leaves);
  if (leaves.size() < 2) return {hash(tensor.bytes), {}};
  return {sha256(std::as_bytes(std::span(leaves))), leaves};
}

TEST_CASE("The digest of a tensor is that of its leaves of whole rows, or of its bytes") {
  const TempDir temp;
  Random random(1);
  TensorMap tensors;
  const std::vector<Dims> shapes = {{}, {0, 3}, {7}, {3000, 1000}, {1, 1, 5000, 700}, {3, 2, 1500, 900}, {2, 2500000}};
  for (std::size_t i = 0; i < shapes.size(); ++i)
    tensors["t" + std::to_string(i)] = random_tensor(random, DType::kBF16, shapes[i]);
  write_safetensors(temp / "m.safetensors", tensors);
  const Checkpoint checkpoint = read_checkpoint(temp / "m.safetensors", {ConfigUse::kLenient});
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t i = 0; i < checkpoint.map.logical.size(); ++i) wanted.push_back(i);
  for (const unsigned threads : {1u, 3u}) {
    RunOptions options = unsynced();
    options.threads = threads;
    const auto digests = compute_digests(checkpoint.map, wanted, options);
    for (const std::uint32_t i : wanted) {
      CAPTURE(checkpoint.map.logical[i].name);
      CHECK((digests[i] == expected_digest(tensors.at(checkpoint.map.logical[i].name))));
    }
  }
}

/// A model whose largest tensors have several leaves.
struct Large {
  Large() {
    TinyModel tiny;
    tiny.hidden = 512;
    tiny.intermediate = 6000;
    tiny.vocab = 5000;
    tiny.heads = 8;
    tiny.kv_heads = 4;
    tiny.head_dim = 64;
    Random random(3);
    tensors = random_tensors(tiny, random);
    write_model(temp / "model", tiny, tensors, 2);
  }

  std::unique_ptr<Job> plan(const fs::path& output, std::uint32_t tp = 2) const {
    Request request = shard_request(temp / "model", output, tp);
    request.companions = CompanionFiles::kAll;
    auto job = plan_shard(request);
    job->manifest = true;
    return job;
  }
  TempDir temp;
  TensorMap tensors;
};

Manifest manifest_of(const fs::path& output) {
  return parse_manifest(read_file(output / kManifestFile), output / kManifestFile);
}

std::vector<FileDigest> listed_in(const fs::path& output) {
  return parse_sha256sums(read_file(output / kSha256SumsFile), "SHA256SUMS");
}

TEST_CASE("Manifests of all layouts, formats and casts have the digests of the tensors that were written") {
  const Large large;
  std::vector<Manifest::Tensor> of_model;
  for (const auto& [name, tensor] : large.tensors)
    of_model.push_back({name, tensor.dtype, tensor.shape, expected_digest(tensor)});
  const auto check = [&](std::unique_ptr<Job> job) {
    job->manifest = true;
    CHECK(execute(*job, unsynced()).hashing_seconds > 0);
    const fs::path& output = job->output_directory;
    const Manifest manifest = manifest_of(output);
    CHECK((manifest.tensors == of_model));
    const auto lines = listed_in(output);
    std::size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(output)) files += entry.is_regular_file();
    CHECK(lines.size() + 1 == files);  // all but itself
    CHECK(verify_files(output, lines, unsynced()).same());
    const Checkpoint back = read_checkpoint(output, {ConfigUse::kStrict});
    CHECK(verify_manifest(back.map, manifest, "m", unsynced()).same());
  };
  for (const char* name : {"ranks", "presharded"}) {
    Request request = shard_request(large.temp / "model", large.temp / name, 2);
    request.target.layout = layout(name);
    check(plan_shard(request));
  }
  Request request = shard_request(large.temp / "model", large.temp / "xser", 4, 2);
  request.target.format = Format::kXser;
  check(plan_shard(request));
  Request back = consolidate_request(large.temp / "xser", large.temp / "whole");
  back.target.format = Format::kPytorch;
  check(plan_consolidate(back));
  CHECK(manifest_of(large.temp / "whole").files.front().path == "config.json");  // not the source's manifest

  Request cast = convert_request(large.temp / "model", large.temp / "cast");
  cast.dtype = DType::kF32;
  cast.target.options.set_number("max-shard-size", 1 << 20);
  const auto job = plan_convert(cast);
  job->manifest = true;
  execute(*job, unsynced());
  const Manifest manifest = manifest_of(large.temp / "cast");
  CHECK((manifest.options == std::map<std::string, Manifest::OptionValue>{{"dtype", std::string("F32")},
                                                                          {"format", std::string("safetensors")},
                                                                          {"max-shard-size", std::uint64_t{1} << 20}}));
  const TensorMap written = read_model(large.temp / "cast");
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    CHECK(tensor.dtype == DType::kF32);
    CHECK((tensor.digest == expected_digest(written.at(tensor.name))));
  }
}

TEST_CASE("Two runs make the same manifest, in one share or several, with little memory or much") {
  const Large large;
  std::string first;
  for (std::uint32_t count = 1; count <= 5; ++count) {
    const fs::path output = large.temp / ("out" + std::to_string(count));
    const auto job = large.plan(output);
    JobRun run(*job,
               {.threads = count, .max_memory_bytes = std::uint64_t{count % 2 ? 256u : 80u} << 20, .sync = false});
    run.prepare();
    ShareReport report;
    for (std::uint32_t index = count; index-- > 0;) merge(report, run.run({index, count}));
    run.finish(report);
    run.publish(std::move(report));
    const std::string text = read_file(output / kManifestFile);
    if (count == 1) first = text;
    CHECK(text == first);
  }
  const RunOptions little{.max_memory_bytes = kMinMemoryBytes, .sync = false};
  check_refused([&] { execute(*large.plan(large.temp / "little"), little); },
                {.kind = ErrorKind::kUsage,
                 .hint = "give at least 17.0 MiB, or leave out `manifest`",
                 .unwritten = large.temp / "little"});
  const Checkpoint model = read_checkpoint(large.temp / "model", {ConfigUse::kLenient});
  const Error alone = error_of([&] { compute_digests(model.map, {0}, little); });
  CHECK(alone.kind() == ErrorKind::kUsage);
  CHECK_THAT(alone.hint(), Says("give at least") && !Says("manifest"));
}

TEST_CASE("A name that no manifest can hold is an error before anything is written") {
  const Large large;
  const fs::path bad = large.temp / "model/we\xffird.txt", output = large.temp / "out";
  write_file(bad, "a");
  const auto job = large.plan(output);
  check_refused([&] { execute(*job, unsynced()); },
                {.path = bad, .says = "has a name that is not UTF-8", .hint = "`manifest`", .unwritten = output});
  job->manifest = false;
  execute(*job, unsynced());
  CHECK(fs::exists(output / "we\xffird.txt"));
}

TEST_CASE("A byte that was changed is found, with its tensor, leaf and file") {
  const Large large;
  const fs::path output = large.temp / "out";
  execute(*large.plan(output), unsynced());
  const Manifest manifest = manifest_of(output);
  const std::string file = "tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors";
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const std::string tensor = read_tensors(output / file).at(name).bytes;
  flip_byte(output / file, read_file(output / file).find(tensor) + tensor.size() - 1);
  const Checkpoint changed = read_checkpoint(output, {ConfigUse::kStrict});
  const ManifestVerification result = verify_manifest(changed.map, manifest, "m", unsynced());
  REQUIRE(result.different.size() == 1);
  CHECK(result.different[0].name == name);
  CHECK(result.different[0].leaves == 2);
  CHECK(result.different[0].differ == std::vector<std::uint64_t>{1});
  CHECK(result.different[0].files.size() == 2);  // a row is in both ranks' files
  CHECK_FALSE(result.same());
  CHECK(verify_files(output, listed_in(output), unsynced()).different == std::vector<std::string>{file});
}

TEST_CASE("Tensors that are missing, new or of another form are told") {
  const TempDir temp;
  Random random(1);
  TensorMap tensors;
  for (const char* name : {"a", "b", "c"}) tensors[name] = random_tensor(random, DType::kF32, {4});
  write_safetensors(temp / "m.safetensors", tensors);
  Manifest manifest;
  manifest.tensors = {{"a", DType::kF32, {4}, expected_digest(tensors.at("a"))},
                      {"b", DType::kF32, {2, 2}, expected_digest(tensors.at("b"))},
                      {"d", DType::kF32, {4}, {}}};
  const Checkpoint checkpoint = read_checkpoint(temp / "m.safetensors", {ConfigUse::kLenient});
  const ManifestVerification result = verify_manifest(checkpoint.map, manifest, "m", unsynced());
  CHECK(result.compared_tensors == 1);
  CHECK(result.only_manifest == std::vector<std::string>{"d"});
  CHECK(result.only_checkpoint == std::vector<std::string>{"c"});
  CHECK(result.other_form == std::vector<std::string>{"b: F32 [4], in the manifest F32 [2, 2]"});
  CHECK(result.different.empty());
  manifest.tensors = {{"a", DType::kF32, {4}, {{}, {{}, {}}}}};
  check_refused([&] { verify_manifest(checkpoint.map, manifest, "m", unsynced()); },
                {.says = "lists 2 leaves, but a tensor of its shape has 0"});
}

TEST_CASE("Padding is no tensor of a manifest, and is checked where a manifest is verified") {
  const Large large;
  Request request = shard_request(large.temp / "model", large.temp / "padded", 3);
  request.target.layout = layout("presharded");
  request.target.options.set_flag("pad", true);
  const auto job = plan_shard(request);
  job->manifest = true;
  execute(*job, unsynced());
  const auto whole = plan_consolidate(consolidate_request(large.temp / "padded", large.temp / "whole"));
  whole->manifest = true;
  execute(*whole, unsynced());
  const Manifest manifest = manifest_of(large.temp / "whole");
  CHECK((manifest.tensors == manifest_of(large.temp / "padded").tensors));
  CHECK(manifest.tensors.size() == large.tensors.size());
  const Checkpoint padded = read_checkpoint(large.temp / "padded", {ConfigUse::kStrict});
  CHECK(verify_manifest(padded.map, manifest, "m", unsynced()).same());
}

TEST_CASE("A manifest of what stood in a directory before is not left beside other files") {
  const Large large;
  const fs::path output = large.temp / "out";
  execute(*large.plan(output), unsynced());
  const auto before = snapshot(output);
  const auto job = large.plan(output, 4);
  job->force = true;
  job->manifest = false;
  check_refused([&] { execute(*job, unsynced()); }, {.path = output / kManifestFile, .hint = "`manifest`"});
  CHECK((snapshot(output) == before));
  job->manifest = true;
  execute(*job, unsynced());
  CHECK(manifest_of(output).tp == 4);
}

TEST_CASE("A manifest of some ranks alone is refused before anything is written") {
  const Large large;
  Request request = shard_request(large.temp / "model", large.temp / "out", 2);
  request.target.layout = layout("presharded");
  const auto job = plan_shard(request);
  job->manifest = true;
  job->shares_directory = true;
  check_refused([&] { execute(*job, unsynced()); }, {.kind = ErrorKind::kUsage, .unwritten = large.temp / "out"});
}

}  // namespace
}  // namespace reshard::test
