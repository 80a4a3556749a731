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
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/ranks/rank_folder.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/golden.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIncomplete = "optimum-llama-dp2-tp2-pp2-xser";

/// The folder of the one checkpoint of a case.
fs::path saved(const fs::path& golden_case) {
  for (const char* name : {"shards", "step_3"})
    if (fs::is_directory(golden_case / "checkpoint" / name)) return golden_case / "checkpoint" / name;
  return {};
}

/// To convert the checkpoint of a case with its optimizer to `layout`.
ConvertRequest optimizer_request(const fs::path& golden_case, const fs::path& output, const char* layout) {
  ConvertRequest request = convert_request(saved(golden_case), output);
  request.source.config = golden_case / "original";
  request.source.with_optimizer = true;
  request.target.layout = layout_named(layout);
  return request;
}

ReadContext with_optimizer(const fs::path& golden_case) {
  ReadContext context;
  context.config.path = golden_case / "original";
  context.with_optimizer = true;
  return context;
}

/// {parameter: {state: {"dtype", "shape", "sha256"}}} of the states' tensors, but for numbers.
json describe_states(Checkpoint& checkpoint) {
  const TrainingStates states = checkpoint.states;
  add_states(checkpoint.map, states.map);
  std::vector<std::uint32_t> wanted;
  for (const LogicalTensor& tensor : states.map.logical)
    if (!tensor.filler) wanted.push_back(*checkpoint.map.find_logical(tensor.name));
  RunOptions options = unsynced();
  options.replicas = Replicas::kFirst;
  const auto digests = compute_digests(checkpoint.map, wanted, options, true);
  json found;
  for (std::size_t i = 0, n = 0; i < states.of.size(); ++i) {
    const LogicalTensor& tensor = states.map.logical[i];
    if (tensor.filler) continue;
    const TensorDigest& digest = digests[n++];
    CHECK(tensor.role == TensorRole::kState);
    const DcpPath path = states.path_with(i, states.parameter(i));
    CHECK(path == DcpPath{"optimizer", "state", std::string(states.parameter(i)), path.back()});
    const std::string state = std::get<std::string>(path.back());
    CHECK(tensor.name == "optimizer.state." + std::string(states.parameter(i)) + "." + state);
    if (tensor.shape.empty()) continue;
    found[std::string(states.parameter(i))][state] = {
        {"dtype", describe(tensor.dtype).torch_name},
        {"shape", json(std::vector<std::uint64_t>(tensor.shape.begin(), tensor.shape.end()))},
        {"sha256", to_hex(digest.digest)}};
  }
  return found;
}

TEST_CASE("States of every case of the reference come out as the tensors that its own code merges") {
  std::size_t cases = 0;
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const std::string name = golden_case.filename().string();
    if (name == kIncomplete) continue;
    ++cases;
    DYNAMIC_SECTION(name) {
      Checkpoint checkpoint = read_checkpoint(saved(golden_case), with_optimizer(golden_case));
      CHECK(describe_states(checkpoint) == golden_of(golden_case).at("logical"));
    }
  }
  CHECK(cases == 6);
}

/// The scalars of a group, as golden.json has them.
json values_of(const PlainValue& value) {
  return std::visit(
      [](const auto& held) -> json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Held, PlainValue::List>) {
          json list = json::array();
          for (const PlainValue& item : held) list.push_back(values_of(item));
          return list;
        } else if constexpr (std::is_same_v<Held, PlainValue::Dict>) {
          json dict = json::object();
          for (const auto& [key, item] : held) dict[key] = values_of(item);
          return dict;
        } else {
          return held;
        }
      },
      value.value);
}

