// The optimizer's states as NxD's and optimum-neuron's own code has saved them: testdata/golden/zero1.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "reshard/base/strings.h"
#include "reshard/engine/check/digests.h"
#include "reshard/engine/check/verify.h"
#include "reshard/io/listed_files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/saved_trees.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kCase = testdata("golden/zero1/nxd-llama-dp2-tp2");
constexpr const char* kIncomplete = "optimum-llama-dp2-tp2-pp2-xser";

/// To convert the checkpoint of a case with its optimizer.
Request optimizer_request(const fs::path& golden_case, const fs::path& output, RequestFields fields) {
  fields.config = golden_case / "original";
  fields.with_optimizer = true;
  return convert_request(saved_of(golden_case), output, fields);
}

ReadContext with_optimizer(const fs::path& golden_case) {
  ReadContext context;
  context.config.path = golden_case / "original";
  context.beside = Beside::kRead;
  return context;
}

/// To read the master weights as the model.
ReadContext with_masters(const fs::path& golden_case) {
  ReadContext context;
  context.config.path = golden_case / "original";
  context.options.set("weights", "master");
  return context;
}

/// {parameter: {state: {"dtype", "shape", "sha256"}}} of the states' tensors, but for numbers.
json describe_states(Checkpoint& checkpoint) {
  const TrainingStates states = checkpoint.states;
  add_states(checkpoint.map, states.map);
  std::vector<std::uint32_t> wanted;
  for (const LogicalTensor& tensor : states.map.logical)
    if (!tensor.constant()) wanted.push_back(*checkpoint.map.find_logical(tensor.name));
  RunOptions options = unsynced();
  options.replicas = Replicas::kFirst;
  const auto digests = compute_digests(checkpoint.map, wanted, options, true);
  json found;
  for (std::size_t i = 0, n = 0; i < states.of.size(); ++i) {
    const LogicalTensor& tensor = states.map.logical[i];
    if (tensor.constant()) continue;
    const TensorDigest& digest = digests[n++];
    CHECK(tensor.role == TensorRole::kState);
    const DcpPath path = states.path_with(i, states.of[i].parameter);
    CHECK(path == DcpPath{"optimizer", "state", states.of[i].parameter, path.back()});
    const std::string state = std::get<std::string>(path.back());
    CHECK(tensor.name == "optimizer.state." + states.of[i].parameter + "." + state);
    if (tensor.shape.empty()) continue;
    found[states.of[i].parameter][state] = {
        {"dtype", describe(tensor.dtype).torch_name},
        {"shape", json(std::vector<std::uint64_t>(tensor.shape.begin(), tensor.shape.end()))},
        {"sha256", to_hex(digest.digest)}};
  }
  return found;
}

/// The scalars of a group, as golden.json has them.
json values_of(const PlainValue& value) {
  json values;
  if (const auto* list = std::get_if<PlainValue::List>(&value.value)) {
    values = json::array();
    for (const PlainValue& item : *list) values.push_back(values_of(item));
  } else if (const auto* dict = std::get_if<PlainValue::Dict>(&value.value)) {
    values = json::object();
    for (const auto& [key, item] : *dict) values[key] = values_of(item);
  } else {
    std::visit(
        [&](const auto& held) {
          if constexpr (std::is_assignable_v<json&, decltype(held)>) values = held;
        },
        value.value);
  }
  return values;
}

/// Groups have their hyperparameters and the model's names, and every parameter has its step.
void check_groups(const TrainingStates& states, const json& golden) {
  std::set<std::string> parameters, logical, steps;
  json groups, expected = golden.at("structure").front().at("param_groups");
  for (const OptimizerGroup& group : states.groups) {
    groups.push_back(values_of({group.values}));
    for (const std::string& parameter : group.parameters) {
      CHECK(parameters.insert(parameter).second);
      const bool decays = group.values.front().second != PlainValue{0.0};
      CHECK(decays == (&group == &states.groups.front()));
    }
  }
  for (json& group : expected) group.erase("params");
  CHECK(groups == expected);
  for (const auto& [parameter, parts] : golden.at("logical").items()) logical.insert(parameter);
  CHECK(parameters == logical);
  for (std::size_t i = 0; i < states.of.size(); ++i)
    if (states.map.logical[i].name.ends_with(".step")) steps.emplace(states.of[i].parameter);
  for (const StateNumber& number : states.numbers) {
    CHECK(number.state == "step");
    CHECK(number.value == PlainValue{golden.at("step").get<std::int64_t>()});
    CHECK(steps.insert(number.parameter).second);
  }
  CHECK(steps == logical);
}

