// Weights for inference whose tensors have other names or more elements than the checkpoint's: the layout nxdi, and
// presharded with --pad. testdata/golden/nxdi is what NxD Inference's own classes have made.

#include <nlohmann/json.hpp>

#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/job/convert.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/parallel/head_slots.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("Every case of NxD Inference is made tensor by tensor, and consolidated again") {
  REQUIRE(golden_cases("nxdi").size() == 7);
  for (const fs::path& golden_case : golden_cases("nxdi")) {
    DYNAMIC_SECTION(golden_case.filename().string()) {
      const TempDir temp;
      const json golden = golden_of(golden_case);
      const json& options = golden.at("case");
      ShardRequest request = deployed_request(layout("nxdi"), golden_case / "original", temp / "out",
                                              options.at("tp").get<std::uint32_t>());
      request.target.options.set_flag("fuse-qkv", options.at("fused_qkv").get<bool>());
      shard(request);
      json found = json::object();
      for (const auto& [file, tensors] : read_weights(temp / "out")) found[file] = describe_tensors(tensors);
      CHECK(found == golden.at("files"));

      // What the reference itself has saved, with config.json beside it as its users have it, and the compiled model's
      // neuron_config.json, without which a square matrix might be transposed.
      fs::create_directory(temp / "reference");
      fs::copy(golden_case / "weights", temp / "reference/weights");
      fs::copy_file(golden_case / "original/config.json", temp / "reference/config.json");
      write_file(temp / "reference/neuron_config.json", json{{"fused_qkv", options.at("fused_qkv")}}.dump());
      CHECK((consolidated(temp / "reference", temp / "whole") == read_model(golden_case / "original")));
      const Checkpoint a = read_checkpoint(golden_case / "original", {ConfigUse::kStrict});
      const Checkpoint b = read_checkpoint(temp / "reference", {ConfigUse::kStrict});
      for (const auto& [left, right] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        const Verification result = verify(left->map, right->map, {}, {});
        CHECK(result.same());
        CHECK(result.compared_tensors == a.map.logical.size());
      }
    }
  }
}

/// Rows (dim 0) or columns (dim 1) of a matrix or vector, by number; one that there is not is padded.
TensorData taken(const TensorData& tensor, std::size_t dim, const std::vector<std::uint64_t>& indices,
                 const std::string& filler) {
  const std::size_t elem = bits(tensor.dtype) / 8;
  const bool matrix = tensor.shape.size() == 2;
  const std::uint64_t rows = tensor.shape[0];
  const std::uint64_t columns = matrix ? tensor.shape[1] : 1;
  TensorData part{tensor.dtype, tensor.shape, {}};
  part.shape[dim] = indices.size();
  const auto at = [&](std::uint64_t row, std::uint64_t column) {
    part.bytes += row < rows && column < columns ? tensor.bytes.substr((row * columns + column) * elem, elem) : filler;
  };
  if (dim == 0)
    for (const std::uint64_t row : indices)
      for (std::uint64_t column = 0; column < columns; ++column) at(row, column);
  else
    for (std::uint64_t row = 0; row < rows; ++row)
      for (const std::uint64_t column : indices) at(row, column);
  return part;
}

std::vector<std::uint64_t> even_part(std::uint64_t size, std::uint64_t tp, std::uint64_t rank) {
  const std::uint64_t each = (size + tp - 1) / tp;
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = rank * each; i < (rank + 1) * each; ++i) indices.push_back(i);
  return indices;
}

std::vector<std::uint64_t> head_part(const std::vector<std::uint32_t>& slots, std::uint64_t head_dim, std::uint64_t tp,
                                     std::uint64_t rank) {
  std::vector<std::uint64_t> indices;
  for (std::uint64_t slot = rank * slots.size() / tp; slot < (rank + 1) * slots.size() / tp; ++slot)
    for (std::uint64_t i = 0; i < head_dim; ++i) indices.push_back(slots[slot] * head_dim + i);
  return indices;
}

const std::string kZero(2, '\0');
const std::string kLowest = "\x7f\xff";  // of bfloat16: -3.39e38

TensorData rank_number(std::uint64_t rank) {
  return {DType::kI32, {1}, {static_cast<char>(rank), '\0', '\0', '\0'}};
}