TEST_CASE("Groups have their hyperparameters and the model's names, and every parameter has its step") {
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const std::string name = golden_case.filename().string();
    if (name == kIncomplete) continue;
    DYNAMIC_SECTION(name) {
      const json golden = golden_of(golden_case);
      const Checkpoint checkpoint = read_checkpoint(saved(golden_case), with_optimizer(golden_case));
      const TrainingStates& states = checkpoint.states;
      std::set<std::string> parameters;
      json groups;
      for (const OptimizerGroup& group : states.groups) {
        json values = values_of({group.values});
        groups.push_back(values);
        for (const std::string& parameter : group.parameters) {
          CHECK(parameters.insert(parameter).second);
          const bool decays = group.values.front().second != PlainValue{0.0};
          CHECK(decays == (&group == &states.groups.front()));
        }
      }
      json expected = golden.at("structure").front().at("param_groups");
      for (json& group : expected) group.erase("params");
      CHECK(groups == expected);
      std::set<std::string> logical, steps;
      for (const auto& [parameter, parts] : golden.at("logical").items()) logical.insert(parameter);
      CHECK(parameters == logical);
      for (std::size_t i = 0; i < states.of.size(); ++i)
        if (states.map.logical[i].name.ends_with(".step")) steps.emplace(states.parameter(i));
      for (const StateNumber& number : states.numbers) {
        CHECK(number.state == "step");
        CHECK(number.value == PlainValue{golden.at("step").get<std::int64_t>()});
        CHECK(steps.insert(number.parameter).second);
      }
      CHECK(steps == logical);
    }
  }
}

TEST_CASE("States that optimum-neuron saved of one data-parallel rank alone are refused, and say why") {
  const fs::path golden_case = testdata("golden/zero1") / kIncomplete;
  const fs::path folder = saved(golden_case) / "optim";
  const auto check = [&](const ReadContext& context) {
    check_refused(
        [&] { read_checkpoint(saved(golden_case), context); },
        {.kind = ErrorKind::kUnsupported,
         .path = folder,
         .says = {"parts of ZeRO-1, each of some data-parallel rank, were saved as if they were all", "11 of 21 rows"},
         .hint = "the weights are complete"});
  };
  check(with_optimizer(golden_case));
  ReadContext masters = with_optimizer(golden_case);
  masters.with_optimizer = false;
  masters.options.set("weights", "master");
  check(masters);
  masters.options.set("weights", "model");
  CHECK_NOTHROW(read_checkpoint(saved(golden_case), masters));
}

TEST_CASE("Files that NxD's converter merged have the states, but not the master weights, which it loses") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  fs::copy(saved(golden_case) / "model", temp / "model");
  fs::copy(golden_case / "full/optim", temp / "optim");
  Checkpoint checkpoint = read_checkpoint(temp.path(), with_optimizer(golden_case));
  json expected = golden_of(golden_case).at("logical");
  for (json& states : expected)
    if (states.at("master").at("shape").at(0) != 1) states.erase("master");
  const std::string notes = join(checkpoint.notes, "\n");
  CHECK_THAT(notes, Says("were lost by NxD's converter"));
  CHECK_THAT(notes, Says("made of the weights; so nothing would show files that were swapped between ranks"));
  CHECK_THAT(notes, !Says("record neither"));
  CHECK(describe_states(checkpoint) == expected);
  ReadContext masters = with_optimizer(golden_case);
  masters.options.set("weights", "master");
  check_refused([&] { read_checkpoint(temp.path(), masters); },
                {.path = temp / "optim", .says = "holds no master weights"});
}

TEST_CASE("Without another number, states are spread over as many data-parallel ranks as the source has") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  ConvertRequest request = optimizer_request(golden_case, temp / "out", "nxd");
  request.target.tp = 1;
  execute(*plan_convert(request), unsynced());
  CHECK(fs::exists(temp / "out/optim/dp_rank_01_tp_rank_00_pp_rank_00.pt"));
  CHECK_FALSE(fs::exists(temp / "out/optim/dp_rank_02_tp_rank_00_pp_rank_00.pt"));
  CHECK_FALSE(fs::exists(temp / "out/optim/dp_rank_00_tp_rank_01_pp_rank_00.pt"));

  // Weights alone are not put beside an optimizer, whose master weights NxD would take for them.
  request.source.with_optimizer = false;
  request.force = true;
  check_refused([&] { plan_convert(request); }, {.path = temp / "out/optim"});
}

TEST_CASE("To find the layout that the ranks of a source get again, its optimizer is not read") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  ConvertRequest request = optimizer_request(golden_case, temp / "out", "nxd");
  request.target.layout = nullptr;
  request.target.tp = 1;
  const fs::path file = saved(golden_case) / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  const auto reads = [&] {
    FaultStorage watched;
    CHECK(plan_convert(watched, request)->layout == layout_named("nxd"));
    return watched.reads(file).size();
  };
  const std::size_t found = reads();
  request.target.layout = layout_named("nxd");
  CHECK(found == reads());
  CHECK(found > 0);
}

