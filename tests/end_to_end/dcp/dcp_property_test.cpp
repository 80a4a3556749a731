// Checkpoints of torch.distributed.checkpoint that the test makes itself: any shapes in any chunks, and the names and
// orders of other programs.

#include <fmt/format.h>

#include <algorithm>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/errors.h"
#include "support/families.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/random.h"
#include "support/temp_dir.h"
#include "support/titan.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// As torch.chunk has it: ceil(size / ranks) rows each, the last ones fewer or none.
std::vector<dcp::Part> chunks(const dcp::Part& part, std::size_t dim, std::uint64_t ranks) {
  std::vector<dcp::Part> parts;
  const std::uint64_t rows = (part.size[dim] + ranks - 1) / ranks;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    dcp::Part one = part;
    const std::uint64_t begin = std::min(rank * rows, part.size[dim]);
    one.begin[dim] += begin;
    one.size[dim] = std::min(rows, part.size[dim] - begin);
    one.rank = part.rank * static_cast<std::uint32_t>(ranks) + static_cast<std::uint32_t>(rank);
    parts.push_back(one);
  }
  return parts;
}

/// A mesh of one or two dims, or boxes of any sizes.
std::vector<dcp::Part> random_parts(Random& random, const Dims& shape) {
  std::vector<dcp::Part> parts{{Dims(shape.size()), shape, static_cast<std::uint32_t>(pick(random, 0, 1))}};
  if (shape.empty()) return parts;
  for (std::uint64_t cuts = pick(random, 0, 2); cuts > 0; --cuts) {
    const std::size_t dim = pick(random, 0, shape.size() - 1);
    const std::uint64_t ranks = pick(random, 2, 4);
    std::vector<dcp::Part> all;
    for (const dcp::Part& part : parts)
      for (dcp::Part& one : chunks(part, dim, ranks)) all.push_back(std::move(one));
    parts = std::move(all);
  }
  // Of empty chunks that begin at one place, torch keeps one.
  std::erase_if(parts, [](const dcp::Part& part) { return std::count(part.size.begin(), part.size.end(), 0) > 0; });
  if (parts.empty()) parts = {{Dims(shape.size()), shape, 0}};
  std::shuffle(parts.begin(), parts.end(), random);
  return parts;
}

TEST_CASE("Tensors of any dtype and shape come back from chunks on any mesh") {
  const std::vector<DType> dtypes = dcp::torch_dtypes();
  for (const std::uint64_t seed : seeds(60)) {
    CAPTURE(seed);
    Random random(seed);
    TensorMap tensors;
    std::vector<dcp::Whole> stored;
    for (std::uint64_t i = pick(random, 1, 12); i > 0; --i) {
      Dims shape;
      for (std::uint64_t d = pick(random, 0, 4); d > 0; --d) shape.push_back(pick(random, d == 1 ? 0 : 1, 6));
      const DType dtype = dtypes[pick(random, 0, dtypes.size() - 1)];
      const std::string name = fmt::format("part.{}.tensor", i);
      tensors[name] = random_tensor(random, dtype, shape);
      stored.push_back({name, tensors[name], random_parts(random, shape)});
      if (i % 3 == 0)
        stored.push_back({"optimizer.state." + name + ".exp_avg", random_tensor(random, DType::kF32, shape),
                          random_parts(random, shape)});
    }
    const TempDir temp;
    dcp::write(temp / "dcp", stored);
    convert(convert_request(temp / "dcp", temp / "out"));
    CHECK((read_model(temp / "out") == tensors));
  }
}

TEST_CASE("Every dtype that torch has comes back from chunks that are no rows") {
  Random random(9);
  TensorMap tensors;
  std::vector<dcp::Whole> stored;
  for (const DType dtype : dcp::torch_dtypes()) {
    const std::string name = fmt::format("part.{}", describe(dtype).torch_name);
    tensors[name] = random_tensor(random, dtype, {3, 5});
    stored.push_back({name, tensors[name], {{{0, 2}, {3, 3}, 1}, {{0, 0}, {3, 2}, 0}}});
  }
  const TempDir temp;
  dcp::write(temp / "dcp", stored);
  convert(convert_request(temp / "dcp", temp / "out"));
  CHECK((read_model(temp / "out") == tensors));
}

