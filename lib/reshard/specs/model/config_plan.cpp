#include "reshard/specs/model/config_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 32;  // maximum width of a hidden state or a head

constexpr const char* kPlanKey = "base_model_tp_plan";
constexpr const char* kHeadPlanKey = "_tp_plan";
constexpr const char* kStagesKey = "base_model_pp_plan";
constexpr const char* kHead = "lm_head";
constexpr std::string_view kEmbeddings[] = {"emb", "wte", "wpe"};  // parts of the names of modules before the layers

bool is_number(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(0, dot);
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

/// Returns the names in a list of a stage: the inputs or outputs of a module.
std::vector<std::string> names_in(const Json& list) {
  std::vector<std::string> names;
  if (!list.is_array()) return names;
  for (const Json& item : list)
    if (item.is_string()) names.push_back(item.get<std::string>());
  return names;
}

/// Order of parameters: before the layers, in the layers, after the layers; each sorted by name.
bool comes_before(const ModelParameter& a, const ModelParameter& b) {
  const auto place = [](const ModelParameter& p) { return p.layer ? 1 : p.stage == OuterStage::kLast ? 2 : 0; };
  return place(a) != place(b) ? place(a) < place(b) : natural_less(a.name, b.name);
}

}  // namespace

bool has_config_plan(const ModelConfig& config) {
  const auto plan = config.json->find(kPlanKey);
  return plan != config.json->end() && !plan->is_null();
}

ConfigPlan::ConfigPlan(const ModelConfig& config, const std::vector<std::string>& names) : config_(config) {
  read_plan(kPlanKey);
  for (const auto& [key, plan] : plans_) {
    const std::size_t star = key.find(".*");
    if (star == std::string::npos) continue;
    layers_ = key.substr(0, star);
    break;
  }
  if (config.json->contains(kHeadPlanKey)) read_plan(kHeadPlanKey);
  read_stages();
  find_layers(names);
  std::set<std::string_view> used;
  for (const std::string& name : names)
    if (const auto* entry = entry_of(name)) used.insert(entry->first);
  for (const auto& [key, plan] : plans_)
    if (plan != TensorParallelPlan::kReplicate && used.count(key) == 0) idle_keys_.push_back(key);
  const std::set<std::string_view> sorted(names.begin(), names.end());
  for (const auto& [module, behind] : behind_layers_) {
    const std::string full = base_prefix_ + module;
    const auto inside = sorted.lower_bound(full + ".");
    const bool has_some = inside != sorted.end() && inside->starts_with(full + ".");
    if (!has_some && sorted.count(full) == 0) idle_stage_keys_.push_back(module);
  }
}

void ConfigPlan::read_plan(const char* key) {
  for (const auto& [module, word] : JsonObject(*config_.json, config_.path).object_at(key).items()) {
    const auto plan = word.is_string() ? plan_of_word(word.get_ref<const std::string&>()) : std::nullopt;
    const std::string guess =
        plan || !word.is_string() ? std::string() : nearest(word.get_ref<const std::string&>(), plan_words());
    if (!plan)
      throw Error(ErrorKind::kBadInput, fmt::format("{}: the plan of \"{}\" is {}, expected one of {}", key,
                                                    printable(module), brief(word), join(plan_words(), ", ")))
          .in(config_.path)
          .hint((guess.empty() ? std::string() : "did you mean \"" + guess + "\"? Or ") +
                "describe the model in a file and give it with `spec`, or remove the plan from config.json");
    plans_[module] = *plan;
  }
}

void ConfigPlan::read_stages() {
  const auto stages = config_.json->find(kStagesKey);
  if (stages == config_.json->end() || stages->is_null()) return;
  const JsonObject object = JsonObject(*config_.json, config_.path).object_at(kStagesKey);
  const auto ends_of = [&](const std::string& module) {
    const Json& ends = object.array_at(module);
    if (ends.size() != 2) object.fail(module, "two lists: the module's inputs and its outputs");
    return std::pair(names_in(ends[0]), names_in(ends[1]));
  };
  const std::vector<std::string> given = ends_of(layers_).second;
  for (const auto& item : object.items()) {
    const std::vector<std::string> taken = ends_of(item.key()).first;
    behind_layers_[item.key()] = std::any_of(taken.begin(), taken.end(), [&](const std::string& name) {
      return std::find(given.begin(), given.end(), name) != given.end();
    });
  }
}

