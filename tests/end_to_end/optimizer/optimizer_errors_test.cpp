// Optimizers that cannot be written as NxD's files, or not be read from them: errors with the place, nothing written.

#include <fmt/format.h>

#include <functional>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* kKey = "model.layers.0.self_attn.k_proj.weight";
constexpr const char* kState = "optimizer.state.";

PlainValue::List names_of(const std::vector<std::string>& names) {
  PlainValue::List list;
  for (const std::string& name : names) list.push_back({name});
  return list;
}

/// A checkpoint of torch.distributed.checkpoint that a test may spoil: a model of fused attention on one rank.
struct Trained {
  TinyModel model;
  Random random{5};
  TensorMap tensors;  // of the model and the optimizer, by their names in the checkpoint
  std::vector<std::vector<std::string>> groups;
  TempDir temp;

  explicit Trained(std::uint64_t layers = TinyModel().layers) {
    model.layers = layers;
    model.kv_heads = model.heads;
    groups.resize(1);
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
  /// Puts a parameter into a second group.
  void move_to_second(const std::string& parameter) {
    std::erase(groups[0], parameter);
    groups.push_back({parameter});
  }
  ConvertRequest request() const {
    std::vector<dcp::Whole> wholes;
    for (const auto& [name, data] : tensors) wholes.push_back({name, data, {{Dims(data.shape.size()), data.shape, 0}}});
    std::vector<dcp::Object> objects;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::string group = fmt::format("optimizer.param_groups.{}.", g);
      objects.push_back({group + "lr", plain_value_file("archive", {0.5 + static_cast<double>(g)})});
      objects.push_back({group + "params", plain_value_file("archive", {names_of(groups[g])})});
    }
    fs::remove_all(temp / "dcp");
    dcp::write(temp / "dcp", wholes, objects);
    write_file(temp / "dcp/config.json", model.config().dump());
    ConvertRequest request = convert_request(temp / "dcp", temp / "out");
    request.target.layout = layout("nxd");
    request.target.tp = 1;
    request.target.options.set_flag("fuse-qkv", true);
    request.target.options.set_number("dp", 2);
    return request;
  }
  void refused(ErrorKind kind, const std::string& tensor, const std::string& says) const {
    check_refused([&] { convert(request()); },
                  {.kind = kind, .tensor = tensor, .says = says, .unwritten = temp / "out"});
  }
};

TEST_CASE("An optimizer of fused parameters is written, so that what follows fails for its own reason") {
  const Trained trained;
  convert(trained.request());
  CHECK(read_saved_trees(trained.temp / "out/optim").size() == 2);
}

TEST_CASE("Parameters in different groups cannot be fused into one, which has one group") {
  Trained trained;
  trained.move_to_second(kKey);
  trained.refused(ErrorKind::kUnsupported, kKey, std::string("is in group 1 of the optimizer, and ") + kQuery);
  // Not fused they are two numbers in two groups.
  ConvertRequest request = trained.request();
  request.target.options = {};
  request.target.options.set_number("dp", 2);
  convert(request);
  CHECK(read_saved_trees(trained.temp / "out/optim").size() == 2);
}

TEST_CASE("Parameters with different states cannot be fused into one") {
  Trained trained;
  SECTION("the first has more") {
    trained.tensors[Trained::state(kQuery, "max_exp_avg_sq")] = trained.tensors[Trained::state(kQuery, "exp_avg")];
  }
  SECTION("another has more") {
    trained.tensors[Trained::state(kKey, "max_exp_avg_sq")] = trained.tensors[Trained::state(kKey, "exp_avg")];
  }
  const std::string named = trained.tensors.count(Trained::state(kQuery, "max_exp_avg_sq")) > 0 ? kKey : kQuery;
  trained.refused(ErrorKind::kUnsupported, named,
                  "its state max_exp_avg_sq is not as that of the other parameters that are fused into");
}

