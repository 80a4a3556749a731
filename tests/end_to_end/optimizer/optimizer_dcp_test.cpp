// NxD's optimizer where it was saved through torch.distributed.checkpoint (use_zero1_dcp), against slices that the test
// makes itself. NxD 0.18's own code has made such directories in the same form, by which the tests' writer was checked.
#include <fmt/format.h>

#include <cstring>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/states/optimizer_summary.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/optimizer_oracle.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

ConvertRequest request_of(const fs::path& source, const fs::path& output, const OracleOptions& mesh, std::uint64_t dp) {
  ConvertRequest request = convert_request(source, output);
  request.source.with_optimizer = true;
  request.target.layout = layout("nxd");
  set_target(request.target, mesh);
  request.target.options.set_number("dp", dp);
  return request;
}

/// A run whose optimizer has one group, no master weights, and states of all parameters.
TrainingRun one_group(Random& random, const TinyModel& model) {
  TrainingRun run = random_training(random, model);
  while (run.states.at("step").count("model.norm.weight") == 0) run = random_training(random, model);
  run.has_two_groups = false;
  run.groups.resize(1);
  run.states.erase("master");
  return run;
}

/// NxD's files of a run, without its optimizer.
void write_model(const fs::path& directory, const TrainingRun& run, const OracleOptions& mesh, Random& random) {
  const TempDir temp;
  write_dcp(temp / "dcp", run, random, true);
  write_file(temp / "dcp/config.json", run.model.config().dump());
  convert(request_of(temp / "dcp", directory, mesh, 1));
  fs::remove_all(directory / "optim");
}

bool has_dp_chunks(const Saved& saved, std::uint64_t dp) {
  return std::all_of(saved.tensors.begin(), saved.tensors.end(),
                     [&](const dcp::Whole& tensor) { return tensor.data.shape.empty() || tensor.parts.size() == dp; });
}

/// With as many data-parallel ranks as can all have rows, at most form.dp.
Saved random_saved(const TrainingRun& run, const OracleOptions& mesh, NxdDcpForm& form, const fs::path& model) {
  for (;; --form.dp) {
    Saved saved = nxd_dcp(run, mesh, form, model);
    if (has_dp_chunks(saved, form.dp)) return saved;
  }
}

void check_written(const fs::path& output, const TrainingRun& run, const OracleOptions& mesh, std::uint64_t dp) {
  check_saved_trees(output / "optim", expected_optimizer(run, mesh, dp, output / "model"));
}

TEST_CASE("An optimizer that NxD saved through torch.distributed.checkpoint goes to any mesh") {
  for (const std::uint64_t seed : seeds(40)) {
    CAPTURE(seed);
    Random random(seed);
    const TrainingRun run = one_group(random, random_model(random));
    OracleOptions first = legal_options(random, run.model), second = legal_options(random, run.model);
    for (OracleOptions* mesh : {&first, &second}) choose_qkv_linear(random, run.model, *mesh);
    ask_for_kept_form(run.model, first, second);
    NxdDcpForm form{pick(random, 1, 4), random() % 2 == 0, random() % 2 == 0, false};
    const std::uint64_t dp = pick(random, 1, 5);
    CAPTURE(first.tp, first.pp, first.vpp, form.dp, form.dedup, form.flat, second.tp, second.pp, second.vpp, dp);
    CAPTURE(run.model.heads, run.model.kv_heads, run.model.layers, first.kv_size_multiplier, first.qkv_linear,
            first.fuse_qkv, second.kv_size_multiplier, second.qkv_linear, second.fuse_qkv);
    const TempDir temp;
    write_model(temp / "in", run, first, random);
    random_saved(run, first, form, temp / "in/model").write(temp / "in/optim");
    ConvertRequest request = request_of(temp / "in", temp / "out", second, dp);
    if (first.kv_size_multiplier != 0)
      request.source.options.set_number("kv-size-multiplier", first.kv_size_multiplier);
    convert(request);
    check_written(temp / "out", run, second, dp);
  }
}

/// A llama on two tensor-parallel ranks, with the states of two data-parallel ones.
struct SavedByNxd {
  explicit SavedByNxd(NxdDcpForm wanted = {}, const TinyModel& model = {})
      : run(one_group(random, model)), form(wanted) {
    form.dp = 2;
    mesh.tp = 2;
    write_model(temp / "in", run, mesh, random);
    saved = nxd_dcp(run, mesh, form, temp / "in/model");
    saved.write(temp / "in/optim");
  }

