// Names of other programs in the files of trainers that are not torch.distributed.checkpoint's.

#include "reshard/base/strings.h"
#include "support/checkpoints.h"
#include "support/families.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/titan.h"
#include "support/trained.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Writes a model in `directory`, and returns its tensors as torchtitan has them.
TensorMap random_titan_model(const std::string& type, bool is_main, const fs::path& directory, Random& random) {
  std::uint64_t rotary_head_dim = 0;
  TensorMap model;
  if (type == "llama" || type == "qwen3") {
    const TinyModel tiny{.model_type = type, .heads = 4, .kv_heads = 2, .head_dim = 2 * pick(random, 1, 4)};
    model = random_tensors(tiny, random);
    write_model(directory, tiny, model);
    if (type == "llama") rotary_head_dim = tiny.head_dim;
  } else {
    model = write_case(family_case(type), directory);
  }
  for (auto& [name, data] : model)  // no NaN, whose bits a cast changes
    if (data.dtype == DType::kBF16)
      for (std::size_t i = 1; i < data.bytes.size(); i += 2) data.bytes[i] = static_cast<char>(data.bytes[i] & 0xBF);
  write_safetensors(directory / "model.safetensors", model);
  return titan_tensors(model, is_main, rotary_head_dim, !type.starts_with("deepseek"));
}

TEST_CASE("torchtitan's names, its stacks of experts and its order of rows are read from all that trainers save") {
  for (const char* type : {"llama", "qwen3", "qwen3_moe", "deepseek_v3"})
    for (const bool is_main : {false, true})
      for (const std::string kind : kTrainedKinds) {
        CAPTURE(type, is_main, kind);
        Random random(11);
        const TempDir temp;
        const TensorMap titan = random_titan_model(type, is_main, temp / "model", random);
        write_trained(kind, temp / "run", titan, random() % 3, random);
        RequestFields fields{.config = temp / "model"};
        if (kind == "zero-2") fields.source_options = {"weights=model"};
        const auto job = plan_convert(local_storage(), convert_request(temp / "run", temp / "out", fields));
        CHECK_THAT(joined_notes(*job), Says("replaced the names of torchtitan by the model's own"));
        execute(*job, unsynced());
        CHECK((read_model(temp / "out") == read_model(temp / "model")));
      }
}

TEST_CASE("Without config.json, other programs' names stay, and what they mean is not guessed") {
  for (const std::string kind : {"fsdp-ranks", "zero-3"}) {
    CAPTURE(kind);
    Random random(3);
    const TempDir temp;
    const TensorMap titan = random_titan_model("qwen3_moe", false, temp / "model", random);
    write_trained(kind, temp / "run", titan, 0, random);
    const Checkpoint read = read_checkpoint(local_storage(), temp / "run", {});
    CHECK(read.names_of == "torchtitan");
    CHECK(read.map.logical.size() == titan.size());
    for (const auto& [name, data] : titan) CHECK(read.map.find_logical(name));
    check_refused([&] { converted(temp / "run", temp / "out", {}); },
                  {.says = "its tensors have torchtitan's names", .unwritten = temp / "out"});
  }
}

TEST_CASE("Entries of a trainer that do not fit config.json are refused, or noted where nothing is written") {
  Random random(4);
  const TempDir temp;
  TensorMap titan = random_titan_model("qwen3_moe", false, temp / "model", random);
  const std::string stack = std::find_if(titan.begin(), titan.end(), [](const auto& one) {
                              return one.first.ends_with(".moe.experts.w1");
                            })->first;
  titan.at(stack).shape = {1, titan.at(stack).shape[0] * titan.at(stack).shape[1], titan.at(stack).shape[2]};
  write_trained("fsdp-ranks", temp / "run", titan, 2, random);
  fs::copy_file(temp / "model/config.json", temp / "run/config.json");
  check_refused([&] { converted(temp / "run", temp / "out", {}); },
                {.tensor = stack, .says = {"has the shape", "but the model has"}, .unwritten = temp / "out"});
  const Checkpoint read = read_checkpoint(local_storage(), temp / "run", {.use = ConfigUse::kLenient});
  CHECK_THAT(join(read.notes.texts(), "\n"), Says("but the model has"));
}

}  // namespace
}  // namespace reshard::test
