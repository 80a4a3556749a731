// Tensors that are computed by recipes of these tests: sharded, killed and resumed, on several ranks, verified, refused.

#include "support/recipes.h"

#include <bit>
#include <nlohmann/json.hpp>

#include "engine/publish/stopped_run.h"
#include "reshard/engine/check/digests.h"
#include "reshard/engine/check/verify.h"
#include "reshard/engine/job_run.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/engine/ranks/run_fingerprint.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/output/make_target.h"
#include "support/refusals.h"
#include "support/thread_ranks.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kRank = 3;
constexpr float kFactor = 0.3f;
const std::string kScaled = "model.layers.0.mlp.up_proj.weight";
const std::string kScale = kScaled + "_scale_inv";
const std::string kMerged = "model.layers.0.mlp.down_proj.weight";
const std::string kA = kMerged + ".lora_A";
const std::string kB = kMerged + ".lora_B";

std::vector<float> numbers(const TensorData& tensor) {
  const Box box = whole(tensor.shape);
  return values_of({box, tensor.dtype, std::as_bytes(std::span(tensor.bytes))});
}

/// Rounds to the nearest BF16, ties to even.
std::uint16_t bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename ValueAt>
TensorData matrix(std::uint64_t rows, std::uint64_t columns, ValueAt&& value_at) {
  TensorData made{DType::kBF16, {rows, columns}, {}};
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t c = 0; c < columns; ++c) {
      const std::uint16_t bits = bf16(value_at(r, c));
      made.bytes += {static_cast<char>(bits), static_cast<char>(bits >> 8)};
    }
  return made;
}

/// A model with a scale and two factors among its tensors, and the shards of what a plain loop makes of them.
struct Scaled {
  Scaled() {
    model.hidden = 160;
    model.intermediate = 300;
    Random random(5);
    tensors = random_tensors(model, random);
    const auto some = [&](std::uint64_t rows, std::uint64_t columns) {
      std::vector<float> values(rows * columns);
      for (float& value : values) value = static_cast<float>(pick(random, 1, 1000)) / 700 - 0.7f;
      return floats({rows, columns}, values);
    };
    for (const std::string& name : {kScaled, kMerged}) {
      const Dims shape = tensors.at(name).shape;
      const auto values = numbers(some(shape[0], shape[1]));
      tensors[name] = matrix(shape[0], shape[1], [&](auto r, auto c) { return values[r * shape[1] + c]; });
    }
    tensors[kScale] = some(3, 2);
    tensors[kA] = some(kRank, 300);
    tensors[kB] = some(160, kRank);
    write_model(temp / "model", model, tensors, 2);
  }

  /// What the recipes should make, by plain loops over whole tensors.
  TensorMap plain() const {
    TensorMap made = tensors;
    for (const std::string& input : {kScale, kA, kB}) made.erase(input);
    const auto w = numbers(tensors.at(kScaled)), scale = numbers(tensors.at(kScale));
    made[kScaled] = matrix(300, 160, [&](auto r, auto c) { return w[r * 160 + c] * scale[r / 128 * 2 + c / 128]; });
    const auto base = numbers(tensors.at(kMerged)), a = numbers(tensors.at(kA)), b = numbers(tensors.at(kB));
    made[kMerged] = matrix(160, 300, [&](auto r, auto c) {
      volatile float sum = 0;  // so that the compiler of this test fuses no product with a sum
      for (std::uint64_t k = 0; k < kRank; ++k) {
        volatile float product = b[r * kRank + k] * a[k * 300 + c];
        sum = sum + product;
      }
      volatile float product = kFactor * sum;
      return base[r * 300 + c] + product;
    });
    return made;
  }

  SourceMap transformed(SourceMap source) const {
    source = compute(std::move(source), kScaled, std::make_shared<ScaleBlocks>(), {kScale});
    return compute(std::move(source), kMerged, std::make_shared<AddLowRank>(kRank, kFactor), {kA, kB});
  }

  /// As plan_shard does it, with the transform after reading.
  std::unique_ptr<Job> plan(const fs::path& output) const {
    const Request request = shard_request(temp / "model", output, 2);
    const FoundCheckpoint found = found_at(local_storage(), request.source.path, SourceKind::kWhole);
    Draft draft{read_checkpoint(local_storage(), found, {.use = ConfigUse::kNeeded})};
    draft.model = draft.source.model;
    draft.wanted = draft.source.map.state_dict();
    std::erase_if(draft.wanted, [](const LogicalTensor& tensor) {
      return tensor.name == kScale || tensor.name == kA || tensor.name == kB;
    });
    draft.source.map = transformed(std::move(draft.source.map));
    TargetPlan target = make_target(local_storage(), draft, request.target, output);
    auto job = std::make_unique<Job>();
    job->command = "shard";
    job->source_directory = job->model_directory = request.source.path;
    job->output_directory = output;
    job->layout = request.target.layout;
    job->format = target.format;
    job->mesh = target.mesh;
    job->partition = target.partition;
    job->whole_folders = target.whole_folders;
    job->text_files = target.text_files;
    job->source = std::move(draft.source.map);
    job->target = std::move(target.map);
    job->program = make_program(job->source, job->target);
    return job;
  }

