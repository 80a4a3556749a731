#include "support/optimizer_oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/tensor/cast/cast.h"
#include "support/dcp.h"
#include "support/pickles.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

PlainValue plain_value(const Json& json) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_integer()) return {json.get<std::int64_t>()};
  if (json.is_number()) return {json.get<double>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (json.is_object()) {
    PlainValue::Dict dict;
    for (const auto& [key, item] : json.items()) dict.emplace_back(key, plain_value(item));
    return {std::move(dict)};
  }
  PlainValue::List list;
  for (const Json& item : json) list.push_back(plain_value(item));
  return json.is_null() ? PlainValue{} : PlainValue{std::move(list)};
}

std::string object_of(const Json& json) {
  return plain_value_file("archive", plain_value(json));
}

TensorData cast_to(const TensorData& data, DType dtype) {
  TensorData result{dtype, data.shape, std::string(data.bytes.size() * bits(dtype) / bits(data.dtype), '\0')};
  cast_elements(data.dtype, std::as_bytes(std::span(data.bytes)), dtype,
                std::as_writable_bytes(std::span(result.bytes)), Overflow::kSaturate);
  return result;
}

/// Weights that come out as `data` when they are cast to its dtype.
TensorData master_of(Random& random, const TensorData& data, DType dtype) {
  TensorData master = cast_to(data, dtype);
  if (data.dtype != DType::kBF16 || dtype != DType::kF32) return master;
  for (std::size_t i = 0; i < master.bytes.size(); i += 4) {
    const bool is_finite = (master.bytes[i + 3] & 0x7f) != 0x7f || (master.bytes[i + 2] & 0x80) == 0;
    if (is_finite) master.bytes[i] = static_cast<char>(random() % 256);
  }
  return master;
}

/// Rows [begin, begin + count), those beyond the last one of zeros.
TensorData rows_of(const TensorData& data, std::uint64_t begin, std::uint64_t count) {
  const std::uint64_t row_bytes = data.shape[0] == 0 ? 0 : data.bytes.size() / data.shape[0];
  TensorData result{data.dtype, data.shape, std::string(count * row_bytes, '\0')};
  result.shape[0] = count;
  for (std::uint64_t row = 0; row < count; ++row)
    if (begin + row < data.shape[0])
      result.bytes.replace(row * row_bytes, row_bytes, data.bytes, (begin + row) * row_bytes, row_bytes);
  return result;
}

Json tensor_json(const TensorData& data) {
  Json shape = Json::array();
  for (const std::uint64_t size : data.shape) shape.push_back(size);
  return {{"tensor", describe(data.dtype).torch_name}, {"shape", shape}};
}

dcp::Whole chunked(Random& random, const std::string& name, const TensorData& data) {
  dcp::Whole whole{name, data, {}};
  const std::uint64_t rows = data.shape.empty() ? 0 : data.shape[0];
  const std::uint64_t ranks = rows == 0 ? 1 : pick(random, 1, 3), each = ranks == 0 ? 0 : (rows + ranks - 1) / ranks;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    dcp::Part part{Dims(data.shape.size()), data.shape, static_cast<std::uint32_t>(rank)};
    if (rows > 0) {
      const std::uint64_t begin = std::min(rows, rank * each);
      part.begin[0] = begin;
      part.size[0] = std::min(each, rows - begin);
      if (part.size[0] == 0) continue;
    }
    whole.parts.push_back(part);
  }
  return whole;
}

/// The parameters of a rank's file in its order; a second name of one is none.
std::vector<std::string> parameters_in(const fs::path& file, const TensorMap& held) {
  std::vector<std::string> names;
  const SavedTree tree = read_saved_tree(file);
  for (const auto& [name, value] : tree.structure.items())
    if (held.count(name) > 0) names.push_back(name);
  return names;
}

/// Those that the optimizer of a rank has, in the order of their numbers.
std::vector<std::string> trained_by(const TrainingRun& run, const OracleOptions& mesh, const std::string& rank,
                                    std::vector<std::string> order) {
  const bool is_last_of_several = mesh.pp > 1 && rank.ends_with(fmt::format("{:02}", mesh.pp - 1));
  // A tied head is stored with the embedding on its stage, but has states of its own.
  if (run.model.tied) std::erase(order, is_last_of_several ? "model.embed_tokens.weight" : "lm_head.weight");
  std::stable_sort(order.begin(), order.end(),
                   [&](const std::string& a, const std::string& b) { return group_of(run, a) < group_of(run, b); });
  std::erase_if(order, [&](const std::string& name) { return group_of(run, name) < 0; });
  return order;
}