/// Sets the prefix under which the plan names most layers.
void ConfigPlan::find_layers(const std::vector<std::string>& names) {
  constexpr int kMaxTried = 8;  // names with more nested layers are made up to waste time
  std::map<std::string, std::uint64_t> planned;
  for (const std::string& name : names) {
    int tried = 0;
    for (std::size_t at = name.find(layers_ + "."); at != std::string::npos && tried < kMaxTried;
         at = name.find(layers_ + ".", at + 1), ++tried) {
      const std::size_t number = at + layers_.size() + 1;
      const std::size_t end = name.find('.', number);
      if (end == std::string::npos || !is_number(std::string_view(name).substr(number, end - number))) continue;
      if (at == 0 || name[at - 1] == '.')
        planned[name.substr(0, at)] += lookup(std::string_view(name).substr(at)) != nullptr ? 1 : 0;
    }
  }
  const bool names_layers = std::any_of(plans_.begin(), plans_.end(),
                                        [](const auto& entry) { return entry.first.find(".*") != std::string::npos; });
  if (planned.empty() && !names_layers) return find_base(names);
  if (planned.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} lists {}.*, but no tensor is called {}.0.…", kPlanKey, layers_, layers_))
        .in(config_.path)
        .hint("keys are the modules' names without the base model's prefix; describe other models with `spec`");
  base_prefix_ = std::max_element(planned.begin(), planned.end(), [](const auto& a, const auto& b) {
                   return a.second < b.second;
                 })->first;
}

/// For a model without a stack of layers: sets the prefix under which the plan names most tensors, the shortest if
/// several do.
void ConfigPlan::find_base(const std::vector<std::string>& names) {
  layers_.clear();
  constexpr int kMaxTried = 8;
  std::map<std::string, std::uint64_t> planned;
  for (const std::string& name : names) {
    std::size_t at = 0;
    for (int tried = 0; tried < kMaxTried; ++tried) {
      if (lookup(std::string_view(name).substr(at)) != nullptr) ++planned[name.substr(0, at)];
      const std::size_t dot = name.find('.', at);
      if (dot == std::string::npos) break;
      at = dot + 1;
    }
  }
  if (planned.empty() && plans_.empty()) return;  // every rank has all tensors whole
  if (planned.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("{} names no tensor of this checkpoint", kPlanKey))
        .in(config_.path)
        .hint("keys are the modules' names without the base model's prefix; describe other models with `spec`");
  base_prefix_ = std::max_element(planned.begin(), planned.end(), [](const auto& a, const auto& b) {
                   return a.second != b.second ? a.second < b.second : a.first.size() > b.first.size();
                 })->first;
}

const std::pair<const std::string, TensorParallelPlan>* ConfigPlan::lookup(std::string_view name) const {
  const std::string starred = with_stars(name);
  for (const std::string_view key : {name, std::string_view(starred), module_of(name), module_of(starred)})
    if (const auto found = plans_.find(key); found != plans_.end()) return &*found;
  return nullptr;
}

const std::pair<const std::string, TensorParallelPlan>* ConfigPlan::entry_of(std::string_view name) const {
  if (name.starts_with(base_prefix_))
    if (const auto* entry = lookup(name.substr(base_prefix_.size()))) return entry;
  return lookup(name);
}

std::optional<std::uint32_t> ConfigPlan::split_dim(const std::string& name, std::size_t ndim) const {
  const auto* entry = entry_of(name);
  if (entry == nullptr || ndim == 0) return std::nullopt;
  if (last_part(name) != "bias") return split_dim_of(entry->second, ndim);
  if (!splits_outputs(entry->second)) return std::nullopt;
  return static_cast<std::uint32_t>(ndim) - 1;
}