TEST_CASE("Master weights of parameters that are fused into one have one dtype, and their parameters' shapes") {
  Trained trained;
  const Dims shape = trained.tensors.at(std::string("model.") + kQuery).shape;
  trained.tensors[Trained::state(kQuery, "master")] = random_tensor(trained.random, DType::kF32, shape);
  SECTION("another dtype") {
    trained.tensors[Trained::state(kKey, "master")] = random_tensor(trained.random, DType::kF64, shape);
  }
  SECTION("a number") {
    trained.tensors[Trained::state(kKey, "master")] = random_tensor(trained.random, DType::kF32, {});
  }
  trained.refused(ErrorKind::kUnsupported, Trained::state(kKey, "master"), "is no copy of its parameter");
}

TEST_CASE("Parameters with different steps cannot be fused into one, and nothing is left of the output") {
  Trained trained;
  trained.tensors[Trained::state(kKey, "step")].bytes = std::string("\0\0\x80\x40", 4);  // 4
  const Error error = error_of([&] { convert(trained.request()); });
  CHECK(error.kind() == ErrorKind::kBadInput);
  CHECK_THAT(error.tensor(), Says(".step"));
  CHECK_FALSE(fs::exists(trained.temp / "out"));
}

TEST_CASE("A state that has neither its parameter's shape nor one element is not known to be split") {
  Trained trained;
  const std::string row = Trained::state("model.norm.weight", "exp_avg");
  trained.tensors[row] = random_tensor(trained.random, DType::kF32, {3});
  trained.refused(ErrorKind::kBadInput, row, "has the shape [3], but its parameter model.model.norm.weight has [16]");
}

TEST_CASE("Groups that do not fit the model or the states are refused") {
  Trained trained;
  SECTION("a group has a parameter that nobody knows") {
    trained.groups[0].push_back("model.other.weight");
    trained.refused(ErrorKind::kBadInput, "model.other.weight", "but the model does not");
  }
  SECTION("no group has a parameter that has states") {
    std::erase(trained.groups[0], std::string("model.norm.weight"));
    trained.refused(ErrorKind::kBadInput, "model.norm.weight", "but none of its groups has it");
  }
  SECTION("there are no states") {
    std::erase_if(trained.tensors, [](const auto& tensor) { return tensor.first.starts_with(kState); });
    trained.refused(ErrorKind::kBadInput, "", "holds no states of an optimizer that could be written");
  }
  SECTION("there are no groups") {
    trained.groups.clear();
    trained.refused(ErrorKind::kBadInput, "", "come without its groups of parameters");
  }
  SECTION("a parameter is in two groups") {
    trained.groups.push_back({"model.norm.weight"});
    trained.refused(ErrorKind::kBadInput, "optimizer.param_groups.1.params",
                    "lists model.norm.weight, which is in a group already");
  }
}

