// fqn_to_dtype_mapping.json of NeMo Automodel: the dtypes that a model had before its training.

#include <nlohmann/json.hpp>

#include "support/checkpoints.h"
#include "support/files.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const fs::path kCase = testdata("golden/dcp/llama-torch2.9-hf-r3");

/// A model of bfloat16 that is trained in float32, as DCP.
struct Trained {
  Trained() {
    run_well({"convert", (kCase / "original").string(), (dir / "model").string(), "--to", "dcp", "--fsdp", "2",
              "--dtype", "float32"});
    fs::create_directories(dir / "model/.hf_metadata");
    fs::rename(dir / "model/config.json", dir / "model/.hf_metadata/config.json");
    for (const auto& [name, tensor] : original) dtypes[name] = "BF16";
  }
  std::string source() const {
    write_file(dir / "model/.hf_metadata/fqn_to_dtype_mapping.json", dtypes.dump());
    return (dir / "model").string();
  }
  std::string out() const { return (dir / "out").string(); }

  TempDir dir;
  TensorMap original = read_model(kCase / "original");
  nlohmann::json dtypes;
};

}  // namespace

TEST_CASE("A model is consolidated in the dtypes from before its training, and the same by verify") {
  Trained run;
  const ProgramResult plain = run_well({"consolidate", run.source(), run.out()});
  CHECK_THAT(plain.err, Says("note: 12 tensors are cast to BF16, the model's dtype") &&
                            Says("from before training, which fqn_to_dtype_mapping.json records; --dtype chooses") &&
                            !Says("left out"));
  CHECK((read_model(run.out()) == run.original));
  CHECK(run_reshard({"verify", run.source(), run.out()}).exit_code == 0);

  run_well({"consolidate", run.source(), run.out(), "--dtype", "float32", "--force"});
  for (const auto& [name, tensor] : read_model(run.out())) CHECK(tensor.dtype == DType::kF32);
  CHECK(run_reshard({"verify", run.source(), run.out()}).exit_code == 0);
}

TEST_CASE("Tensors that were float32 or quantised before training stay as they were saved") {
  Trained run;
  run.dtypes["model.norm.weight"] = "F32";
  run.dtypes["lm_head.weight"] = "F8_E4M3";
  run.dtypes.erase("model.embed_tokens.weight");
  const ProgramResult mixed = run_well({"consolidate", run.source(), run.out()});
  CHECK_THAT(mixed.err, Says("note: 9 tensors are cast to BF16") &&
                            Says("has F8_E4M3 for 1 tensor, which stays as saved: lm_head.weight") &&
                            Says("has nothing for 1 tensor, which stays as saved: model.embed_tokens.weight"));
  const TensorMap found = read_model(run.out());
  for (const auto& [name, tensor] : run.original) {
    CAPTURE(name);
    const bool stays = name == "model.norm.weight" || name == "lm_head.weight" || name == "model.embed_tokens.weight";
    CHECK(found.at(name).dtype == (stays ? DType::kF32 : DType::kBF16));
    if (!stays) CHECK((found.at(name) == tensor));
  }
  run_well({"consolidate", run.source(), run.out(), "--dtype", "bfloat16", "--force"});
  for (const auto& [name, tensor] : read_model(run.out()))
    CHECK(tensor.dtype == (name == "model.norm.weight" ? DType::kF32 : DType::kBF16));
}

TEST_CASE("A model that was float32 before training is cast as any other") {
  Trained run;
  for (auto& [name, dtype] : run.dtypes.items()) dtype = "F32";
  run_well({"consolidate", run.source(), run.out(), "--dtype", "bfloat16"});
  CHECK((read_model(run.out()) == run.original));
}

TEST_CASE("A run that goes on keeps the dtypes that it was saved in") {
  const Trained run;
  run_well({"convert", run.source(), run.out(), "--to", "dcp", "--fsdp", "3"});
  CHECK(json_of({"inspect", run.out()})["dtypes"].size() == 1);
  CHECK(json_of({"inspect", run.out()})["dtypes"].contains("F32"));
}

TEST_CASE("A file of dtypes that is no object of texts is an error that names it") {
  Trained run;
  run.dtypes["model.norm.weight"] = 3;
  check_fails({"consolidate", run.source(), run.out()}, 3, {"fqn_to_dtype_mapping.json", "model.norm.weight"});
}

}  // namespace reshard::test
