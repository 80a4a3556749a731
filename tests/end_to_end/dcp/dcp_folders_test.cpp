// accelerate's folders of a training run, with the model in one and its optimizer in another.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const fs::path kRun = testdata("golden/dcp/qwen3-fsdp1-accelerate/sharded");

/// A copy that may be spoiled.
void copy_run(const fs::path& from, const fs::path& to) {
  fs::create_directories(to.parent_path());
  fs::copy(from, to, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(to))
    fs::permissions(entry, fs::perms::owner_all, fs::perm_options::add);
}

std::string notes_of(const fs::path& run) {
  return join(read_checkpoint(run, {}).notes.texts(), "\n");
}

TEST_CASE("Two names of one folder, as accelerate wants them, are one checkpoint") {
  const TempDir temp;
  const fs::path model = temp / "one/pytorch_model_fsdp_0", optimizer = temp / "one/optimizer_0";
  convert(run_request(kRun, model, 3, "model"));
  SECTION("the optimizer's is a link") {
    fs::create_directory_symlink("pytorch_model_fsdp_0", optimizer);
  }
  SECTION("the model's is a link") {
    fs::rename(model, optimizer);
    fs::create_directory_symlink("optimizer_0", model);
  }
  SECTION("both are links") {
    fs::rename(model, temp / "both");
    fs::create_directory_symlink(temp / "both", model);
    fs::create_directory_symlink(temp / "both", optimizer);
  }
  const dcp::Content content = dcp::read(model);
  for (const fs::path& source : {temp / "one", model}) {
    const TempDir again;
    convert(run_request(source, again / "out", 2, "model"));
    const dcp::Content recut = dcp::read(again / "out");
    CHECK((recut.tensors == content.tensors));
    CHECK((recut.objects == content.objects));
  }
}

TEST_CASE("A hidden folder is of a run that writes, and no checkpoint") {
  const TempDir temp;
  copy_run(kRun / "pytorch_model_fsdp_0", temp / "runs/.out.reshard-abcdef");
  CHECK(layout("dcp")->recognise(local_storage(), temp / "runs").empty());
  fs::rename(temp / "runs/.out.reshard-abcdef", temp / "runs/pytorch_model_fsdp_0");
  CHECK(layout("dcp")->recognise(local_storage(), temp / "runs").size() == 1);
}

TEST_CASE("Of a folder of other weights and one of dcp none is taken, unless accelerate named it") {
  const TempDir temp;
  copy_run(kRun / "pytorch_model_fsdp_0", temp / "run/mine");
  copy_run(kRun / "optimizer_0", temp / "run/optimizer_0");
  CHECK(layout("dcp")->recognise(local_storage(), temp / "run").size() == 1);
  const std::string other = GENERATE("original", "sharded");
  copy_run(testdata("golden/optimum/llama-tp8-gqa") / other, temp / "run/other");
  CHECK(layout("dcp")->recognise(local_storage(), temp / "run").empty());
  const Error error =
      check_refused([&] { consolidated(temp / "run", temp / "out"); },
                    {.kind = other == "sharded" ? ErrorKind::kUsage : ErrorKind::kBadInput, .path = temp / "run"});
  CHECK_THAT(error.hint(), Says("give one of them: mine/, ") || Says("give its own directory"));
  fs::rename(temp / "run/mine", temp / "run/pytorch_model_fsdp_0");
  CHECK(layout("dcp")->recognise(local_storage(), temp / "run").size() == 1);
}

TEST_CASE("The optimizer beside the model is found however the model's folder is written") {
  const fs::path model = kRun / "pytorch_model_fsdp_0";
  for (const fs::path& source : {model, model / "", model / ".", model / "../pytorch_model_fsdp_0"}) {
    CAPTURE(source);
    const TempDir temp;
    convert(run_request(source, temp / "out", 2, "model"));
    CHECK(dcp::read(temp / "out").tensors.size() == 100);
  }
}

TEST_CASE("The optimizer beside the model is counted by its metadata alone, and no file is looked at twice") {
  FaultStorage storage;
  const Checkpoint checkpoint = read_checkpoint(storage, kRun, {});
  REQUIRE(checkpoint.beside_model.has_value());
  std::map<std::string, std::uint64_t> bytes_of, tensors_of;
  std::uint64_t bytes = 0;
  const dcp::Content content = dcp::read(kRun / "optimizer_0");
  for (const auto& [name, tensor] : content.tensors) {
    const std::string state = name.substr(name.rfind('.') + 1);
    bytes += tensor.bytes.size();
    bytes_of[state] += tensor.bytes.size();
    ++tensors_of[state];
  }
  CHECK(checkpoint.beside_model->optimizer.tensors == content.tensors.size());
  CHECK(checkpoint.beside_model->optimizer.bytes == bytes);
  CHECK(bytes_of.size() == 3);
  REQUIRE(checkpoint.beside_model->states.size() == bytes_of.size());
  for (const OptimizerSummary::State& state : checkpoint.beside_model->states) {
    CHECK(state.dtype == (state.name == "step" ? DType::kF32 : DType::kBF16));
    CHECK(state.bytes == bytes_of.at(state.name));
    CHECK(state.tensors == tensors_of.at(state.name));
  }
  CHECK(checkpoint.beside_model->other.tensors == 0);
  CHECK(checkpoint.leaves_states);
  const std::string notes = join(checkpoint.notes.texts(), "\n");
  CHECK_THAT(notes, Says("75 tensors of optimizer state ("));
  CHECK_THAT(notes, Says("left out 11 entries that are not tensors, such as optimizer.param_groups.0.lr"));
  const auto steps = storage.steps();
  for (const char* folder : {"pytorch_model_fsdp_0", "optimizer_0"})
    for (const char* name : {"__0_0.distcp", "__1_0.distcp"}) {
      const fs::path file = kRun / folder / name;
      CAPTURE(file);
      CHECK(storage.reads(file).empty() == (folder == std::string("optimizer_0")));
      const auto looks = std::count_if(steps.begin(), steps.end(), [&](const FaultStorage::Step& step) {
        return step.operation == FaultStorage::Operation::kLook && step.path == file;
      });
      CHECK((looks > 0 && looks <= 2));  // whether there is one, and how large it is
    }
}

