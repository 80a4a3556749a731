// Checkpoints of torch.distributed.checkpoint that are written: which chunk is in which file, and the way back.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/formats/dcp/dcp_metadata.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/fault_storage.h"
#include "support/files.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

DcpMetadata metadata_of(const fs::path& directory) {
  const fs::path path = directory / kDcpMetadataFile;
  return read_dcp_metadata(*local_storage().open(path), path);
}

ConvertRequest to_dcp(const fs::path& source, const fs::path& output, std::uint64_t fsdp,
                      std::optional<std::uint32_t> tp, const std::string& prefix = "") {
  ConvertRequest request = convert_request(source, output);
  request.target.layout = layout("dcp");
  request.target.tp = tp;
  request.target.options.set_number("fsdp", fsdp);
  if (!prefix.empty()) request.target.options.set("prefix", prefix);
  return request;
}

TEST_CASE("Tensors of any shape come back from dcp on any number of ranks, and rows are spread as FSDP2 spreads them") {
  const std::vector<DType> dtypes = dcp::torch_dtypes();
  for (const std::uint64_t seed : seeds(40)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    TensorMap tensors;
    for (std::uint64_t i = pick(random, 1, 9); i > 0; --i) {
      Dims shape;
      for (std::uint64_t d = pick(random, 0, 3); d > 0; --d) shape.push_back(pick(random, 0, 9));
      tensors[fmt::format("part.{}.weight", i)] =
          random_tensor(random, dtypes[pick(random, 0, dtypes.size() - 1)], shape);
    }
    const TempDir temp;
    write_safetensors(temp / "in.safetensors", tensors);
    const std::uint64_t ranks = pick(random, 1, 6);
    const std::string prefix = pick(random, 0, 1) ? "a.b." : "";
    convert(to_dcp(temp / "in.safetensors", temp / "dcp", ranks, std::nullopt, prefix));
    convert(convert_request(temp / "dcp", temp / "out"));
    TensorMap expected;  // of a model that nobody knows, so that the prefix might be part of its names
    for (const auto& [name, data] : tensors) expected[prefix + name] = data;
    CHECK((read_whole(temp / "out") == expected));
    for (const DcpTensor& tensor : metadata_of(temp / "dcp").tensors) {
      INFO(tensor.name);
      if (tensor.shape.empty()) continue;
      const std::uint64_t rows = (tensor.shape[0] + ranks - 1) / ranks;
      for (const DcpChunk& chunk : tensor.chunks) {
        CHECK(chunk.box.begin[0] % rows == 0);
        CHECK(chunk.box.size[0] == std::min(rows, tensor.shape[0] - chunk.box.begin[0]));
      }
    }
  }
}

TEST_CASE("Every dtype that torch has is written as dcp and read back, and the others are refused by name") {
  Random random(8);
  const std::vector<DType> dtypes = dcp::torch_dtypes();
  CHECK(dtypes.size() == 19);
  TensorMap tensors;
  for (const DType dtype : dtypes) tensors[std::string(name(dtype))] = random_tensor(random, dtype, {5, 3});
  const TempDir temp;
  write_safetensors(temp / "in.safetensors", tensors);
  convert(to_dcp(temp / "in.safetensors", temp / "dcp", 2, std::nullopt));
  CHECK((dcp::read(temp / "dcp").tensors == tensors));
  for (const DcpTensor& tensor : metadata_of(temp / "dcp").tensors)
    CHECK(tensor.torch_dtype == describe(tensors.at(tensor.name).dtype).torch_name);
  convert(convert_request(temp / "dcp", temp / "out"));
  CHECK((read_whole(temp / "out") == tensors));

  for (const DTypeRow& row : kDTypes) {
    if (std::count(dtypes.begin(), dtypes.end(), row.dtype) > 0) continue;
    CAPTURE(row.name);
    write_safetensors(temp / "other.safetensors", {{"w", {row.dtype, {4, 8}, std::string(4 * row.bits, 'x')}}});
    check_refused([&] { convert(to_dcp(temp / "other.safetensors", temp / "no", 2, std::nullopt)); },
                  {.kind = ErrorKind::kUnsupported, .tensor = "w"});
    CHECK_FALSE(fs::exists(temp / "no"));
  }
}