/// What NxD Inference has on a rank.
TensorMap expected_nxdi(const TinyModel& model, const TensorMap& originals, std::uint64_t tp, std::uint64_t rank,
                        bool fused, bool vocab_parallel) {
  const HeadSlots slots =
      inference_head_slots(static_cast<std::uint32_t>(model.heads), static_cast<std::uint32_t>(model.kv_heads),
                           static_cast<std::uint32_t>(tp));
  const auto query = head_part(slots.query, model.head_dim, tp, rank);
  const auto key = head_part(slots.key_value, model.head_dim, tp, rank);
  TensorMap tensors{{"rank_util.rank", rank_number(rank)}};
  if (vocab_parallel) tensors.emplace("embed_tokens.rank_util.rank", rank_number(rank));
  for (std::uint64_t layer = 0; layer < model.layers; ++layer)
    tensors.emplace("layers." + std::to_string(layer) + ".self_attn.rank_util.rank", rank_number(rank));
  TensorMap fused_rows;
  for (const char* linear : {"q_proj", "k_proj", "v_proj"})
    for (const auto& [full_name, tensor] : originals) {
      const auto found = full_name.find(std::string("self_attn.") + linear);
      if (found == std::string::npos) continue;
      std::string name = full_name.substr(6);
      const TensorData part = taken(tensor, 0, linear == std::string("q_proj") ? query : key, kZero);
      if (!fused) {
        tensors[name.insert(name.find(linear), "qkv_proj.")] = part;
        continue;
      }
      name.replace(name.find(linear), 6, "qkv_proj.Wqkv");
      const auto [joined, is_new] = tensors.emplace(name, part);
      if (is_new) continue;
      joined->second.shape[0] += part.shape[0];
      joined->second.bytes += part.bytes;
    }
  for (const auto& [full_name, tensor] : originals) {
    std::string name = full_name.starts_with("model.") ? full_name.substr(6) : full_name;
    const auto has = [&](const char* what) { return name.find(what) != std::string::npos; };
    const bool bias = name.ends_with(".bias");
    if (has("q_proj") || has("k_proj") || has("v_proj")) continue;
    if (has("embed_tokens"))
      tensors[name] =
          taken(tensor, vocab_parallel ? 0 : 1, even_part(tensor.shape[vocab_parallel ? 0 : 1], tp, rank), kZero);
    else if (has("lm_head") || has("gate_proj") || has("up_proj"))
      tensors[name] = taken(tensor, 0, even_part(tensor.shape[0], tp, rank), bias ? kLowest : kZero);
    else if (has("down_proj") && !bias)
      tensors[name] = taken(tensor, 1, even_part(tensor.shape[1], tp, rank), kZero);
    else if (has("o_proj"))
      tensors[name.insert(name.find("o_proj"), "o_proj.")] = bias ? tensor : taken(tensor, 1, query, kZero);
    else if (has("_norm.") && has("self_attn"))
      tensors[name.replace(name.find("_norm."), 6, "_layernorm.")] = tensor;
    else
      tensors[name] = tensor;
  }
  if (model.tied)
    tensors["lm_head.weight"] =
        taken(originals.at("model.embed_tokens.weight"), 0, even_part(model.vocab, tp, rank), kZero);
  return tensors;
}

TEST_CASE("Random models become NxD Inference's tensors, whatever divides, and come back") {
  std::size_t padded = 0;
  for (const std::uint64_t seed : seeds(60)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    const TempDir temp;
    TinyModel model = random_model(random);
    if (model.model_type == "granite") model.model_type = "llama";
    const auto tp = static_cast<std::uint32_t>(pick(random, 1, 9));
    const bool fused = random() % 2;
    const bool vocab_parallel = random() % 2;
    INFO(model.config().dump() << " tp " << tp << " fused " << fused << " vocab_parallel " << vocab_parallel);
    const TensorMap tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors, pick(random, 1, 3));
    ShardRequest request = deployed_request(layout("nxdi"), temp / "model", temp / "out", tp);
    request.target.options.set_flag("fuse-qkv", fused);
    request.target.options.set_flag("vocab-parallel", vocab_parallel);
    const auto job = plan_shard(request);
    for (const LogicalTensor& tensor : job->target.logical) padded += tensor.filler && tensor.dtype == DType::kBF16;
    execute(*job, unsynced());
    const auto ranks = read_weights(temp / "out");
    REQUIRE(ranks.size() == tp);
    for (std::uint32_t rank = 0; rank < tp; ++rank)
      CHECK((ranks.at("weights/tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors") ==
             expected_nxdi(model, tensors, tp, rank, fused, vocab_parallel)));
    CHECK((consolidated(temp / "out", temp / "whole") == tensors));
  }
  if (has_all_seeds()) CHECK(padded > 20);
}

