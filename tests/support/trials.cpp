#include "support/trials.h"

#include <algorithm>
#include <cstdlib>

#include "reshard/io/local_storage.h"

namespace reshard::test {

TinyModel random_model(Random& random) {
  static constexpr const char* kFamilies[] = {"llama", "mistral", "qwen2", "qwen3", "granite"};
  TinyModel model;
  model.model_type = kFamilies[random() % 5];
  model.kv_heads = pick(random, 1, 6);
  model.heads = model.kv_heads * one_of(random, {1, 1, 2, 3, 4, 8});
  model.head_dim = one_of(random, {2, 4, 6, 8});
  model.hidden = one_of(random, {1, 3, 8, 20});
  model.intermediate = one_of(random, {1, 6, 24, 48});
  model.vocab = one_of(random, {5, 24, 48});
  model.layers = pick(random, 1, 5);
  model.tied = random() % 3 == 0;
  const bool llama = model.model_type == "llama";
  model.attention_bias = (llama || model.model_type == "granite" || model.model_type == "qwen3") && random() % 2;
  model.mlp_bias = (llama || model.model_type == "granite") && random() % 2;
  model.inv_freq = llama && random() % 2;
  return model;
}

OracleOptions random_options(Random& random, const TinyModel& model) {
  OracleOptions options;
  options.tp = one_of(random, {1, 2, 3, 4, 6, 8});
  options.pp = pick(random, 1, 3);
  options.vpp = random() % 3 == 0 ? 2 : 1;
  options.fuse_qkv = random() % 2;
  if (random() % 2) options.kv_size_multiplier = one_of(random, {1, 2, 3, 4, 8});
  if (random() % 3 == 0)
    for (std::uint64_t i = 1; i < options.pp * options.vpp; ++i) options.cuts.push_back(random() % model.layers);
  if (random() % 4) std::sort(options.cuts.begin(), options.cuts.end());
  return options;
}

OracleOptions legal_options(Random& random, const TinyModel& model) {
  for (int tries = 0; tries < 1000; ++tries) {
    OracleOptions options = random_options(random, model);
    if (is_legal(model, options)) return options;
  }
  return {};
}

void choose_qkv_linear(Random& random, const TinyModel& model, OracleOptions& options) {
  options.qkv_linear = "on";
  if (random() % 2 && is_legal(model, options)) return;
  options.qkv_linear = model.kv_heads % options.tp == 0 ? "off" : "";
}

void set_target(TargetRequest& request, const OracleOptions& options) {
  request.tp = static_cast<std::uint32_t>(options.tp);
  request.pp = static_cast<std::uint32_t>(options.pp);
  request.vpp = static_cast<std::uint32_t>(options.vpp);
  request.options.set_flag("fuse-qkv", options.fuse_qkv);
  if (options.kv_size_multiplier) request.options.set_number("kv-size-multiplier", options.kv_size_multiplier);
  if (!options.qkv_linear.empty()) request.options.set("qkv-linear", options.qkv_linear);
  for (const std::uint64_t cut : options.cuts) request.pipeline_cuts.push_back("model.layers." + std::to_string(cut));
}

std::string joined_name(std::string name) {
  for (const std::string linear : {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
    if (const auto at = name.find(linear); at != name.npos) name.replace(at, linear.size(), "joined");
  return name;
}

RunOptions random_run(Random& random, Storage& storage) {
  RunOptions options;
  options.stores = random() % 2 ? storage : local_storage();
  options.sync = false;
  options.threads = static_cast<unsigned>(pick(random, 1, 3));
  options.max_memory_bytes = kMinMemoryBytes * one_of(random, {1, 3, 60});
  options.tuning.least_part_bytes = one_of(random, {1, 8, 1024});
  return options;
}

}  // namespace reshard::test
