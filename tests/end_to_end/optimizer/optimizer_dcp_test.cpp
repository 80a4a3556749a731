// NxD's optimizer where it was saved through torch.distributed.checkpoint (use_zero1_dcp), against slices that the test
// makes itself. NxD 0.18's own code has made such directories in the same form, by which the tests' writer was checked.
// layouts_property_test.cpp draws others.

#include <fmt/format.h>

#include <cstring>
#include <functional>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/states/optimizer_summary.h"
#include "support/local_files.h"
#include "support/optimizer_oracle.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A llama on two tensor-parallel ranks, with the states of two data-parallel ones.
struct SavedByNxd {
  explicit SavedByNxd(NxdDcpForm wanted = {}, const TinyModel& model = {})
      : run(one_group(random, model)), form(wanted) {
    form.dp = 2;
    mesh.tp = 2;
    write_dcp(temp / "dcp", run, random, true);
    write_file(temp / "dcp/config.json", run.model.config().dump());
    convert(temp / "dcp", temp / "in", {.layout = "nxd", .tp = 2, .with_optimizer = true});
    write(nxd_dcp(run, mesh, form, temp / "in/model"));
  }

  void write(const Saved& saved) {
    fs::remove_all(temp / "in/optim");
    saved.write(temp / "in/optim");
  }
  Checkpoint read() const {
    ReadContext context;
    context.beside = Beside::kRead;
    return read_checkpoint(temp / "in", context);
  }
  void refused(const std::string& file, const std::string& tensor, const std::string& says) const {
    check_refused(
        [&] { read(); },
        {.path = file.empty() ? temp / "in/optim" : temp / "in/optim" / file, .tensor = tensor, .says = says});
  }

  Random random{7};
  TrainingRun run;
  OracleOptions mesh;
  NxdDcpForm form;
  TempDir temp;
};

constexpr const char* kNorm = "model.layers.0.input_layernorm.weight";
constexpr const char* kDown = "base_state.model.layers.0.mlp.down_proj.weight.exp_avg|tp-000";

TEST_CASE("Rows that data-parallel ranks do not divide, and replicas that are stored once, go to another mesh") {
  const TinyModel model{.vocab = 34};  // 17 rows on a tensor-parallel rank, of which the second data-parallel one has 8
  for (const bool dedup : {false, true})
    for (const bool flat : {false, true}) {
      CAPTURE(dedup, flat);
      const SavedByNxd one({.dedup = dedup, .flat = flat}, model);
      Saved saved = nxd_dcp(one.run, one.mesh, one.form, one.temp / "in/model");
      const std::string norm = fmt::format("base_state.{}.exp_avg{}", kNorm, dedup ? "" : "|tp-0001");
      CHECK(saved.at(norm).parts.size() == 2);
      CHECK(saved.at("base_state.model.embed_tokens.weight.exp_avg|tp-0001").parts[1].size == Dims{8, 16});
      convert(one.temp / "in", one.temp / "out",
              {.layout = "nxd", .tp = 1, .pp = 1, .options = {"dp=3"}, .with_optimizer = true});
      check_saved_trees(one.temp / "out/optim", expected_optimizer(one.run, {}, 3, one.temp / "out/model"));
    }
}

TEST_CASE("Steps that are numbers are read from objects, and inspect sees states, ranks and the step") {
  const SavedByNxd one({.has_counts = true});
  ReadContext context;
  context.beside = Beside::kRead;
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
  context.beside = Beside::kLook;
  const Checkpoint inspected = read_checkpoint(one.temp / "in", context);
  REQUIRE(inspected.beside_model);
  CHECK(inspected.beside_model->unreadable.empty());
  REQUIRE(inspected.beside_model->summary);
  const OptimizerSummary& summary = *inspected.beside_model->summary;
  CHECK(summary.is_sharded);
  CHECK(summary.dp == 2);
  CHECK(summary.files == 4);
  CHECK(summary.step == static_cast<double>(step_of("model.layers.0.mlp.down_proj.weight")));
  CHECK(summary.step != static_cast<double>(step_of("model.embed_tokens.weight")));
  CHECK_FALSE(summary.has_masters);
}

TEST_CASE("An optimizer of torch.distributed.checkpoint has no master weights") {
  const SavedByNxd one;
  check_refused([&] { consolidated(one.temp / "in", one.temp / "out", {.source_options = {"weights=master"}}); },
                {.path = one.temp / "in/optim", .says = "contains no master weights"});
}

