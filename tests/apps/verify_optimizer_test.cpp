// `reshard verify --with-optimizer` of optimizers in layouts that have other forms for the same values.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "reshard/formats/pickle/plain_value.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/files.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/optimizer_oracle.h"
#include "support/program.h"
#include "support/random.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
/// A checkpoint of NxD's or optimum-neuron's reference, and what it became by `convert --to dcp`, with its master weights
/// as the model where it has any.
struct Migrated {
  TempDir temp;
  std::string source, output = (temp / "out").string();
  Arguments of_verify{"--with-optimizer"};  // options

  explicit Migrated(const fs::path& golden_case, bool has_masters = true) {
    const fs::path checkpoint = golden_case / "checkpoint";
    source = (fs::exists(checkpoint / "step_3") ? checkpoint / "step_3" : checkpoint).string();
    Arguments words{"convert", source, output, "--to", "dcp", "--with-optimizer"};
    if (!fs::exists(fs::path(source) / "config.json")) {
      const Arguments config{"--config", (golden_case / "original").string()};
      words = joined(words, config);
      of_verify = joined(of_verify, config);
    }
    run_well(joined(words, has_masters ? Arguments{"--from-weights", "master"} : Arguments()));
    if (has_masters) of_verify = joined(of_verify, {"--weights", "master"});
  }

  ProgramResult verify(const std::string& a, const std::string& b) const {
    return run_reshard(joined({"verify", a, b}, of_verify));
  }

  /// The same with other content.
  template <typename Change>
  std::string changed(const Change& change) const {
    dcp::Content content = dcp::read(output);
    change(content);
    std::vector<dcp::Whole> tensors;
    std::vector<dcp::Object> objects;
    for (const auto& [name, data] : content.tensors)
      tensors.push_back({name, data, {{Dims(data.shape.size()), data.shape, 0}}});
    for (const auto& [name, bytes] : content.objects) objects.push_back({name, bytes});
    const fs::path directory = temp / "changed";
    fs::remove_all(directory);
    dcp::write(directory, tensors, objects);
    fs::copy(temp / "out/config.json", directory / "config.json");
    return directory.string();
  }
};

const std::string kStep = "optimizer.state.model.norm.weight.step";
const std::string kMoment = "optimizer.state.model.norm.weight.exp_avg";

TEST_CASE("A migration of an optimizer with its master weights to dcp is the same to verify") {
  std::size_t cases = 0;
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const std::string name = golden_case.filename().string();
    if (name == "optimum-llama-dp2-tp2-pp2-xser") continue;  // whose states cannot be restored
    ++cases;
    DYNAMIC_SECTION(name) {
      const bool has_masters = name != "optimum-qwen3-dp2-tp2-replicated" && name != "nxd-llama-dp4-tp2-pp2";
      const Migrated run(golden_case, has_masters);
      for (const auto& [a, b] : {std::pair(run.source, run.output), {run.output, run.source}}) {
        const ProgramResult result = run.verify(a, b);
        INFO(result.out << result.err);
        CHECK(result.exit_code == 0);
        CHECK_THAT(result.out, Says("same: "));
        const std::string note = " master weights are not compared: the other optimizer has none\n";
        CHECK_THAT(result.err, !Says(note));  // they are the model
        const bool has_scheduler = fs::exists(fs::path(run.source) / "scheduler.pt");
        CHECK((result.err.find("the trainer's files are not compared") != result.err.npos) == has_scheduler);
      }
    }
  }
  CHECK(cases == 6);
}

TEST_CASE("A migrated optimizer is what its own manifest says, with its groups and steps") {
  for (const char* name : {"nxd-llama-dp2-tp2", "nxd-llama-dp4-tp2-pp2"})
    for (const char* names : {"hf", "torchtitan-0.2"}) {
      CAPTURE(name, names);
      const TempDir temp;
      const fs::path golden_case = testdata("golden/zero1") / name;
      const std::string out = (temp / "out").string();
      run_well({"convert", (golden_case / "checkpoint/step_3").string(), out, "--config",
                (golden_case / "original").string(), "--to", "dcp", "--fsdp", "2", "--names", names, "--with-optimizer",
                "--manifest"});
      const ProgramResult result =
          run_well({"verify", out, "--manifest", out + "/reshard.manifest.json", "--with-optimizer"});
      CHECK_THAT(result.err, !Says("not compared"));
    }
}

TEST_CASE("Master weights that one optimizer alone has are noted, where they are not the model") {
  Migrated run(testdata("golden/zero1/nxd-llama-dp2-tp2"));
  run.of_verify.resize(run.of_verify.size() - 2);  // --weights master
  CHECK_THAT(run.verify(run.source, run.output).err,
             Says("21 master weights are not compared: the other optimizer has none\n"));
}