  /// Shards of the model of plain loops.
  std::map<std::string, std::string> expected() const {
    write_model(temp / "plain", model, plain());
    shard(shard_request(temp / "plain", temp / "expected", 2));
    return weights(temp / "expected");
  }
  static std::map<std::string, std::string> weights(const fs::path& directory) {
    auto files = snapshot(directory);
    std::erase_if(files, [](const auto& file) { return !file.first.ends_with(".safetensors"); });
    return files;
  }

  TempDir temp;
  TinyModel model;
  TensorMap tensors;
};

TEST_CASE("What recipes of tests compute is sharded with the values of a plain loop, whatever the blocks") {
  const Scaled model;
  RunOptions options = unsynced();
  options.threads = GENERATE(1u, 3u);
  options.max_memory_bytes = GENERATE(kMinMemoryBytes + (1u << 20), std::uint64_t{256} << 20);
  const auto job = model.plan(model.temp / "out");
  job->manifest = options.threads == 3 && options.max_memory_bytes > kMinMemoryBytes * 8;
  const auto expected = model.expected();
  CHECK(expected.size() == 2);
  execute(*job, options);
  CHECK((Scaled::weights(model.temp / "out") == expected));
}

TEST_CASE("Blocks of computed tensors of any size have the same bytes") {
  const Scaled model;
  const auto job = model.plan(model.temp / "out");
  const std::uint64_t block_bytes = GENERATE(64u, 500u, 5000u, 1u << 20);
  std::map<std::string, std::string> computed;
  std::mutex mutex;
  const Program program = make_reading_program(job->source);
  run_program(
      {&job->source}, program, {}, unsynced(),
      [&](const VisitedBlock& block) {
        const LogicalTensor& tensor = program.transfers[block.transfer].tensor({&job->source});
        if (tensor.name != kScaled && tensor.name != kMerged) return;
        const std::lock_guard lock(mutex);
        std::string& bytes = computed[tensor.name];
        bytes.resize(num_bytes(tensor.dtype, tensor.shape).value_or(0));
        std::memcpy(bytes.data() + block.first_elem * 2, block.bytes.data(), block.bytes.size());
      },
      block_bytes);
  for (const auto& [name, tensor] : model.plain())
    if (name == kScaled || name == kMerged) CHECK((computed.at(name) == tensor.bytes));
}

TEST_CASE("A run that computes, killed anywhere, goes on to the bytes of one run") {
  const Scaled model;
  const auto expected = model.expected();
  const auto job = model.plan(model.temp / "out/shards");
  fs::create_directory(model.temp / "out");
  FaultStorage whole;
  execute(*job, journalled(whole));
  bool any_resumed = false;
  for (std::uint64_t at = 1; at < whole.operations(); at += whole.operations() / 12) {
    fs::remove_all(model.temp / "out/shards");
    FaultStorage storage;
    const fs::path saved = model.temp / "out/saved";
    fs::path staging;
    {
      storage.before = [&](FaultStorage::Operation, std::uint64_t number) {
        if (number >= at) throw Error(ErrorKind::kInternal, "killed");
      };
      JobRun run(*job, journalled(storage));
      const Error error = error_of([&] {
        run.prepare();
        ShareReport report = run.run();
        run.finish(report);
        run.publish(std::move(report));
      });
      CHECK(error.message() == "killed");
      staging = run.prepared().root;
      if (!staging.empty()) fs::copy(staging, saved, fs::copy_options::recursive);  // the destructor removes it
      storage.before = {};
    }
    if (!staging.empty()) fs::rename(saved, staging);
    any_resumed = execute(*job, resuming()).resumed_bytes > 0 || any_resumed;
    CHECK((Scaled::weights(model.temp / "out/shards") == expected));
    remove_dead_runs(local_storage(), *job);
  }
  CHECK(any_resumed);
}