TEST_CASE("A file of an optimizer is not opened anew for the step of each parameter") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  ConvertRequest request = optimizer_request(golden_case, temp / "out", "nxd");
  request.target.tp = 1;
  request.target.pp = 2;  // whose steps are compared
  request.target.options.set_number("dp", 1);
  convert(request);
  FaultStorage watched;
  const Checkpoint checkpoint = read_checkpoint(watched, temp / "out", with_optimizer(golden_case));
  CHECK(checkpoint.states.groups.front().parameters.size() > 10);
  const auto steps = watched.steps();
  for (const char* file : {"dp_rank_00_tp_rank_00_pp_rank_00.pt", "dp_rank_00_tp_rank_00_pp_rank_01.pt"}) {
    const auto opened = std::count_if(steps.begin(), steps.end(), [&](const FaultStorage::Step& step) {
      return step.operation == FaultStorage::Operation::kOpen && step.path == temp / "out/optim" / file;
    });
    CAPTURE(file, opened);
    CHECK((opened > 0 && opened <= 4));  // for its headers, its steps and a look at its master weights
  }
}

TEST_CASE("The state of the trainer that goes along is the step's own, and not what its run's directory has") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  const std::string tag = GENERATE(as<std::string>{}, "step_3", "final");
  CAPTURE(tag);
  fs::copy(golden_case / "checkpoint", temp / "run", fs::copy_options::recursive);
  if (tag != "step_3") fs::rename(temp / "run/step_3", temp / "run" / tag);
  const fs::path step = temp / "run" / tag;
  fs::copy(golden_case / "original/config.json", temp / "run");
  write_file(temp / "run/trainer_state.json", "{\"global_step\": 9}");
  write_file(temp / "run/notes.txt", "of the run");
  write_file(temp / "run/both.txt", "of the run");
  write_file(step / "both.txt", "of the step");
  fs::create_directories(temp / "run/logs");
  write_file(temp / "run/logs/run.log", "of the run");
  fs::create_directories(step / "logs");
  write_file(step / "logs/step.log", "of the step");
  ConvertRequest request = optimizer_request(golden_case, temp / "out", "dcp");
  request.source.path = step;
  request.source.config.clear();
  convert(request);
  CHECK(read_file(temp / "out/notes.txt") == "of the run");
  CHECK(read_file(temp / "out/both.txt") == "of the step");
  CHECK(read_file(temp / "out/logs/step.log") == "of the step");
  CHECK(read_file(temp / "out/logs/run.log") == "of the run");
  CHECK_FALSE(fs::exists(temp / "out/trainer_state.json"));
  CHECK(read_file(temp / "out/scheduler.pt") == read_file(step / "scheduler.pt"));
  write_file(step / "trainer_state.json", "{\"global_step\": 3}");
  request.output_directory = temp / "again";
  convert(request);
  CHECK(read_file(temp / "again/trainer_state.json") == "{\"global_step\": 3}");
}

TEST_CASE("The state of the trainer goes along with the optimizer, from its step or the directory above its shards") {
  for (const char* name : {"nxd-llama-dp2-tp2", "optimum-qwen3-dp2-tp2-replicated"}) {
    DYNAMIC_SECTION(name) {
      const fs::path golden_case = testdata("golden/zero1") / name;
      const TempDir temp;
      fs::copy(golden_case / "checkpoint", temp / "run", fs::copy_options::recursive);
      const bool is_step = fs::exists(temp / "run/step_3");
      write_file(temp / (is_step ? "run/step_3/trainer_state.json" : "run/trainer_state.json"), "{\"global_step\": 3}");
      ConvertRequest request = optimizer_request(golden_case, temp / "out", "dcp");
      request.source.path = temp / (is_step ? "run/step_3" : "run");
      RunOptions options = unsynced();
      options.replicas = Replicas::kFirst;
      convert(request, options);
      CHECK(read_file(temp / "out/trainer_state.json") == "{\"global_step\": 3}");
    }
  }
}

