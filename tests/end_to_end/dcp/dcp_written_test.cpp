// Checkpoints of torch.distributed.checkpoint that are written: which chunk is in which file, and the way back.

#include <fmt/format.h>

#include <algorithm>

#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

const RequestFields kToDcp{.layout = "dcp", .options = {"fsdp=2"}};

RequestFields with_prefix(const std::string& prefix) {
  return {.layout = "dcp", .options = {"fsdp=2", "prefix=" + prefix}};
}

/// A file with one tensor of 2 × 2.
void write_small(const fs::path& path) {
  write_safetensors(path, {{"w", {DType::kF32, {2, 2}, std::string(16, 'x')}}});
}

std::map<std::string, DcpTensor> tensors_of(const DcpMetadata& metadata) {
  std::map<std::string, DcpTensor> tensors;
  for (const DcpTensor& tensor : metadata.tensors) tensors.emplace(tensor.name, tensor);
  return tensors;
}

TEST_CASE("Tensor-parallel ranks split what the family says, before rows are spread") {
  const Input input({}, {.layout = "dcp", .tp = 2, .options = {"fsdp=3"}}, 5);
  const DcpMetadata metadata = dcp::metadata_of(input / "out");
  const auto tensors = tensors_of(metadata);
  for (const auto& [name, dim] :
       {std::pair("model.layers.0.self_attn.q_proj.weight", 0), std::pair("model.layers.0.mlp.down_proj.weight", 1)}) {
    std::map<std::string, Box> found, expected;
    for (const DcpChunk& chunk : tensors.at(name).chunks) found[metadata.files[chunk.place.file]] = chunk.box;
    const Dims shape = tensors.at(name).shape;
    for (std::uint64_t i = 0; i < 3; ++i)
      for (std::uint64_t j = 0; j < 2; ++j) {
        Box box = whole(shape);
        const std::uint64_t half = (shape[dim] + 1) / 2;
        box.begin[dim] = half * j;
        box.size[dim] = std::min(half, shape[dim] - half * j);
        const std::uint64_t third = (box.size[0] + 2) / 3, first = std::min(box.size[0], third * i);
        box.begin[0] += first;
        box.size[0] = std::min(third, box.size[0] - first);
        if (box.size[0] > 0) expected[fmt::format("__{}_0.distcp", 2 * i + j)] = box;
      }
    INFO(name);
    CHECK(tensors.at(name).chunks.size() == found.size());
    CHECK((found == expected));
  }
  check_chunks(input / "out", 0);  // norms are on all tensor-parallel ranks, and stored once
  CHECK((input.whole() == input.tensors));
}

TEST_CASE("A tied head is a second name of the embedding's items, in a program's names too, and left out again") {
  for (const auto& [names, embedding, head] : {std::tuple("hf", "model.embed_tokens.weight", "lm_head.weight"),
                                               {"torchtitan-0.2", "tok_embeddings.weight", "output.weight"}}) {
    CAPTURE(names);
    const Input input({.tied = true},
                      {.layout = "dcp", .options = {"fsdp=2", std::string("names=") + names, "prefix=app.model"}}, 6);
    const DcpMetadata metadata = dcp::metadata_of(input / "out");
    const auto tensors = tensors_of(metadata);
    const auto places = [&](const char* name) {
      std::vector<std::pair<std::size_t, std::uint64_t>> found;
      for (const DcpChunk& chunk : tensors.at(std::string("app.model.") + name).chunks)
        found.emplace_back(chunk.place.file, chunk.place.offset_bytes);
      return found;
    };
    CHECK(places(head) == places(embedding));
    CHECK(metadata.paths.size() == metadata.tensors.size());
    for (const auto& [name, path] : metadata.paths)
      CHECK((path == DcpPath{"app", "model", name.substr(std::string("app.model.").size())}));
    CHECK((input.whole() == input.tensors));
  }
}

TEST_CASE("What cannot be written as dcp is said before anything is") {
  const TempDir temp;
  write_small(temp / "in.safetensors");
  std::vector<Refused<RequestFields>> rows{
      {"unknown dims", {.layout = "dcp", .tp = 2, .options = {"fsdp=2"}}, {.says = "the dims that tensor-parallel"}},
      {"ranks", {.layout = "dcp", .tp = 2, .options = {"fsdp=4096"}}, {.says = "more than 4096 ranks"}},
      {"stages", {.layout = "dcp", .pp = 2, .options = {"fsdp=2"}}, {.says = "no pipeline stages"}}};
  for (const char* prefix : {".", ".a", "a..b", "a\n", "a/b", "a b"})
    rows.push_back({std::string("prefix ") + prefix, with_prefix(prefix), {.says = "`prefix`"}});
  check_refusals<RequestFields>(
      [&](const RequestFields& fields) { convert(temp / "in.safetensors", temp / "out", fields); },
      {.kind = ErrorKind::kUsage, .unwritten = temp / "out"}, rows);
}