/// The optimizer's file of a run without ZeRO-1, for the model's file beside it, with states of the shapes that
/// `shape_of` gives.
void write_whole_states(const fs::path& step,
                        const std::function<Dims(const std::string& state, std::size_t id, const Dims&)>& shape_of) {
  using namespace pickles;
  std::string states;
  std::vector<std::int64_t> ids;
  std::vector<ZipPart> storages;
  const SavedTree model = read_saved_tree(step / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt");
  for (const auto& [name, value] : model.structure.items()) {
    Dims in_model;
    for (const auto& size : value.at("shape")) in_model.push_back(size.get<std::uint64_t>());
    std::vector<std::pair<std::string, std::string>> items{{"step", number(3)}};
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      const Dims shape = shape_of(state, ids.size(), in_model);
      View view;
      view.key = std::to_string(storages.size());
      view.shape.assign(shape.begin(), shape.end());
      view.strides.assign(shape.size(), 1);
      for (std::size_t d = shape.size(); d-- > 1;) view.strides[d - 1] = view.strides[d] * view.shape[d];
      view.elems = 1;
      for (const std::int64_t size : view.shape) view.elems *= size;
      storages.push_back({view.key, std::string(static_cast<std::size_t>(view.elems) * 4, '\1')});
      items.emplace_back(state, tensor(view));
    }
    states += number(static_cast<std::int64_t>(ids.size())) + dict(items);
    ids.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const std::string group = dict({{"lr", number(1)}, {"params", numbers(ids)}});
  write_file(step / "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt",
             torch_zip(stream(dict({{"state", "}(" + states + "u"}, {"param_groups", list({group})}})), storages));
}

TEST_CASE("States of another shape than their parameter's are refused, whichever state it is") {
  Trained trained;
  ConvertRequest request = trained.request();
  request.target.options = {};
  convert(request);
  fs::create_directory(trained.temp / "out/optim");
  request = convert_request(trained.temp / "out", trained.temp / "back");
  request.target.layout = layout("dcp");
  request.source.with_optimizer = true;
  write_whole_states(trained.temp / "out", [](const std::string&, std::size_t, const Dims& shape) { return shape; });
  CHECK_NOTHROW(plan_convert(request));
  for (const char* wrong : {"exp_avg", "exp_avg_sq"}) {
    for (const bool is_number : {false, true}) {
      write_whole_states(trained.temp / "out", [&](const std::string& state, std::size_t id, const Dims& shape) {
        Dims other = shape;
        if (state == wrong && id == 1) ++other[0];
        return is_number && other != shape ? Dims{} : other;
      });
      CAPTURE(wrong, is_number);
      const Error error = check_refused([&] { plan_convert(request); },
                                        {.path = trained.temp / "out/optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"});
      const bool is_first = wrong == std::string("exp_avg");
      CHECK_THAT(error.what(), Says(is_number  ? fmt::format("{} of id 1 has the shape [], but its parameter", wrong)
                                    : is_first ? "id 1 has the shape ["
                                               : "exp_avg_sq of id 1 has the shape ["));
    }
  }
}

TEST_CASE("The optimizer of another model is refused though nobody asks which parameters its ids are") {
  const Trained trained;
  const Trained other(trained.model.layers - 1);
  convert(trained.request());
  convert(other.request());
  const auto request_of = [](const Trained& from) {
    ConvertRequest request = from.request();
    request.source.path = from.temp / "out";
    request.source.config.clear();
    request.source.options.set("optimizer-groups", "ids");
    request.output_directory = from.temp / "again";
    return request;
  };
  CHECK_NOTHROW(plan_convert(request_of(other)));
  fs::remove_all(other.temp / "out/optim");
  fs::copy(trained.temp / "out/optim", other.temp / "out/optim");
  check_refused([&] { plan_convert(request_of(other)); },
                {.path = other.temp / "out/optim/dp_rank_00_tp_rank_00_pp_rank_00.pt",
                 .says = "of its ids have, but the model's files of pp rank 0 have",
                 .hint = "the optimizer is of another model"});
}

TEST_CASE("Who looks at a checkpoint is told where nobody can tell which parameters its optimizer's states are of") {
  const Trained trained;
  ConvertRequest request = trained.request();
  convert(request);
  ReadContext context;
  context.looks_at_optimizer = true;
  const auto unnamed = [&] { return read_checkpoint(trained.temp / "out", context).beside_model->summary->unnamed; };
  CHECK(unnamed().empty());
  // The optimizer of a model with a layer less.
  const Trained other(trained.model.layers - 1);
  convert(other.request());
  fs::remove_all(trained.temp / "out/optim");
  fs::copy(other.temp / "out/optim", trained.temp / "out/optim");
  CHECK_THAT(unnamed(), Says("parameters, but by rule"));
  CHECK_THAT(unnamed(), Says("no rule of `from-optimizer-groups` fits"));
}

}  // namespace
}  // namespace reshard::test