TEST_CASE("Tensor-parallel ranks split what the family says, before rows are spread") {
  TinyModel model;
  model.heads = 4;
  model.kv_heads = 2;
  const TempDir temp;
  Random random(5);
  write_model(temp / "model", model, random_tensors(model, random), 1);
  convert(to_dcp(temp / "model", temp / "dcp", 3, 2));
  std::map<std::string, DcpTensor> tensors;
  const DcpMetadata metadata = metadata_of(temp / "dcp");
  for (const DcpTensor& tensor : metadata.tensors) tensors.emplace(tensor.name, tensor);
  const auto boxes = [&](const std::string& name) {
    std::map<std::string, Box> of_files;
    for (const DcpChunk& chunk : tensors.at(name).chunks) of_files[metadata.files[chunk.place.file]] = chunk.box;
    CHECK(of_files.size() == tensors.at(name).chunks.size());
    return of_files;
  };
  for (const auto& [name, dim] :
       {std::pair("model.layers.0.self_attn.q_proj.weight", 0), std::pair("model.layers.0.mlp.down_proj.weight", 1)}) {
    INFO(name);
    const Dims shape = tensors.at(name).shape;
    const auto of_files = boxes(name);
    for (std::uint64_t i = 0; i < 3; ++i)
      for (std::uint64_t j = 0; j < 2; ++j) {
        const auto found = of_files.find(fmt::format("__{}_0.distcp", 2 * i + j));
        Box expected = whole(shape);
        const std::uint64_t half = (shape[dim] + 1) / 2;
        expected.begin[dim] = half * j;
        expected.size[dim] = std::min(half, shape[dim] - half * j);
        const std::uint64_t third = (expected.size[0] + 2) / 3;
        const std::uint64_t first = std::min(expected.size[0], third * i);
        expected.begin[0] += first;
        expected.size[0] = std::min(third, expected.size[0] - first);
        if (expected.size[0] == 0) {
          CHECK(found == of_files.end());
          continue;
        }
        REQUIRE(found != of_files.end());
        CHECK((found->second == expected));
      }
  }
  // Norms are on all tensor-parallel ranks, and stored once.
  std::uint64_t rows = 0;
  for (const auto& [file, box] : boxes("model.norm.weight")) rows += box.size[0];
  CHECK(rows == tensors.at("model.norm.weight").shape[0]);
  ConsolidateRequest back;
  back.source.path = temp / "dcp";
  back.output_directory = temp / "out";
  consolidate(back);
  CHECK((read_whole(temp / "out") == read_whole(temp / "model")));
}

TEST_CASE("A tied name is written as a second name of the same items, and left out on the way back") {
  TinyModel model;
  model.tied = true;
  const TempDir temp;
  Random random(6);
  write_model(temp / "model", model, random_tensors(model, random), 1);
  convert(to_dcp(temp / "model", temp / "dcp", 2, std::nullopt, "model"));
  const DcpMetadata metadata = metadata_of(temp / "dcp");
  const auto find = [&](const std::string& name) {
    const auto found = std::find_if(metadata.tensors.begin(), metadata.tensors.end(),
                                    [&](const DcpTensor& tensor) { return tensor.name == name; });
    REQUIRE(found != metadata.tensors.end());
    return *found;
  };
  const DcpTensor embedding = find("model.model.embed_tokens.weight"), head = find("model.lm_head.weight");
  REQUIRE(head.chunks.size() == embedding.chunks.size());
  for (std::size_t c = 0; c < head.chunks.size(); ++c) CHECK((head.chunks[c].place == embedding.chunks[c].place));
  ConsolidateRequest back;
  back.source.path = temp / "dcp";
  back.output_directory = temp / "out";
  consolidate(back);
  CHECK((read_whole(temp / "out") == read_whole(temp / "model")));
}

TEST_CASE("What cannot be written as dcp is said before anything is") {
  const TempDir temp;
  write_safetensors(temp / "in.safetensors", {{"w", {DType::kF32, {2, 2}, std::string(16, 'x')}}});
  const auto error = [&](const ConvertRequest& request) {
    const Error found = error_of([&] { convert(request); });
    CHECK_FALSE(fs::exists(temp / "out"));
    CHECK(found.kind() == ErrorKind::kUsage);
    return std::string(found.what());
  };
  CHECK_THAT(error(to_dcp(temp / "in.safetensors", temp / "out", 2, 2)), Says("nothing says which dims"));
  for (const char* prefix : {".", ".a", "a..b", "a\n", "a/b", "a b"})
    CHECK_THAT(error(to_dcp(temp / "in.safetensors", temp / "out", 2, std::nullopt, prefix)), Says("`prefix`"));
  CHECK_THAT(error(to_dcp(temp / "in.safetensors", temp / "out", 4096, 2)), Says("more than 4096 ranks"));
  ConvertRequest stages = to_dcp(temp / "in.safetensors", temp / "out", 2, std::nullopt);
  stages.target.pp = 2;
  CHECK_THAT(error(stages), Says("no pipeline stages"));
}