TEST_CASE("Replicated key/value heads that config.json counts as heads of their own are noticed") {
  for (const char* name : {"nxdi", "vllm"})
    for (const bool fused : {false, true}) {
      CAPTURE(name, fused);
      const TempDir temp;
      TinyModel model;
      Random random(4);
      const TensorMap tensors = random_tensors(model, random);
      write_model(temp / "model", model, tensors);
      ShardRequest request = deployed_request(layout(name), temp / "model", temp / "out", 4);
      if (name == std::string("nxdi")) request.target.options.set_flag("fuse-qkv", fused);
      shard(request);
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
      model.kv_heads = 4;
      write_file(temp / "out/config.json", model.config().dump());
      for (const auto& entry : fs::recursive_directory_iterator(temp / "out"))
        if (entry.path().extension() == ".safetensors")  // without our record of what was replicated
          write_safetensors(entry.path(), read_tensors(entry.path()));
      const Error error = error_of([&] { consolidated(temp / "out", temp / "wrong"); });
      CHECK(error.kind() == ErrorKind::kBadInput);
      CHECK(error.tensor() == "model.layers.0.self_attn.k_proj.weight");
      CHECK_THAT(error.what(), Says("ranks 0 and 1 have the same heads"));
      CHECK_THAT(error.hint(), Says("num_key_value_heads"));
      CHECK_FALSE(fs::exists(temp / "wrong"));
    }
}