TEST_CASE("The metadata are written when all files are") {
  const TempDir temp;
  write_safetensors(temp / "in.safetensors", {{"w", {DType::kF32, {400, 2}, std::string(3200, 'x')}}});
  FaultStorage storage;
  RunOptions options = unsynced();
  options.stores = storage;
  convert(convert_request(temp / "in.safetensors", temp / "dcp", kToDcp), options);
  std::size_t last_tensors = 0, metadata = 0;
  const auto steps = storage.steps();
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].operation == FaultStorage::Operation::kWrite || steps[i].operation == FaultStorage::Operation::kCreate)
      (steps[i].path.filename() == kDcpMetadataFile ? metadata : last_tensors) = i;
  CHECK(last_tensors > 0);
  CHECK(metadata > last_tensors);
}

TEST_CASE("Files of another save beside a new one are refused") {
  const TempDir temp;
  write_small(temp / "in.safetensors");
  write_file(temp / "out" / "__7_0.distcp", "old");
  Request request = convert_request(temp / "in.safetensors", temp / "out", kToDcp);
  check_refused([&] { convert(request); }, {.says = "__7_0.distcp"});
  fs::remove_all(temp / "out");
  convert(request);
  request.force = true;
  convert(request);  // over its own
}

TEST_CASE("A prefix from under which the model would not come back is refused, with its optimizer and without") {
  const std::string beside = "as an entry outside the model";
  const Input known;
  const TempDir temp;
  write_small(temp / "unknown/model.safetensors");
  Random random(8);
  small_run(random).write(temp / "run");
  const auto check = [&](const fs::path& source, const std::string& prefix, const std::string& as,
                         bool optimizer = false) {
    CAPTURE(source, prefix);
    RequestFields fields = with_prefix(prefix);
    fields.with_optimizer = optimizer;
    const Request request = convert_request(source, temp / "out", fields);
    if (as.empty()) return plan_convert(request)->notes.texts();
    const Error error =
        check_refused([&] { convert(request); }, {.kind = ErrorKind::kUsage, .unwritten = temp / "out"});
    CHECK_FALSE(error.tensor().empty());
    CHECK_THAT(error.what(),
               Says("`prefix` " + prefix + ".: " + prefix + "." + error.tensor() + " would be read " + as));
    CHECK_THAT(error.hint(), Says("choose another prefix, such as model, or rename"));
    return std::vector<std::string>();
  };
  for (const std::string prefix :
       {"optim", "optimizer.model", "lr_scheduler", "train_state", "dataloader", "a.param_groups"}) {
    for (const fs::path& source : {known.path(), temp / "unknown", temp / "run"}) check(source, prefix, beside);
    check(temp / "run", prefix, beside, true);
  }
  for (const std::string prefix :
       {"model", "module", "state_dict.model", "app.model", "state", "ema", "a.optim", "llm"}) {
    check(known.path(), prefix, "");
    // Nothing tells the prefix from the names, but for an optimizer that has them.
    for (const char* source : {"unknown", "run"}) {
      const std::vector<std::string> notes = check(temp / source, prefix, "");
      CHECK(std::any_of(notes.begin(), notes.end(), [&](const std::string& note) {
        return note.find("`prefix` " + prefix + ". cannot be distinguished from its names") != note.npos;
      }));
    }
    check(temp / "run", prefix, "", true);
  }
}

TEST_CASE("Names that would be read back as entries beside the model need a prefix") {
  const TempDir temp;
  write_safetensors(temp / "in.safetensors",
                    {{"train_state.w", {DType::kF32, {2}, "abcdefgh"}}, {"a.w", {DType::kF32, {2}, "ijklmnop"}}});
  const Error error = check_refused([&] { convert(temp / "in.safetensors", temp / "out", kToDcp); },
                                    {.kind = ErrorKind::kUsage,
                                     .tensor = "train_state.w",
                                     .says = "train_state.w would be read as an entry outside the model",
                                     .unwritten = temp / "out"});
  CHECK_THAT(error.hint(), Says("choose a `prefix`, such as model, or rename"));
  convert(temp / "in.safetensors", temp / "out", with_prefix("model"));
  CHECK(read_checkpoint(local_storage(), temp / "out", {}).map.logical.size() == 2);
}

}  // namespace
}  // namespace reshard::test
