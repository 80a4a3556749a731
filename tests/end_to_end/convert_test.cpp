// Any container and layout into any other. A failure prints its seed; RESHARD_TEST_SEED runs that one alone.

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/fault_storage.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct Form {
  const Layout* to;  // null: a Hugging Face directory
  Format format;
};
const Form kForms[] = {
    {nullptr, Format::kSafetensors},     {nullptr, Format::kPytorch},      {layout("ranks"), Format::kSafetensors},
    {layout("ranks"), Format::kPytorch}, {layout("ranks"), Format::kXser}, {layout("optimum"), Format::kPytorch},
    {layout("optimum"), Format::kXser},
};

std::string describe(const Form& form) {
  return std::string(form.to ? form.to->traits().name : "hf") + " " + std::string(name(form.format));
}

/// Dtypes of whole bytes, one for linears that may be fused.
TensorMap random_originals(const TinyModel& model, Random& random) {
  std::map<std::string, DType> dtypes;
  TensorMap tensors;
  for (const TinyParameter& parameter : parameters_of(model)) {
    DType dtype = kDTypes[random() % std::size(kDTypes)].dtype;
    if (bits(dtype) < 8) dtype = DType::kBF16;
    dtype = dtypes.emplace(joined_name(parameter.name), dtype).first->second;
    tensors[parameter.name] = random_tensor(random, dtype, parameter.shape);
  }
  return tensors;
}

struct Trial {
  TinyModel model;
  TensorMap originals;
};

Trial random_trial(Random& random, const TempDir& temp) {
  Trial trial;
  trial.model = random_model(random);
  trial.originals = random_originals(trial.model, random);
  TensorMap written = trial.originals;
  if (trial.model.tied && random() % 2) written["lm_head.weight"] = written["model.embed_tokens.weight"];
  write_model(temp / "model", trial.model, written, pick(random, 1, 3));
  write_file(temp / "model/tokenizer.json", "{}");
  return trial;
}

ConvertRequest request_to(const Form& form, const OracleOptions& options, const fs::path& source,
                          const fs::path& output) {
  ConvertRequest request = convert_request(source, output);
  request.target.layout = form.to;
  request.target.format = form.format;
  if (!form.to) return request;
  set_target(request.target, options);
  return request;
}

/// What stands in `directory` is what the oracle says.
void check_form(const Form& form, const Trial& trial, OracleOptions options, const fs::path& directory) {
  options.fuse_mlp = form.to != layout("ranks") || form.format == Format::kSafetensors;
  if (form.to)
    CHECK((read_shards(directory) == expected_ranks(trial.model, trial.originals, options)));
  else
    CHECK((read_whole(directory) == trial.originals));
  CHECK((check_crcs(directory) > 0) == (form.format != Format::kSafetensors));
  CHECK(read_file(directory / "tokenizer.json") == "{}");
  CHECK(nlohmann::json::parse(read_file(directory / "config.json")) == trial.model.config());
}

/// A snapshot without the files that were copied.
std::map<std::string, std::string> made_files(const fs::path& directory) {
  auto files = snapshot(directory);
  files.erase("tokenizer.json");
  files.erase("config.json");
  return files;
}

TEST_CASE("Any form of a checkpoint becomes any other, and the original again, whatever blocks and threads") {
  std::map<std::string, int> pairs;
  for (const std::uint64_t seed : seeds(49)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    const TempDir temp;
    const Trial trial = random_trial(random, temp);
    const Form& first = kForms[seed % 7];  // over 49 seeds in a row, every pair comes once
    const Form& second = kForms[seed / 7 % 7];
    ++pairs[describe(first) + " → " + describe(second)];
    const OracleOptions first_mesh = legal_options(random, trial.model);
    const OracleOptions second_mesh = legal_options(random, trial.model);
    INFO(describe(first) << " → " << describe(second) << " " << trial.model.config().dump() << " tp " << first_mesh.tp
                         << " → " << second_mesh.tp << " pp " << first_mesh.pp << " → " << second_mesh.pp);
    FaultStorage storage;  // spares the disk the syncs
    ConvertRequest there = request_to(first, first_mesh, temp / "model", temp / "first");
    if (random() % 2 && !first.to) there.target.options.set_number("max-shard-size", pick(random, 1, 5000));
    convert(there, random_run(random, storage));
    check_form(first, trial, first_mesh, temp / "first");

    const auto job = plan_convert(request_to(second, second_mesh, temp / "first", temp / "second"));
    execute(*job, random_run(random, storage));
    check_form(second, trial, second_mesh, temp / "second");
    const std::uint64_t block_bytes = one_of(random, {1, 7, 64, 1000});
    INFO("blocks of " << block_bytes);
    run_in_blocks(*job, temp / "blocks", block_bytes, 1 + static_cast<unsigned>(random() % 3));
    CHECK((made_files(temp / "blocks") == made_files(temp / "second")));

    convert(convert_request(temp / "second", temp / "again"), random_run(random, storage));
    CHECK((read_model(temp / "again") == trial.originals));
  }
  if (has_all_seeds()) CHECK(pairs.size() == 49);
}