TEST_CASE("Several ranks compute together what one does") {
  const Scaled model;
  const auto expected = model.expected();
  check_none_threw(run_ranks(GENERATE(2u, 3u), [&](Together& together) {
    Progress progress;
    std::unique_ptr<Job> job;
    together.step("plan", progress, [&] { job = model.plan(model.temp / "out"); });
    RunOptions options = unsynced();
    options.progress = &progress;
    options.tuning.unit_bytes = 2000;
    options.tuning.max_shared_part = 1e9;
    execute(*job, options, together);
  }));
  CHECK((Scaled::weights(model.temp / "out") == expected));
}

TEST_CASE("Computed tensors are verified, and have digests, as those of files") {
  const Scaled model;
  model.expected();
  const auto job = model.plan(model.temp / "out");
  const Checkpoint plain = read_checkpoint(model.temp / "plain", {});
  const Verification same = verify(job->source, plain.map, {}, unsynced());
  CHECK(same.different.empty());
  CHECK(same.other_form.empty());
  CHECK(same.only_b.empty());
  CHECK(same.compared_tensors == plain.map.logical.size());
  for (const std::string& name : {kScaled, kMerged})
    CHECK(compute_digests(job->source, {*job->source.find_logical(name)}, unsynced(), false) ==
          compute_digests(plain.map, {*plain.map.find_logical(name)}, unsynced(), false));
}

TEST_CASE("What a recipe cannot compute is refused when it is planned, with file and tensor") {
  Scaled model;
  const auto refused = [&](const Refusal& refusal) {
    write_model(model.temp / "model", model.model, model.tensors);
    Refusal with_rest = refusal;
    with_rest.unwritten = model.temp / "out";
    const Error error = check_refused([&] { model.plan(model.temp / "out"); }, with_rest);
    CHECK(error.path() == (model.temp / "model/model.safetensors").string());
  };
  fs::remove_all(model.temp / "model");
  SECTION("a scale of another shape") {
    model.tensors[kScale] = floats({2, 3}, {1, 2, 3, 4, 5, 6});
    refused({.tensor = kScale, .says = "is F32 [2, 3], but should be F32 [3, 2]"});
  }
  SECTION("a scale of another dtype") {
    model.tensors[kScale] = matrix(3, 2, [](auto, auto) { return 1.0f; });
    refused({.tensor = kScale, .says = "is BF16 [3, 2], but should be F32 [3, 2]"});
  }
  SECTION("no scale") {
    model.tensors.erase(kScale);
    refused(
        {.tensor = kScaled, .says = "is computed from " + kScale + ", which no file contains", .hint = "incomplete"});
  }
}

TEST_CASE("Runs that compute otherwise have another fingerprint, and inputs that do not fit in memory are refused") {
  const Scaled model;
  const auto job = model.plan(model.temp / "out");
  const auto fingerprint = [&] { return to_string(run_fingerprint(*job, {})); };
  const std::string before = fingerprint();
  CHECK(to_string(run_fingerprint(*model.plan(model.temp / "out"), {})) == before);
  LogicalTensor& merged = job->source.logical[*job->source.find_logical(kMerged)];
  merged.computed =
      std::make_shared<Computed>(Computed{std::make_shared<AddLowRank>(kRank, 0.4f), merged.computed->inputs});
  CHECK(fingerprint() != before);
  RunOptions options = unsynced();
  options.max_memory_bytes = kMinMemoryBytes;
  check_refused([&] { execute(*job, options); }, {.kind = ErrorKind::kUsage,
                                                  .tensor = kMerged,
                                                  .says = "is too little for its inputs",
                                                  .hint = "give at least",
                                                  .unwritten = model.temp / "out"});
}

/// Needs all of its input for each block.
class Cumulate : public ScaleBlocks {
 public:
  void validate(std::span<const Operand>, const Operand&) const override {}
  Box input_box(std::size_t, const Box&) const override { return whole({std::uint64_t{2} << 20}); }
};

TEST_CASE("A tensor whose smallest block does not fit in memory with its input is refused before anything is read") {
  SourceMap map;
  map.files.push_back({{"none.safetensors", std::uint64_t{8} << 20}});
  const Dims shape{std::uint64_t{2} << 20};
  map.add_whole(map.add_stored(StoredTensor{"w", DType::kF32, shape, 0, 0}), "w");
  auto cumulated = std::make_shared<Computed>(Computed{std::make_shared<Cumulate>(), {"w"}});
  map.add_logical({"sums", DType::kF32, shape, std::move(cumulated)}, {});
  RunOptions options = unsynced();
  options.max_memory_bytes = std::uint64_t{8} << 20;
  check_refused([&] { run_program({&map}, make_reading_program(map), {}, options); },
                {.kind = ErrorKind::kUsage,
                 .tensor = "sums",
                 .says = "`max-memory` 8.00 MiB is too little for its inputs",
                 .hint = "give at least 9.00 MiB"});
}

}  // namespace
}  // namespace reshard::test
