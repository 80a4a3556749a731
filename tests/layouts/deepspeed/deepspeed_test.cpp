#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/deepspeed/zero_folder.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"
#include "support/zero_files.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "mp_rank_00_model_states.pt";

fs::path optim_file(const fs::path& folder, int rank) {
  return folder / ("bf16_zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt");
}
fs::path rank_model_file(const fs::path& folder, int rank) {
  return folder / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt");
}

/// Two groups and a frozen weight; `rows` of the first parameter.
ZeroModel small_model(std::uint64_t rows = 5) {
  Random random(1);
  ZeroModel model;
  model.groups = {{"a", "b"}, {"c"}};
  model.frozen = {"f"};
  model.masters = {{"a", random_tensor(random, DType::kF32, {rows, 3})},
                   {"b", random_tensor(random, DType::kF32, {4, 2})},
                   {"c", random_tensor(random, DType::kF32, {6})}};
  for (const auto& [name, data] : model.masters) model.module[name] = random_tensor(random, DType::kBF16, data.shape);
  model.module["f"] = random_tensor(random, DType::kBF16, {3});
  model.module["steps"] = random_tensor(random, DType::kI64, {});
  return model;
}

fs::path written(const TempDir& temp, unsigned stage, std::uint32_t ranks, const ZeroModel& model = small_model(),
                 const char* name = "global_step1") {
  Random random(2);
  write_zero(temp / name, model, stage, ranks, 1, random);
  return temp / name;
}

Checkpoint read(const fs::path& path) {
  return read_checkpoint(local_storage(), path, {});
}

void check_unread(const fs::path& path, const Refusal& refusal) {
  check_refused([&] { read(path); }, refusal);
}

void copy_over(const fs::path& from, const fs::path& to) {
  fs::copy_file(from, to, fs::copy_options::overwrite_existing);
}

std::uint32_t find(const Checkpoint& checkpoint, const char* name) {
  return checkpoint.map.find_logical(name).value();
}

Checkpoint read_masters(const fs::path& folder) {
  ReadContext context;
  context.options.set("weights", "master");
  return read_checkpoint(local_storage(), folder, context);
}

/// A checkpoint of small_model() and what is done to it before it is refused.
struct Damaged {
  const char* title;
  unsigned stage;
  std::uint32_t ranks;
  std::function<void(const fs::path& folder)> spoil;
  std::function<Refusal(const fs::path& folder)> refusal;
};

void check_damaged(const std::vector<Damaged>& rows) {
  for (const Damaged& row : rows) DYNAMIC_SECTION(row.title) {
      const TempDir temp;
      const fs::path folder = written(temp, row.stage, row.ranks);
      row.spoil(folder);
      check_unread(folder, row.refusal(folder));
    }
}

/// A refusal that says this, whatever the folder.
auto saying(const Texts& says, ErrorKind kind = ErrorKind::kBadInput) {
  return [=](const fs::path&) { return Refusal{.kind = kind, .says = says}; };
}

/// Another checkpoint next to `folder`, of `rows` in its first parameter.
fs::path other_save(const fs::path& folder, unsigned stage, std::uint32_t ranks, std::uint64_t rows = 50) {
  Random random(2);
  fs::path other = folder.parent_path() / "other";
  write_zero(other, small_model(rows), stage, ranks, 1, random);
  return other;
}

TEST_CASE("ZeRO's names of files are understood") {
  using Kind = ZeroFileName::Kind;
  const auto kind_of = [](const char* name) { return zero_file_name(name).value().kind; };
  CHECK(kind_of("mp_rank_00_model_states.pt") == Kind::kModelStates);
  CHECK_FALSE(zero_file_name("mp_rank_00_model_states.pt")->dp_rank);
  CHECK(zero_file_name("zero_pp_rank_12_mp_rank_03_model_states.pt")->dp_rank == 12u);
  CHECK(zero_file_name("zero_pp_rank_12_mp_rank_03_model_states.pt")->mp_rank == 3);
  for (const char* prefix : {"", "bf16_", "fp16_"}) {
    const auto name = zero_file_name(std::string(prefix) + "zero_pp_rank_10_mp_rank_00_optim_states.pt");
    REQUIRE(name);
    CHECK(name->kind == Kind::kOptimStates);
    CHECK(name->dp_rank == 10u);
  }
  CHECK(kind_of("layer_00-model_00-model_states.pt") == Kind::kPartOfModel);
  CHECK(kind_of("layer_0_expert_1_mp_rank_00_model_states.pt") == Kind::kPartOfModel);
  CHECK(kind_of("expp_rank_0_mp_rank_00_optim_states.pt") == Kind::kPartOfModel);
  for (const char* name : {"mp_rank_00_optim_states.pt", "zero_pp_rank__mp_rank_00_optim_states.pt", "model_states.pt",
                           "mp_rank_00_model_states.pt.tmp", "zero_pp_rank_0_mp_rank_00x_model_states.pt",
                           "zero_pp_rank_99999999999_mp_rank_00_model_states.pt", "mp_rank_0a_model_states.pt"})
    CHECK_FALSE(zero_file_name(name));
}

