// Random adapters of random models through all that shards and consolidates them.

#include "end_to_end/peft/random_adapters.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

std::vector<float> floats(const TensorData& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// What consolidation must give: the tensors themselves, but for the means of lora_A.
TensorMap expected_tensors(const Scenario& s) {
  TensorMap expected = s.tensors;
  if (s.fuse == LoraFuse::kExact) return expected;
  for (std::uint64_t layer = 0; layer < s.model.layers; ++layer)
    for (const auto& group : s.groups) {
      std::vector<std::string> names;
      for (const std::string& linear : group) names.push_back(layer_prefix(layer) + linear + ".lora_A.weight");
      if (!s.tensors.count(names.front())) continue;
      std::vector<float> sum(floats(s.tensors.at(names.front())).size(), 0.0f);
      for (const std::string& name : names) {
        const std::vector<float> values = floats(s.tensors.at(name));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
      }
      for (float& value : sum) value /= static_cast<float>(names.size());
      for (const std::string& name : names)
        std::memcpy(expected[name].bytes.data(), sum.data(), expected[name].bytes.size());
    }
  return expected;
}

TEST_CASE("Random adapters come back from their shards: exactly, or with the mean of what was fused") {
  std::size_t exact = 0;
  std::size_t grouped = 0;
  for (const std::uint64_t seed : seeds(150)) {
    Random random(seed);
    const Scenario s = random_scenario(random);
    INFO("RESHARD_TEST_SEED=" << seed << ", tp " << s.mesh.tp << ", pp " << s.mesh.pp);
    const TempDir temp;
    write_file(temp / "model/config.json", s.model.config().dump());
    write_safetensors(temp / "peft/adapter_model.safetensors", s.tensors);
    write_file(temp / "peft/adapter_config.json", s.config.dump(2));
    ShardRequest request = shard_request(temp / "model", temp / "shards", static_cast<std::uint32_t>(s.mesh.tp),
                                         static_cast<std::uint32_t>(s.mesh.pp));
    request.target.options.set_flag("fuse-qkv", s.mesh.fuse_qkv);
    request.target.layout = layout("optimum"),
    request.target.format = pick(random, 0, 3) == 0 ? Format::kXser : Format::kPytorch;
    request.adapters = {temp / "peft"};
    request.lora_fuse = s.fuse;
    shard(request);
    ConsolidateRequest back;
    back.source.path = temp / "shards";
    back.output_directory = temp / "again";
    const auto job = plan_consolidate(back);
    CHECK(job->notes.empty());
    execute(*job, unsynced());
    CHECK((read_tensors(temp / "again/adapter_model.safetensors") == expected_tensors(s)));
    CHECK(read_file(temp / "again/adapter_config.json") == s.config.dump(2));
    exact += s.fuse == LoraFuse::kExact ? 1 : 0;
    grouped += s.grouped ? 1 : 0;
  }
  if (!has_all_seeds()) return;
  CHECK(exact > 40);
  CHECK(exact < 110);
  CHECK(grouped > 20);
}

}  // namespace
}  // namespace reshard::test