using LocalStates = std::map<std::string, std::map<std::string, TensorMap>>;  // by state, rank, name

LocalStates local_states(const TrainingRun& run, const OracleOptions& mesh) {
  LocalStates local;
  for (const auto& [state, of] : run.states) {
    TensorMap all = of;
    for (const auto& [name, data] : run.weights)
      if (all.count(name) == 0) all[name] = data;  // buffers, which the oracle wants too
    if (state != "step") local[state] = expected_ranks(run.model, all, mesh);
  }
  return local;
}

std::uint32_t rank_in(const std::string& name, const std::string& what) {
  return static_cast<std::uint32_t>(std::stoul(name.substr(name.find(what) + what.size())));
}

/// Groups, and what the optimizer says of shapes.
void add_objects(const TrainingRun& run, const NxdDcpForm& form, const std::vector<Dims>& shapes, Saved& saved) {
  Json group = run.groups.front();
  group["params"] = Json::array();
  for (std::size_t id = 0; id < shapes.size(); ++id) group["params"].push_back(id);
  std::string by_id = "}(";
  for (std::size_t id = 0; id < shapes.size(); ++id) {
    const std::string shape = pickles::numbers({shapes[id].begin(), shapes[id].end()});
    by_id += pickles::number(static_cast<std::int64_t>(id)) + shape;
    if (form.flat)
      saved.objects.push_back({fmt::format("shape_info.{}", id), torch_zip(pickles::stream(shape), {}), 0});
  }
  if (form.flat) {
    for (const auto& [key, value] : group.items())
      saved.objects.push_back({"param_groups.0." + key, object_of(value), 0});
    return;
  }
  saved.objects.push_back({"state", torch_zip(pickles::stream(pickles::dict({})), {}), 0});
  saved.objects.push_back({"param_groups", object_of(Json::array({group})), 0});
  saved.objects.push_back({"shape_info", torch_zip(pickles::stream(by_id + "u"), {}), 0});
}

/// The step of a parameter, by the model's name or that of one that it is fused into: parameters that may be fused have
/// the same. Each stage has some of the run's last step.
int count_of(const TrainingRun& run, std::string parameter) {
  constexpr int kLast = 7;
  if (parameter.find(".mlp.") != parameter.npos) return kLast;
  if (run.model.tied && parameter == "lm_head.weight") parameter = "model.embed_tokens.weight";
  if (const std::size_t module = parameter.find(".self_attn."); module != parameter.npos) parameter.resize(module);
  int sum = 0;
  for (const char c : parameter) sum += c;
  return kLast - sum % 5;
}

/// The same as optimizers keep it.
TensorData step_of(const TrainingRun& run, const std::string& parameter) {
  const auto count = static_cast<float>(count_of(run, parameter));
  TensorData step{DType::kF32, {}, std::string(sizeof count, '\0')};
  std::memcpy(step.bytes.data(), &count, sizeof count);
  return step;
}

}  // namespace

int group_of(const TrainingRun& run, const std::string& parameter) {
  const auto weight = run.weights.find(parameter);
  if (weight != run.weights.end() && weight->second.dtype == DType::kU8) return -1;
  for (const char* buffer : {".inv_freq", ".masked_bias", ".attn.bias", ".attention.bias"})
    if (parameter.ends_with(buffer)) return -1;
  const bool second = parameter.find("norm") != parameter.npos || parameter.find("bias") != parameter.npos;
  return run.has_two_groups && second ? 1 : 0;
}

TrainingRun random_training(Random& random, const TinyModel& model) {
  return random_training(random, model, random_tensors(model, random, random() % 2 ? DType::kBF16 : DType::kF32));
}