TEST_CASE("Entries and chunks of an optimizer of torch.distributed.checkpoint that are none of its model are refused") {
  SavedByNxd one;
  const Saved whole = nxd_dcp(one.run, one.mesh, one.form, one.temp / "in/model");
  const std::string first = std::string(kDown) + "0", second = std::string(kDown) + "1";
  struct Row {
    std::string tensor, says;
    std::function<void(Saved&)> change;
  };
  const auto renamed = [](const std::string& from, const std::string& to) {
    return [=](Saved& saved) { saved.at(from).name = to; };
  };
  const auto cut = [&](const std::function<void(std::vector<dcp::Part>&)>& change) {
    return [&, change](Saved& saved) { change(saved.at(second).parts); };
  };
  const std::string odd = "base_state.model.layers.0.mlp.down_proj.weight.exp_avg|tp-1";
  for (const Row& row :
       {Row{"model.layers.0.mlp.down_proj.weight", "has no exp_avg of tp rank 1, pp rank 0, but of 1 of 2 tensor-",
            [&](Saved& saved) { saved.erase(second); }},
        {std::string(kDown) + "2", "belongs to tp rank 2, pp rank 0, but the model has tp 2 × pp 1 ranks",
         renamed(second, std::string(kDown) + "2")},
        {odd, "is not the name of a state", renamed(first, odd)},
        {"model.weight", "is a tensor, but not a parameter's state", renamed(first, "model.weight")},
        {"module.layers.0.input_layernorm.weight", "has states of a parameter that the model's files of pp rank 0",
         [](Saved& saved) {
           for (dcp::Whole& tensor : saved.tensors)
             if (const std::size_t at = tensor.name.find(kNorm); at != std::string::npos)
               tensor.name.replace(at, 5, "module");
         }},
        {"", "contains no optimizer states", [](Saved& saved) { saved.tensors.clear(); }},
        {"", "contains no \"param_groups\"",
         [](Saved& saved) {
           std::erase_if(saved.objects, [](const dcp::Object& object) { return object.name == "param_groups"; });
         }},
        {second, "but data-parallel rank 0 of 2 has",
         cut([](std::vector<dcp::Part>& parts) { --parts[0].size[0], --parts[1].begin[0], ++parts[1].size[0]; })},
        {second, "has 1 chunk, but others have those of 2 data-parallel ranks", cut([](std::vector<dcp::Part>& parts) {
           parts[0].size[0] *= 2;
           parts.pop_back();
         })},
        {second, "but data-parallel rank 1 of 2 has", cut([](std::vector<dcp::Part>& parts) { --parts[1].size[0]; })},
        {second, "has the shape", [&](Saved& saved) {
           dcp::Whole& tensor = saved.at(second);
           tensor.data.bytes += tensor.data.bytes;
           tensor.data.shape[0] *= 2;
           tensor.parts = row_parts(tensor.data.shape, 2);
         }}}) {
    Saved saved = whole;
    row.change(saved);
    one.write(saved);
    INFO(row.says);
    one.refused(".metadata", row.tensor, row.says);
  }
}

TEST_CASE("Files of an optimizer of torch.distributed.checkpoint that are missing or of two saves are refused") {
  const SavedByNxd one;
  const fs::path optim = one.temp / "in/optim";
  write_file(optim / "dp_rank_00_tp_rank_00_pp_rank_00.pt", "x");
  one.refused("dp_rank_00_tp_rank_00_pp_rank_00.pt", "",
              "is next to an optimizer saved by torch.distributed.checkpoint");
  fs::remove(optim / "dp_rank_00_tp_rank_00_pp_rank_00.pt");
  fs::remove(optim / "__3_0.distcp");
  check_refused([&] { one.read(); },
                {.path = optim / "__3_0.distcp", .says = "is missing, though .metadata lists tensors in it"});
  fs::remove(optim / ".metadata");
  one.refused("", "", "but no .metadata");
}

TEST_CASE("Parameters that were never trained are those that the groups list besides") {
  SavedByNxd one;
  Saved saved = nxd_dcp(one.run, one.mesh, one.form, one.temp / "in/model");
  std::erase_if(saved.tensors, [](const dcp::Whole& tensor) { return tensor.name.find(kNorm) != tensor.name.npos; });
  one.write(saved);
  const Checkpoint checkpoint = one.read();
  CHECK(checkpoint.states.groups.at(0).parameters.size() == one.run.states.at("exp_avg").size());
  CHECK(checkpoint.states.groups.at(0).parameters.back() == kNorm);
}

}  // namespace
}  // namespace reshard::test
