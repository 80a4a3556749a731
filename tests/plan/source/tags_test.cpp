#include "reshard/plan/source/tags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "reshard/io/memory_files.h"
#include "support/fault_storage.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/unprivileged.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A tag with weights that says nothing of being finished, unless it has one of the marks.
Tag tag(const std::string& name, bool Tag::*mark = nullptr) {
  Tag result;
  result.name = name;
  result.has_weights = result.has_shards = true;
  if (mark != nullptr) result.*mark = true;
  return result;
}
Tag done(const std::string& name) {
  return tag(name, &Tag::is_done);
}
Tag cut_off(const std::string& name) {
  return tag(name, &Tag::is_cut_off);
}
Tag trained(const std::string& name) {
  return tag(name, &Tag::has_trainer_state);
}

std::string chosen(const std::vector<Tag>& tags, const std::optional<std::string>& latest = {}) {
  return choose_tag(tags, latest ? std::optional(LatestTag{*latest, "latest"}) : std::nullopt).name;
}

std::vector<std::string> names(const std::vector<Tag>& tags) {
  std::vector<std::string> result;
  for (const Tag& one : tags) result.push_back(one.name);
  return result;
}

/// Writes an NxD tag as its saves leave it, to disk or into memory; the content of the files does not matter here.
void write_nxd(const std::function<void(const fs::path&, const std::string&)>& write, const fs::path& folder,
               bool is_done) {
  write(folder / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt", "");
  write(folder / "checkpoint", "1");
  if (is_done) write(folder / "done", "1");
}
void write_nxd(const fs::path& folder, bool is_done = true) {
  write_nxd(write_file, folder, is_done);
}
void write_nxd(MemoryFiles& files, const fs::path& folder, bool is_done = true) {
  write_nxd([&](const fs::path& path, const std::string& content) { files.write(path, content); }, folder, is_done);
}

TEST_CASE("The newest tag is the one with the largest number, whatever the number of its digits") {
  CHECK(chosen({done("step_9"), done("step_10"), done("step_1")}) == "step_10");
  CHECK(chosen({done("step_0009"), done("step_10")}) == "step_10");
  CHECK(chosen({trained("checkpoint-900"), trained("checkpoint-1000")}) == "checkpoint-1000");
  CHECK(chosen({tag("epoch_2_step_5"), tag("epoch_1_step_70"), tag("epoch_2_step_40")}) == "epoch_2_step_40");
  CHECK(chosen({tag("99999999999999999999999"), tag("100000000000000000000000")}) == "100000000000000000000000");
  CHECK(chosen({done("step_3"), done("step_03"), done("step_4")}) == "step_4");
}

TEST_CASE("The note says which tag is taken, of how many, and which newer one is not finished") {
  CHECK(choose_tag({done("step_3")}, {}).note == "using step_3, the only complete checkpoint");
  CHECK(choose_tag({done("step_3"), done("step_6"), cut_off("step_9")}, {}).note ==
        "using step_6, the newest of 2 complete checkpoints; step_9 is newer, but incomplete: it has no file "
        "\"done\"; choose another with `tag`");
  CHECK(choose_tag({cut_off("step_3"), done("step_6")}, {}).note ==
        "using step_6, the only complete checkpoint; choose another with `tag`");
}

TEST_CASE("The file latest goes before numbers, unless what it names is not finished") {
  const std::vector<Tag> tags{done("step_3"), done("step_6"), cut_off("step_9")};
  CHECK(chosen(tags, "step_3") == "step_3");
  CHECK_THAT(choose_tag(tags, LatestTag{"step_3", "latest"}).note, Says("which the file \"latest\" names"));
  CHECK(chosen(tags, "step_9") == "step_6");
  CHECK_THAT(choose_tag(tags, LatestTag{"step_9", "latest"}).note,
             Says("step_9 is named by the file \"latest\", but incomplete"));
  CHECK(chosen({tag("best"), tag("step_3")}, "best") == "best");
}

TEST_CASE("Without markers weights suffice, but not beside tags of the same kind that have them") {
  CHECK(chosen({tag("checkpoint-10"), tag("checkpoint-20")}) == "checkpoint-20");
  CHECK(chosen({trained("checkpoint-10"), tag("checkpoint-20")}) == "checkpoint-10");
  CHECK_THAT(choose_tag({trained("checkpoint-10"), tag("checkpoint-20")}, {}).note,
             Says("it has no file \"trainer_state.json\", but checkpoint-10 has"));
  CHECK(chosen({done("step_3"), tag("step_6")}) == "step_3");
  CHECK_FALSE(unfinished_reason(tag("checkpoint-10"), {done("step_3"), tag("checkpoint-10")}));
}

TEST_CASE("A tag that was cut off, holds no weights or has a temporary name is never chosen") {
  Tag empty = done("step_6");
  empty.has_weights = false;
  CHECK(chosen({done("step_3"), empty}) == "step_3");
  Tag both = cut_off("step_6");
  both.has_trainer_state = true;
  CHECK(chosen({done("step_3"), both}) == "step_3");
  CHECK(chosen({trained("checkpoint-10"), trained("tmp-checkpoint-20")}) == "checkpoint-10");
}

TEST_CASE("Where no tag is finished the error lists them, each with its reason") {
  Tag empty = tag("step_6");
  empty.has_weights = false;
  check_refused(
      [&] {
        choose_tag({cut_off("step_3"), empty}, LatestTag{"step_3", "latest"});
      },
      {.says = "step_3 (it has no file \"done\"), step_6 (it contains no weights)", .hint = "`tag`"});
}

TEST_CASE("Names that do not tell which tag is the newest are an error that lists them") {
  for (const auto& tags : {std::vector<Tag>{done("epoch_2"), done("step_300")},
                           {trained("checkpoint-10"), trained("final")},
                           {done("step_3"), done("step_03")},
                           {done("step_3"), done("step_3-old")}})
    check_refused([&] { choose_tag(tags, {}); },
                  {.kind = ErrorKind::kUsage, .says = tags[0].name + ", " + tags[1].name, .hint = "`tag`"});
}

TEST_CASE("Of several checkpoints one whose name is not that of a tag is taken only if the file latest names it") {
  const std::vector<Tag> sizes{done("llama-8b"), done("llama-70b")};  // comparable, but not steps of one run
  for (const auto& tags : {std::vector<Tag>{cut_off("step_3"), done("llama-optimum")}, sizes})
    check_refused(
        [&] {
          choose_tag(tags, LatestTag{"step_3", "latest"});
        },
        {.kind = ErrorKind::kUsage,
         .says = {"none named like a training run's (step_3, checkpoint-10): ", tags.back().name},
         .hint = "`tag`"});
  CHECK_THAT(error_of([&] { choose_tag(sizes, {}); }).what(), Says("llama-8b, llama-70b"));
  CHECK(chosen({done("llama-optimum")}, "llama-optimum") == "llama-optimum");
  CHECK(chosen(sizes, "llama-8b") == "llama-8b");
}

TEST_CASE("The only checkpoint in a run is taken, whatever its name, unless there are other models beside it") {
  CHECK(choose_tag({done("foo")}, {}).note == "using foo, the only complete checkpoint");
  CHECK(chosen({trained("last")}) == "last");
  MemoryFiles files;
  const fs::path temp = "m";
  write_nxd(files, temp / "run/foo");
  files.write(temp / "run/logs/events", "");
  CHECK(find_checkpoint(files, temp / "run", {}).path == temp / "run/foo");
  files.write(temp / "trained/last/model.safetensors", "");
  files.write(temp / "trained/last/trainer_state.json", "");
  CHECK(find_checkpoint(files, temp / "trained", {}).path == temp / "trained/last");
  files.write(temp / "run/mistral/model.safetensors", "");
  CHECK(error_of([&] { find_checkpoint(files, temp / "run", {}); }).kind() == ErrorKind::kUsage);
}

TEST_CASE("Names of NxD Training are those of tags, and its folder of checkpoints is looked into") {
  for (const char* name : {"llama--step=10-consumed_samples=320.0.ckpt", "epoch=0-step=500.ckpt", "00100", "step_3"})
    CHECK(is_tag_name(name));
  for (const char* name : {"2026-01-31_10-00-00", "llama--step=last.ckpt", "llama-8b", "step="})
    CHECK_FALSE(is_tag_name(name));
  const auto name_of = [](int step) {
    return fmt::format("llama--step={}-consumed_samples={}.0.ckpt", step, 32 * step);
  };
  MemoryFiles files;
  const fs::path run = "m/llama/2026-01-31_10-00-00";
  for (const int step : {5, 10}) write_nxd(files, run / "checkpoints" / name_of(step));
  write_nxd(files, run / "checkpoints" / name_of(15), false);
  for (const fs::path& path : {run, run / "checkpoints"}) {
    const FoundCheckpoint found = find_checkpoint(files, path, {});
    CHECK(found.path == run / "checkpoints" / name_of(10));
    REQUIRE(found.notes.size() == 1);
    CHECK_THAT(found.notes.front(), Says(name_of(15) + " is newer, but incomplete"));
    CHECK(find_checkpoint(files, path, name_of(5)).path == run / "checkpoints" / name_of(5));
  }
  CHECK(list_tags(files, "m/llama").empty());
}

TEST_CASE("Of a step without weights of its own, the only model below it is taken") {
  MemoryFiles files;
  const auto rank = [&](const fs::path& folder) { files.write(folder / "model_world_size_1_rank_0.pt", ""); };
  const auto is_found = [&](const fs::path& run, const fs::path& model, SourceKind kind = SourceKind::kAny) {
    CAPTURE(run);
    const FoundCheckpoint found = find_checkpoint(files, run, {}, kind);
    CHECK(found.path == model);
    REQUIRE_FALSE(found.notes.empty());
    CHECK_THAT(found.notes.back(), Says("the only model in it"));
  };
  for (const char* step : {"global_step_10", "global_step_20"}) {
    rank(fs::path("verl") / step / "actor");
    files.write(fs::path("verl") / step / "actor/optim_world_size_1_rank_0.pt", "");
    files.write(fs::path("verl") / step / "data.pt", "");
  }
  is_found("verl", "verl/global_step_20/actor", SourceKind::kShards);
  is_found("verl/global_step_10", "verl/global_step_10/actor");
  files.write("verl/latest_checkpointed_iteration.txt", "10");
  is_found("verl", "verl/global_step_10/actor");
  CHECK_THAT(find_checkpoint(files, "verl", {}).notes.front(),
             Says("which the file \"latest_checkpointed_iteration.txt\" names; global_step_20 is newer;"));
  CHECK(find_checkpoint(files, "verl", "global_step_20").path == "verl/global_step_20/actor");
  rank("verl/global_step_10/critic");
  check_refused([&] { find_checkpoint(files, "verl", {}); }, {.path = "verl/global_step_10",
                                                              .says = "contains several models: actor, critic",
                                                              .hint = "such as verl/global_step_10/actor"});

  files.write("nemo/step_5/policy/weights/model/model.safetensors", "");
  files.write("nemo/step_5/policy/optimizer/optim/model.safetensors", "");
  is_found("nemo", "nemo/step_5/policy/weights/model");
  files.write("colossal/epoch0-step5/modeling/model.safetensors", "");
  is_found("colossal", "colossal/epoch0-step5/modeling");
  check_refused([&] { find_checkpoint(files, "colossal/epoch0-step5", {}, SourceKind::kShards); },
                {.says = "contains whole weights, in modeling, and no shards", .hint = "`convert`"});
  files.write("accelerate/checkpoint-5/pytorch_model_fsdp.bin", "");
  files.write("accelerate/checkpoint-5/optimizer.bin", "");
  is_found("accelerate", "accelerate/checkpoint-5/pytorch_model_fsdp.bin", SourceKind::kShards);
  files.write("deep/step_5/a/b/c/d/model.safetensors", "");
  CHECK(error_of([&] { find_checkpoint(files, "deep", {}); }).kind() == ErrorKind::kBadInput);
  files.write("other/models/actor/model.safetensors", "");  // no step
  CHECK(find_checkpoint(files, "other/models", {}).path == "other/models");
}

TEST_CASE("Of a directory of unrelated models none is taken without being asked for") {
  MemoryFiles files;
  const fs::path temp = "m";
  write_nxd(files, temp / "models/llama-optimum/shards");
  files.write(temp / "models/mistral/model.safetensors", "");
  for (const SourceKind content : {SourceKind::kAny, SourceKind::kShards})
    check_refused([&] { find_checkpoint(files, temp / "models", {}, content); },
                  {.kind = ErrorKind::kUsage, .path = temp / "models", .says = ": llama-optimum", .hint = "`tag`"});
  CHECK(find_checkpoint(files, temp / "models", "llama-optimum").path == temp / "models/llama-optimum");
  CHECK(find_checkpoint(files, temp / "models", "mistral").path == temp / "models/mistral");
  files.write(temp / "models/latest", "llama-optimum\n");
  CHECK(find_checkpoint(files, temp / "models", {}).path == temp / "models/llama-optimum");
}

TEST_CASE("Folders are tags by markers, trainer_state.json, or names of words of training and a number") {
  MemoryFiles files;
  const fs::path temp = "m";
  for (const char* name : {"step_3", "any"}) write_nxd(files, temp / name);
  for (const char* name :
       {"checkpoint-10/model.safetensors", "global_step20/model.safetensors", "epoch=1-step=5/pytorch_model.bin",
        "00100/adapter_model.safetensors", "run/trainer_state.json", "iter_0000001/notes.txt",
        "Llama-3/model.safetensors", "steps/model.safetensors", "logs/done", ".cache_1/model.safetensors"})
    files.write(temp / name, "");
  files.write(temp / "step_4", "a file");
  CHECK(names(list_tags(files, temp)) == std::vector<std::string>{"00100", "any", "checkpoint-10", "epoch=1-step=5",
                                                                  "global_step20", "iter_0000001", "run", "step_3"});
}

TEST_CASE("A tag's markers may be in its shards folder or its adapters' instead") {
  MemoryFiles files;
  const fs::path temp = "m";
  write_nxd(files, temp / "checkpoint-10/shards");
  write_nxd(files, temp / "checkpoint-20/shards", false);
  write_nxd(files, temp / "checkpoint-30/adapter_default/adapter_shards");
  write_nxd(files, temp / "checkpoint-40/adapter_a/adapter_shards");
  write_nxd(files, temp / "checkpoint-40/adapter_b/adapter_shards", false);
  const std::vector<Tag> tags = list_tags(files, temp);
  REQUIRE(tags.size() == 4);
  for (const Tag& one : tags) CHECK(one.has_shards);
  CHECK((tags[0].is_done && !tags[0].is_cut_off));
  CHECK((!tags[1].is_done && tags[1].is_cut_off));
  CHECK((tags[2].is_done && !tags[2].is_cut_off));
  CHECK((!tags[3].is_done && tags[3].is_cut_off));
  CHECK(find_checkpoint(files, temp, {}).path == temp / "checkpoint-30");
}

TEST_CASE("A path that is a checkpoint, a file or nothing is taken as it is, whatever lies in it") {
  MemoryFiles files;
  const fs::path temp = "m";
  write_nxd(files, temp / "run/step_3");
  CHECK(find_checkpoint(files, temp / "run/step_3", {}).path == temp / "run/step_3");
  CHECK(find_checkpoint(files, temp / "nowhere", {}).path == temp / "nowhere");
  files.write(temp / "run/model.safetensors", "");
  CHECK(find_checkpoint(files, temp / "run", {}).path == temp / "run");
  CHECK(find_checkpoint(files, temp / "run", {}).notes.empty());
  CHECK(find_checkpoint(files, temp / "run/model.safetensors", {}).path == temp / "run/model.safetensors");
  // Only shards can be consolidated, but the model in the directory is newer than those of the step.
  check_refused([&] { find_checkpoint(files, temp / "run", {}, SourceKind::kShards); },
                {.path = temp / "run", .says = "contains a finished model, and", .hint = "`tag`"});
  CHECK(find_checkpoint(files, temp / "run", "step_3").path == temp / "run/step_3");
  files.write(temp / "trainer/checkpoint-10/model.safetensors", "");
  CHECK(find_checkpoint(files, temp / "trainer", {}, SourceKind::kShards).path == temp / "trainer");
  CHECK(find_checkpoint(files, temp / "trainer", {}).path == temp / "trainer/checkpoint-10");
}

TEST_CASE("A finished adapter is one next to two sharded checkpoints, too, which are refused only if they are read") {
  MemoryFiles files;
  write_nxd(files, "run/shards");
  files.write("run/pytorch_model_fsdp_0/.metadata", "");
  check_refused([&] { find_checkpoint(files, "run", {}); }, {.says = "contains two sharded checkpoints"});
  files.write("run/adapter_model.safetensors", "");
  const FoundCheckpoint found = find_checkpoint(files, "run", {});
  CHECK(found.path == "run");
  check_refused([&] { read_checkpoint(files, found, {}); }, {.says = "contains two sharded checkpoints"});
  check_refused([&] { find_checkpoint(files, "run", {}, SourceKind::kShards); },
                {.says = "contains two sharded checkpoints"});
}

TEST_CASE("Folders with the names of tags that hold no weights are an error that lists them") {
  MemoryFiles files;
  const fs::path temp = "m";
  files.make_directory(temp / "run/step_3");
  files.write(temp / "run/step_4/scheduler.pt", "");
  for (const SourceKind content : {SourceKind::kAny, SourceKind::kShards}) {
    const Error error = check_refused(
        [&] { find_checkpoint(files, temp / "run", {}, content); },
        {.path = temp / "run",
         .says = "contains no complete checkpoint: step_3 (it contains no weights), step_4 (it contains no weights)"});
    CHECK_THAT(error.hint(), !Says("`tag`"));  // which would find nothing there either
  }
  CHECK(find_checkpoint(files, temp / "run/step_3", {}).path == temp / "run/step_3");
  files.make_directory(temp / "other/logs");
  CHECK(find_checkpoint(files, temp / "other", {}).path == temp / "other");
}

TEST_CASE("A run of Megatron-LM is named as what it is, and no run without checkpoints") {
  for (const std::string rank : {"mp_rank_00_000_000"}) {
    MemoryFiles files;
    files.write("m/iter_0000010/" + rank + "/model_optim_rng.pt", "");
    const bool has_latest = GENERATE(false, true);
    if (has_latest) files.write("m/latest_checkpointed_iteration.txt", "10");
    check_refused([&] { find_checkpoint(files, "m", {}); },
                  {.kind = ErrorKind::kUnsupported, .says = "a checkpoint of Megatron-LM"});
  }
}

TEST_CASE("An adapter's folder that may not be read hides neither a checkpoint nor the tags beside it") {
  const TempDir temp;
  write_file(temp / "m/model.safetensors", "");
  write_nxd(temp / "sharded/shards");
  write_nxd(temp / "run/step_3");
  write_nxd(temp / "adapters/adapter_a/adapter_shards");
  write_file(temp / "nothing/notes.txt", "");
  const char* const folders[] = {"m", "sharded", "run", "adapters", "nothing"};
  for (const char* folder : folders) fs::create_directories(temp / folder / "adapter_x/adapter_shards/model");
  const Unprivileged nobody(temp.path());
  for (const char* folder : folders) fs::permissions(temp / folder / "adapter_x", fs::perms::none);
  for (const char* folder : {"m", "sharded", "nothing"})
    CHECK(find_checkpoint(temp / folder, {}).path == temp / folder);
  CHECK(is_checkpoint(temp / "m"));
  CHECK(is_checkpoint(temp / "sharded", SourceKind::kShards));
  CHECK_FALSE(is_checkpoint(temp / "nothing"));
  CHECK_FALSE(is_checkpoint(temp / "m", SourceKind::kShards));
  CHECK(find_checkpoint(temp / "run", {}).path == temp / "run/step_3");
  // One of two adapters is not left out without a word.
  CHECK(error_of([&] { is_checkpoint(temp / "adapters"); }).code() == std::errc::permission_denied);
  for (const char* folder : folders) fs::permissions(temp / folder / "adapter_x", fs::perms::owner_all);
}

TEST_CASE("The name of a tag never leads out of the directory, from the command line or from the file latest") {
  MemoryFiles files;
  const fs::path temp = "m";
  write_nxd(files, temp / "run/step_3");
  write_nxd(files, temp / "other/step_3");
  for (const std::string name : {"", ".", "..", "../other", "/tmp", "step_3/", "step_3/..", "a\nb"}) {
    INFO(name);
    check_refused([&] { find_checkpoint(files, temp / "run", name); }, {.kind = ErrorKind::kUsage, .says = "`tag`"});
    if (name == "a\nb") continue;
    files.write(temp / "run/latest", name + "\n");
    check_refused([&] { find_checkpoint(files, temp / "run", {}); }, {.path = temp / "run/latest", .hint = "`tag`"});
  }
}

TEST_CASE("The file latest names a folder beside it, with or without an end of line, a link does, too") {
  const TempDir temp;
  write_nxd(temp / "step_3");
  write_nxd(temp / "step_6");
  for (const char* text : {"step_3", "step_3\n", "step_3 \r\n"}) {
    write_file(temp / "latest", text);
    CHECK(find_checkpoint(temp.path(), {}).path == temp / "step_3");
  }
  write_file(temp / "latest", "step_12");
  check_refused([&] { find_checkpoint(temp.path(), {}); }, {.path = temp / "latest", .says = "step_12"});
  for (const std::size_t length : {300, 5000}) {
    write_file(temp / "latest", std::string(length, 'x'));
    check_refused([&] { find_checkpoint(temp.path(), {}); }, {.path = temp / "latest"});
  }
  CHECK(find_checkpoint(temp.path(), "step_6").path == temp / "step_6");
  fs::remove(temp / "latest");
  fs::create_directory_symlink("step_3", temp / "latest");
  CHECK(find_checkpoint(temp.path(), {}).path == temp / "step_3");
  CHECK(names(list_tags(temp.path())) == std::vector<std::string>{"step_3", "step_6"});
}

TEST_CASE("A tag that is not there is an error that says which are, so is one of a file") {
  MemoryFiles files;
  const fs::path temp = "m";
  write_nxd(files, temp / "step_3");
  write_nxd(files, temp / "step_6", false);
  check_refused([&] { find_checkpoint(files, temp, "step_9"); },
                {.path = temp, .says = "step_9", .hint = "step_3, step_6"});
  CHECK(error_of([&] { find_checkpoint(files, temp / "step_3/done", "x"); }).kind() == ErrorKind::kUsage);
  CHECK(error_of([&] { find_checkpoint(files, temp / "nowhere", "x"); }).kind() == ErrorKind::kBadInput);
  CHECK(find_checkpoint(files, temp, "step_6").path == temp / "step_6");  // as it is asked for, finished or not
}

/// Finds the checkpoint of `run` once for each operation on one of the paths that `is_hit` has, which fails with `fault`.
void check_faults(const fs::path& run, int fault, const std::function<bool(const fs::path&)>& is_hit) {
  FaultStorage whole;
  find_checkpoint(whole, run, {});
  const auto steps = whole.steps();
  std::size_t faults = 0;
  for (std::uint64_t number = 0; number < steps.size(); ++number) {
    const fs::path path = steps[number].path;
    if (!is_hit(path)) continue;
    INFO(path.string());
    FaultStorage storage;
    storage.before = [&](FaultStorage::Operation, std::uint64_t now) {
      if (now == number) throw system_error(fault, "made to fail", path);
    };
    const auto read = [&] {
      find_checkpoint(storage, run, {});
      read_checkpoint(storage, run, {.use = ConfigUse::kLenient});
    };
    check_refused(read, {.kind = ErrorKind::kIo, .path = path});
    ++faults;
  }
  CHECK(faults > 0);
}

TEST_CASE("A file latest that cannot be looked at or read is an error, and so is a folder that a faulty disk hides") {
  const TempDir temp;
  for (const char* run : {"nxd", "hidden"})
    for (const char* step : {"step_3", "step_6"}) write_nxd(temp / run / step);
  write_file(temp / "nxd/latest", "step_3");
  for (const fs::path& run : {temp / "nxd", testdata("golden/deepspeed/qwen3-zero2-r2/sharded")})
    for (const int fault : {EIO, EACCES})
      check_faults(run, fault, [&](const fs::path& path) { return path == run / "latest"; });
  check_faults(temp / "hidden", EIO,
               [](const fs::path& path) { return path.string().find("step_6") != std::string::npos; });
}

}  // namespace
}  // namespace reshard::test
