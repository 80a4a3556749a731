#include <nlohmann/json.hpp>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/deepspeed/zero_folder.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/zero_files.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptim = "bf16_zero_pp_rank_";

fs::path optim_file(const fs::path& folder, int rank) {
  return folder / (kOptim + std::to_string(rank) + "_mp_rank_00_optim_states.pt");
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

Error refused(const fs::path& path, ErrorKind kind = ErrorKind::kBadInput) {
  const Error error = error_of([&] { read(path); });
  CHECK(error.kind() == kind);
  return error;
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
  const auto check = [&](const std::string& tag) {
    write_file(temp / "latest", tag);
    check_error(refused(temp.path()), {.path = temp / "latest", .says = "names " + tag + ", which is not there"});
  };
  check("global_step3");
  write_file(temp / "zero_to_fp32.py", "");
  check("step3");
}

TEST_CASE("The mesh, notes and metadata of a checkpoint of ZeRO say what was found") {
  const TempDir temp;
  const Checkpoint second = read(written(temp, 2, 3));
  CHECK(second.file_metadata ==
        std::vector<std::pair<std::string, std::string>>{{"zero_stage", "2"}, {"zero_ranks", "3"}});
  const std::string notes = nlohmann::json(second.notes).dump();
  CHECK_THAT(notes, Says("6 tensors of the optimizer's master weights (116 B) are left out"));
  CHECK_THAT(notes, Says("3 tensors of the optimizer's state (24 B) are left out"));
  CHECK(second.map.files.size() == 1);
  const Checkpoint third = read(written(temp, 3, 3, small_model(), "third"));
  CHECK(third.map.files.size() == 6);
  CHECK(third.map.logical.at(third.map.find_logical("a").value()).model_dtype == DType::kBF16);
  CHECK(third.map.logical.at(third.map.find_logical("f").value()).dtype == DType::kBF16);
}

TEST_CASE("Ranks that are missing are refused") {
  const TempDir temp;
  SECTION("the last of the optimizer's files") {
    const fs::path folder = written(temp, 2, 3);
    fs::remove(optim_file(folder, 2));
    check_error(refused(folder),
                {.path = optim_file(folder, 0), .says = "its \"partition_count\" says 3 ranks, but there are 2 files"});
  }
  SECTION("the first of the optimizer's files") {
    const fs::path folder = written(temp, 1, 2);
    fs::remove(optim_file(folder, 0));
    CHECK_THAT(refused(folder).what(), Says("holds optimizer states of rank 1, but none of rank 0"));
  }
  SECTION("one of the module's files of stage 3") {
    const fs::path folder = written(temp, 3, 3);
    fs::remove(rank_model_file(folder, 1));
    CHECK_THAT(refused(folder).what(), Says("holds model states of rank 2, but none of rank 1"));
  }
  SECTION("the last of the module's files of stage 3") {
    const fs::path folder = written(temp, 3, 3);
    fs::remove(rank_model_file(folder, 2));
    CHECK_THAT(refused(folder).what(), Says("*_optim_states.pt of 3 ranks, but *_model_states.pt of 2"));
  }
  SECTION("all of the module's files") {
    const fs::path folder = written(temp, 2, 2);
    fs::remove(folder / "mp_rank_00_model_states.pt");
    CHECK_THAT(refused(folder).what(), Says("holds no *_model_states.pt"));
  }
  SECTION("all of the optimizer's files, of stage 3") {
    const fs::path folder = written(temp, 3, 2);
    for (const int rank : {0, 1}) fs::remove(optim_file(folder, rank));
    CHECK_THAT(refused(folder).what(), Says("holds no *_optim_states.pt, which have the master weights"));
  }
}

TEST_CASE("A module's weights are read without the optimizer's files, but not its masters") {
  const TempDir temp;
  const fs::path folder = written(temp, 2, 2);
  for (const int rank : {0, 1}) fs::remove(optim_file(folder, rank));
  CHECK(read(folder).map.tensor_count() == 5);
  ReadContext context;
  context.options.set("weights", "master");
  check_refused([&] { read_checkpoint(local_storage(), folder, context); },
                {.says = "holds no *_optim_states.pt", .hint = "leave out `weights`"});
}

TEST_CASE("Files of ranks that were swapped are refused by what they say of their parts") {
  const TempDir temp;
  const auto swapped = [&](const ZeroModel& model, const char* name) {
    const fs::path folder = written(temp, 2, 2, model, name);
    fs::rename(optim_file(folder, 0), temp / "aside");
    fs::rename(optim_file(folder, 1), optim_file(folder, 0));
    fs::rename(temp / "aside", optim_file(folder, 1));
    const Error error = refused(folder);
    CHECK(error.path().find("zero_pp_rank_") != std::string::npos);
    return std::string(error.what());
  };
  CHECK_THAT(swapped(small_model(), "lengths"), Says("has 12 elements, but"));
  ZeroModel model = small_model(4);
  model.groups = {{"a", "b"}};  // 20 elements, no padding: both files have the same shapes
  CHECK_THAT(swapped(model, "places"), Says("its \"param_slice_mappings\""));
}

TEST_CASE("Model-parallel ranks of ZeRO are refused by the file that belongs to one") {
  using namespace pickles;
  const TempDir temp;
  const fs::path file = temp / "global_step1/mp_rank_00_model_states.pt";
  fs::create_directories(file.parent_path());
  write_file(file, torch_zip(stream(dict({{"module", dict({})}, {"mp_world_size", number(2)}})), {}));
  check_error(refused(file.parent_path(), ErrorKind::kUnsupported),
              {.kind = ErrorKind::kUnsupported,
               .path = file,
               .says = "belongs to one of 2 model-parallel ranks; only checkpoints without model parallelism "
                       "are read"});
}

TEST_CASE("Padding behind parameters of ZeRO 1 and 2 is left out, as the files say where it is") {
  const TempDir temp;
  ZeroModel model = small_model();
  model.alignment_elems = 4;
  const fs::path folder = written(temp, 2, 2, model);
  CHECK(read(folder).map.tensor_count() == 5);
  ReadContext context;
  context.options.set("weights", "master");
  const Checkpoint found = read_checkpoint(local_storage(), folder, context);
  // 15 elements of "a" and 1 of padding are rank 0's first partition, of 12, and part of rank 1's.
  const auto& pieces = found.map.pieces[found.map.find_logical("b").value()];
  REQUIRE(pieces.size() == 1);
  CHECK(found.map.stored[pieces[0].stored].file == 2);
  SECTION("of ranks that disagree") {
    model.alignment_elems = 2;
    const fs::path other = written(temp, 2, 2, model, "other");
    fs::copy_file(optim_file(other, 1), optim_file(folder, 1), fs::copy_options::overwrite_existing);
    check_error(refused(folder), {.path = optim_file(folder, 1),
                                  .says = "its \"param_alignment_paddings\" differs from that of bf16_zero_pp_rank_0"});
  }
}

TEST_CASE("Padding of ZeRO 1 and 2 may be left out of several ranks") {
  const TempDir temp;
  ZeroModel model = small_model(1);  // 11 and 6 elements
  model.lean_ranks = true;
  const fs::path folder = written(temp, 2, 8, model);  // partitions of 2, but ranks 5 to 7 have 1, 0 and 0
  ReadContext context;
  context.options.set("weights", "master");
  const Checkpoint found = read_checkpoint(local_storage(), folder, context);
  CHECK(found.map.pieces[found.map.find_logical("b").value()].size() == 8);  // rows of two, cut in between
}

TEST_CASE("Files of two checkpoints are refused") {
  const TempDir temp;
  SECTION("partitions of other parameters") {
    for (const unsigned stage : {1u, 3u}) {
      const fs::path folder = written(temp, stage, 2, small_model(), stage == 1 ? "one" : "three");
      const fs::path other = written(temp, stage, 2, small_model(50), stage == 1 ? "other" : "others");
      for (const int rank : {0, 1})
        fs::copy_file(optim_file(other, rank), optim_file(folder, rank), fs::copy_options::overwrite_existing);
      CHECK_THAT(refused(folder).what(), Says(" elements, but the parameters"));
    }
  }
  SECTION("a partition of another length") {
    for (const unsigned stage : {1u, 3u}) {
      const fs::path folder = written(temp, stage, 3, small_model(), stage == 1 ? "one" : "three");
      const fs::path other = written(temp, stage, 3, small_model(50), stage == 1 ? "other" : "others");
      fs::copy_file(optim_file(other, 1), optim_file(folder, 1), fs::copy_options::overwrite_existing);
      check_error(refused(folder), {.path = optim_file(folder, 1),
                                    .says = "elements, but " + optim_file(folder, 0).filename().string() + " has "});
    }
  }
  SECTION("ranks that disagree about the parameters") {
    const fs::path folder = written(temp, 3, 2), other = written(temp, 3, 2, small_model(50), "other");
    fs::copy_file(rank_model_file(other, 1), rank_model_file(folder, 1), fs::copy_options::overwrite_existing);
    check_error(refused(folder),
                {.path = rank_model_file(folder, 1),
                 .says = "its \"param_shapes\" differs from that of zero_pp_rank_0_mp_rank_00_model_states.pt"});
  }
  SECTION("of two stages") {
    const fs::path folder = written(temp, 3, 2), other = written(temp, 2, 2, small_model(), "other");
    fs::copy_file(other / "mp_rank_00_model_states.pt", folder / "mp_rank_00_model_states.pt");
    CHECK_THAT(refused(folder).what(), Says("of ZeRO 1 or 2, and") && Says("of ZeRO 3"));
    for (const int rank : {0, 1}) fs::remove(rank_model_file(folder, rank));
    CHECK_THAT(refused(folder).what(), Says("is of ZeRO 3, but mp_rank_00_model_states.pt is of ZeRO 1 or 2"));
  }
  SECTION("one rank twice") {
    const fs::path folder = written(temp, 1, 2);
    fs::copy_file(optim_file(folder, 1), folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt");
    CHECK_THAT(refused(folder).what(), Says("is of rank 1, as bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt is"));
  }
}

TEST_CASE("A universal checkpoint is found by latest_universal, and its parameters are all there") {
  const TempDir temp;
  Random random(2);
  const fs::path folder = temp / "universal", a = folder / "zero/a";
  const ZeroModel model = small_model();
  write_universal(folder, model, 3, 2, random);
  SECTION("whole") {
    write_file(temp / "latest_universal", "universal");
    CHECK(find_shards(temp.path())->path == folder);
    const Checkpoint found = read(temp.path());
    CHECK(found.file_metadata[0].second == "universal");
    CHECK_THAT(nlohmann::json(found.notes).dump(), Says("3 tensors of the optimizer's state"));
    CHECK(found.map.logical.at(found.map.find_logical("a").value()).model_dtype == DType::kBF16);
  }
  SECTION("latest_universal names a folder that is not there") {
    write_file(temp / "latest_universal", "other");
    check_error(refused(temp.path()), {.path = temp / "latest_universal", .says = "names other, which is not there"});
  }
  SECTION("a parameter without a file") {
    fs::remove(a / "fp32.pt");
    check_error(refused(folder), {.tensor = "a", .says = "has no file fp32.pt"});
  }
  SECTION("a folder of no parameter") {
    fs::copy(a, folder / "zero/other", fs::copy_options::recursive);
    check_error(refused(folder),
                {.path = folder / "zero/other", .says = "is the folder of a parameter that \"param_shapes\""});
  }
  SECTION("a parameter of another shape") {
    fs::copy_file(folder / "zero/b/fp32.pt", a / "fp32.pt", fs::copy_options::overwrite_existing);
    check_error(refused(folder),
                {.path = a / "fp32.pt", .says = "has the shape [8], but \"param_shapes\" says [5, 3]"});
  }
  SECTION("a parameter whose name leads out of the folder") {
    ZeroModel hostile = model;
    hostile.groups[0].push_back("../../x");
    hostile.masters["../../x"] = hostile.module["../../x"] = model.masters.at("a");
    write_universal(temp / "hostile", hostile, 1, 1, random);
    check_error(refused(temp / "hostile"), {.tensor = "../../x", .says = "has no file fp32.pt"});
  }
}

TEST_CASE("A frozen weight of another shape than its parameter is refused, whatever its strides") {
  using namespace pickles;
  const TempDir temp;
  const fs::path file = temp / "global_step1/mp_rank_00_model_states.pt";
  const auto write = [&](const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
    const std::string root =
        dict({{"module", dict({{"w", tensor()}})},
              {"param_shapes", list({})},
              {"frozen_param_shapes", dict({{"f", numbers({2, 3})}})},
              {"frozen_param_fragments", dict({{"f", tensor({.shape = shape, .strides = strides})}})}});
    write_file(file, torch_zip(stream(root), {{"0", std::string(48, '\1')}}));
  };
  fs::create_directories(file.parent_path());
  write({2, 3}, {1, 2});
  const Checkpoint found = read(file.parent_path());
  CHECK(found.map.strides.at(found.map.pieces[found.map.find_logical("f").value()][0].stored) == Dims{1, 2});
  for (const auto& shape : {std::vector<std::int64_t>{3, 2}, std::vector<std::int64_t>{6}}) {
    write(shape, shape.size() == 2 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{2});
    check_error(refused(file.parent_path()),
                {.path = file, .tensor = "f", .says = "in \"frozen_param_fragments\", but should be F32 [2, 3]"});
  }
}

TEST_CASE("Parts of models that are split otherwise are refused as unsupported") {
  const TempDir temp;
  const fs::path folder = written(temp, 1, 1);
  SECTION("model-parallel ranks") {
    write_file(folder / "mp_rank_01_model_states.pt", "");
    CHECK_THAT(refused(folder, ErrorKind::kUnsupported).what(), Says("split over model-parallel ranks"));
  }
  SECTION("pipeline stages") {
    write_file(folder / "layer_00-model_00-model_states.pt", "");
    CHECK_THAT(refused(folder, ErrorKind::kUnsupported).what(), Says("split over pipeline stages or experts"));
  }
}

TEST_CASE("Parameters of ZeRO that do not agree with the module are refused") {
  const TempDir temp;
  ZeroModel model = small_model();
  SECTION("another shape") {
    model.module.at("a").shape = {3, 5};
    check_error(refused(written(temp, 2, 2, model)),
                {.tensor = "a", .says = "has the shape [3, 5] in \"module\", but [5, 3] in \"param_shapes\""});
  }
  SECTION("one that the module lacks") {
    model.module.erase("b");
    check_error(refused(written(temp, 2, 2, model)),
                {.tensor = "b", .says = "is in \"param_shapes\", but not in \"module\""});
  }
  SECTION("one whose values are nowhere") {
    model.module["extra"] = {DType::kBF16, {2}, "abcd"};
    check_error(refused(written(temp, 3, 2, model)), {.tensor = "extra", .says = "nothing says where its values are"});
  }
}

}  // namespace
}  // namespace reshard::test