TEST_CASE("A checkpoint of ZeRO is found in its tag folder and in the directory whose latest names it") {
  const TempDir temp;
  const fs::path folder = written(temp, 2, 2);
  CHECK(read(folder).layout->traits().name == std::string("deepspeed"));
  CHECK(read(folder).directory == folder);
  CHECK_FALSE(find_shards(temp.path()));
  for (const char* text : {"global_step1", "global_step1\n"}) {
    write_file(temp / "latest", text);
    REQUIRE(find_shards(temp.path()));
    CHECK(find_shards(temp.path())->path == folder);
    CHECK(read(temp.path()).directory == temp.path());
    CHECK(read(folder).directory == temp.path());
  }
  for (const char* text : {"", "..", "/etc", "a/b", "step2"}) {
    write_file(temp / "latest", text);
    CHECK_FALSE(find_shards(temp.path()));
  }
}

TEST_CASE("A latest that names a folder that is not there is an error") {
  const TempDir temp;
  written(temp, 2, 2);
  for (const std::string tag : {"global_step3", "step3"}) {
    write_file(temp / "latest", tag);
    if (tag == "step3") write_file(temp / "zero_to_fp32.py", "");
    check_unread(temp.path(), {.path = temp / "latest", .says = "names " + tag + ", which does not exist"});
  }
}

TEST_CASE("The mesh, notes and metadata of a checkpoint of ZeRO say what was found") {
  const TempDir temp;
  const Checkpoint second = read(written(temp, 2, 3));
  CHECK(second.file_metadata ==
        std::vector<std::pair<std::string, std::string>>{{"zero_stage", "2"}, {"zero_ranks", "3"}});
  const std::string notes = nlohmann::json(second.notes.texts()).dump();
  CHECK_THAT(notes, Says("6 tensors of the optimizer's master weights (116 B) are left out"));
  CHECK_THAT(notes, Says("4 tensors of optimizer state (28 B) are left out"));
  CHECK(second.map.files.size() == 1);
  const Checkpoint third = read(written(temp, 3, 3, small_model(), "third"));
  CHECK(third.map.files.size() == 6);
  CHECK(third.map.logical[*third.map.find_logical("a")].model_dtype == DType::kBF16);
  CHECK(third.map.logical.at(find(third, "f")).dtype == DType::kBF16);
}

TEST_CASE("Ranks that are missing are refused") {
  const auto without = [](int first, int last, fs::path (*file)(const fs::path&, int)) {
    return [=](const fs::path& folder) {
      for (int rank = first; rank <= last; ++rank) fs::remove(file(folder, rank));
    };
  };
  check_damaged({{"the last of the optimizer's files", 2, 3, without(2, 2, optim_file),
                  [](const fs::path& folder) {
                    return Refusal{.path = optim_file(folder, 0),
                                   .says = "its \"partition_count\" is 3, but there are 2 rank files"};
                  }},
                 {"the first of the optimizer's files", 1, 2, without(0, 0, optim_file),
                  saying("contains optimizer states of rank 1, but none of rank 0")},
                 {"one of the module's files of stage 3", 3, 3, without(1, 1, rank_model_file),
                  saying("contains model states of rank 2, but none of rank 1")},
                 {"the last of the module's files of stage 3", 3, 3, without(2, 2, rank_model_file),
                  saying("*_optim_states.pt of 3 ranks, but *_model_states.pt of 2")},
                 {"all of the module's files", 2, 2, [](const fs::path& folder) { fs::remove(folder / kModelFile); },
                  saying("contains no *_model_states.pt")},
                 {"all of the optimizer's files, of stage 3", 3, 2, without(0, 1, optim_file),
                  saying("contains no *_optim_states.pt, which have the master weights")}});
}