TEST_CASE("Metadata of each rank is read together, and tensors that several ranks have are compared") {
  Random random(3);
  const TempDir temp;
  TensorMap tensors{{"part.a", random_tensor(random, DType::kF32, {7, 3})},
                    {"part.b", random_tensor(random, DType::kBF16, {5})}};
  std::vector<dcp::Whole> stored{{"part.a", tensors["part.a"], chunks({{0, 0}, {7, 3}, 0}, 0, 3)},
                                 {"part.b", tensors["part.b"], {}}};
  for (std::uint32_t rank = 0; rank < 3; ++rank) stored[1].parts.push_back({{0}, {5}, rank});
  for (std::uint32_t rank = 0; rank < 3; ++rank) dcp::write_rank(temp / "dcp", stored, rank);
  convert(convert_request(temp / "dcp", temp / "out"));
  CHECK((read_model(temp / "out") == tensors));

  stored[1].data.bytes[3] = static_cast<char>(stored[1].data.bytes[3] ^ 1);
  dcp::write_rank(temp / "dcp", stored, 2);
  const Error differs = error_of([&] { convert(convert_request(temp / "dcp", temp / "out2")); });
  CHECK(differs.kind() == ErrorKind::kBadInput);
  CHECK(differs.tensor() == "part.b");

  stored[1].data = random_tensor(random, DType::kF16, {5});
  dcp::write_rank(temp / "dcp", stored, 2);
  const Error dtype = error_of([&] { convert(convert_request(temp / "dcp", temp / "out2")); });
  CHECK(dtype.path() == (temp / "dcp/__2.metadata").string());
  CHECK_THAT(dtype.what(), Says("is float16 [5], but bfloat16 [5] by other ranks"));

  fs::remove(temp / "dcp/__2.metadata");
  CHECK_THAT(error_of([&] { convert(convert_request(temp / "dcp", temp / "out2")); }).what(),
             Says("its 2 chunks have 18 of its 21 elements"));
}

TEST_CASE("A tied head that is stored in full is left out if it equals the embedding, and else kept") {
  TinyModel tiny;
  tiny.tied = true;
  Random random(1);
  TensorMap model = random_tensors(tiny, random);
  model.erase("lm_head.weight");
  const TempDir temp;
  write_model(temp / "model", tiny, model);
  const auto stored = [&](char head_byte) {
    std::vector<dcp::Whole> all;
    for (const auto& [name, data] : model) all.push_back({"model." + name, data, random_parts(random, data.shape)});
    TensorData head = model.at("model.embed_tokens.weight");
    head.bytes[40] = static_cast<char>(head.bytes[40] ^ head_byte);
    all.push_back({"model.lm_head.weight", head, chunks({{0, 0}, head.shape, 0}, 0, 3)});
    return all;
  };
  ConsolidateRequest request;
  request.source.path = temp / "dcp";
  request.source.config = temp / "model";
  request.output_directory = temp / "out";
  dcp::write(temp / "dcp", stored(0));
  const auto job = plan_consolidate(local_storage(), request);
  CHECK(std::count_if(job->notes.begin(), job->notes.end(), [](const std::string& note) {
          return note.find("lm_head.weight is tied to ") != note.npos;
        }) == 1);
  consolidate(request);
  CHECK((read_model(temp / "out") == model));
  fs::remove_all(temp / "out");
  fs::remove_all(temp / "dcp");
  dcp::write(temp / "dcp", stored(1));
  consolidate(request);
  model["lm_head.weight"] = model.at("model.embed_tokens.weight");
  char& byte = model["lm_head.weight"].bytes[40];
  byte = static_cast<char>(byte ^ 1);
  CHECK((read_model(temp / "out") == model));
}

/// Writes these in random chunks beside a config.json, and holds what convert makes of them against `model`.
void check_titan(Random& random, const TensorMap& model, const std::map<std::string, TensorData>& titan,
                 const fs::path& config, bool with_bias_of_experts) {
  const TempDir temp;
  std::vector<dcp::Whole> stored;
  for (const auto& [name, data] : titan) stored.push_back({name, data, random_parts(random, data.shape)});
  if (with_bias_of_experts)
    stored.push_back({"layers.1.moe.expert_bias", random_tensor(random, DType::kF32, {3}), {{{0}, {3}, 0}}});
  dcp::write(temp / "step-7", stored);
  ConvertRequest request = convert_request(temp / "step-7", temp / "out");
  request.source.config = config;
  convert(request);
  CHECK((read_model(temp / "out") == model));
}

TEST_CASE("torchtitan's names of both generations are read, with experts in stacks") {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "deepseek_v3_no_q_lora"})
    for (const bool is_main : {false, true})
      for (const std::uint64_t seed : seeds(3)) {
        CAPTURE(name, is_main, seed);
        Random random(seed);
        const TempDir temp;
        const bool is_qwen = std::string(name) == "qwen3_moe";
        const TensorMap model = write_case(family_case(name), temp / "model");
        check_titan(random, model, titan_tensors(model, is_main, 0, is_qwen), temp / "model", is_qwen);
      }
}

TEST_CASE("torchtitan's Llama has its rotary rows in pairs, and its Qwen3 has not") {
  for (const char* model_type : {"llama", "qwen3"})
    for (const bool is_main : {false, true})
      for (const std::uint64_t seed : seeds(10)) {
        CAPTURE(model_type, is_main, seed);
        Random random(seed);
        TinyModel tiny;
        tiny.model_type = model_type;
        tiny.head_dim = 2 * pick(random, 1, 4);
        tiny.heads = 2 * pick(random, 1, 2);
        tiny.kv_heads = tiny.heads / pick(random, 1, 2);
        const TempDir temp;
        const TensorMap model = random_tensors(tiny, random);
        write_model(temp / "model", tiny, model);
        const std::uint64_t rotary = model_type == std::string("llama") ? tiny.head_dim : 0;
        check_titan(random, model, titan_tensors(model, is_main, rotary, true), temp / "model", false);
      }
}

}  // namespace
}  // namespace reshard::test