TEST_CASE("States of every case are the same on another mesh") {
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const std::string name = golden_case.filename().string();
    if (name == kIncomplete) continue;
    DYNAMIC_SECTION(name) {
      const TempDir temp;
      ConvertRequest request = optimizer_request(golden_case, temp / "out", "nxd");
      request.target.tp = 2;
      request.target.pp = 1;
      request.target.options.set_number("dp", 3);
      const auto job = plan_convert(request);
      execute(*job, unsynced());
      Checkpoint checkpoint = read_checkpoint(temp / "out", with_optimizer(golden_case));
      json found = describe_states(checkpoint), expected = golden_of(golden_case).at("logical");
      const bool has_masters = expected.front().contains("master");
      const bool is_narrow = job->source.logical.front().dtype == DType::kBF16;
      CHECK((join(job->notes, "\n").find("they are made of BF16 weights") != std::string::npos) ==
            (!has_masters && is_narrow));
      if (!has_masters)
        for (json& states : found) CHECK(states.erase("master") == 1);
      CHECK(found == expected);
    }
  }
}

TEST_CASE("Master weights are the model's where they are asked for, and where there are no others") {
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const std::string name = golden_case.filename().string();
    const json golden = golden_of(golden_case);
    const bool has_masters = golden.at("logical").front().contains("master");
    if (name == kIncomplete || !has_masters) continue;
    DYNAMIC_SECTION(name) {
      const TempDir temp;
      ConsolidateRequest request;
      request.source.path = saved(golden_case);
      request.source.config = golden_case / "original";
      request.source.options.set("weights", "master");
      request.output_directory = temp / "out";
      const auto job = plan_consolidate(request);
      RunOptions options = unsynced();
      options.replicas = Replicas::kFirst;
      execute(*job, options);
      json expected;
      for (const auto& [parameter, states] : golden.at("logical").items()) expected[parameter] = states.at("master");
      CHECK(describe_tensors(read_whole(temp / "out")) == expected);
    }
  }
}

/// A case that may be spoiled.
struct Spoiled {
  explicit Spoiled(const char* name) : golden_case(testdata("golden/zero1") / name) {
    fs::copy(saved(golden_case), temp / "run", fs::copy_options::recursive);
  }
  fs::path file(const char* folder, std::uint32_t dp_rank, std::uint32_t tp_rank, std::uint32_t pp_rank = 0) const {
    return temp / "run" / folder / (rank_name({tp_rank, pp_rank, dp_rank}, true) + ".pt");
  }
  void swap(const fs::path& a, const fs::path& b) const {
    fs::rename(a, temp / "other");
    fs::rename(b, a);
    fs::rename(temp / "other", b);
  }
  void refused(const fs::path& path, const std::string& says) const {
    const auto check = [&](const ReadContext& context) {
      check_refused([&] { read_checkpoint(temp / "run", context); }, {.path = path, .says = says, .hint = "two saves"});
    };
    check(with_optimizer(golden_case));
    ReadContext masters = with_optimizer(golden_case);
    masters.with_optimizer = false;
    masters.options.set("weights", "master");
    check(masters);
  }

  fs::path golden_case;
  TempDir temp;
};

TEST_CASE("Optimizer files of other ranks or another save are known by their master weights") {
  const Spoiled run("nxd-llama-dp2-tp2");
  SECTION("of tensor-parallel ranks") {
    for (const std::uint32_t dp_rank : {0u, 1u}) run.swap(run.file("optim", dp_rank, 0), run.file("optim", dp_rank, 1));
    run.refused(run.file("optim", 0, 0), "it is not what the model has for its parameter model.embed_tokens.weight");
  }
  SECTION("of data-parallel ranks") {
    run.swap(run.file("optim", 0, 1), run.file("optim", 1, 1));
    run.refused(run.file("optim", 0, 1), "it is not what the model has for its parameter model.embed_tokens.weight");
  }
  SECTION("of one rank") {
    fs::copy_file(run.file("optim", 1, 0), run.file("optim", 1, 1), fs::copy_options::overwrite_existing);
    run.refused(run.file("optim", 1, 1), "it is not what the model has for its parameter model.embed_tokens.weight");
  }
  SECTION("of a model of another save") {
    fs::copy_file(run.file("model", 0, 0), run.file("model", 0, 1), fs::copy_options::overwrite_existing);
    check_refused([&] { read_checkpoint(run.temp / "run", with_optimizer(run.golden_case)); }, {});
  }
}