TEST_CASE("Optimizer files of further groups of ranks, as MiCS has them, are replicas") {
  const TempDir temp;
  const fs::path folder = written(temp, 3, 2);
  const Checkpoint alone = read(folder);
  for (const int rank : {0, 1}) copy_over(optim_file(folder, rank), optim_file(folder, rank + 2));
  const Checkpoint all = read(folder);
  REQUIRE(all.map.files.size() == alone.map.files.size());
  for (std::size_t i = 0; i < all.map.files.size(); ++i) CHECK(all.map.files[i].path == alone.map.files[i].path);
  CHECK(all.map.tensor_count() == alone.map.tensor_count());
  CHECK_THAT(all.notes.back(), Says("2 optimizer files of further groups of 2 ranks (MiCS) are left out"));
  fs::remove(optim_file(folder, 3));
  check_unread(folder, {.says = "*_optim_states.pt of 3 ranks, but *_model_states.pt of 2"});
}

TEST_CASE("A module's weights are read without the optimizer's files, but not its masters") {
  const TempDir temp;
  const fs::path folder = written(temp, 2, 2);
  for (const int rank : {0, 1}) fs::remove(optim_file(folder, rank));
  CHECK(read(folder).map.tensor_count() == 5);
  check_refused([&] { read_masters(folder); },
                {.says = "contains no *_optim_states.pt", .hint = "leave out `weights`"});
}

TEST_CASE("Files of ranks that were swapped are refused by what they say of their parts") {
  ZeroModel even = small_model(4);
  even.groups = {{"a", "b"}};  // 20 elements, no padding: both files have the same shapes
  for (const auto& [model, says] :
       {std::pair(small_model(), "has 12 elements, but"), {even, "its \"param_slice_mappings\""}}) {
    const TempDir temp;
    const fs::path folder = written(temp, 2, 2, model);
    swap_files(optim_file(folder, 0), optim_file(folder, 1));
    const Error error = check_refused([&] { read(folder); }, {.says = says});
    CHECK_THAT(error.path(), Says("zero_pp_rank_"));
  }
}

TEST_CASE("Model-parallel ranks of ZeRO are refused by the file that belongs to one") {
  using namespace pickles;
  const TempDir temp;
  const fs::path file = temp / "global_step1" / kModelFile;
  write_file(file, torch_zip(stream(dict({{"module", dict({})}, {"mp_world_size", number(2)}})), {}));
  check_unread(
      file.parent_path(),
      {.kind = ErrorKind::kUnsupported,
       .path = file,
       .says = "belongs to one of 2 model-parallel ranks; only checkpoints without model parallelism are read"});
}

TEST_CASE("Padding behind parameters of ZeRO 1 and 2 is left out, as the files say where it is") {
  const TempDir temp;
  ZeroModel model = small_model();
  model.alignment_elems = 4;
  const fs::path folder = written(temp, 2, 2, model);
  CHECK(read(folder).map.tensor_count() == 5);
  const Checkpoint found = read_masters(folder);
  // 15 elements of "a" and 1 of padding are rank 0's first partition, of 12, and part of rank 1's.
  const auto& pieces = found.map.pieces[find(found, "b")];
  REQUIRE(pieces.size() == 1);
  CHECK(found.map.stored[pieces[0].stored].file == 2);
  model.alignment_elems = 2;  // ranks that disagree
  copy_over(optim_file(written(temp, 2, 2, model, "other"), 1), optim_file(folder, 1));
  check_unread(folder, {.path = optim_file(folder, 1),
                        .says = "its \"param_alignment_paddings\" differs from that of bf16_zero_pp_rank_0"});
}

TEST_CASE("Padding of ZeRO 1 and 2 may be left out of several ranks") {
  const TempDir temp;
  ZeroModel model = small_model(1);  // 11 and 6 elements
  model.lean_ranks = true;
  // Partitions of 2, but ranks 5 to 7 have 1, 0 and 0.
  const Checkpoint found = read_masters(written(temp, 2, 8, model));
  CHECK(found.map.pieces[find(found, "b")].size() == 8);  // rows of two, cut in between
}