  ReadContext context() const {
    ReadContext context;
    context.with_optimizer = true;
    return context;
  }
  dcp::Whole& tensor(const std::string& name) {
    for (dcp::Whole& one : saved.tensors)
      if (one.name == name) return one;
    throw std::runtime_error("no tensor " + name);
  }
  void write_again() {
    fs::remove_all(temp / "in/optim");
    saved.write(temp / "in/optim");
  }
  Error refused(const fs::path& path, const std::string& tensor, const std::string& says) {
    const Error error = error_of([&] { read_checkpoint(temp / "in", context()); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    const fs::path folder = temp / "in/optim";
    CHECK(error.path() == (path.empty() ? folder : folder / path).string());
    CHECK(error.tensor() == tensor);
    CHECK_THAT(error.what(), Says(says));
    return error;
  }

  Random random{7};
  TrainingRun run;
  OracleOptions mesh;
  NxdDcpForm form;
  TempDir temp;
  Saved saved;
};

constexpr const char* kNorm = "model.layers.0.input_layernorm.weight";
constexpr const char* kDown = "base_state.model.layers.0.mlp.down_proj.weight.exp_avg|tp-000";

TEST_CASE("Rows that data-parallel ranks do not divide, and replicas that are stored once, go to another mesh") {
  TinyModel model;
  model.vocab = 34;  // 17 rows on a tensor-parallel rank, of which the second data-parallel one has 8
  for (const bool dedup : {false, true})
    for (const bool flat : {false, true}) {
      CAPTURE(dedup, flat);
      SavedByNxd one({.dedup = dedup, .flat = flat}, model);
      const std::string norm = fmt::format("base_state.{}.exp_avg{}", kNorm, dedup ? "" : "|tp-0001");
      CHECK(one.tensor(norm).parts.size() == 2);
      CHECK(one.tensor("base_state.model.embed_tokens.weight.exp_avg|tp-0001").parts[1].size == Dims{8, 16});
      convert(request_of(one.temp / "in", one.temp / "out", {}, 3));
      check_written(one.temp / "out", one.run, {}, 3);
    }
}

TEST_CASE("Steps that are numbers are read from objects, and inspect sees states, ranks and the step") {
  SavedByNxd one({.has_counts = true});
  ReadContext context = one.context();
  context.looks_at_optimizer = true;
  const Checkpoint checkpoint = read_checkpoint(one.temp / "in", context);
  CHECK(checkpoint.mesh.dp == 2u);
  REQUIRE(checkpoint.states.groups.size() == 1);
  CHECK(checkpoint.states.groups[0].parameters.size() == one.run.states.at("exp_avg").size());
  CHECK(checkpoint.states.numbers.size() == one.run.states.at("exp_avg").size());
  const auto step_of = [&](const std::string& parameter) {
    float step = 0;
    std::memcpy(&step, one.run.states.at("step").at(parameter).bytes.data(), sizeof step);
    return static_cast<std::int64_t>(step);
  };
  for (const StateNumber& number : checkpoint.states.numbers) {
    INFO(number.parameter);
    CHECK((number.value == PlainValue{step_of(number.parameter)}));
  }
  REQUIRE(checkpoint.beside_model);
  CHECK(checkpoint.beside_model->unreadable.empty());
  REQUIRE(checkpoint.beside_model->summary);
  const OptimizerSummary& summary = *checkpoint.beside_model->summary;
  CHECK(summary.is_sharded);
  CHECK(summary.dp == 2);
  CHECK(summary.files == 4);
  CHECK(summary.step == static_cast<double>(step_of("model.layers.0.mlp.down_proj.weight")));
  CHECK(summary.step != static_cast<double>(step_of("model.embed_tokens.weight")));
  CHECK_FALSE(summary.has_masters);
}

TEST_CASE("An optimizer of torch.distributed.checkpoint has no master weights") {
  SavedByNxd one;
  ReadContext context;
  context.options.set("weights", "master");
  check_refused([&] { read_checkpoint(one.temp / "in", context); },
                {.path = one.temp / "in/optim", .says = "holds no master weights"});
}

TEST_CASE("Entries of an optimizer of torch.distributed.checkpoint that are none of its model are refused") {
  SavedByNxd one;
  const std::string first = std::string(kDown) + "0", second = std::string(kDown) + "1";
  const Saved whole = one.saved;
  const auto refused = [&](const std::string& tensor, const std::string& says) {
    one.write_again();
    one.refused(".metadata", tensor, says);
    one.saved = whole;
  };
  std::erase_if(one.saved.tensors, [&](const dcp::Whole& tensor) { return tensor.name == second; });
  refused("model.layers.0.mlp.down_proj.weight", "has no exp_avg of tp rank 1, pp rank 0, but of 1 of 2 tensor-");
  one.tensor(second).name = std::string(kDown) + "2";
  refused(std::string(kDown) + "2", "is of tp rank 2, pp rank 0, but the model has tp 2 × pp 1 ranks");
  one.tensor(first).name = "base_state.model.layers.0.mlp.down_proj.weight.exp_avg|tp-1";
  refused("base_state.model.layers.0.mlp.down_proj.weight.exp_avg|tp-1", "is no name of a state");
  one.tensor(first).name = "model.weight";
  refused("model.weight", "is a tensor, but no state of a parameter");
  for (dcp::Whole& tensor : one.saved.tensors)
    if (const std::size_t at = tensor.name.find(kNorm); at != std::string::npos) tensor.name.replace(at, 5, "module");
  refused("module.layers.0.input_layernorm.weight", "has states of a parameter that the model's files of pp rank 0");
  std::erase_if(one.saved.tensors, [&](const dcp::Whole&) { return true; });
  refused("", "holds no states of an optimizer");
  std::erase_if(one.saved.objects, [&](const dcp::Object& object) { return object.name == "param_groups"; });
  refused("", "holds no \"param_groups\"");
}

TEST_CASE("Chunks of an optimizer that are not the rows of data-parallel ranks are refused") {
  SavedByNxd one;
  const std::string name = std::string(kDown) + "1";
  const Saved whole = one.saved;
  const auto refused = [&](const std::string& says) {
    one.write_again();
    one.refused(".metadata", name, says);
    one.saved = whole;
  };
  auto* parts = &one.tensor(name).parts;
  const std::uint64_t rows = (*parts)[0].size[0];
  (*parts)[0].size[0] -= 1;
  (*parts)[1].begin[0] -= 1;
  (*parts)[1].size[0] += 1;
  refused("but data-parallel rank 0 of 2 has");
  parts = &one.tensor(name).parts;
  (*parts)[0].size[0] += rows;
  parts->pop_back();
  refused("has 1 chunk, but others have those of 2 data-parallel ranks");
  one.tensor(name).parts[1].size[0] -= 1;
  refused("but data-parallel rank 1 of 2 has");
  TensorData& data = one.tensor(name).data;
  data.bytes += data.bytes;
  data.shape[0] *= 2;
  one.tensor(name).parts = row_parts(data.shape, 2);
  refused("has the shape");
}

TEST_CASE("Files of an optimizer of torch.distributed.checkpoint that are missing or of two saves are refused") {
  SavedByNxd one;
  fs::remove(one.temp / "in/optim/__3_0.distcp");
  check_refused(
      [&] { read_checkpoint(one.temp / "in", one.context()); },
      {.path = one.temp / "in/optim/__3_0.distcp", .says = "is missing, though .metadata puts tensors into it"});
  one.write_again();
  write_file(one.temp / "in/optim/dp_rank_00_tp_rank_00_pp_rank_00.pt", "x");
  one.refused("dp_rank_00_tp_rank_00_pp_rank_00.pt", "", "lies beside files of torch.distributed.checkpoint");
  one.write_again();
  fs::remove(one.temp / "in/optim/.metadata");
  one.refused("", "", "but no .metadata");
}

TEST_CASE("Parameters that were never trained are those that the groups list besides") {
  SavedByNxd one;
  std::erase_if(one.saved.tensors,
                [&](const dcp::Whole& tensor) { return tensor.name.find(kNorm) != tensor.name.npos; });
  one.write_again();
  const Checkpoint checkpoint = read_checkpoint(one.temp / "in", one.context());
  CHECK(checkpoint.states.groups.at(0).parameters.size() == one.run.states.at("exp_avg").size());
  CHECK(checkpoint.states.groups.at(0).parameters.back() == kNorm);
}

}  // namespace
}  // namespace reshard::test