TrainingRun random_training(Random& random, const TinyModel& model, const TensorMap& weights) {
  TrainingRun run{model, weights};
  run.has_two_groups = random() % 3 > 0;
  run.state_dtype = random() % 4 == 0 ? DType::kF64 : DType::kF32;
  const bool has_masters = random() % 3 == 0, lacks_states = random() % 3 == 0;
  for (const auto& [name, data] : run.weights) {
    if (group_of(run, name) < 0) continue;
    if (has_masters) run.states["master"][name] = master_of(random, data, run.state_dtype);
    if (lacks_states && name == "model.norm.weight") continue;
    run.states["step"][name] = step_of(run, name);
    for (const char* state : {"exp_avg", "exp_avg_sq"})
      run.states[state][name] = random_tensor(random, run.state_dtype, data.shape);
  }
  for (int group = 0; group < 1 + run.has_two_groups; ++group)
    run.groups.push_back({{"lr", 0.125},
                          {"betas", {0.875, 0.9375}},
                          {"eps", 1e-8},
                          {"weight_decay", group == 0 ? 0.0625 : 0.0},
                          {"amsgrad", false},
                          {"foreach", nullptr}});
  return run;
}

void write_dcp(const fs::path& directory, const TrainingRun& run, Random& random, bool flat) {
  std::vector<dcp::Whole> tensors;
  std::vector<dcp::Object> objects;
  for (const auto& [name, data] : run.weights) tensors.push_back(chunked(random, "model." + name, data));
  for (const auto& [state, of] : run.states)
    for (const auto& [name, data] : of)
      tensors.push_back(chunked(random, fmt::format("optim.state.{}.{}", name, state), data));
  for (std::size_t g = 0; g < run.groups.size(); ++g) {
    Json names = Json::array();
    for (const auto& [name, data] : run.weights) {
      if (group_of(run, name) != static_cast<int>(g)) continue;
      names.push_back(name);
      for (const auto& [key, value] : run.groups[g].items())
        if (flat) objects.push_back({fmt::format("optim.param_groups.{}.{}", name, key), object_of(value)});
    }
    if (flat) continue;
    for (const auto& [key, value] : run.groups[g].items())
      objects.push_back({fmt::format("optim.param_groups.{}.{}", g, key), object_of(value)});
    objects.push_back({fmt::format("optim.param_groups.{}.params", g), object_of(names)});
  }
  dcp::write(directory, tensors, objects);
}

TrainingRun one_group(Random& random, const TinyModel& model) {
  TrainingRun run = random_training(random, model);
  while (run.states.at("step").count("model.norm.weight") == 0) run = random_training(random, model);
  run.has_two_groups = false;
  run.groups.resize(1);
  run.states.erase("master");
  return run;
}

TrainingRun one_step(Random& random, const TensorMap& weights) {
  TrainingRun run = random_training(random, {}, weights);
  run.has_two_groups = false;
  run.groups.resize(1);
  TensorMap& steps = run.states.at("step");
  for (auto& [name, step] : steps) step = steps.begin()->second;
  return run;
}

TrainingRun grouped_by_rule(TrainingRun run) {
  run.has_two_groups = true;
  run.groups.resize(2, run.groups.front());
  return run;
}