/// Replaces the optimizer of rank 1 by that of an earlier step.
void copy_earlier_optimizer(const fs::path& folder) {
  ZeroModel earlier = small_model();
  earlier.global_steps = 10;
  Random random(2);
  const fs::path other = folder.parent_path() / "other";
  write_zero(other, earlier, fs::exists(rank_model_file(folder, 1)) ? 3 : 2, 2, 1, random);
  copy_over(optim_file(other, 1), optim_file(folder, 1));
}

Refusal says_earlier_optimizer(const fs::path& folder) {
  return {.path = optim_file(folder, 1), .says = "its optimizer has made 10 steps, but that of "};
}

TEST_CASE("Files of two checkpoints are refused") {
  std::vector<Damaged> rows{
      {"ranks that disagree about the parameters", 3, 2,
       [](const fs::path& folder) {
         copy_over(rank_model_file(other_save(folder, 3, 2), 1), rank_model_file(folder, 1));
       },
       [](const fs::path& folder) {
         return Refusal{.path = rank_model_file(folder, 1),
                        .says = "its \"param_shapes\" differs from that of zero_pp_rank_0_mp_rank_00_model_states.pt"};
       }},
      {"ranks of two steps", 3, 2,
       [](const fs::path& folder) {
         ZeroModel earlier = small_model();
         earlier.global_steps = 10;
         Random random(2);
         write_zero(folder.parent_path() / "other", earlier, 3, 2, 1, random);
         copy_over(rank_model_file(folder.parent_path() / "other", 1), rank_model_file(folder, 1));
       },
       [](const fs::path& folder) {
         return Refusal{.path = rank_model_file(folder, 1),
                        .says = "its \"global_steps\" differs from that of zero_pp_rank_0_mp_rank_00_model_states.pt"};
       }},
      {"optimizers of two steps, of ZeRO 3", 3, 2, copy_earlier_optimizer, says_earlier_optimizer},
      {"optimizers of two steps, of ZeRO 2", 2, 2, copy_earlier_optimizer, says_earlier_optimizer},
      {"one rank's optimizer over another's", 3, 2,
       [](const fs::path& folder) {
         ZeroModel model = small_model(40);
         Random random(2);
         write_zero(folder, model, 3, 2, 1, random);
         copy_over(optim_file(folder, 0), optim_file(folder, 1));
       },
       [](const fs::path& folder) {
         return Refusal{.path = optim_file(folder, 1),
                        .says = "has the same weights as bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"};
       }},
      {"two stages", 3, 2,
       [](const fs::path& folder) { copy_over(other_save(folder, 2, 2, 5) / kModelFile, folder / kModelFile); },
       saying({"of ZeRO 1 or 2 and", "of ZeRO 3"})},
      {"model states of another stage", 3, 2,
       [](const fs::path& folder) {
         copy_over(other_save(folder, 2, 2, 5) / kModelFile, folder / kModelFile);
         for (const int rank : {0, 1}) fs::remove(rank_model_file(folder, rank));
       },
       saying("belongs to ZeRO 3, but mp_rank_00_model_states.pt to ZeRO 1 or 2")},
      {"one rank twice", 1, 2,
       [](const fs::path& folder) {
         copy_over(optim_file(folder, 1), folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt");
       },
       saying("belongs to rank 1, as does bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")},
      {"model-parallel ranks", 1, 1,
       [](const fs::path& folder) { write_file(folder / "mp_rank_01_model_states.pt", ""); },
       saying("split over model-parallel ranks", ErrorKind::kUnsupported)},
      {"pipeline stages", 1, 1,
       [](const fs::path& folder) { write_file(folder / "layer_00-model_00-model_states.pt", ""); },
       saying("split over pipeline stages or experts", ErrorKind::kUnsupported)}};
  for (const unsigned stage : {1u, 3u}) {
    rows.push_back({stage == 1 ? "partitions of others, stage 1" : "partitions of others, stage 3", stage, 2,
                    [=](const fs::path& folder) {
                      const fs::path other = other_save(folder, stage, 2);
                      for (const int rank : {0, 1}) copy_over(optim_file(other, rank), optim_file(folder, rank));
                    },
                    saying(" elements, but the parameters")});
    rows.push_back(
        {stage == 1 ? "a longer partition, stage 1" : "a longer partition, stage 3", stage, 3,
         [=](const fs::path& folder) { copy_over(optim_file(other_save(folder, stage, 3), 1), optim_file(folder, 1)); },
         [](const fs::path& folder) {
           return Refusal{.path = optim_file(folder, 1),
                          .says = "elements, but " + optim_file(folder, 0).filename().string() + " has "};
         }});
  }
  check_damaged(rows);
}

TEST_CASE("A universal checkpoint is found by latest_universal, and its parameters are all there") {
  const TempDir temp;
  Random random(2);
  const fs::path folder = temp / "universal", a = folder / "zero/a";
  const ZeroModel model = small_model();
  write_universal(folder, model, 3, 2, random);
  write_file(temp / "latest_universal", "universal");
  CHECK(find_shards(temp.path())->path == folder);
  const Checkpoint found = read(temp.path());
  CHECK(found.file_metadata[0].second == "universal");
  CHECK_THAT(nlohmann::json(found.notes.texts()).dump(), Says("3 tensors of optimizer state"));
  CHECK(found.map.logical[*found.map.find_logical("a")].model_dtype == DType::kBF16);

  write_file(temp / "latest_universal", "other");
  check_unread(temp.path(), {.path = temp / "latest_universal", .says = "names other, which does not exist"});
  fs::remove(temp / "latest_universal");
  fs::copy(a, folder / "zero/other", fs::copy_options::recursive);
  check_unread(folder, {.path = folder / "zero/other", .says = "is the folder of a parameter that \"param_shapes\""});
  fs::remove_all(folder / "zero/other");
  copy_over(folder / "zero/b/fp32.pt", a / "fp32.pt");
  check_unread(folder, {.path = a / "fp32.pt", .says = "has the shape [8], but \"param_shapes\" says [5, 3]"});
  fs::remove(a / "fp32.pt");
  check_unread(folder, {.tensor = "a", .says = "has no file fp32.pt"});
  ZeroModel hostile = model;  // a name that leads out of the folder
  hostile.groups[0].push_back("../../x");
  hostile.masters["../../x"] = hostile.module["../../x"] = model.masters.at("a");
  write_universal(temp / "hostile", hostile, 1, 1, random);
  check_unread(temp / "hostile", {.tensor = "../../x", .says = "has no file fp32.pt"});
}

TEST_CASE("A frozen weight of another shape than its parameter is refused, whatever its strides") {
  using namespace pickles;
  const TempDir temp;
  const fs::path folder = temp / "global_step1", file = folder / kModelFile;
  const auto write = [&](const View& view) {
    const std::string root = dict({{"module", dict({{"w", tensor()}})},
                                   {"param_shapes", list({})},
                                   {"frozen_param_shapes", dict({{"f", numbers({2, 3})}})},
                                   {"frozen_param_fragments", dict({{"f", tensor(view)}})}});
    write_file(file, torch_zip(stream(root), {{"0", std::string(48, '\1')}}));
  };
  write({.shape = {2, 3}, .strides = {1, 2}});
  const Checkpoint found = read(folder);
  CHECK(found.map.stored[found.map.pieces[find(found, "f")][0].stored].strides() == Dims{1, 2});
  for (const View& view : {View{.shape = {3, 2}, .strides = {1, 3}}, View{.shape = {6}, .strides = {2}}}) {
    write(view);
    check_unread(folder,
                 {.path = file, .tensor = "f", .says = "in \"frozen_param_fragments\", but should be F32 [2, 3]"});
  }
}

TEST_CASE("Parameters of ZeRO that do not agree with the module are refused") {
  const auto check = [](unsigned stage, const Refusal& refusal, const std::function<void(TensorMap&)>& change) {
    const TempDir temp;
    ZeroModel model = small_model();
    change(model.module);
    check_unread(written(temp, stage, 2, model), refusal);
  };
  check(2, {.tensor = "a", .says = "has the shape [3, 5] in \"module\", but [5, 3] in \"param_shapes\""},
        [](TensorMap& module) { std::swap(module.at("a").shape[0], module.at("a").shape[1]); });
  check(2, {.tensor = "b", .says = "is in \"param_shapes\", but not in \"module\""},
        [](TensorMap& module) { module.erase("b"); });
  check(3, {.tensor = "extra", .says = "its values are missing"},
        [](TensorMap& module) { module["extra"] = module.at("steps"); });
}

}  // namespace
}  // namespace reshard::test
