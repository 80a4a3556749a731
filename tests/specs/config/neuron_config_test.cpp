#include "reshard/specs/config/neuron_config.h"

#include "reshard/base/json.h"
#include "reshard/io/memory_files.h"
#include "reshard/specs/config/model_config.h"
#include "support/fault_storage.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

TEST_CASE("A compiled model's configuration loses NxD Inference's keys and gets its own sizes back") {
  const TempDir dir;
  write_file(dir / kNeuronConfigFile,
             R"({"model_type": "gpt_oss", "hidden_size": 3072, "original_hidden_size": 2880, "hidden_act": "sigmoid",
    "moe_intermediate_size": 128, "moe_intermediate_pad_size": 28, "original_max_position_embeddings": 7,
    "max_position_embeddings": 64, "text_config": {"hidden_size": 5, "neuron_config": {"tp_degree": 2}}, "fused_spec_config": null, "metadata": null,
    "attribute_map": {}, "neuron_config": {"torch_dtype": "bfloat16", "quantize_clamp_bound": Infinity}})");
  const ModelConfig config = read_model_config(local_storage(), dir.path());
  CHECK(config.path == dir / kNeuronConfigFile);
  CHECK(config.model_type == "gpt_oss");
  CHECK(*config.json ==
        parse_json(R"({"model_type": "gpt_oss", "hidden_size": 2880, "hidden_act": "silu", "moe_intermediate_size": 100,
    "original_max_position_embeddings": 7, "max_position_embeddings": 64, "text_config": {"hidden_size": 5},
    "torch_dtype": "bfloat16"})",
                   {}));
  write_file(dir / kConfigFile, R"({"model_type": "llama"})");
  CHECK(read_model_config(local_storage(), dir.path()).model_type == "llama");
}

TEST_CASE("The settings alone, as optimum-neuron writes them, are no model's configuration") {
  const TempDir dir;
  write_file(dir / kNeuronConfigFile, R"({"tp_degree": 2, "fused_qkv": true})");
  CHECK_FALSE(find_model_config(local_storage(), dir.path()));
  const Json settings = parse_json(R"({"tp_degree": 2, "fused_qkv": true, "mlp_kernel_enabled": null})", {});
  CHECK(neuron_settings(settings) == settings);
  CHECK(neuron_flag(settings, "fused_qkv", "n.json"));
  CHECK_FALSE(neuron_flag(settings, "mlp_kernel_enabled", "n.json"));
  CHECK_FALSE(neuron_flag(settings, "qkv_kernel_enabled", "n.json"));
  check_refused([&] { neuron_flag(settings, "tp_degree", "n.json"); }, {.path = "n.json", .says = "tp_degree"});
}

TEST_CASE("Settings that are damaged are no model's configuration, and those that cannot be read are an error") {
  MemoryFiles files;
  files.write(std::filesystem::path("m") / kNeuronConfigFile, "{");
  FaultStorage watched(files);
  CHECK_FALSE(find_model_config(watched, "m"));
  for (std::size_t number = 0; number < watched.steps().size(); ++number) {
    if (watched.steps()[number].operation != FaultStorage::Operation::kRead) continue;
    FaultStorage storage(files);
    storage.fail_at = number;
    check_refused([&] { find_model_config(storage, "m"); },
                  {.kind = ErrorKind::kIo, .path = std::filesystem::path("m") / kNeuronConfigFile});
  }
}

}  // namespace
}  // namespace reshard::test