std::map<std::string, SavedTree> expected_optimizer(const TrainingRun& run, const OracleOptions& mesh, std::uint64_t dp,
                                                    const fs::path& model) {
  LocalStates local = local_states(run, mesh);
  if (run.states.count("master") == 0) {
    TensorMap masters;
    // Masters that are made have the dtype of the parameter's other states, or float32 where it has none.
    for (const auto& [name, data] : run.weights)
      masters[name] = cast_to(data, run.states.at("exp_avg").count(name) > 0 ? run.state_dtype : DType::kF32);
    local["master"] = expected_ranks(run.model, masters, mesh);
  }
  std::map<std::string, SavedTree> files;
  for (const auto& [rank, held] : local.at("exp_avg")) {
    const std::vector<std::string> order =
        trained_by(run, mesh, rank, parameters_in(model / ("dp_rank_00_" + rank + ".pt"), held));
    for (std::uint64_t d = 0; d < dp; ++d) {
      SavedTree tree;
      tree.structure = {{"state", Json::object()}, {"param_groups", Json::array()}};
      Json base = Json::object(), shapes = Json::object(), masters = Json::object();
      const auto add = [&](const std::string& place, const TensorData& whole) {
        const std::uint64_t rows = (whole.shape[0] + dp - 1) / dp;
        const TensorData part = rows_of(whole, d * rows, rows);
        tree.tensors[place] = part;
        return tensor_json(part);
      };
      for (std::size_t id = 0; id < order.size(); ++id) {
        const std::string key = fmt::format("int {}", id), in_base = fmt::format("base_state/{}/", id);
        shapes[key] = tensor_json(held.at(order[id]))["shape"];
        masters[key] = add(fmt::format("sharded_master_weights/{}", id), local.at("master").at(rank).at(order[id]));
        if (order[id] == "model.norm.weight" && run.states.at("step").count(order[id]) == 0) continue;
        base[key]["step"] = tensor_json(tree.tensors[in_base + "step"] = step_of(run, order[id]));
        for (const char* state : {"exp_avg", "exp_avg_sq"})
          base[key][state] = add(in_base + state, local.at(state).at(rank).at(order[id]));
      }
      for (std::size_t g = 0; g < run.groups.size(); ++g) {
        Json group = run.groups[g];
        group["params"] = Json::array();
        for (std::size_t id = 0; id < order.size(); ++id)
          if (group_of(run, order[id]) == static_cast<int>(g)) group["params"].push_back(id);
        tree.structure["param_groups"].push_back(group);
      }
      tree.structure["base_state"] = base;
      tree.structure["shape_info"] = shapes;
      tree.structure["sharded_master_weights"] = masters;
      files.emplace(fmt::format("dp_rank_{:02}_{}.pt", d, rank), std::move(tree));
    }
  }
  return files;
}

Saved nxd_dcp(const TrainingRun& run, const OracleOptions& mesh, const NxdDcpForm& form, const fs::path& model) {
  Saved saved;
  std::vector<Dims> shapes;  // of the first stage
  std::map<std::string, bool> seen;
  const LocalStates local = local_states(run, mesh);
  for (const auto& [rank, held] : local.at("exp_avg")) {
    const std::uint32_t tp_rank = rank_in(rank, "tp_rank_"), pp_rank = rank_in(rank, "pp_rank_");
    const auto order = trained_by(run, mesh, rank, parameters_in(model / ("dp_rank_00_" + rank + ".pt"), held));
    for (const std::string& name : order) {
      if (tp_rank == 0 && pp_rank == 0) shapes.push_back(held.at(name).shape);
      const std::string step = fmt::format("base_state.{}.step", name);
      if (!std::exchange(seen[step], true)) {
        if (form.has_counts)
          saved.objects.push_back({step, object_of(count_of(run, name)), 0});
        else
          saved.add(step, step_of(run, name));
      }
      for (const char* state : {"exp_avg", "exp_avg_sq"}) {
        const bool is_once = form.dedup && name.find("norm") != name.npos;
        const std::string key =
            fmt::format("base_state.{}.{}{}{}", name, state, mesh.pp > 1 ? fmt::format("|pp-{:04}", pp_rank) : "",
                        mesh.tp > 1 && !is_once ? fmt::format("|tp-{:04}", tp_rank) : "");
        if (std::exchange(seen[key], true)) continue;
        saved.add(key, local.at(state).at(rank).at(name), form.dp);
        for (dcp::Part& part : saved.tensors.back().parts)
          part.rank = static_cast<std::uint32_t>(part.rank * mesh.tp + tp_rank);
      }
    }
  }
  add_objects(run, form, shapes, saved);
  return saved;
}

void save_through_dcp(Random& random, const fs::path& folder, const TrainingRun& run, const OracleOptions& mesh) {
  NxdDcpForm form{pick(random, 1, 4), random() % 2 == 0, random() % 2 == 0, false};
  const auto have_rows = [&](const Saved& saved) {
    return std::all_of(saved.tensors.begin(), saved.tensors.end(), [&](const dcp::Whole& tensor) {
      return tensor.data.shape.empty() || tensor.parts.size() == form.dp;
    });
  };
  Saved saved = nxd_dcp(run, mesh, form, folder / "model");
  for (; !have_rows(saved); saved = nxd_dcp(run, mesh, form, folder / "model")) --form.dp;
  fs::remove_all(folder / "optim");
  saved.write(folder / "optim");
}

}  // namespace reshard::test