TEST_CASE("Master weights that two parameters of one shape have swapped are known, whichever they are") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const SavedTree first = read_saved_tree(saved(golden_case) / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt");
  const auto place = [](std::size_t id) { return fmt::format("sharded_master_weights/{}", id); };
  std::size_t swapped = 0;
  for (std::size_t a = 0; first.tensors.count(place(a)) > 0; ++a)
    for (std::size_t b = a + 1; first.tensors.count(place(b)) > 0; ++b) {
      const TensorData &of_a = first.tensors.at(place(a)), &of_b = first.tensors.at(place(b));
      if (of_a.shape != of_b.shape || of_a.bytes == of_b.bytes) continue;
      CAPTURE(a, b);
      const Spoiled run("nxd-llama-dp2-tp2");
      for (const std::uint32_t dp_rank : {0u, 1u})
        for (const std::uint32_t tp_rank : {0u, 1u}) {
          SavedTree tree = read_saved_tree(run.file("optim", dp_rank, tp_rank));
          std::swap(tree.tensors.at(place(a)), tree.tensors.at(place(b)));
          write_saved_tree(run.file("optim", dp_rank, tp_rank), tree);
        }
      check_refused([&] { read_checkpoint(run.temp / "run", with_optimizer(golden_case)); },
                    {.says = "it is not what the model has for its parameter"});
      ++swapped;
    }
  CHECK(swapped > 5);
}

TEST_CASE("Weights that are float32 and hold what master weights are as bfloat16 are of the same save") {
  const Spoiled run("nxd-llama-dp2-tp2");
  for (const std::uint32_t tp_rank : {0u, 1u}) {
    const fs::path path = run.file("model", 0, tp_rank);
    SavedTree tree = read_saved_tree(path);
    for (auto& [name, data] : tree.tensors) {
      REQUIRE(data.dtype == DType::kBF16);
      std::string wide;
      for (std::size_t i = 0; i < data.bytes.size(); i += 2) wide += std::string(2, '\0') + data.bytes.substr(i, 2);
      data = {DType::kF32, data.shape, wide};
      tree.structure.at(name).at("tensor") = "float32";
    }
    write_saved_tree(path, tree);
  }
  CHECK_NOTHROW(read_checkpoint(run.temp / "run", with_optimizer(run.golden_case)));
  SavedTree tree = read_saved_tree(run.file("model", 0, 0));
  std::string& bytes = tree.tensors.at("model.norm.weight").bytes;
  bytes[2] = static_cast<char>(bytes[2] ^ 4);  // the fourth bfloat16 value from there
  write_saved_tree(run.file("model", 0, 0), tree);
  check_refused([&] { read_checkpoint(run.temp / "run", with_optimizer(run.golden_case)); }, {});
}

TEST_CASE("States and master weights that some parameters lack are noted, and not taken for a model") {
  const Spoiled run("nxd-llama-dp2-tp2");
  const auto erase = [&](const std::string& dict, const std::string& key) {
    for (const std::uint32_t dp_rank : {0u, 1u})
      for (const std::uint32_t tp_rank : {0u, 1u}) {
        const fs::path path = run.file("optim", dp_rank, tp_rank);
        SavedTree tree = read_saved_tree(path);
        auto& of = dict == "base_state" ? tree.structure[dict]["int 2"] : tree.structure[dict];
        REQUIRE(of.erase(key) == 1);
        std::erase_if(tree.tensors, [&](const auto& tensor) {
          return tensor.first == (dict == "base_state" ? dict + "/2/" + key : dict + "/2");
        });
        write_saved_tree(path, tree);
      }
  };
  const auto notes = [&] {
    return join(read_checkpoint(run.temp / "run", with_optimizer(run.golden_case)).notes, "\n");
  };
  CHECK_THAT(notes(), !Says("not all parameters of a group have"));
  erase("base_state", "exp_avg_sq");
  CHECK_THAT(notes(),
             Says("not all parameters of a group have exp_avg_sq: not id 2 in dp_rank_00_tp_rank_00_pp_rank_00.pt"));
  erase("sharded_master_weights", "int 2");
  ReadContext masters = with_optimizer(run.golden_case);
  masters.with_optimizer = false;
  masters.options.set("weights", "master");
  check_refused([&] { read_checkpoint(run.temp / "run", masters); },
                {.kind = ErrorKind::kUnsupported,
                 .path = run.file("optim", 0, 0),
                 .says = "has states of id 2, but no master weights, which others have"});
}

