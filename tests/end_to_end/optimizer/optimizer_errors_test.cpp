// Optimizers that cannot be written as NxD's files, or not be read from them: errors with the place, nothing written.

#include <fmt/format.h>

#include <functional>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/saved_file.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* kKey = "model.layers.0.self_attn.k_proj.weight";
constexpr const char* kLastNorm = "model.norm.weight";
constexpr const char* kState = "optimizer.state.";
constexpr const char* kFile = "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt";

/// A checkpoint of torch.distributed.checkpoint that a test may spoil: a model of fused attention on one rank.
struct Trained {
  TinyModel model;
  Random random{5};
  TensorMap tensors;  // of the model and the optimizer, by their names in the checkpoint
  std::vector<std::vector<std::string>> groups{{}};
  TempDir temp;

  explicit Trained(std::uint64_t layers = TinyModel().layers) : model{.layers = layers, .kv_heads = 4} {
    for (const auto& [name, data] : random_tensors(model, random)) {
      tensors["model." + name] = data;
      groups[0].push_back(name);
      tensors[state(name, "step")] = {DType::kF32, {}, std::string("\0\0\x40\x40", 4)};
      tensors[state(name, "exp_avg")] = random_tensor(random, DType::kF32, data.shape);
    }
  }
  static std::string state(const std::string& parameter, const std::string& state) {
    return kState + parameter + "." + state;
  }
  TensorData& operator()(const char* parameter, const char* name) { return tensors[state(parameter, name)]; }
  /// To fuse query, key and value, or not.
  Request request(const std::vector<std::string>& options = {"fuse-qkv", "dp=2"}) const {
    std::vector<dcp::Whole> wholes;
    for (const auto& [name, data] : tensors) wholes.push_back({name, data, {{Dims(data.shape.size()), data.shape, 0}}});
    std::vector<dcp::Object> objects;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::string group = fmt::format("optimizer.param_groups.{}.", g);
      PlainValue::List names;
      for (const std::string& name : groups[g]) names.push_back({name});
      objects.push_back({group + "lr", plain_value_file("archive", {0.5 + static_cast<double>(g)})});
      objects.push_back({group + "params", plain_value_file("archive", {names})});
    }
    fs::remove_all(temp / "dcp");
    dcp::write(temp / "dcp", wholes, objects);
    write_file(temp / "dcp/config.json", model.config().dump());
    return convert_request(temp / "dcp", temp / "out", {.layout = "nxd", .tp = 1, .options = options});
  }
};

using Change = std::function<void(Trained&)>;

void move_key_to_second(Trained& trained) {
  std::erase(trained.groups[0], kKey);
  trained.groups.push_back({kKey});
}

TEST_CASE("An optimizer of fused parameters is written, and without fusing one whose parameters are in two groups") {
  Trained trained;
  convert(trained.request());
  CHECK(read_saved_trees(trained.temp / "out/optim").size() == 2);
  move_key_to_second(trained);
  fs::remove_all(trained.temp / "out");
  convert(trained.request({"dp=2"}));
  CHECK(read_saved_trees(trained.temp / "out/optim").size() == 2);
}

TEST_CASE("An optimizer that does not fit its model, its groups or parameters that are fused into one is refused") {
  const std::string differs = "its state max_exp_avg_sq differs from that of the other parameters that are fused into";
  const Refusal no_copy{.kind = ErrorKind::kUnsupported,
                        .tensor = Trained::state(kKey, "master"),
                        .says = "is not a copy of its parameter"};
  const auto add_masters = [](const TensorData& of_key) {
    return [=](Trained& trained) {
      trained(kQuery, "master") = trained(kQuery, "exp_avg");
      trained(kKey, "master") = of_key;
    };
  };
  check_refusals<Change>(
      [](const Change& change) {
        Trained trained;
        change(trained);
        const Error error = error_of([&] { convert(trained.request()); });
        CHECK_FALSE(fs::exists(trained.temp / "out"));
        throw error;
      },
      {},
      {{"in two groups",
        move_key_to_second,
        {.kind = ErrorKind::kUnsupported,
         .tensor = kKey,
         .says = std::string("is in group 1 of the optimizer, and ") + kQuery}},
       {"the first has more states",
        [](Trained& trained) { trained(kQuery, "max_exp_avg_sq") = trained(kQuery, "exp_avg"); },
        {.kind = ErrorKind::kUnsupported, .tensor = kKey, .says = differs}},
       {"another has more states",
        [](Trained& trained) { trained(kKey, "max_exp_avg_sq") = trained(kKey, "exp_avg"); },
        {.kind = ErrorKind::kUnsupported, .tensor = kQuery, .says = differs}},
       {"a master weight of another dtype", add_masters({DType::kF64, {16, 16}, std::string(2048, 'x')}), no_copy},
       {"a master weight that is a number", add_masters({DType::kF32, {}, "four"}), no_copy},
       {"another step",
        [](Trained& trained) { trained(kKey, "step").bytes = std::string("\0\0\x80\x40", 4); },  // 4
        {.tensor = Trained::state(kQuery, "step")}},
       {"a state of neither its parameter's shape nor one element",
        [](Trained& trained) {
          trained(kLastNorm, "exp_avg") = {DType::kF32, {3}, std::string(12, 'x')};
        },
        {.tensor = Trained::state(kLastNorm, "exp_avg"),
         .says = "has the shape [3], but its parameter model.model.norm.weight has [16]"}},
       {"a group has a parameter that nobody knows",
        [](Trained& trained) { trained.groups[0].push_back("model.other.weight"); },
        {.tensor = "model.other.weight", .says = "but the model does not"}},
       {"no group has a parameter that has states",
        [](Trained& trained) { std::erase(trained.groups[0], kLastNorm); },
        {.tensor = kLastNorm, .says = "but it is in none of the optimizer's groups"}},
       {"there are no states",
        [](Trained& trained) {
          std::erase_if(trained.tensors, [](const auto& tensor) { return tensor.first.starts_with(kState); });
        },
        {.tensor = "", .says = "contains no optimizer states to write"}},
       {"there are no groups",
        [](Trained& trained) { trained.groups.clear(); },
        {.tensor = "", .says = "have no parameter groups"}},
       {"a parameter is in two groups",
        [](Trained& trained) { trained.groups.push_back({kLastNorm}); },
        {.tensor = "optimizer.param_groups.1.params",
         .says = "lists model.norm.weight, which is already in a group"}}});
}