TEST_CASE("States, groups and master weights of every case are what the reference's code merges, on another mesh too") {
  std::size_t cases = 0;
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const std::string name = golden_case.filename().string();
    if (name == kIncomplete) continue;
    ++cases;
    DYNAMIC_SECTION(name) {
      const json golden = golden_of(golden_case);
      const json& logical = golden.at("logical");
      Checkpoint checkpoint = read_checkpoint(saved_of(golden_case), with_optimizer(golden_case));
      check_groups(checkpoint.states, golden);
      CHECK(describe_states(checkpoint) == logical);

      const TempDir temp;
      const auto job = plan_convert(
          optimizer_request(golden_case, temp / "out", {.layout = "nxd", .tp = 2, .pp = 1, .options = {"dp=3"}}));
      execute(*job, unsynced());
      Checkpoint recut = read_checkpoint(temp / "out", with_optimizer(golden_case));
      json found = describe_states(recut);
      const bool has_masters = logical.front().contains("master");
      const bool is_narrow = job->source.logical.front().dtype == DType::kBF16;
      CHECK((joined_notes(*job).find("computed them from BF16 weights") != std::string::npos) ==
            (!has_masters && is_narrow));
      if (!has_masters)
        for (json& states : found) CHECK(states.erase("master") == 1);
      CHECK(found == logical);
      if (!has_masters) continue;

      // Which are the model's where they are asked for, and where there are no others.
      RunOptions options = unsynced();
      options.replicas = Replicas::kFirst;
      consolidate(consolidate_request(saved_of(golden_case), temp / "masters",
                                      {.config = golden_case / "original", .source_options = {"weights=master"}}),
                  options);
      json expected;
      for (const auto& [parameter, states] : logical.items()) expected[parameter] = states.at("master");
      CHECK(describe_tensors(read_whole(temp / "masters")) == expected);
    }
  }
  CHECK(cases == 6);
}

TEST_CASE("States that optimum-neuron saved of one data-parallel rank alone are refused, and say why") {
  const fs::path golden_case = testdata("golden/zero1") / kIncomplete;
  ReadContext weights = with_masters(golden_case);
  for (const ReadContext& context : {with_optimizer(golden_case), weights})
    check_refused(
        [&] { read_checkpoint(saved_of(golden_case), context); },
        {.kind = ErrorKind::kUnsupported,
         .path = saved_of(golden_case) / "optim",
         .says = {"ZeRO-1 shards of some data-parallel ranks were saved as if they were complete", "11 of 21 rows"},
         .hint = "the weights are complete"});
  weights.options.set("weights", "model");
  CHECK_NOTHROW(read_checkpoint(saved_of(golden_case), weights));
}

TEST_CASE("Files that NxD's converter merged have the states, but not the master weights, which it loses") {
  const TempDir temp;
  fs::copy(saved_of(kCase) / "model", temp / "model");
  fs::copy(kCase / "full/optim", temp / "optim");
  Checkpoint checkpoint = read_checkpoint(temp.path(), with_optimizer(kCase));
  json expected = golden_of(kCase).at("logical");
  for (json& states : expected)
    if (states.at("master").at("shape").at(0) != 1) states.erase("master");
  const std::string notes = join(checkpoint.notes.texts(), "\n");
  CHECK_THAT(notes, Says("NxD's converter"));
  CHECK_THAT(notes, Says("computed from the weights; files that were swapped between ranks cannot be detected"));
  CHECK_THAT(notes, !Says("record neither"));
  CHECK(describe_states(checkpoint) == expected);
  check_refused([&] { read_checkpoint(temp.path(), with_masters(kCase)); },
                {.path = temp / "optim", .says = "contains no master weights"});
}

TEST_CASE("Without another number, states are spread over as many data-parallel ranks as the source has") {
  const TempDir temp;
  Request request = optimizer_request(kCase, temp / "out", {.layout = "nxd", .tp = 1});
  convert(request);
  CHECK(fs::exists(temp / "out/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"));
  CHECK_FALSE(fs::exists(temp / "out/optim/dp_rank_02_tp_rank_00_pp_rank_00.pt"));
  CHECK_FALSE(fs::exists(temp / "out/optim/dp_rank_00_tp_rank_01_pp_rank_00.pt"));

  // Weights alone are not put beside an optimizer, whose master weights NxD would take for them.
  request.source.with_optimizer = false;
  request.force = true;
  check_refused([&] { plan_convert(request); }, {.path = temp / "out/optim"});
}