TEST_CASE("Without master weights, files of data-parallel ranks that were swapped would go unnoticed, which is noted") {
  const Spoiled run("nxd-llama-dp2-tp2");
  ConvertRequest request = optimizer_request(run.golden_case, run.temp / "one", "nxd");
  request.target.tp = 1;
  convert(request);
  for (const std::uint32_t dp_rank : {0u, 1u}) {
    const fs::path path = run.temp / "one/optim" / (rank_name({0, 0, dp_rank}, true) + ".pt");
    SavedTree tree = read_saved_tree(path);
    tree.structure.erase("sharded_master_weights");
    std::erase_if(tree.tensors, [](const auto& tensor) { return tensor.first.starts_with("sharded_master_weights/"); });
    write_saved_tree(path, tree);
  }
  const Checkpoint checkpoint = read_checkpoint(run.temp / "one", with_optimizer(run.golden_case));
  CHECK_THAT(join(checkpoint.notes, "\n"), Says("files that were swapped between ranks would go unnoticed"));
}

TEST_CASE(
    "An optimizer is not written where a trainer would read another save's files, nor into another layout's ranks") {
  const Spoiled run("nxd-llama-dp2-tp2");
  fs::remove(run.temp / "run/scheduler.pt");
  ConvertRequest request = optimizer_request(run.golden_case, run.temp / "out", "nxd");
  request.source.path = run.temp / "run";
  write_file(run.temp / "out/scheduler.pt", "of another save");
  check_refused([&] { convert(request); }, {.path = run.temp / "out", .says = "holds scheduler.pt of another save"});
  fs::remove(run.temp / "out/scheduler.pt");
  convert(request);
  request.force = true;
  convert(request);
  request.target.layout = layout_named("optimum");
  check_refused([&] { convert(request); },
                {.path = run.temp / "out", .says = "holds a sharded checkpoint in layout nxd"});
  request.target.layout = layout_named("hf");
  request.source.with_optimizer = false;
  CHECK_THAT(error_of([&] { convert(request); }).what(), Says("holds a sharded checkpoint in layout"));
  fs::remove_all(run.temp / "out/optim");
  fs::remove(run.temp / "out/scheduler.pt");
  convert(request);  // beside the ranks of the model alone
  CHECK(fs::exists(run.temp / "out/model.safetensors"));
}

/// Moves the master weights of a file from what the weights are by this many 65536ths of the step between those.
void move_masters(const fs::path& path, std::uint32_t by) {
  SavedTree tree = read_saved_tree(path);
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
  write_saved_tree(path, tree);
}

TEST_CASE("Weights that are rounded up or down from their master weights are of the same save") {
  const auto read = [](std::uint32_t by) {
    const Spoiled run("nxd-llama-dp2-tp2");
    for (const std::uint32_t dp_rank : {0u, 1u})
      for (const std::uint32_t tp_rank : {0u, 1u}) move_masters(run.file("optim", dp_rank, tp_rank), by);
    read_checkpoint(run.temp / "run", with_optimizer(run.golden_case));
  };
  CHECK_NOTHROW(read(0x1000));
  CHECK_NOTHROW(read(0xC000));  // which is nearer to the next weight
  check_refused([&] { read(0x24000); }, {.says = "it is not what the model has for its parameter"});
}