/// The optimizer's file of a run without ZeRO-1, for the model's file beside it, with states of the shapes that
/// `shape_of` gives.
void write_whole_states(const fs::path& step,
                        const std::function<Dims(const std::string& state, std::size_t id, const Dims&)>& shape_of) {
  using namespace pickles;
  std::vector<std::string> states;
  std::vector<std::int64_t> ids;
  SavedFile file;
  const SavedTree model = read_saved_tree(step / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt");
  for (const auto& [name, value] : model.structure.items()) {
    std::vector<std::pair<std::string, std::string>> items{{"step", number(3)}};
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      const Dims shape = shape_of(state, states.size(), model.tensors.at(name).shape);
      items.emplace_back(state, file.tensor({DType::kF32, shape, std::string(4 * *num_elems(shape), '\1')}));
    }
    ids.push_back(static_cast<std::int64_t>(states.size()));
    states.push_back(dict(items));
  }
  const std::string group = dict({{"lr", number(1)}, {"params", numbers(ids)}});
  file.save(step / kFile, dict({{"state", numbered(states)}, {"param_groups", list({group})}}));
}

TEST_CASE("States of another shape than their parameter's are refused, whichever state it is") {
  const Trained trained;
  convert(trained.request({}));
  const Request request =
      convert_request(trained.temp / "out", trained.temp / "back", {.layout = "dcp", .with_optimizer = true});
  write_whole_states(trained.temp / "out", [](const std::string&, std::size_t, const Dims& shape) { return shape; });
  CHECK_NOTHROW(plan_convert(request));
  for (const std::string wrong : {"exp_avg", "exp_avg_sq"}) {
    for (const bool is_number : {false, true}) {
      write_whole_states(trained.temp / "out", [&](const std::string& state, std::size_t id, const Dims& shape) {
        Dims other = shape;
        if (state == wrong && id == 1) ++other[0];
        return is_number && other != shape ? Dims{} : other;
      });
      CAPTURE(wrong, is_number);
      const std::string named = wrong == "exp_avg" && !is_number ? "" : wrong + " of ";
      check_refused(
          [&] { plan_convert(request); },
          {.path = trained.temp / "out" / kFile,
           .says = named + (is_number ? "id 1 has the shape [], but its parameter" : "id 1 has the shape [")});
    }
  }
}

TEST_CASE("The optimizer of another model is refused or named though nobody asks which parameters its ids are") {
  const Trained trained, other(trained.model.layers - 1);  // a layer less
  for (const Trained* one : {&trained, &other}) convert(one->request());
  const auto replan = [](const Trained& from) {
    plan_convert(convert_request(
        from.temp / "out", from.temp / "again",
        {.layout = "nxd", .tp = 1, .options = {"fuse-qkv", "dp=2"}, .source_options = {"optimizer-groups=ids"}}));
  };
  ReadContext context;
  context.beside = Beside::kLook;
  const auto unnamed = [&] { return read_checkpoint(trained.temp / "out", context).beside_model->summary->unnamed; };
  replan(other);
  CHECK(unnamed().empty());
  fs::rename(trained.temp / "out/optim", trained.temp / "optim");
  fs::rename(other.temp / "out/optim", trained.temp / "out/optim");
  CHECK_THAT(unnamed(), Says("parameters, but according to rule"));
  CHECK_THAT(unnamed(), Says("no rule of `from-optimizer-groups` fits"));
  fs::rename(trained.temp / "optim", other.temp / "out/optim");
  check_refused([&] { replan(other); }, {.path = other.temp / "out" / kFile,
                                         .says = "of its ids have, but the model's files of pp rank 0 have",
                                         .hint = "the optimizer belongs to another model"});
}

}  // namespace
}  // namespace reshard::test