TEST_CASE("Any family is padded where the ranks do not divide, and comes back") {
  const std::uint64_t seed = GENERATE(from_range(seeds(40)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const TempDir temp;
  const TinyModel model = random_model(random);
  const auto tp = static_cast<std::uint32_t>(pick(random, 1, 9));
  INFO(model.config().dump() << " tp " << tp);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", tp);
  request.target.options.set_flag("pad", true);
  shard(request);
  const auto ranks = read_weights(temp / "out");
  REQUIRE(ranks.size() == tp);
  for (std::uint32_t rank = 0; rank < tp; ++rank)
    for (const auto& [name, tensor] :
         ranks.at("weights/tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors")) {
      const auto has = [&, &full = name](const char* what) { return full.find(what) != std::string::npos; };
      const TensorData& original = tensors.at(name);
      const bool bias = name.ends_with(".bias");
      const bool rows = has("embed_tokens") || has("lm_head") || has("q_proj") || has("k_proj") || has("v_proj") ||
                        has("gate_proj") || has("up_proj");
      const bool columns = (has("o_proj") || has("down_proj")) && !bias;
      if (rows)
        CHECK((tensor == taken(original, 0, even_part(original.shape[0], tp, rank), bias ? kLowest : kZero)));
      else if (columns)
        CHECK((tensor == taken(original, 1, even_part(original.shape[1], tp, rank), kZero)));
      else
        CHECK((tensor == original));
    }
  CHECK((consolidated(temp / "out", temp / "whole") == tensors));
}

/// The case 6q2kv-tp4, made anew in `temp`/out.
void make_case(const TempDir& temp) {
  const fs::path model = testdata("golden/nxdi/llama-6q2kv-tp4-interleaved-pad/original");
  shard(deployed_request(layout("nxdi"), model, temp / "out", 4));
}

TEST_CASE("Numbers where zeros should be, and a rank's file under another's name, are refused") {
  const auto broken = [&](const char* tensor, std::size_t byte, std::uint32_t rank) {
    const TempDir temp;
    make_case(temp);
    const fs::path file = temp / ("out/weights/tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors");
    TensorMap tensors = read_tensors(file);
    REQUIRE(byte < tensors.at(tensor).bytes.size());
    tensors.at(tensor).bytes[byte] ^= 1;
    write_safetensors(file, tensors);
    for (const auto& [name, others] : read_weights(temp / "out"))  // as NxD's, which say nothing of themselves
      write_safetensors(temp / ("out/" + name), others);
    const Error error = error_of([&] { consolidated(temp / "out", temp / "whole"); });
    CHECK_FALSE(fs::exists(temp / "whole"));
    const Checkpoint a = read_checkpoint(temp / "out", {ConfigUse::kStrict});
    const Checkpoint b =
        read_checkpoint(testdata("golden/nxdi/llama-6q2kv-tp4-interleaved-pad/original"), {ConfigUse::kStrict});
    CHECK(error_of([&] { verify(a.map, b.map, {}, {}); }).kind() == ErrorKind::kBadInput);
    CHECK(error_of([&] { verify(b.map, a.map, {}, {}); }).kind() == ErrorKind::kBadInput);
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK(error.path() == file.string());
    CHECK(error.tensor() == tensor);
    return error;
  };
  // Rank 1 has the query heads 2 and one of zeros: the last 8 of 16 rows of 48 numbers.
  const Error zeros = broken("layers.0.self_attn.qkv_proj.q_proj.weight", 2 * 48 * 8 + 5, 1);
  CHECK_THAT(zeros.what(), Says("holds other values than zeros in its padding"));
  CHECK_THAT(zeros.what(), Says("[8, 2]"));
  CHECK_THAT(broken("rank_util.rank", 0, 3).what(), Says("is not the number of 3"));
  CHECK_THAT(broken("layers.1.self_attn.qkv_proj.k_proj.weight", 3, 1).what(), Says("is a replica of"));
}

TEST_CASE("Ranks that have nothing but what pads are written by a run of their own") {
  const TempDir temp;
  TinyModel model;
  model.heads = model.kv_heads = 5;
  model.vocab = 6;
  Random random(5);
  const TensorMap tensors = random_tensors(model, random);
  write_model(temp / "model", model, tensors);
  for (const Layout* const kind : {layout("nxdi"), layout("presharded")}) {
    DYNAMIC_SECTION(kind->traits().name) {
      ShardRequest request = deployed_request(kind, temp / "model", temp / kind->traits().name, 4);
      request.target.options.set_flag("pad", true);
      shard(request);
      const auto all = read_weights(request.output_directory);
      request.output_directory = temp / (std::string(kind->traits().name) + "-last");
      request.target.options.set_number("start-rank", 3), request.target.options.set_number("end-rank", 3);
      shard(request);
      const std::string last = "weights/tp3_sharded_checkpoint.safetensors";
      CHECK((read_weights(request.output_directory).at(last) == all.at(last)));
    }
  }
}

TEST_CASE("That projections are fused is no option without effect") {
  const TempDir temp;
  ShardRequest request = deployed_request(layout("nxdi"), testdata("golden/nxdi/llama-tp4/original"), temp / "out", 2);
  request.target.options.set_flag("fuse-qkv", true);
  const auto job = plan_shard(request);
  REQUIRE(job->attention);
  CHECK(job->attention->form == AttentionForm::kFused);
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes.front(), Says("NxD Inference loads these files"));
}

TEST_CASE("A described model takes NxD Inference's names where its description says that it has them") {
  const fs::path model = testdata("golden/nxdi/qwen3-tp4-fused/original");
  const TempDir temp;
  json family = json::parse(builtin_family("qwen3")->json_text);
  const auto request_by = [&](const json& description) {
    write_file(temp / "spec.json", description.dump(2));
    ShardRequest request = deployed_request(layout("nxdi"), model, temp / "out", 4);
    request.source.family = read_family(temp / "spec.json");
    return request;
  };
  shard(request_by(family));
  shard(deployed_request(layout("nxdi"), model, temp / "built-in", 4));
  CHECK((read_weights(temp / "out") == read_weights(temp / "built-in")));
  family["nxd_inference"]["q_norm"] = "norm_of_q";
  fs::remove_all(temp / "out");
  const ShardRequest renamed = request_by(family);
  shard(renamed);
  CHECK(read_weights(temp / "out").begin()->second.count("layers.1.self_attn.norm_of_q.weight") == 1);
  CHECK((consolidated(temp / "out", temp / "whole", renamed.source.family) == read_model(model)));

  family["nxd_inference"] = {{"q_proj", "query"}};
  const Error split = error_of([&] { request_by(family); });
  CHECK_THAT(split.what(), Says("self_attn.q_proj, which is not there, or not replicated"));
  family.erase("nxd_inference");
  fs::remove_all(temp / "out");
  const Error unknown = error_of([&] { plan_shard(request_by(family)); });
  CHECK(unknown.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(unknown.hint(), Says("llama, mistral, qwen2, qwen3"));
}

TEST_CASE("A described model without attention, and sizes that no model has, are refused") {
  const TempDir temp;
  make_case(temp);
  json family = json::parse(builtin_family("llama")->json_text);
  family.erase("attention");
  family.erase("nxd_inference");
  write_file(temp / "spec.json", family.dump());
  ShardRequest request = deployed_request(layout("nxdi"), testdata("golden/nxdi/llama-tp4/original"), temp / "o", 4);
  request.source.family = read_family(temp / "spec.json");
  CHECK(error_of([&] { plan_shard(request); }).kind() == ErrorKind::kUnsupported);
  CHECK(error_of([&] { consolidated(temp / "out", temp / "whole", request.source.family); }).kind() ==
        ErrorKind::kUnsupported);
  json config = json::parse(read_file(temp / "out/config.json"));
  config["vocab_size"] = 274877906945;
  write_file(temp / "out/config.json", config.dump());
  CHECK_THAT(error_of([&] { consolidated(temp / "out", temp / "whole"); }).what(), Says("more than any model has"));
}

TEST_CASE("Floating tensors take the dtype of config.json, as NxD Inference gives it to them") {
  const TempDir temp;
  TinyModel model;
  Random random(3);
  TensorMap tensors = random_tensors(model, random, DType::kF32);
  write_model(temp / "model", model, tensors);
  json config = json::parse(read_file(temp / "model/config.json"));
  config["torch_dtype"] = "bfloat16";
  write_file(temp / "model/config.json", config.dump());
  const auto job = plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2));
  CHECK(std::any_of(job->notes.begin(), job->notes.end(),
                    [](const std::string& note) { return note.find("are cast to BF16") != note.npos; }));
  execute(*job, unsynced());
  ConvertRequest cast;
  cast.source.path = temp / "model";
  cast.output_directory = temp / "cast";
  cast.dtype = DType::kBF16;
  execute(*plan_convert(cast), unsynced());
  CHECK((consolidated(temp / "out", temp / "whole") == read_model(temp / "cast")));
  ConvertRequest to_nxdi = convert_request(temp / "model", temp / "converted");
  to_nxdi.target.layout = layout("nxdi");
  to_nxdi.target.tp = 2;
  execute(*plan_convert(to_nxdi), unsynced());
  CHECK((read_weights(temp / "converted") == read_weights(temp / "out")));
}

