// Random runs of torchtitan, of both generations of its names: what it stacks, and in which order it has rows, of the
// model and of its optimizer's states. From any chunks to the model's own names on any mesh, and back.

#include "support/checkpoints.h"
#include "support/families.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/thread_ranks.h"
#include "support/titan.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model that torchtitan trains, with a moment of each parameter, under the model's own names.
struct TitanRun {
  TensorMap model, moments;
  std::uint64_t head_dim = 0;  // whose rows come in pairs; 0 if none do
  bool fuses_qkv = true;
  bool is_main = false;

  /// What torchtitan calls `name`.
  std::string titan_name(const std::string& name) const {
    return titan_tensors({{name, {DType::kU8, {1}, "x"}}}, is_main, 0, fuses_qkv).begin()->first;
  }
  std::map<std::string, TensorData> titan(const TensorMap& tensors) const {
    return titan_tensors(tensors, is_main, head_dim, fuses_qkv);
  }
  /// Each name of torchtitan has a count of steps and a learning rate of its own, which all experts of a stack share.
  static TensorData step_of(const std::string& titan) {
    return {DType::kF32, {}, std::string(1, static_cast<char>(titan.size())) + "sss"};
  }
};

TitanRun random_titan(Random& random, const std::string& type, bool is_main, const fs::path& directory) {
  TitanRun run;
  run.is_main = is_main;
  run.fuses_qkv = !type.starts_with("deepseek");
  if (type == "llama" || type == "qwen3") {
    TinyModel tiny{.model_type = type, .heads = 2 * pick(random, 1, 3), .head_dim = 2 * pick(random, 1, 4)};
    tiny.kv_heads = tiny.heads / pick(random, 1, 2);
    run.model = random_tensors(tiny, random);
    write_model(directory, tiny, run.model);
    if (type == "llama") run.head_dim = tiny.head_dim;
  } else {
    run.model = write_case(family_case(type), directory);
  }
  for (const auto& [name, data] : run.model) run.moments[name] = random_tensor(random, DType::kF32, data.shape);
  return run;
}

/// The run as torchtitan saves it, with states in the flattened form.
Saved saved_by_titan(Random& random, const TitanRun& run) {
  using namespace pickles;
  Saved saved;
  const auto add = [&](const std::string& name, const TensorData& data) {
    saved.tensors.push_back({name, data, random_parts(random, data.shape)});
  };
  for (const auto& [name, data] : run.titan(run.model)) add(name, data);
  for (const auto& [name, data] : run.titan(run.moments)) {
    const std::string state = "state." + name + ".exp_avg";
    add("optimizer." + state, data);
    saved.paths["optimizer." + state] = tuple({text("optimizer"), text(state)});
    add("optimizer.state." + name + ".step", TitanRun::step_of(name));
    saved.add_object("optimizer.param_groups." + name + ".lr", "lr of " + name);
  }
  return saved;
}

void check_own_names(const TitanRun& run, const dcp::Content& content) {
  std::map<std::string, TensorData> tensors;
  std::map<std::string, std::string> objects;
  for (const auto& [name, data] : run.model) {
    const std::string titan = run.titan_name(name), state = "state." + name + ".exp_avg";
    tensors[name] = data;
    tensors["optimizer." + state] = run.moments.at(name);
    tensors["optimizer.state." + name + ".step"] = TitanRun::step_of(titan);
    objects["optimizer.param_groups." + name + ".lr"] = dcp::object_bytes("lr of " + titan);
    CHECK((content.paths.at("optimizer." + state) == DcpPath{"optimizer", state}));
  }
  CHECK((content.tensors == tensors));
  CHECK((content.objects == objects));
}

