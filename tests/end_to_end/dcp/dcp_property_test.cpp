// Checkpoints of torch.distributed.checkpoint that the test makes itself: tensors of any shapes in any chunks, with
// states and objects of a training run.

#include <fmt/format.h>

#include "reshard/base/strings.h"
#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A run of any tensors. `model` are those that have no states' names.
struct RandomRun {
  explicit RandomRun(Random& draws) : random(draws) {
    const std::vector<DType> dtypes = dcp::torch_dtypes();
    for (std::uint64_t i = pick(random, 1, 9); i > 0; --i) {
      Dims shape;
      for (std::uint64_t d = pick(random, 0, 4); d > 0; --d) shape.push_back(pick(random, 0, 6));
      if (shape == Dims{0}) shape = {0, 2};  // ZeRO 3 leaves [0]
      const std::string name = fmt::format("part.{}.weight", i), state = "optim.state." + name;
      model[name] = add(name, dtypes[pick(random, 0, dtypes.size() - 1)], shape);
      if (pick(random, 0, 2) == 0) continue;
      add(state + ".exp_avg", DType::kF32, shape);
      add(state + ".step", DType::kF32, {});
      if (pick(random, 0, 1)) add(state + ".row.sums", DType::kF64, {pick(random, 0, 4)});
    }
    has_training = content.tensors.size() > model.size();
    for (std::uint64_t i = pick(random, 0, 5); i > 0; --i) {
      const std::string name = fmt::format("dataloader.dp_rank_{}", i), text(pick(random, 0, 300), 'x');
      for (std::uint32_t copies = by_ranks ? 2 : 1; copies > 0; --copies)
        saved.add_object(name, text, copies + static_cast<std::uint32_t>(pick(random, 0, 1)) * 2);
      content.objects[name] = saved.objects.back().bytes;
      has_training = true;
    }
    if (!has_training) return;
    add("rng", DType::kU8, {16});
    if (content.objects.empty() && pick(random, 0, 1)) add("optim.state.7.exp_avg", DType::kF32, {3, 2});
  }

  TensorData add(const std::string& name, DType dtype, const Dims& shape) {
    std::vector<dcp::Part> parts = random_parts(random, shape);
    if (by_ranks && parts.size() == 1) parts.push_back({Dims(shape.size()), shape, parts[0].rank + 2});
    saved.tensors.push_back({name, random_tensor(random, dtype, shape), parts});
    return content.tensors[name] = saved.tensors.back().data;
  }

  void write(const fs::path& directory) const {
    if (!by_ranks) return saved.write(directory);
    for (std::uint32_t rank = 0; rank < 32; ++rank) dcp::write_rank(directory, saved.tensors, rank, saved.objects);
  }

  Random& random;
  bool by_ranks = random() % 3 == 0;  // each with metadata of its own; what is not cut, two of them have
  bool has_training = false;
  TensorMap model;
  Saved saved;
  dcp::Content content;
};

TEST_CASE("Any tensors, states and objects come from chunks on any mesh, and go on from mesh to mesh") {
  for (const std::uint64_t seed : seeds(100)) {
    CAPTURE(seed);
    Random random(seed);
    const RandomRun run(random);
    const TempDir temp;
    run.write(temp / "0");
    TensorMap whole = converted(temp / "0", temp / "whole");
    CHECK(whole.erase("rng") <= run.has_training);  // may be the model's
    CHECK((whole == run.model));
    for (const char* hop : {"1", "2", "3"}) {
      const std::uint64_t ranks = pick(random, 1, 6);
      Request request = run_request(temp / std::string(1, static_cast<char>(*hop - 1)), temp / hop, ranks);
      if (!run.has_training) {  // all may be the model's
        CHECK_THAT(error_of([&] { convert(request); }).what(), Says("but no optimizer"));
        request.source.with_optimizer = false;
      }
      convert(request);
      const dcp::Content content = dcp::read(temp / hop);
      CHECK((content.tensors == run.content.tensors));
      CHECK((content.objects == run.content.objects));
      check_chunks(temp / hop, ranks);
    }
    // Of a model that nobody knows the prefix might be part of its names, which then keep it.
    convert(temp / "whole", temp / "prefixed", {.layout = "dcp", .options = {"fsdp=2", "prefix=a.b"}});
    TensorMap prefixed;
    for (const auto& [name, data] : read_whole(temp / "whole")) prefixed["a.b." + name] = data;
    if (!prefixed.empty()) CHECK((converted(temp / "prefixed", temp / "back") == prefixed));
  }
}