TEST_CASE("A dtype in config.json that is none is refused where it is needed, with its key and value") {
  const TempDir temp;
  const TinyModel model;
  Random random(4);
  write_model(temp / "model", model, random_tensors(model, random, DType::kF32));
  const std::string path = (temp / "model/config.json").string();
  const json config = json::parse(read_file(path));
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"torch_dtype": "bfloat17"})", "\"torch_dtype\" is \"bfloat17\", expected the name of a dtype"},
      {R"({"dtype": "torch.bfloat16"})", "\"dtype\" is \"torch.bfloat16\""},
      {R"({"dtype": "", "torch_dtype": "float16"})", "\"dtype\" is \"\""},
      {R"({"dtype": 16})", "\"dtype\" is 16"},
      {R"({"torch_dtype": {"": "float16"}})", "\"torch_dtype\" is an object"}};
  for (const auto& [patch, says] : wrong) {
    DYNAMIC_SECTION(patch) {
      json patched = config;
      patched.update(json::parse(patch));
      write_file(path, patched.dump());
      ConvertRequest convert = convert_request(temp / "model", temp / "out");
      convert.target.layout = layout("nxdi");
      convert.target.tp = 2;
      for (const Error& error :
           {error_of([&] { plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2)); }),
            error_of([&] { plan_convert(convert); })}) {
        CHECK(error.kind() == ErrorKind::kBadInput);
        CHECK(error.path() == path);
        CHECK_THAT(error.what(), Says(says));
      }
      convert.dtype = DType::kBF16;  // then it is not needed
      CHECK_NOTHROW(plan_convert(convert));
      CHECK_NOTHROW(plan_shard(deployed_request(layout("presharded"), temp / "model", temp / "out", 2)));
    }
  }
  json both = config;
  SECTION("two dtypes, of which transformers takes dtype") {
    both.update({{"dtype", "bfloat16"}, {"torch_dtype", "float16"}});
    write_file(path, both.dump());
    const auto job = plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2));
    CHECK(std::any_of(job->notes.begin(), job->notes.end(),
                      [](const std::string& note) { return note.find("are cast to BF16") != note.npos; }));
  }
  SECTION("null, which is none") {
    both["dtype"] = both["torch_dtype"] = nullptr;
    write_file(path, both.dump());
    CHECK_NOTHROW(plan_shard(deployed_request(layout("nxdi"), temp / "model", temp / "out", 2)));
  }
}