TEST_CASE("Ranks at different steps are two saves, whatever is asked of replicas, and both steps are named") {
  const Spoiled run("nxd-llama-dp2-tp2");
  const fs::path path = run.file("optim", 0, 1);
  SavedTree tree = read_saved_tree(path);
  std::size_t changed = 0;
  for (auto& [place, data] : tree.tensors)
    if (place.ends_with("/step")) data.bytes = std::string("\0\0\x80\x40", 4), ++changed;  // 4
  REQUIRE(changed > 0);
  write_saved_tree(path, tree);
  ConvertRequest request = optimizer_request(run.golden_case, run.temp / "out", "nxd");
  request.source.path = run.temp / "run";
  request.target.options.set_number("dp", 3);
  for (const Replicas replicas : {Replicas::kExact, Replicas::kDrift, Replicas::kFirst}) {
    RunOptions options = unsynced();
    options.replicas = replicas;
    const Error error = error_of([&] { convert(request, options); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_THAT(error.what(),
               Says("but differs from it; 3 there, 4 here") || Says("but differs from it; 4 there, 3 here"));
    CHECK_THAT(error.hint(), Says("two saves"));
    CHECK_FALSE(fs::exists(run.temp / "out"));
  }
}

/// Adds one to all steps of a file.
void count_one_more_step(const fs::path& path) {
  SavedTree tree = read_saved_tree(path);
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
  write_saved_tree(path, tree);
}

TEST_CASE("What an optimizer file holds that nobody knows is noted") {
  const Spoiled run("nxd-llama-dp2-tp2");
  const auto notes = [&] {
    return json(read_checkpoint(run.temp / "run", with_optimizer(run.golden_case)).notes).dump();
  };
  CHECK(notes().find("which is left out") == std::string::npos);
  const fs::path path = run.file("optim", 1, 0);
  SavedTree tree = read_saved_tree(path);
  tree.structure["ema"] = 5;
  write_saved_tree(path, tree);
  CHECK_THAT(notes(), Says("the optimizer's files hold more than states, groups and master weights, which is left out: "
                           "ema"));
}

TEST_CASE("Optimizer files of two stages that are at different steps are refused") {
  const Spoiled run("nxd-llama-dp4-tp2-pp2");
  const int step = golden_of(run.golden_case).at("step").get<int>();
  const auto for_each_file = [&](const std::function<void(const fs::path&)>& change) {
    for (std::uint32_t dp_rank = 0; dp_rank < 4; ++dp_rank)
      for (std::uint32_t tp_rank = 0; tp_rank < 2; ++tp_rank) change(run.file("optim", dp_rank, tp_rank, 1));
  };
  for_each_file([](const fs::path& path) { write_saved_tree(path, read_saved_tree(path)); });  // as they were
  CHECK_NOTHROW(read_checkpoint(run.temp / "run", with_optimizer(run.golden_case)));
  for_each_file(count_one_more_step);
  run.refused(run.file("optim", 0, 0, 1), "its parameters are at step " + std::to_string(step + 1) +
                                              ", but those of an earlier stage at " + std::to_string(step));
}

TEST_CASE("Master weights are cast to the dtype that is asked for, and config.json names it") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  ConsolidateRequest request;
  request.source.path = saved(golden_case);
  request.source.config = golden_case / "original";
  request.source.options.set("weights", "master");
  request.output_directory = temp / "master";
  consolidate(request);
  request.output_directory = temp / "cast";
  request.dtype = DType::kF16;
  consolidate(request);
  ConvertRequest cast = convert_request(temp / "master", temp / "expected");
  cast.dtype = DType::kF16;
  convert(cast);
  CHECK(describe_tensors(read_whole(temp / "cast")) == describe_tensors(read_whole(temp / "expected")));
  CHECK(read_whole(temp / "cast").begin()->second.dtype == DType::kF16);
  CHECK(read_file(temp / "cast/config.json") == read_file(temp / "expected/config.json"));
}

TEST_CASE("States with padding on the way of ZeRO-1 go to a dcp without it") {
  const fs::path golden_case = testdata("golden/zero1/nxd-llama-dp2-tp2");
  const TempDir temp;
  ConvertRequest request = optimizer_request(golden_case, temp / "out", "dcp");
  const auto job = plan_convert(request);
  execute(*job, unsynced());
  for (const char* name : {"scheduler.pt", "user_content.pt"})
    CHECK(read_file(temp / "out" / name) == read_file(saved(golden_case) / name));
  Checkpoint source = read_checkpoint(saved(golden_case), with_optimizer(golden_case));
  Checkpoint target = read_checkpoint(temp / "out", with_optimizer(golden_case));
  // Master weights stay behind; the values of two groups come as objects.
  const auto& logical = target.states.map.logical;
  CHECK(std::count_if(logical.begin(), logical.end(), [](const LogicalTensor& tensor) {
          return tensor.role == TensorRole::kState && !tensor.filler;
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