TEST_CASE("Runs of torchtitan get the model's names and order of rows, experts get theirs of stacks, and back") {
  constexpr const char* kBias = "layers.1.moe.expert_bias";  // which the model has no values for
  for (const std::string type : {"llama", "qwen3", "qwen3_moe", "deepseek_v3", "deepseek_v3_no_q_lora"})
    for (const bool is_main : {false, true})
      for (const std::uint64_t seed : seeds(6)) {
        Random random(seed);
        const std::uint64_t fsdp = pick(random, 1, 6);
        const auto tp = static_cast<std::uint32_t>(pick(random, 1, 3));
        CAPTURE(type, is_main, seed, fsdp, tp);
        const TempDir temp;
        const TitanRun run = random_titan(random, type, is_main, temp / "model");
        Saved saved = saved_by_titan(random, run);
        saved.write(temp / "titan");
        if (type == "qwen3_moe") saved.add(kBias, random_tensor(random, DType::kF32, {3}));
        saved.write(temp / "biased");
        CHECK((converted(temp / "biased", temp / "whole", {.config = temp / "model"}) == run.model));
        Request own = run_request(temp / "titan", temp / "own", pick(random, 1, 6));
        own.source.config = temp / "model";
        convert(own);
        check_own_names(run, dcp::read(temp / "own"));

        Request back = run_request(temp / "own", temp / "back", fsdp, "", tp);
        back.target.options.set("names",
                                is_main ? one_of(random, {0, 1}) ? "torchtitan" : "torchtitan-main" : "torchtitan-0.2");
        back.check_replicas = random() % 2;  // what experts have alike, their stack has once
        const auto job = plan_convert(local_storage(), back);
        execute(*job, unsynced());
        const dcp::Content first = dcp::read(temp / "titan"), last = dcp::read(temp / "back");
        CHECK((last.tensors == first.tensors));
        CHECK((last.objects == first.objects));
        CHECK((last.paths == first.paths));
        check_chunks(temp / "back", tp == 1 ? fsdp : 0);
        check_blocks(*job, temp / "blocks", pick(random, 1, 200), 2);  // which end anywhere in a head

        back.source = {};
        back.source.path = temp / "model";
        back.output_directory = temp / "of-model";
        convert(back);
        CHECK((dcp::read(temp / "of-model").tensors == run.titan(run.model)));
        // By ranks whose shares end anywhere.
        back.output_directory = temp / "ranks";
        const auto thrown = run_ranks(3, [&](Together& together) {
          RunOptions options = unsynced();
          options.tuning.page_bytes = 64;
          options.tuning.unit_bytes = 200;
          options.tuning.max_shared_part = 1e9;
          execute(*plan_convert(local_storage(), back), options, together);
        });
        for (const auto& error : thrown) CHECK((error ? std::string(error->what()) : "") == "");
        CHECK((snapshot(temp / "ranks") == snapshot(temp / "of-model")));
      }
}

TEST_CASE("A list of names that change is refused, and so are states that cannot follow the order of rows") {
  Random random(8);
  const TempDir temp;
  const TitanRun run = random_titan(random, "llama", false, temp / "model");
  const auto refused = [&](const Saved& saved, const char* names, const std::string& tensor, const char* says) {
    fs::remove_all(temp / "run");
    saved.write(temp / "run");
    Request request = run_request(temp / "run", temp / "out", 3);
    request.source.config = temp / "model";
    request.target.options.set("names", names);
    check_refused([&] { convert(request); },
                  {.kind = ErrorKind::kUnsupported, .tensor = tensor, .says = says, .unwritten = temp / "out"});
  };
  Saved titan = saved_by_titan(random, run), own;
  for (const auto& [name, data] : run.model) own.add(name, data);
  const auto add_sums = [&](Saved saved, const std::string& name) {
    saved.add(name, random_tensor(random, DType::kF32, {8}));
    return saved;
  };
  const std::string query = "optimizer.state.layers.0.attention.wq.weight.sums";
  refused(add_sums(titan, query), "hf", query, "layers.0.attention.wq.weight has");
  const std::string own_query = "optim.state.model.layers.0.self_attn.q_proj.weight.sums";
  refused(add_sums(own, own_query), "torchtitan", own_query,
          "cannot be packed into layers.0.attention.qkv_linear.wq.weight");
  titan.add_object("optimizer.param_groups.0.params");
  refused(titan, "hf", "optimizer.param_groups.0.params",
          "under their names in torchtitan, which become the model's own");
  own.add_object("optim.param_groups.0.params");
  refused(add_sums(own, "optim.state.model.norm.weight.sums"), "torchtitan", "optim.param_groups.0.params",
          "and `names` changes names");
}

}  // namespace
}  // namespace reshard::test
