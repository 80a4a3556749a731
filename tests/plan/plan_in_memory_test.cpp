// Whole plans with every input in memory: the same as from disk, and any operation on a file may fail.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include "reshard/plan/job/fingerprint.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Operation = FaultStorage::Operation;

/// A way to plan from what write_inputs has written.
struct PlanCase {
  std::string name;
  std::function<std::unique_ptr<Job>(Files& files, const fs::path& root)> plan;
};

constexpr const char* kRankLayouts[] = {"ranks", "optimum", "nxd", "presharded", "nxdi"};

/// A model in one file and in several, and shards of it in each layout, under `root`.
void write_inputs(const fs::path& root) {
  const TinyModel model{.tied = true};
  Random random(8);
  const TensorMap tensors = random_tensors(model, random);
  write_model(root / "model", model, tensors);
  write_model(root / "several", model, tensors, 3);
  for (const char* directory : {"model", "several"}) write_file(root / directory / "tokenizer/vocab.txt", "a b");
  for (const char* name : kRankLayouts) shard(deployed_request(layout(name), root / "several", root / name, 2));
  shard(root / "several", root / "run/step_3", {.layout = "optimum", .format = Format::kXser, .tp = 2});
}

/// The inputs in memory, under the path of a directory that is gone; made once.
struct Inputs {
  MemoryFiles files;
  fs::path root;
  std::map<std::string, std::unique_ptr<Job>> local_jobs;  // by the name of the case: planned from disk
  TensorMap tensors;

  Inputs();
};

std::vector<PlanCase> plan_cases() {
  std::vector<PlanCase> cases;
  for (const char* model : {"model", "several"})
    for (const char* name : kRankLayouts)
      cases.push_back({std::string("shard ") + model + " into " + name, [=](Files& files, const fs::path& root) {
                         return plan_shard(files, deployed_request(layout(name), root / model, root / "out", 2));
                       }});
  for (const char* name : {"ranks", "optimum", "nxd", "presharded", "nxdi", "run"})
    cases.push_back({std::string("consolidate ") + name, [=](Files& files, const fs::path& root) {
                       return plan_consolidate(files, consolidate_request(root / name, root / "out"));
                     }});
  cases.push_back({"convert a file", [](Files& files, const fs::path& root) {
                     return plan_convert(files, convert_request(root / "model/model.safetensors", root / "out",
                                                                {.dtype = DType::kF32}));
                   }});
  cases.push_back({"convert shards", [](Files& files, const fs::path& root) {
                     return plan_convert(files, convert_request(root / "run", root / "out",
                                                                {.layout = "ranks", .tp = 4, .dtype = DType::kF32}));
                   }});
  return cases;
}

Inputs::Inputs() {
  const TempDir temp;
  root = temp.path();
  write_inputs(root);
  load(files, root);
  tensors = read_model(root / "model");
  for (const PlanCase& one : plan_cases()) local_jobs[one.name] = one.plan(local_storage(), root);
}

Inputs& inputs() {
  static Inputs made;
  return made;
}

bool same_files(const std::vector<CopiedFile>& a, const std::vector<CopiedFile>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const CopiedFile& x, const CopiedFile& y) {
    return x.source == y.source && x.path == y.path && x.size_bytes == y.size_bytes;
  });
}

void check_same(const Job& a, const Job& b) {
  CHECK((fingerprint_of(a) == fingerprint_of(b)));
  CHECK((a.program == b.program));
  CHECK(a.notes == b.notes);
  CHECK(a.source_directory == b.source_directory);
  CHECK(a.model_directory == b.model_directory);
  CHECK(a.output_directory == b.output_directory);
  CHECK(same_files(a.copied_files, b.copied_files));
}

TEST_CASE("A job planned with all inputs in memory is the one planned from the same files on disk") {
  REQUIRE_FALSE(fs::exists(inputs().root));
  for (const PlanCase& one : plan_cases()) DYNAMIC_SECTION(one.name) {
      check_same(*one.plan(inputs().files, inputs().root), *inputs().local_jobs.at(one.name));
    }
}

/// Whether planning compares the tensor: a head that config.json ties to the embedding; heads of the first layer that
/// are replicas if config.json is wrong.
bool is_evidence(const Job& job, const std::string& name) {
  const bool has_tied = std::any_of(job.source.stored.begin(), job.source.stored.end(),
                                    [](const StoredTensor& tensor) { return tensor.tied; });
  if (name.ends_with("lm_head.weight") || name.ends_with("embed_tokens.weight")) return has_tied;
  return name.find("layers.0.self_attn.") != name.npos &&
         (name.ends_with(".k_proj.weight") || name.ends_with(".v_proj.weight"));
}