Dims ConfigPlan::whole_shape(const std::string& name, const Dims& part, std::uint32_t tp) const {
  const auto dim = split_dim(name, part.size());
  if (!dim) return part;
  Dims whole = part;
  const auto size = checked_mul(part[*dim], tp);
  if (!size)
    throw Error(ErrorKind::kBadInput, fmt::format("{} times {} is more than can be counted", to_string(part), tp))
        .in(config_.path)
        .tensor(name);
  whole[*dim] = *size;
  return whole;
}

std::optional<std::uint64_t> ConfigPlan::layer_of(std::string_view name) const {
  if (layers_.empty()) return std::nullopt;
  const std::string prefix = base_prefix_ + layers_ + ".";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  return parse_unsigned(name.substr(0, name.find('.')), kMaxLayers - 1);
}

/// Sets the stage of a tensor outside the layers. The last stage contains heads, which are outside the base model,
/// modules that the config places there, and otherwise norms.
void ConfigPlan::place(ModelParameter& parameter) const {
  std::string_view name = parameter.name;
  parameter.stage = OuterStage::kLast;
  if (!name.starts_with(base_prefix_)) return;
  name.remove_prefix(base_prefix_.size());
  for (const auto& [module, behind] : behind_layers_)
    if (name == module || name.starts_with(module + ".")) {
      parameter.stage = behind ? OuterStage::kLast : OuterStage::kFirst;
      return;
    }
  const std::string_view module = name.substr(0, name.find('.'));
  if (module == kHead || module.find("norm") != module.npos || module.starts_with("ln_")) return;
  const bool embedding = std::any_of(std::begin(kEmbeddings), std::end(kEmbeddings),
                                     [&](std::string_view part) { return module.find(part) != module.npos; });
  parameter.stage = embedding ? OuterStage::kFirst : OuterStage::kAssumedFirst;
}

std::optional<std::uint64_t> ConfigPlan::number(const char* key, std::uint64_t max) const {
  const JsonObject object(*config_.json, config_.path);
  if (!object.has(key) || object.at(key).is_null()) return std::nullopt;
  const std::uint64_t value = object.unsigned_at(key);
  if (value == 0 || value > max) object.fail(key, fmt::format("a number from 1 to {}", max));
  return value;
}

/// Returns the size of one of `query` heads, if config.json determines it.
std::optional<std::uint64_t> ConfigPlan::head_dim_of(std::optional<std::uint64_t> query) const {
  if (const auto head_dim = number("head_dim", kMaxWidth)) return head_dim;
  const auto hidden = number("hidden_size", kMaxWidth);
  return hidden && query && *hidden % *query == 0 ? std::optional(*hidden / *query) : std::nullopt;
}

/// Returns the number of heads along the split dim, if config.json determines it.
std::uint64_t ConfigPlan::heads_of(const ModelParameter& parameter) const {
  const std::string_view module = last_part(parameter.module);
  if (!parameter.split_dim || parameter.plan != TensorParallelPlan::kColwise) return 0;
  if (module != "q_proj" && module != "k_proj" && module != "v_proj") return 0;
  const auto query = number("num_attention_heads", kMaxHeads);
  const std::uint64_t size = parameter.shape[*parameter.split_dim];
  std::uint64_t heads = query.value_or(0);
  if (module != "q_proj") {
    if (const auto said = number("num_key_value_heads", kMaxHeads))
      heads = *said;
    else if (const auto head_dim = head_dim_of(query); heads != 0 && head_dim && size % *head_dim == 0)
      heads = size / *head_dim;  // if they differ between layers
  }
  if (heads != 0 && size % heads != 0)
    throw Error(ErrorKind::kBadInput,
                fmt::format("dim {} has {} elements, which {} heads do not divide", *parameter.split_dim, size, heads))
        .in(config_.path)
        .tensor(parameter.name)
        .hint("config.json belongs to another model, or its num_attention_heads or num_key_value_heads is wrong");
  return heads;
}

