// Weight files whose names carry a variant, as save_pretrained(variant="fp16") writes them.

#include <nlohmann/json.hpp>

#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/hf/hf_files.h"
#include "support/files.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const TensorMap kHalfA{{"a", {DType::kU8, {4}, "aaaa"}}}, kHalfB{{"b", {DType::kU8, {4}, "bbbb"}}};

struct VariantCase {
  std::string stem, ending;
};
const VariantCase kVariantCases[] = {{"model", ".safetensors"},
                                     {"pytorch_model", ".bin"},
                                     {"diffusion_pytorch_model", ".safetensors"},
                                     {"diffusion_pytorch_model", ".bin"}};

void write_weights(const fs::path& path, const TensorMap& tensors) {
  path.extension() == ".bin" ? write_torch(path, tensors) : write_safetensors(path, tensors);
}

/// Writes two numbered files and, unless `index` is empty, their index.
void write_numbered(const TempDir& dir, const std::string& first, const std::string& second, const std::string& index) {
  write_weights(dir / first, kHalfA);
  write_weights(dir / second, kHalfB);
  if (!index.empty()) write_file(dir / index, nlohmann::json{{"weight_map", {{"a", first}, {"b", second}}}}.dump());
}

TEST_CASE("The variant of weights is read where there are no others, with a note") {
  for (const VariantCase& names : kVariantCases)
    for (const std::string variant : {"fp16", "non_ema", "8bit"}) {
      CAPTURE(names.stem, names.ending, variant);
      const std::string index = names.stem + names.ending + ".index." + variant + ".json";
      const auto before = [&](int number) {  // the variant before the number, as Transformers has it
        return names.stem + "." + variant + "-0000" + std::to_string(number) + "-of-00002" + names.ending;
      };
      const auto behind = [&](int number) {
        return names.stem + "-0000" + std::to_string(number) + "-of-00002." + variant + names.ending;
      };
      const TempDir whole, indexed, indexed_behind, numbered;
      write_weights(whole / (names.stem + "." + variant + names.ending), kHalfA);
      write_numbered(indexed, before(1), before(2), index);
      write_numbered(indexed_behind, behind(1), behind(2), index);
      write_numbered(numbered, before(1), before(2), "");
      for (const TempDir* dir : {&whole, &indexed, &indexed_behind, &numbered}) {
        CAPTURE(dir == &whole, dir == &indexed, dir == &indexed_behind);
        const auto found = find_whole(local_storage(), dir->path());
        REQUIRE(found);
        CHECK_FALSE(found->is_empty);
        HfIndexReport report;
        const auto files = read_hf_checkpoint(local_storage(), dir->path(), &report);
        REQUIRE(files.size() == (dir == &whole ? 1 : 2));
        CHECK(files[0].tensors.at(0).name == "a");
        REQUIRE(report.notes.size() == (dir == &numbered ? 2 : 1));
        CHECK(report.notes.back() == "read the variant " + variant + " of the model, the only one");
        if (dir == &numbered) CHECK_THAT(report.notes[0], Says(index + " is missing; read the complete set of 2"));
      }
    }
}

TEST_CASE("Weights without a variant go before those with one") {
  for (const VariantCase& names : kVariantCases) {
    const TempDir whole, numbered;
    write_weights(whole / (names.stem + ".fp16" + names.ending), kHalfA);
    write_weights(whole / (names.stem + names.ending), kHalfB);
    write_weights(numbered / (names.stem + ".fp16" + names.ending), kHalfA);
    write_numbered(numbered, names.stem + "-00001-of-00002" + names.ending,
                   names.stem + "-00002-of-00002" + names.ending, "");
    CHECK(read_hf_checkpoint(local_storage(), whole.path()).at(0).tensors.at(0).name == "b");
    CHECK(read_hf_checkpoint(local_storage(), numbered.path()).size() == 2);
  }
}

TEST_CASE("Of one variant safetensors go before PyTorch's files") {
  const TempDir dir;
  write_weights(dir / "pytorch_model.fp16.bin", kHalfA);
  write_weights(dir / "model.fp16.safetensors", kHalfB);
  CHECK(read_hf_checkpoint(local_storage(), dir.path()).at(0).tensors.at(0).name == "b");
}

TEST_CASE("Of several variants none is chosen") {
  const TempDir dir;
  write_weights(dir / "model.fp16.safetensors", kHalfA);
  write_weights(dir / "pytorch_model.bf16.bin", kHalfA);
  const Error error = check_refused([&] { read_hf_checkpoint(local_storage(), dir.path()); }, {.path = dir.path()});
  CHECK(error.hint() == "it contains several variants of a model (bf16, fp16): move away the files of all but one");
}

TEST_CASE("An incomplete set of a variant is refused, and so is an index of missing files") {
  const TempDir dir;
  write_weights(dir / "model.fp16-00001-of-00002.safetensors", kHalfA);
  check_refused([&] { read_hf_checkpoint(local_storage(), dir.path()); },
                {.says = {"model.safetensors.index.fp16.json", "number 2 is missing"}});
  write_file(dir / "model.safetensors.index.fp16.json",
             R"({"weight_map": {"a": "model.fp16-00001-of-00002.safetensors", "b": "x.safetensors"}})");
  check_refused([&] { read_hf_checkpoint(local_storage(), dir.path()); },
                {.path = dir / "model.safetensors.index.fp16.json", .says = "names the file x.safetensors"});
}

TEST_CASE("Names of files tell the variant") {
  const auto told = [](const char* name) {
    const auto found = hf_variant(name);
    return found ? found->whole + " " + found->variant : std::string();
  };
  CHECK(told("model.fp16.safetensors") == "model.safetensors fp16");
  CHECK(told("model.safetensors.index.fp16.json") == "model.safetensors fp16");
  CHECK(told("pytorch_model.bin.index.8bit.json") == "pytorch_model.bin 8bit");
  CHECK(told("model.fp16-00001-of-00002.safetensors") == "model.safetensors fp16");
  CHECK(told("model-00001-of-00002.fp16.safetensors") == "model.safetensors fp16");
  for (const char* name :
       {"model.safetensors", "model..safetensors", "model.a.b.safetensors", "model.fp16.bin", "models.fp16.safetensors",
        "model.safetensors.index.json", "model.safetensors.index..json", "model.safetensors.index.fp16",
        "model.fp16-1-of-x.safetensors", "model-00001-of-00002.safetensors", "adapter_model.fp16.safetensors", "",
        "model.fp-16.safetensors", "model.fp16.json"}) {
    CAPTURE(name);
    CHECK(told(name).empty());
  }
}

}  // namespace
}  // namespace reshard::test