TEST_CASE("To find the layout that the ranks of a source get again, its optimizer is not read") {
  const auto reads = [&](const char* layout_name) {
    FaultStorage watched;
    const TempDir temp;
    const Request request = optimizer_request(kCase, temp / "out", {.layout = layout_name, .tp = 1});
    CHECK(plan_convert(watched, request)->layout == layout("nxd"));
    return watched.reads(saved_of(kCase) / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt").size();
  };
  CHECK(reads("") == reads("nxd"));
  CHECK(reads("") > 0);
}

TEST_CASE("A file of an optimizer is not opened anew for the step of each parameter") {
  const TempDir temp;
  // Of two stages, whose steps are compared.
  convert(optimizer_request(kCase, temp / "out", {.layout = "nxd", .tp = 1, .pp = 2, .options = {"dp=1"}}));
  FaultStorage watched;
  ListedFiles files(watched);
  const Checkpoint checkpoint = read_checkpoint(files, temp / "out", with_optimizer(kCase));
  CHECK(checkpoint.states.groups.front().parameters.size() > 10);
  const auto steps = watched.steps();
  for (const char* file : {"dp_rank_00_tp_rank_00_pp_rank_00.pt", "dp_rank_00_tp_rank_00_pp_rank_01.pt"}) {
    const auto opened = std::count_if(steps.begin(), steps.end(), [&](const FaultStorage::Step& step) {
      return step.operation == FaultStorage::Operation::kOpen && step.path == temp / "out/optim" / file;
    });
    CAPTURE(file, opened);
    CHECK(opened == 1);  // for its headers, its steps and a look at its master weights
  }
}

TEST_CASE("The state of the trainer that goes along is the step's own, and not what its run's directory has") {
  const TempDir temp;
  const std::string tag = GENERATE(as<std::string>{}, "step_3", "final");
  CAPTURE(tag);
  fs::copy(kCase / "checkpoint", temp / "run", fs::copy_options::recursive);
  if (tag != "step_3") fs::rename(temp / "run/step_3", temp / "run" / tag);
  const fs::path step = temp / "run" / tag;
  fs::copy(kCase / "original/config.json", temp / "run");
  write_file(temp / "run/trainer_state.json", "{\"global_step\": 9}");
  for (const char* file : {"README.md", "vocab.txt", "scheduler/run.json"})
    write_file(temp / "run" / file, "of the run");
  for (const char* file : {"vocab.txt", "scheduler/step.json"}) write_file(step / file, "of the step");
  convert(step, temp / "out", {.layout = "dcp", .with_optimizer = true});
  for (const char* file : {"README.md", "scheduler/run.json"}) CHECK(read_file(temp / "out" / file) == "of the run");
  for (const char* file : {"vocab.txt", "scheduler/step.json"}) CHECK(read_file(temp / "out" / file) == "of the step");
  CHECK_FALSE(fs::exists(temp / "out/trainer_state.json"));
  CHECK(read_file(temp / "out/scheduler.pt") == read_file(step / "scheduler.pt"));
  write_file(step / "trainer_state.json", "{\"global_step\": 3}");
  convert(step, temp / "again", {.layout = "dcp", .with_optimizer = true});
  CHECK(read_file(temp / "again/trainer_state.json") == "{\"global_step\": 3}");
}

TEST_CASE("The state of the trainer goes along with the optimizer from the directory above its shards") {
  const fs::path golden_case = testdata("golden/zero1/optimum-qwen3-dp2-tp2-replicated");
  const TempDir temp;
  fs::copy(golden_case / "checkpoint", temp / "run", fs::copy_options::recursive);
  write_file(temp / "run/trainer_state.json", "{\"global_step\": 3}");
  Request request = optimizer_request(golden_case, temp / "out", {.layout = "dcp"});
  request.source.path = temp / "run";
  RunOptions options = unsynced();
  options.replicas = Replicas::kFirst;
  convert(request, options);
  CHECK(read_file(temp / "out/trainer_state.json") == "{\"global_step\": 3}");
}

/// A case that may be spoiled.
struct Spoiled {
  explicit Spoiled(const fs::path& of = kCase) : golden_case(of) {
    fs::copy(saved_of(golden_case), temp / "run", fs::copy_options::recursive);
  }
  fs::path file(const char* folder, std::uint32_t dp_rank, std::uint32_t tp_rank, std::uint32_t pp_rank = 0) const {
    return temp / "run" / folder / (rank_name({tp_rank, pp_rank, dp_rank}, true) + ".pt");
  }
  void change(const fs::path& path, const std::function<void(SavedTree&)>& how) const {
    SavedTree tree = read_saved_tree(path);
    how(tree);
    write_saved_tree(path, tree);
  }
  /// The optimizer's files of data- and tensor-parallel ranks 0 and 1.
  void change_all(const std::function<void(SavedTree&)>& how) const {
    for (const std::uint32_t dp_rank : {0u, 1u})
      for (const std::uint32_t tp_rank : {0u, 1u}) change(file("optim", dp_rank, tp_rank), how);
  }
  Checkpoint read() const { return read_checkpoint(temp / "run", with_optimizer(golden_case)); }
  std::string notes() const { return join(read().notes.texts(), "\n"); }
  void refused(const fs::path& path, const std::string& says) const {
    for (const ReadContext& context : {with_optimizer(golden_case), with_masters(golden_case)})
      check_refused([&] { read_checkpoint(temp / "run", context); }, {.path = path, .says = says, .hint = "two saves"});
  }

  fs::path golden_case;
  TempDir temp;
};

constexpr const char* kOther = "differs from the model's parameter";

TEST_CASE("Optimizer files of other ranks or another save are known by their master weights") {
  const Spoiled run;
  const std::string says = std::string(kOther) + " model.embed_tokens.weight";
  SECTION("of tensor-parallel ranks") {
    for (const std::uint32_t dp_rank : {0u, 1u})
      swap_files(run.file("optim", dp_rank, 0), run.file("optim", dp_rank, 1));
    run.refused(run.file("optim", 0, 0), says);
  }
  SECTION("of data-parallel ranks") {
    swap_files(run.file("optim", 0, 1), run.file("optim", 1, 1));
    run.refused(run.file("optim", 0, 1), says);
  }
  SECTION("of one rank") {
    fs::copy_file(run.file("optim", 1, 0), run.file("optim", 1, 1), fs::copy_options::overwrite_existing);
    run.refused(run.file("optim", 1, 1), says);
  }
  SECTION("of a model of another save") {
    fs::copy_file(run.file("model", 0, 0), run.file("model", 0, 1), fs::copy_options::overwrite_existing);
    check_refused([&] { run.read(); }, {});
  }
}

TEST_CASE("Master weights that two parameters of one shape have swapped are known, whichever they are") {
  const SavedTree first = read_saved_tree(saved_of(kCase) / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt");
  const auto place = [](std::size_t id) { return fmt::format("sharded_master_weights/{}", id); };
  std::size_t swapped = 0;
  for (std::size_t a = 0; first.tensors.count(place(a)) > 0; ++a)
    for (std::size_t b = a + 1; first.tensors.count(place(b)) > 0; ++b) {
      const TensorData &of_a = first.tensors.at(place(a)), &of_b = first.tensors.at(place(b));
      if (of_a.shape != of_b.shape || of_a.bytes == of_b.bytes) continue;
      CAPTURE(a, b);
      const Spoiled run;
      run.change_all([&](SavedTree& tree) { std::swap(tree.tensors.at(place(a)), tree.tensors.at(place(b))); });
      check_refused([&] { run.read(); }, {.says = kOther});
      ++swapped;
    }
  CHECK(swapped > 5);
}

TEST_CASE("Weights that are float32 and hold what master weights are as bfloat16 are of the same save") {
  const Spoiled run;
  for (const std::uint32_t tp_rank : {0u, 1u})
    run.change(run.file("model", 0, tp_rank), [](SavedTree& tree) {
      for (auto& [name, data] : tree.tensors) {
        REQUIRE(data.dtype == DType::kBF16);
        std::string wide;
        for (std::size_t i = 0; i < data.bytes.size(); i += 2) wide += std::string(2, '\0') + data.bytes.substr(i, 2);
        data = {DType::kF32, data.shape, wide};
        tree.structure.at(name).at("tensor") = "float32";
      }
    });
  CHECK_NOTHROW(run.read());
  run.change(run.file("model", 0, 0), [](SavedTree& tree) {
    tree.tensors.at("model.norm.weight").bytes[2] ^= 4;  // the fourth bfloat16 value from there
  });
  check_refused([&] { run.read(); }, {});
}

TEST_CASE("States and master weights that some parameters lack are noted, and not taken for a model") {
  const Spoiled run;
  const auto erase = [&](const std::string& dict, const std::string& key) {
    run.change_all([&](SavedTree& tree) {
      auto& of = dict == "base_state" ? tree.structure[dict]["int 2"] : tree.structure[dict];
      REQUIRE(of.erase(key) == 1);
      tree.tensors.erase(dict == "base_state" ? dict + "/2/" + key : dict + "/2");
    });
  };
  CHECK_THAT(run.notes(), !Says("not all parameters of a group have"));
  erase("base_state", "exp_avg_sq");
  CHECK_THAT(run.notes(),
             Says("not all parameters of a group have exp_avg_sq: not id 2 in dp_rank_00_tp_rank_00_pp_rank_00.pt"));
  erase("sharded_master_weights", "int 2");
  check_refused([&] { read_checkpoint(run.temp / "run", with_masters(kCase)); },
                {.kind = ErrorKind::kUnsupported,
                 .path = run.file("optim", 0, 0),
                 .says = "has states of id 2, but no master weights, unlike others"});
}

TEST_CASE("Without master weights, files of data-parallel ranks that were swapped would go unnoticed, which is noted") {
  const Spoiled run;
  run.change_all([](SavedTree& tree) {
    tree.structure.erase("sharded_master_weights");
    std::erase_if(tree.tensors, [](const auto& tensor) { return tensor.first.starts_with("sharded_master_weights/"); });
  });
  CHECK_THAT(run.notes(), Says("files that were swapped between ranks cannot be detected"));
}

TEST_CASE(
    "An optimizer is not written where a trainer would read another save's files, nor into another layout's ranks") {
  const Spoiled run;
  const fs::path out = run.temp / "out";
  fs::remove(run.temp / "run/scheduler.pt");
  Request request = optimizer_request(kCase, out, {.layout = "nxd"});
  request.source.path = run.temp / "run";
  write_file(out / "scheduler.pt", "of another save");
  check_refused([&] { convert(request); }, {.path = out, .says = "contains scheduler.pt of another save"});
  fs::remove(out / "scheduler.pt");
  convert(request);
  request.force = true;
  convert(request);
  request.target.layout = layout("optimum");
  check_refused([&] { convert(request); }, {.path = out, .says = "contains a sharded checkpoint in layout nxd"});
  request.target.layout = layout("hf");
  request.source.with_optimizer = false;
  check_refused([&] { convert(request); }, {.path = out, .says = "contains a sharded checkpoint in layout"});
  fs::remove_all(out / "optim");
  fs::remove(out / "scheduler.pt");
  convert(request);  // beside the ranks of the model alone
  CHECK(fs::exists(out / "model.safetensors"));
}

TEST_CASE("Weights that are rounded up or down from their master weights are of the same save") {
  // Moves master weights from what the weights are by this many 65536ths of the step between those.
  const auto read = [](std::uint32_t by) {
    const Spoiled run;
    run.change_all([&](SavedTree& tree) {
      std::size_t moved = 0;
      for (auto& [place, data] : tree.tensors) {
        if (!place.starts_with("sharded_master_weights/")) continue;
        REQUIRE(data.dtype == DType::kF32);
        for (std::size_t at = 0; at < data.bytes.size(); at += 4, ++moved) {
          std::uint32_t bits = 0;
          std::memcpy(&bits, data.bytes.data() + at, 4);
          if (bits == 0) continue;  // padding
          bits = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000) + by;
          std::memcpy(data.bytes.data() + at, &bits, 4);
        }
      }
      REQUIRE(moved > 0);
    });
    run.read();
  };
  CHECK_NOTHROW(read(0x1000));
  CHECK_NOTHROW(read(0xC000));  // which is nearer to the next weight
  check_refused([&] { read(0x24000); }, {.says = kOther});
}

TEST_CASE("Ranks at different steps are two saves, whatever is asked of replicas, and both steps are named") {
  const Spoiled run;
  run.change(run.file("optim", 0, 1), [](SavedTree& tree) {
    std::size_t changed = 0;
    for (auto& [place, data] : tree.tensors)
      if (place.ends_with("/step")) data.bytes = std::string("\0\0\x80\x40", 4), ++changed;  // 4
    REQUIRE(changed > 0);
  });
  Request request = optimizer_request(kCase, run.temp / "out", {.layout = "nxd", .options = {"dp=3"}});
  request.source.path = run.temp / "run";
  for (const Replicas replicas : {Replicas::kExact, Replicas::kDrift, Replicas::kFirst}) {
    RunOptions options = unsynced();
    options.replicas = replicas;
    const Error error =
        check_refused([&] { convert(request, options); }, {.hint = "two saves", .unwritten = run.temp / "out"});
    CHECK_THAT(error.what(),
               Says("but differs from it; 3 there, 4 here") || Says("but differs from it; 4 there, 3 here"));
  }
}

TEST_CASE("What an optimizer file holds that nobody knows is noted") {
  const Spoiled run;
  CHECK_THAT(run.notes(), !Says("left out entries"));
  run.change(run.file("optim", 1, 0), [](SavedTree& tree) { tree.structure["ema"] = 5; });
  CHECK_THAT(run.notes(),
             Says("left out entries of the optimizer's files that are not states, groups or master weights: ema"));
}

/// Adds one to all steps of a file.
void count_one_more_step(SavedTree& tree) {
  std::size_t changed = 0;
  const std::function<void(nlohmann::ordered_json&)> look = [&](nlohmann::ordered_json& value) {
    for (auto& [key, item] : value.items())
      if (key == "step" && item.is_number())
        item = item.get<std::int64_t>() + 1, ++changed;
      else if (item.is_structured())
        look(item);
  };
  look(tree.structure);
  REQUIRE(changed > 0);
}

TEST_CASE("Optimizer files of two stages that are at different steps are refused") {
  const Spoiled run(testdata("golden/zero1/nxd-llama-dp4-tp2-pp2"));
  const int step = golden_of(run.golden_case).at("step").get<int>();
  const auto change_second_stage = [&](const std::function<void(SavedTree&)>& how) {
    for (std::uint32_t dp_rank = 0; dp_rank < 4; ++dp_rank)
      for (std::uint32_t tp_rank = 0; tp_rank < 2; ++tp_rank) run.change(run.file("optim", dp_rank, tp_rank, 1), how);
  };
  change_second_stage([](SavedTree&) {});
  CHECK_NOTHROW(run.read());
  change_second_stage(count_one_more_step);
  run.refused(run.file("optim", 0, 0, 1),
              fmt::format("its parameters are at step {}, but those of an earlier stage at {}", step + 1, step));
}

TEST_CASE("Master weights are cast to the dtype that is asked for, and config.json names it") {
  const TempDir temp;
  RequestFields masters{.config = kCase / "original", .source_options = {"weights=master"}};
  consolidate(consolidate_request(saved_of(kCase), temp / "master", masters));
  masters.dtype = DType::kF16;
  const TensorMap cast = consolidated(saved_of(kCase), temp / "cast", masters);
  CHECK((cast == converted(temp / "master", temp / "expected", {.dtype = DType::kF16})));
  CHECK(cast.begin()->second.dtype == DType::kF16);
  CHECK(read_file(temp / "cast/config.json") == read_file(temp / "expected/config.json"));
}

TEST_CASE("States with padding on the way of ZeRO-1 go to a dcp without it") {
  const TempDir temp;
  convert(optimizer_request(kCase, temp / "out", {.layout = "dcp"}));
  for (const char* name : {"scheduler.pt", "user_content.pt"})
    CHECK(read_file(temp / "out" / name) == read_file(saved_of(kCase) / name));
  Checkpoint source = read_checkpoint(saved_of(kCase), with_optimizer(kCase));
  Checkpoint target = read_checkpoint(temp / "out", with_optimizer(kCase));
  // Master weights stay behind; the values of two groups come as objects.
  const auto& logical = target.states.map.logical;
  CHECK(std::count_if(logical.begin(), logical.end(), [](const LogicalTensor& tensor) {
          return tensor.role == TensorRole::kState && !tensor.constant();
        }) == 63);
  for (Checkpoint* side : {&source, &target}) add_states(side->map, side->states.map);
  Verification result = verify(source.map, target.map, {}, unsynced());
  CHECK(result.only_a.size() == 21);
  std::erase_if(result.only_a, [](const std::string& name) { return name.ends_with(".master"); });
  CHECK(result.only_b.size() == 24);
  std::erase_if(result.only_b, [](const std::string& name) { return name.starts_with("optimizer.param_groups."); });
  CHECK(result.same());
}

}  // namespace
}  // namespace reshard::test