TEST_CASE("What changed in a migrated optimizer is found, be it a value, a number or a moment") {
  const Migrated run(testdata("golden/zero1/nxd-llama-dp2-tp2"));
  const Migrated counting(testdata("golden/zero1/nxd-llama-dp4-tp2-pp2"), false);  // steps in Python
  const auto check_of = [](const Migrated& one, const std::string& expected, const auto& change) {
    const ProgramResult result = one.verify(one.source, one.changed(change));
    INFO(result.out << result.err);
    CHECK(result.exit_code == 1);
    CHECK_THAT(result.out, Says(expected));
    CHECK_THAT(result.out, Says("different: 1 "));
  };
  const auto check_differs = [&](const std::string& expected, const auto& change) { check_of(run, expected, change); };
  CHECK(counting.verify(counting.source, counting.changed([](dcp::Content&) {})).exit_code == 0);
  CHECK(run.verify(run.source, run.changed([](dcp::Content&) {})).exit_code == 0);
  check_differs("differs: lr of ", [](dcp::Content& content) {
    content.objects.at("optimizer.param_groups.0.lr") = plain_value_file("archive", PlainValue{0.5});
  });
  check_differs(": only in B\n", [](dcp::Content& content) {
    content.objects["optimizer.param_groups.0.fresh"] = plain_value_file("archive", PlainValue{std::int64_t{1}});
  });
  check_differs(": only in A\n", [](dcp::Content& content) { content.objects.erase("optimizer.param_groups.0.eps"); });
  const auto with_other_step = [](dcp::Content& content) {
    REQUIRE(content.tensors.at(kStep).bytes == std::string("\0\0\x40\x40", 4));
    content.tensors.at(kStep).bytes[2] = '\x60';
  };
  const auto without_step = [](dcp::Content& content) { content.tensors.erase(kStep); };
  check_of(counting, "step of model.norm.weight: 3 and 3.5\n", with_other_step);
  check_of(counting, "step of model.norm.weight: 3 and nothing\n", without_step);
  check_differs("differs: " + kStep + ": 1 of 1 elements, first at []: 3 and 3.5", with_other_step);
  check_differs("only in " + run.source + ": " + kStep + "\n", without_step);
  check_differs("differs: " + kMoment + ": 1 of ",
                [](dcp::Content& content) { content.tensors.at(kMoment).bytes[0] ^= 1; });
  check_differs("only in " + run.source + ": " + kMoment + "\n",
                [](dcp::Content& content) { content.tensors.erase(kMoment); });
}

TEST_CASE("Objects of groups that are no plain values are compared byte by byte") {
  const Migrated run(testdata("golden/zero1/nxd-llama-dp2-tp2"));
  const auto with_tensor = [](char byte) {
    return [byte](dcp::Content& content) {
      content.objects.at("optimizer.param_groups.0.lr") =
          dcp::item_bytes("float32", {}, std::string("\0\0\x40", 3) + byte);
    };
  };
  const std::string one = (run.temp / "one").string(), two = run.changed(with_tensor('\x40'));
  fs::rename(two, one);
  REQUIRE(run.changed(with_tensor('\x41')) == two);
  run_well({"verify", one, one, "--with-optimizer"});
  check_run({"verify", one, two, "--with-optimizer"}, 1, "differs: optimizer.param_groups.0.lr: ");
  const ProgramResult half = run.verify(run.source, one);
  CHECK(half.exit_code == 1);
  CHECK_THAT(half.out, Says("only in " + one + ": optimizer.param_groups.0.eps\n"));
}

TEST_CASE("Runs that went from dcp to NxD are the same as before, whatever form their groups have") {
  for (const std::uint64_t seed : seeds(10)) {
    CAPTURE(seed);
    Random random(seed);
    const TrainingRun run = random_training(random, random_model(random));
    OracleOptions mesh = legal_options(random, run.model);
    choose_qkv_linear(random, run.model, mesh);
    CAPTURE(mesh.tp, mesh.pp, mesh.vpp, run.model.tied);
    const TempDir temp;
    for (const bool flat : {false, true}) {
      const fs::path dcp = temp / (flat ? "flat" : "list");
      write_dcp(dcp, run, random, flat);
      write_file(dcp / "config.json", run.model.config().dump());
    }
    Request request = convert_request(temp / "list", temp / "nxd");
    request.source.with_optimizer = true;
    request.target.layout = layout("nxd");
    set_target(request.target, mesh);
    request.target.options.set_number("dp", pick(random, 1, 3));
    convert(request);
    Arguments options{"--with-optimizer"};
    if (mesh.kv_size_multiplier != 0)
      options = joined(options, {"--kv-size-multiplier", std::to_string(mesh.kv_size_multiplier)});
    const auto verify = [&](const std::string& a, const std::string& b) {
      return joined({"verify", (temp / a).string(), (temp / b).string()}, options);
    };
    for (const auto& [a, b] : {std::pair("list", "flat"), {"nxd", "list"}, {"flat", "nxd"}}) run_well(verify(a, b));
    TrainingRun other = run;
    other.groups.front()["lr"] = 0.25;
    write_dcp(temp / "other", other, random, random() % 2);
    write_file(temp / "other/config.json", run.model.config().dump());
    for (const char* a : {"list", "flat", "nxd"})
      check_run(verify(a, "other"), 1, {": 0.125 and 0.25\n", "different: 1 value of the optimizer\n"});
  }
}

}  // namespace
}  // namespace reshard::test