ModelParameter ConfigPlan::parameter(WholeTensor tensor) const {
  ModelParameter parameter;
  parameter.name = std::move(tensor.name);
  parameter.module = module_of(parameter.name);
  parameter.shape = std::move(tensor.shape);
  parameter.is_bias = last_part(parameter.name) == "bias";
  parameter.layer = layer_of(parameter.name);
  if (!parameter.layer) place(parameter);
  parameter.split_dim = split_dim(parameter.name, parameter.shape.size());
  if (!parameter.split_dim) return parameter;
  parameter.plan = entry_of(parameter.name)->second;
  parameter.heads = heads_of(parameter);
  if (!is_packed(parameter.plan)) return parameter;
  const std::uint64_t size = parameter.shape[*parameter.split_dim];
  if (size % 2 != 0)
    throw Error(ErrorKind::kBadInput, fmt::format("dim {} has {} elements, which {} splits into two halves",
                                                  *parameter.split_dim, size, kPlanKey))
        .in(config_.path)
        .tensor(parameter.name)
        .hint("describe the model in a file, with the sizes of what is packed, and give it with `spec`");
  parameter.packed = {{size / 2, false}, {size / 2, false}};
  return parameter;
}

/// Ties the head to the embedding, with the same split, if config.json declares it and both have their usual names.
void ConfigPlan::tie(std::vector<ModelParameter>& parameters) const {
  const auto tied = config_.json->find("tie_word_embeddings");
  if (tied == config_.json->end() || *tied != true) return;
  if (std::any_of(config_.ties.begin(), config_.ties.end(), [](const auto& level) { return !level.second; })) return;
  const auto named = [&](const std::string& name) {
    return std::find_if(parameters.begin(), parameters.end(), [&](const ModelParameter& p) { return p.name == name; });
  };
  auto embedding = named(base_prefix_ + "embed_tokens.weight");
  if (embedding == parameters.end()) embedding = named(base_prefix_ + "wte.weight");
  auto head = named(std::string(kHead) + ".weight");
  if (embedding == parameters.end()) return;
  if (head == parameters.end() && base_prefix_.empty()) return;  // saved without its head
  ModelParameter copy = *embedding;
  copy.name = std::string(kHead) + ".weight";
  copy.module = kHead;
  copy.stage = OuterStage::kLast;
  copy.tied_to = embedding->name;
  if (head == parameters.end())
    parameters.push_back(std::move(copy));
  else
    *head = std::move(copy);
}

Model ConfigPlan::model(std::vector<WholeTensor> tensors) const {
  const auto quantization = config_.json->find("quantization_config");
  Family family;
  family.model_type = config_.model_type;
  if (!layers_.empty()) {
    family.layers = base_prefix_ + layers_;
    family.num_layers = Expression::parse("num_hidden_layers");
  }
  family.defaults = std::make_shared<const Json>(Json::object());

  Model model;
  model.family = std::make_shared<const Family>(std::move(family));
  model.by_config_plan = true;
  model.quantized = quantization != config_.json->end() && !quantization->is_null();
  model.heads = number("num_attention_heads", kMaxHeads).value_or(0);
  model.kv_heads = number("num_key_value_heads", kMaxHeads).value_or(model.heads);
  if (!layers_.empty()) model.layers = number("num_hidden_layers", kMaxLayers).value_or(0);
  std::set<std::string> seen;
  for (WholeTensor& tensor : tensors) {
    if (!seen.insert(tensor.name).second) continue;
    if (entry_of(tensor.name) == nullptr) model.assumed_whole.insert(tensor.name);
    model.parameters.push_back(parameter(std::move(tensor)));
    if (const auto layer = model.parameters.back().layer) model.layers = std::max(model.layers, *layer + 1);
  }
  tie(model.parameters);
  std::sort(model.parameters.begin(), model.parameters.end(), comes_before);
  return model;
}

}  // namespace reshard
