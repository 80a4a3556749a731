#include "reshard/specs/peft/peft_stages.h"

#include <algorithm>
#include <array>

#include "reshard/base/error.h"
#include "reshard/specs/peft/adapter_metadata.h"

namespace reshard {
namespace {

/// In the order of PEFT's layers.
constexpr std::array kTensors = {"lora_A.weight",    "lora_B.weight",    "lora_B.bias",
                                 "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"};

std::string module_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}
std::string leaf_of(const std::string& parameter) {
  return parameter.substr(parameter.rfind('.') + 1);
}

ParallelParameter whole(std::string name) {
  return {std::move(name), false, 0, 1, 1};
}

bool is_row_parallel(const ParallelParameter& weight) {
  return weight.tensor_model_parallel && weight.partition_dim == 1;
}

class PeftBuilder {
 public:
  explicit PeftBuilder(const std::vector<AdapterContent>& adapters) : adapters_(adapters) {}

  PeftStage build(const StagePlan& plan) {
    stage_ = {};
    const auto& parameters = plan.metadata.parameters;
    for (auto first = parameters.begin(); first != parameters.end();) {
      const std::string module = module_of(first->name);
      const auto end =
          std::find_if(first, parameters.end(), [&](const auto& other) { return module_of(other.name) != module; });
      add_module(module, {first, end}, true);
      first = end;
    }
    for (const TiedParameter& tied : plan.tied) {
      const auto source = std::find_if(parameters.begin(), parameters.end(),
                                       [&](const auto& parameter) { return parameter.name == tied.source; });
      if (source == parameters.end()) continue;
      ParallelParameter parameter = *source;
      parameter.name = tied.name;
      add_module(module_of(tied.name), {parameter}, false);
    }
    add_specs(plan.metadata.modules);
    return std::move(stage_);
  }

 private:
  bool adapted(const std::string& module) const {
    return std::any_of(adapters_.begin(), adapters_.end(), [&](const auto& a) { return a.lora.count(module) > 0; });
  }
  bool saved(const std::string& module) const {
    return std::any_of(adapters_.begin(), adapters_.end(),
                       [&](const auto& a) { return a.saved_modules.count(module) > 0; });
  }

  bool is_transposed(const std::string& module) const {
    return std::any_of(adapters_.begin(), adapters_.end(),
                       [&](const auto& a) { return a.transposed.count(module) > 0; });
  }

  void add(ParallelParameter parameter, const std::string& adapter, const std::string& name_in_file) {
    stage_.metadata.parameters.push_back(std::move(parameter));
    stage_.files[adapter].insert(name_in_file);
  }

  /// Adds a module with its parameters in the ranks. A tied module has no parameters itself.
  void add_module(const std::string& module, const std::vector<ParallelParameter>& parameters, bool listed) {
    const std::string full = std::string(kPeftPrefix) + module;
    const std::string wrapped = full + (adapted(module) ? ".base_layer" : saved(module) ? ".original_module" : "");
    // The matrix of tied embeddings is on two stages, its adapters only on the first.
    const bool first_time = done_.insert(module).second;
    for (const ParallelParameter& parameter : parameters) {
      const std::string name = wrapped + "." + leaf_of(parameter.name);
      if (!listed) continue;
      stage_.metadata.parameters.push_back(parameter);
      stage_.metadata.parameters.back().name = name;
      for (const AdapterContent& adapter : adapters_)
        if (first_time && adapter.plain.count(name)) stage_.files[adapter.name].insert(name);
    }
    if (!first_time) return;
    std::vector<ParallelParameter> weights = parameters;
    std::erase_if(weights, [](const auto& parameter) { return leaf_of(parameter.name).starts_with("bias"); });
    // The shapes of lora_A (r, inputs) and lora_B (outputs, r) do not depend on the orientation of the weight.
    if (is_transposed(module))
      for (ParallelParameter& weight : weights) weight.partition_dim = 1 - weight.partition_dim;
    for (const char* tensor : kTensors)
      for (const AdapterContent& adapter : adapters_) {
        const auto held = adapter.lora.find(module);
        if (held != adapter.lora.end() && held->second.count(tensor)) add_tensor(full, tensor, adapter.name, weights);
      }
    for (const AdapterContent& adapter : adapters_)
      if (adapter.saved_modules.count(module))
        for (ParallelParameter parameter : parameters) {
          const std::string leaf = leaf_of(parameter.name);
          parameter.name = full + ".modules_to_save." + adapter.name + "." + leaf;
          add(std::move(parameter), adapter.name, full + "." + leaf);
        }
  }

  /// Adds one of kTensors to a module whose base layer has `weights`: one, or those of a fused projection.
  void add_tensor(const std::string& module, const std::string& tensor, const std::string& adapter,
                  const std::vector<ParallelParameter>& weights) {
    const std::string component = tensor.substr(0, tensor.find('.'));
    const std::string stem = module + "." + component + "." + adapter;
    const bool row = is_row_parallel(weights.front());
    if (tensor == "lora_A.weight") {
      ParallelParameter parameter = row ? weights.front() : whole({});
      parameter.name = stem + ".weight";
      add(std::move(parameter), adapter, module + "." + tensor);
    } else if (tensor == "lora_B.weight") {
      for (ParallelParameter parameter : weights) {
        const std::string leaf = leaf_of(parameter.name);
        if (row) parameter = whole({});
        parameter.name = stem + "." + leaf;
        add(std::move(parameter), adapter, module + "." + component + "." + leaf);
      }
    } else if (component.starts_with("lora_embedding_")) {
      add(whole(stem), adapter, module + "." + tensor);
    } else {
      if (leaf_of(weights.front().name) != "weight")
        throw Error(ErrorKind::kUnsupported, "cannot be partitioned next to projections for grouped-query attention")
            .tensor(module + "." + tensor);
      ParallelParameter parameter = row ? whole({}) : weights.front();
      parameter.name = stem + (tensor == "lora_B.bias" ? ".bias" : ".weight");
      add(std::move(parameter), adapter, module + "." + tensor);
    }
  }

  void add_specs(const std::vector<ModuleSpecs>& modules) {
    for (ModuleSpecs module : modules) {
      for (TransformationSpec& spec : module.specs) {
        const auto mark = [&](auto& known, const std::string& name) {
          if (adapted(module.module_fully_qualified_name + "." + name)) known.peft_type = kLoraPeftType;
        };
        if (auto* fused = std::get_if<FusedLinearsSpec>(&spec)) mark(*fused, fused->fused_linear_name);
        if (auto* gqa = std::get_if<GQAQKVColumnParallelLinearSpec>(&spec)) mark(*gqa, gqa->gqa_qkv_projection_name);
      }
      module.module_fully_qualified_name.insert(0, kPeftPrefix);
      stage_.metadata.modules.push_back(std::move(module));
    }
  }

  const std::vector<AdapterContent>& adapters_;
  std::set<std::string> done_;
  PeftStage stage_;
};

}  // namespace

std::vector<PeftStage> peft_stages(const std::vector<StagePlan>& base, const std::vector<AdapterContent>& adapters) {
  PeftBuilder builder(adapters);
  std::vector<PeftStage> stages;
  for (const StagePlan& plan : base) stages.push_back(builder.build(plan));
  return stages;
}

}  // namespace reshard