TEST_CASE("Without a mesh the shards keep that of their source, in any layout and format") {
  const TempDir temp;
  TinyModel model;
  model.heads = 8;
  model.kv_heads = 2;
  Random random(2);
  const TensorMap originals = random_tensors(model, random);
  write_model(temp / "model", model, originals);
  const OracleOptions mesh{.tp = 4, .pp = 2};
  ConvertRequest request = request_to({layout("optimum"), Format::kXser}, mesh, temp / "model", temp / "a");
  convert(request);
  request = convert_request(temp / "a", temp / "b");
  request.target.layout = layout("ranks");
  const auto job = plan_convert(request);
  CHECK(job->mesh.tp == 4);
  CHECK(job->mesh.pp == 2);
  execute(*job, unsynced());
  CHECK(fs::exists(temp / "b/tensor_parallel_shards/tp_rank_03_pp_rank_01/model.safetensors"));
  CHECK((read_shards(temp / "b") == expected_ranks(model, originals, mesh)));

  request.target.tp = 2;  // the pipeline's is still the source's
  request.target.tp = 2;
  request.output_directory = temp / "c";
  convert(request);
  CHECK((read_shards(temp / "c") == expected_ranks(model, originals, {.tp = 2, .pp = 2})));
}

TEST_CASE("Without a format, optimum is written in torch's and all else in safetensors") {
  const TempDir temp;
  Random random(4);
  write_model(temp / "model", {}, random_tensors({}, random));
  ConvertRequest request = convert_request(temp / "model", temp / "optimum");
  request.target.layout = layout("optimum");
  request.target.tp = 2;
  convert(request);
  CHECK(fs::exists(temp / "optimum/shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt"));
  request.target.layout = layout("ranks");
  request.output_directory = temp / "ranks";
  convert(request);
  CHECK(fs::exists(temp / "ranks/tensor_parallel_shards/tp_rank_01_pp_rank_00/model.safetensors"));
  convert(convert_request(temp / "optimum", temp / "whole"));
  CHECK(fs::exists(temp / "whole/model.safetensors"));
}

TEST_CASE("Rank 100 comes after rank 99, in both layouts") {
  TinyModel model;
  model.heads = model.kv_heads = model.intermediate = model.vocab = 104;
  model.head_dim = 2;
  model.hidden = 3;
  model.layers = 1;
  const TempDir temp;
  Random random(104);
  const TensorMap originals = random_tensors(model, random);
  write_model(temp / "model", model, originals);
  for (const Form& form : {Form{layout("ranks"), Format::kSafetensors}, Form{layout("optimum"), Format::kPytorch}}) {
    DYNAMIC_SECTION(describe(form)) {
      const fs::path out = temp / "out";
      FaultStorage storage;
      RunOptions options;
      options.storage = &storage;
      convert(request_to(form, {.tp = 104}, temp / "model", out), options);
      CHECK((read_shards(out) == expected_ranks(model, originals, {.tp = 104})));
      convert(convert_request(out, out / "whole"), options);
      CHECK((read_model(out / "whole") == originals));
      if (form.to == layout("optimum")) CHECK(fs::exists(out / "shards/model/dp_rank_00_tp_rank_100_pp_rank_00.pt"));
    }
  }
}

}  // namespace
}  // namespace reshard::test