TEST_CASE("What these layouts do not have is refused, with what has it") {
  const fs::path model = testdata("golden/nxdi/llama-tp4/original");
  const TempDir temp;
  const auto refused = [&](const Layout* kind, const std::function<void(TargetRequest&)>& change, const char* says) {
    ShardRequest request = deployed_request(kind, model, temp / "out", 4);
    change(request.target);
    const Error error = error_of([&] { plan_shard(request); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_THAT(error.what(), Says(says));
  };
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.pp = 2; }, "layout nxdi has no pipeline stages");
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.format = Format::kPytorch; }, "does not support `format` pytorch");
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.options.set_number("kv-size-multiplier", 2); }, "`kv-size-multiplier`");
  refused(
      layout("presharded"), [](TargetRequest& s) { s.options.set_flag("vocab-parallel", true); }, "`vocab-parallel`");
  refused(
      layout("ranks"), [](TargetRequest& s) { s.options.set_flag("pad", true); }, "`pad`");
  refused(
      layout("ranks"), [](TargetRequest& s) { s.options.set("kv-replication", "adjacent"); }, "`kv-replication`");
  refused(
      layout("nxdi"), [](TargetRequest& s) { s.options.set("kv-replication", "adjacent"); }, "`kv-replication`");
  refused(
      layout("nxd"), [](TargetRequest& s) { s.format = Format::kSafetensors; },
      "does not support `format` safetensors");
  const Error family = error_of([&] {
    plan_shard(
        deployed_request(layout("nxdi"), testdata("golden/preshard/granite-tied-tp2/original"), temp / "out", 2));
  });
  CHECK(family.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(family.hint(), Says("a layout that keeps the checkpoint's names"));
}

TEST_CASE("Weights for inference that are not of the model beside them are refused by tensor and file") {
  const auto refused = [&](const char* key, const json& value) {
    const TempDir temp;
    make_case(temp);
    json config = json::parse(read_file(temp / "out/config.json"));
    config[key] = value;
    write_file(temp / "out/config.json", config.dump());
    const Error error = error_of([&] { consolidated(temp / "out", temp / "whole"); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(fs::exists(temp / "whole"));
    return error;
  };
  CHECK_THAT(refused("num_hidden_layers", 1).what(), Says("has no such tensor"));
  CHECK_THAT(refused("num_hidden_layers", 3).what(), Says("num_hidden_layers is 3 in config.json"));
  CHECK_THAT(refused("vocab_size", 128).what(), Says("lm_head.weight"));
  CHECK_THAT(refused("num_key_value_heads", 3).what(), Says("self_attn"));
  CHECK_THAT(refused("intermediate_size", 44).what(), Says("mlp"));
}

}  // namespace
}  // namespace reshard::test