TEST_CASE("The metadata are written when all files are") {
  const TempDir temp;
  write_safetensors(temp / "in.safetensors", {{"w", {DType::kF32, {400, 2}, std::string(3200, 'x')}}});
  FaultStorage storage;
  RunOptions options = unsynced();
  options.storage = &storage;
  convert(to_dcp(temp / "in.safetensors", temp / "dcp", 3, std::nullopt), options);
  std::size_t last_tensors = 0, metadata = 0;
  const auto steps = storage.steps();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].operation != FaultStorage::Operation::kWrite && steps[i].operation != FaultStorage::Operation::kCreate)
      continue;
    (steps[i].path.filename() == kDcpMetadataFile ? metadata : last_tensors) = i;
  }
  CHECK(last_tensors > 0);
  CHECK(metadata > last_tensors);
}

TEST_CASE("Files of another save beside a new one are refused") {
  const TempDir temp;
  write_safetensors(temp / "in.safetensors", {{"w", {DType::kF32, {2, 2}, std::string(16, 'x')}}});
  write_file(temp / "out" / "__7_0.distcp", "old");
  check_refused([&] { convert(to_dcp(temp / "in.safetensors", temp / "out", 2, std::nullopt)); },
                {.says = "__7_0.distcp"});
  fs::remove_all(temp / "out");
  convert(to_dcp(temp / "in.safetensors", temp / "out", 2, std::nullopt));
  ConvertRequest again = to_dcp(temp / "in.safetensors", temp / "out", 2, std::nullopt);
  again.force = true;
  convert(again);  // over its own
}

TEST_CASE("A prefix from under which the model would not come back is refused, with its optimizer and without") {
  const std::string kBeside = "as an entry beside the model";
  Random random(8);
  const TempDir temp;
  const TinyModel tiny;
  write_model(temp / "known", tiny, random_tensors(tiny, random));
  write_safetensors(temp / "unknown/model.safetensors", {{"part.weight", random_tensor(random, DType::kF32, {3, 2})}});
  small_run(random).write(temp / "run");
  const auto check = [&](ConvertRequest request, const std::string& prefix, const std::string& as) {
    CAPTURE(request.source.path, prefix);
    request.target.options.set("prefix", prefix);
    if (as.empty()) {
      CHECK_NOTHROW(plan_convert(local_storage(), request));
      return;
    }
    const Error error = error_of([&] { convert(request); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_FALSE(error.tensor().empty());
    CHECK_THAT(error.what(),
               Says("`prefix` " + prefix + ".: " + prefix + "." + error.tensor() + " would be read " + as));
    CHECK(error.hint() == "choose another prefix, such as model");
    CHECK_FALSE(fs::exists(temp / "out"));
  };
  const auto request_of = [&](const char* source) { return to_dcp(temp / source, temp / "out", 2, std::nullopt); };
  for (const std::string prefix :
       {"optim", "optimizer.model", "lr_scheduler", "train_state", "dataloader", "a.param_groups"}) {
    for (const char* source : {"known", "unknown", "run"}) check(request_of(source), prefix, kBeside);
    check(run_request(temp / "run", temp / "out", 2), prefix, kBeside);
  }
  for (const std::string prefix :
       {"model", "module", "state_dict.model", "app.model", "state", "ema", "a.optim", "llm"}) {
    // As a part of a larger model, the name stays.
    check(request_of("known"), prefix, prefix == "llm" ? "under the name llm." : "");
    // Nothing tells the prefix from the names, but for an optimizer that has them.
    for (const char* source : {"unknown", "run"}) {
      ConvertRequest request = request_of(source);
      request.target.options.set("prefix", prefix);
      const std::vector<std::string> notes = plan_convert(local_storage(), request)->notes;
      CHECK(std::any_of(notes.begin(), notes.end(), [&](const std::string& note) {
        return note.find("nothing tells `prefix` " + prefix + ". from its names: they keep it") != note.npos;
      }));
    }
    check(run_request(temp / "run", temp / "out", 2), prefix, "");
  }
}

TEST_CASE("Names that would be read back as entries beside the model need a prefix") {
  const TempDir temp;
  const TensorMap tensors{{"train_state.w", {DType::kF32, {2}, "abcdefgh"}}, {"a.w", {DType::kF32, {2}, "ijklmnop"}}};
  write_safetensors(temp / "in.safetensors", tensors);
  ConvertRequest request = to_dcp(temp / "in.safetensors", temp / "out", 2, std::nullopt);
  const Error error =
      check_refused([&] { convert(request); }, {.kind = ErrorKind::kUsage,
                                                .tensor = "train_state.w",
                                                .says = "train_state.w would be read as an entry beside the model"});
  CHECK(error.hint() == "choose a `prefix`, such as model");
  CHECK_FALSE(fs::exists(temp / "out"));
  request.target.options.set("prefix", "model");
  convert(request);
  CHECK(read_checkpoint(local_storage(), temp / "out", {}).map.logical.size() == 2);
}

}  // namespace
}  // namespace reshard::test