TEST_CASE("Every dtype that torch has comes from columns, and is written as dcp, and others are refused by name") {
  Random random(9);
  const std::vector<DType> dtypes = dcp::torch_dtypes();
  CHECK(dtypes.size() == 19);
  Saved saved;
  TensorMap tensors;
  for (const DType dtype : dtypes) {
    const std::string name = describe(dtype).torch_name;
    tensors[name] = random_tensor(random, dtype, {3, 5});
    saved.tensors.push_back({name, tensors[name], {{{0, 2}, {3, 3}, 1}, {{0, 0}, {3, 2}, 0}}});
  }
  const TempDir temp;
  saved.write(temp / "in");
  CHECK((converted(temp / "in", temp / "out") == tensors));
  convert(temp / "out", temp / "dcp", {.layout = "dcp", .options = {"fsdp=2"}});
  CHECK((dcp::read(temp / "dcp").tensors == tensors));
  for (const DcpTensor& tensor : dcp::metadata_of(temp / "dcp").tensors) CHECK(tensor.torch_dtype == tensor.name);

  for (const DTypeRow& row : kDTypes) {
    if (std::count(dtypes.begin(), dtypes.end(), row.dtype) > 0) continue;
    CAPTURE(row.name);
    write_safetensors(temp / "other.safetensors", {{"w", {row.dtype, {4, 8}, std::string(4ull * row.bits, 'x')}}});
    check_refused([&] { convert(temp / "other.safetensors", temp / "no", {.layout = "dcp", .options = {"fsdp=2"}}); },
                  {.kind = ErrorKind::kUnsupported, .tensor = "w", .unwritten = temp / "no"});
  }
}

TEST_CASE("Metadata of ranks that contradict each other are refused, and so are replicas that differ") {
  Random random(3);
  const TempDir temp;
  const TensorData a = random_tensor(random, DType::kF32, {7, 3});
  std::vector<dcp::Whole> stored{{"part.a", a, row_parts(a.shape, 3)},
                                 {"part.b", random_tensor(random, DType::kBF16, {5}), {}}};
  for (std::uint32_t rank = 0; rank < 3; ++rank) stored[1].parts.push_back({{0}, {5}, rank});
  for (std::uint32_t rank = 0; rank < 3; ++rank) dcp::write_rank(temp / "dcp", stored, rank);
  const auto refused = [&](const Refusal& refusal) {
    check_refused([&] { convert(temp / "dcp", temp / "out"); }, refusal);
  };

  stored[1].data.bytes[3] = static_cast<char>(stored[1].data.bytes[3] ^ 1);
  dcp::write_rank(temp / "dcp", stored, 2);
  refused({.tensor = "part.b"});
  stored[1].data = random_tensor(random, DType::kF16, {5});
  dcp::write_rank(temp / "dcp", stored, 2);
  refused({.path = temp / "dcp/__2.metadata", .says = "is float16 [5], but bfloat16 [5] on other ranks"});
  fs::remove(temp / "dcp/__2.metadata");
  refused({.says = "its 2 chunks have 18 of its 21 elements"});
}

TEST_CASE("A tied head that is stored in full is left out if it equals the embedding, and else kept") {
  const TinyModel tiny{.tied = true};
  Random random(1);
  TensorMap model = random_tensors(tiny, random);
  const TempDir temp;
  write_model(temp / "model", tiny, model);
  TensorData head = model.at("model.embed_tokens.weight");
  for (const bool is_same : {true, false}) {
    if (!is_same) head.bytes[40] = static_cast<char>(head.bytes[40] ^ 1);
    Saved saved;
    for (const auto& [name, data] : model)
      saved.tensors.push_back({"model." + name, data, random_parts(random, data.shape)});
    saved.add("model.lm_head.weight", head, 3);
    fs::remove_all(temp / "dcp");
    saved.write(temp / "dcp");
    const Request request = consolidate_request(temp / "dcp", temp / "out", {.config = temp / "model"});
    CHECK((join(plan_consolidate(request)->notes.texts(), "\n").find("lm_head.weight is tied to ") !=
           std::string::npos) == is_same);
    TensorMap expected = model;
    if (!is_same) expected["lm_head.weight"] = head;
    CHECK((consolidated(temp / "dcp", temp / "out", {.config = temp / "model"}) == expected));
  }
}

}  // namespace
}  // namespace reshard::test