TEST_CASE("Planning reads no tensor data, but what shows ties and replicated heads") {
  MemoryFiles& files = inputs().files;
  const fs::path& root = inputs().root;
  for (const PlanCase& one : plan_cases()) DYNAMIC_SECTION(one.name) {
      FaultStorage watched(files);
      const auto job = one.plan(watched, root);
      for (const StoredTensor& tensor : job->source.stored) {
        const fs::path path = job->source.files[tensor.file].path;
        if (is_evidence(*job, tensor.name)) continue;
        if (path.extension() != ".safetensors") continue;  // archives are read in windows that hold small ones whole
        for (const FaultStorage::Range range : watched.reads(path)) {
          INFO(path << " tensor " << tensor.name.text() << " bytes " << range.begin_bytes << " to " << range.end_bytes);
          const bool apart =
              range.end_bytes <= tensor.offset_bytes || range.begin_bytes >= tensor.offset_bytes + tensor.size_bytes();
          CHECK(apart);
        }
      }
    }
}

/// Plans anew with one operation that fails, as `fail` arranges. The error names the file. Where there is none, the
/// operation had no effect on the plan, or a note tells of it.
/// \returns whether there was an error.
template <typename Fail>
bool fails_at(const PlanCase& one, MemoryFiles& files, const fs::path& root, const Job& expected,
              const FaultStorage::Step& step, const std::string& says, Fail&& fail) {
  FaultStorage storage(files);
  fail(storage);
  try {
    const auto job = one.plan(storage, root);
    const bool told = std::any_of(job->notes.begin(), job->notes.end(),
                                  [&](const std::string& note) { return note.find(says) != note.npos; });
    if (!told) check_same(*job, expected);
    return told;
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kIo);
    CHECK(error.path() == step.path.string());
    CHECK_THAT(error.what(), Says(says));
    return true;
  }
}

/// A plan as it is when nothing fails, and what it does with its files.
struct Undisturbed {
  std::unique_ptr<Job> job;
  std::vector<FaultStorage::Step> steps;
};

Undisturbed undisturbed(const PlanCase& one, MemoryFiles& files, const fs::path& root) {
  FaultStorage watched(files);
  auto job = one.plan(watched, root);
  return {std::move(job), watched.steps()};
}

TEST_CASE("Any operation on a file that fails while planning ends it with an error that names the file") {
  MemoryFiles& files = inputs().files;
  const fs::path& root = inputs().root;
  for (const PlanCase& one : plan_cases()) DYNAMIC_SECTION(one.name) {
      const Undisturbed plain = undisturbed(one, files, root);
      const auto& steps = plain.steps;
      CHECK(std::count_if(steps.begin(), steps.end(),
                          [](const FaultStorage::Step& step) { return step.operation == Operation::kRead; }) > 2);
      for (std::uint64_t number = 0; number < steps.size(); number += share_of_trials()) {
        INFO("operation " << number << " on " << steps[number].path);
        CHECK(fails_at(one, files, root, *plain.job, steps[number], "made to fail", [&](FaultStorage& storage) {
          storage.before = [&](Operation, std::uint64_t at) {
            if (at == number) throw Error(ErrorKind::kIo, "made to fail").in(steps[number].path);
          };
        }));
      }
    }
}

TEST_CASE("A file that is cut while it is planned with is an error that names it") {
  MemoryFiles& files = inputs().files;
  const fs::path& root = inputs().root;
  for (const PlanCase& one : plan_cases()) DYNAMIC_SECTION(one.name) {
      const Undisturbed plain = undisturbed(one, files, root);
      const auto& steps = plain.steps;
      for (std::uint64_t number = 0; number < steps.size(); number += share_of_trials()) {
        if (steps[number].operation != Operation::kRead) continue;
        INFO("operation " << number << " on " << steps[number].path);
        CHECK(fails_at(one, files, root, *plain.job, steps[number], "made to end here",
                       [&](FaultStorage& storage) { storage.cut_at = number; }));
      }
    }
}

TEST_CASE("What is planned with its inputs in memory runs with them there") {
  const TempDir output;
  MemoryFiles& files = inputs().files;
  RunOptions options = unsynced();
  options.stores = {files, local_storage()};
  execute(*plan_consolidate(files, consolidate_request(inputs().root / "optimum", output / "out")), options);
  CHECK((read_model(output / "out") == inputs().tensors));
  CHECK(read_file(output / "out/tokenizer/vocab.txt") == "a b");
}

}  // namespace
}  // namespace reshard::test