TEST_CASE("Files of the optimizer that are missing or cut off are noted, though they are not read") {
  const TempDir temp;
  SECTION("in a folder of its own") {
    copy_run(kRun, temp / "run");
    const fs::path file = temp / "run/optimizer_0/__1_0.distcp";
    CHECK_THAT(notes_of(temp / "run"), !Says("cut off"));
    fs::resize_file(file, fs::file_size(file) - 1);
    CHECK_THAT(notes_of(temp / "run"),
               Says("the model's tensors that the metadata lists are complete, but the entries that are left out are "
                    "not: __1_0.distcp is missing or cut off, so training cannot continue from this checkpoint"));
    fs::remove(file), fs::remove(temp / "run/optimizer_0/__0_0.distcp");
    CHECK_THAT(notes_of(temp / "run"), Says("__0_0.distcp, __1_0.distcp are missing or cut off"));
  }
  SECTION("behind the model in its files") {
    const fs::path source = testdata("golden/dcp/llama-fsdp2-optim");
    const auto golden = nlohmann::json::parse(read_file(source / "golden.json"));
    copy_run(source / "sharded", temp / "run");
    std::map<std::string, std::uint64_t> model_ends;
    for (const auto& [folder, saved] : golden["folders"].items())
      for (const auto& [entry, tensor] : saved["tensors"].items())
        for (const auto& chunk : tensor["chunks"])
          if (!entry.starts_with("optim")) {
            std::uint64_t& end = model_ends[chunk["file"]];
            end = std::max(end, chunk["begin"].get<std::uint64_t>() + chunk["length"].get<std::uint64_t>());
          }
    std::size_t cut = 0;
    for (const auto& [name, end] : model_ends)
      if (fs::file_size(temp / "run" / name) > end) fs::resize_file(temp / "run" / name, end), ++cut;
    REQUIRE(cut > 0);
    CHECK_THAT(notes_of(temp / "run"),
               Says("metadata lists are complete, but the entries that are left out are not: __"));
  }
  CHECK_FALSE(converted(temp / "run", temp / "out").empty());
}

TEST_CASE("An optimizer beside the model that cannot be read does not keep the model from being read") {
  const TempDir temp;
  copy_run(kRun, temp / "run");
  write_file(temp / "run/optimizer_0/.metadata", "no pickle");
  const Checkpoint checkpoint = read_checkpoint(local_storage(), temp / "run", {});
  CHECK(checkpoint.map.logical.size() == 25);
  CHECK(checkpoint.beside_model->optimizer.tensors == 0);
  CHECK(checkpoint.leaves_states);
  const std::string notes = join(checkpoint.notes.texts(), "\n");
  CHECK_THAT(notes, Says("the optimizer next to the model is not counted: "));
  CHECK_THAT(notes, Says("optimizer_0/.metadata"));
  check_refused([&] { convert(run_request(temp / "run", temp / "out", 2)); },
                {.path = temp / "run/optimizer_0/.metadata"});
}

TEST_CASE("A model that nobody knows has the same names with its optimizer and without") {
  Random random(41);
  const TempDir temp;
  const Saved saved = small_run(random);
  SECTION("in one folder") {
    saved.write(temp / "run");
  }
  SECTION("in accelerate's two") {
    Saved model = saved, optimizer = saved;
    const auto is_optimizer = [](const auto& one) { return one.name.starts_with("optim."); };
    std::erase_if(model.tensors, is_optimizer);
    model.objects.clear();
    std::erase_if(optimizer.tensors, std::not_fn(is_optimizer));
    model.write(temp / "run/pytorch_model_fsdp_0");
    optimizer.write(temp / "run/optimizer_0");
  }
  for (const bool with_optimizer : {false, true}) {
    CAPTURE(with_optimizer);
    ReadContext context;
    if (with_optimizer) context.beside = Beside::kRead;
    const Checkpoint checkpoint = read_checkpoint(local_storage(), temp / "run", context);
    REQUIRE(checkpoint.map.logical.size() == 2);
    CHECK(checkpoint.map.find_logical("a.weight"));
    CHECK(checkpoint.map.find_logical("b.weight"));
    CHECK_THAT(join(checkpoint.notes.texts(), "\n"), Says("without the prefix model., as in the optimizer"));
    CHECK(checkpoint.states.of.size() == (with_optimizer ? 3 : 0));
  }
}

}  // namespace
}  // namespace reshard::test
