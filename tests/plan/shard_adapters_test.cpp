#include <nlohmann/json.hpp>

#include "reshard/io/local_storage.h"
#include "reshard/specs/peft/adapter_config.h"
#include "reshard/specs/peft/lora_config.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kLayer = "base_model.model.model.layers.0.";

/// A model of one layer, and one adapter of it that tests change before they shard it.
struct Case {
  TempDir temp;
  TinyModel model{.hidden = 4, .intermediate = 4, .layers = 1, .heads = 4, .kv_heads = 4, .head_dim = 2};
  json config{{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 4}};
  TensorMap tensors;

  /// lora_A and lora_B of a linear, each of bytes that count up from `first`.
  void adapt(const std::string& linear, std::uint64_t out, std::uint64_t in, std::uint64_t r = 1, char first = 'a') {
    tensors[kLayer + linear + ".lora_A.weight"] = counting({r, in}, first);
    tensors[kLayer + linear + ".lora_B.weight"] = counting({out, r}, first);
  }
  static TensorData counting(const Dims& shape, char first = 'a') {
    TensorData tensor{DType::kF8E4M3, shape, {}};
    for (std::uint64_t i = 0; i < num_elems(shape).value(); ++i) tensor.bytes += static_cast<char>(first + i);
    return tensor;
  }
  void adapt_mlp(std::uint64_t gate_r = 1, std::uint64_t up_r = 1) {
    adapt("mlp.gate_proj", 4, 4, gate_r, '0');
    adapt("mlp.up_proj", 4, 4, up_r, 'A');
  }
  Request request(std::uint32_t tp = 2, LoraFuse fuse = LoraFuse::kMean) const {
    write_file(temp / "model/config.json", model.config().dump());
    write_safetensors(temp / "peft/adapter_model.safetensors", tensors);
    write_file(temp / "peft/adapter_config.json", config.dump(2));
    Request request =
        shard_request(temp / "model", temp / "out", {.layout = "optimum", .format = Format::kPytorch, .tp = tp});
    request.adapters = {temp / "peft"};
    request.target.lora_fuse = fuse;
    return request;
  }
  Request nxd_request() const {
    Request nxd = request();
    nxd.target.layout = layout("nxd");
    nxd.target.lora_fuse.reset();
    return nxd;
  }
  Error error(std::uint32_t tp = 2, LoraFuse fuse = LoraFuse::kMean) const {
    return error_of([&] { plan_shard(request(tp, fuse)); });
  }
  TensorMap rank(int tp_rank) const {
    return read_torch_tensors(temp / ("out/adapter_default/adapter_shards/model/dp_rank_00_tp_rank_0" +
                                      std::to_string(tp_rank) + "_pp_rank_00.pt"));
  }
  json sharded_config() const { return json::parse(read_file(temp / "out/adapter_default/adapter_config.json")); }
};

TEST_CASE("An adapter of a model that only the plan in config.json describes is split by it") {
  Case c;
  c.adapt("mlp.down_proj", 4, 4);
  const Request request = c.request();
  json config = c.model.config();
  config["model_type"] = "newcomer";
  config["base_model_tp_plan"] = {{"layers.*.mlp.down_proj", "rowwise"}};
  write_file(c.temp / "model/config.json", config.dump());
  // A plan knows no shapes: they are in the weights.
  CHECK(error_of([&] { plan_shard(request); }).kind() == ErrorKind::kBadInput);
  Random random(4);
  write_safetensors(c.temp / "model/model.safetensors", random_tensors(c.model, random));
  shard(request);
  CHECK(c.rank(1).at(kLayer + "mlp.down_proj.lora_A.weight") == TensorData{DType::kF8E4M3, {1, 2}, "cd"});
  CHECK(c.rank(1).at(kLayer + "mlp.down_proj.lora_B.weight") == Case::counting({4, 1}));
}

TEST_CASE("Exactly fused linears have their lora_A stacked and their lora_B on a diagonal") {
  Case c;
  c.adapt_mlp(1, 2);
  c.config["rank_pattern"] = {{"up_proj", 2}};
  c.config["alpha_pattern"] = {{"up_proj", 8}};
  shard(c.request(2, LoraFuse::kExact));
  const std::string fused = kLayer + "mlp.gate_up_proj.";
  for (int rank : {0, 1}) {
    const TensorMap tensors = c.rank(rank);
    REQUIRE(tensors.size() == 2);
    CHECK(tensors.at(fused + "lora_A.weight") == TensorData{DType::kF8E4M3, {3, 4}, "0123ABCDEFGH"});
    const std::string zero(1, '\0');
    const std::string b = rank == 0 ? "0" + zero + zero + "1" + zero + zero + zero + "AB" + zero + "CD"
                                    : "2" + zero + zero + "3" + zero + zero + zero + "EF" + zero + "GH";
    CHECK(tensors.at(fused + "lora_B.weight") == TensorData{DType::kF8E4M3, {4, 3}, b});
  }
  CHECK(c.sharded_config()["rank_pattern"]["gate_up_proj"] == 3);
  CHECK(c.sharded_config()["alpha_pattern"]["gate_up_proj"] == 12);
  CHECK(read_file(c.temp / "out/adapter_default/adapter_config.unfused.json") == c.config.dump(2));
}

TEST_CASE("A mean that loses something is reported, one of equal lora_A is none and keeps them to the byte") {
  Case c;
  c.adapt_mlp();
  CHECK(shard(c.request()).inexact == std::vector{kLayer + "mlp.gate_up_proj.lora_A.weight"});
  fs::remove_all(c.temp / "out");
  CHECK(shard(c.request(2, LoraFuse::kExact)).inexact.empty());
  fs::remove_all(c.temp / "out");
  // Their mean by arithmetic would have no sign, and another payload.
  TensorData a = c.tensors[kLayer + "mlp.gate_proj.lora_A.weight"];
  a.bytes[0] = '\x80';
  a.bytes[1] = '\xff';
  for (const char* linear : {"mlp.gate_proj", "mlp.up_proj"}) c.tensors[kLayer + linear + ".lora_A.weight"] = a;
  CHECK(shard(c.request()).inexact.empty());
  CHECK(c.rank(1).at(kLayer + "mlp.gate_up_proj.lora_A.weight") == a);
  CHECK(c.sharded_config() == c.config);
  CHECK_FALSE(fs::exists(c.temp / "out/adapter_default/adapter_config.unfused.json"));
}

TEST_CASE("A size of a layer that happens to be that of the vocabulary is not called a vocabulary") {
  Case c;
  c.adapt("self_attn.o_proj", 4, 16);
  c.model.vocab = 8;  // as many as heads × head_dim
  check_error(c.error(), {.kind = ErrorKind::kBadInput,
                          .tensor = kLayer + "self_attn.o_proj.lora_A.weight",
                          .says = "is [1, 16], but the model and the adapter's config make it [1, 8]"});
}

TEST_CASE("Tensors of an adapter are cast, and left out, before it is sharded") {
  Case c;
  c.adapt_mlp();
  c.adapt("mlp.down_proj", 4, 4);
  Request request = c.request();
  request.dtype = DType::kBF16;
  request.names.drop.emplace_back("drop", "down_proj");
  shard(request);
  const TensorMap rank = c.rank(0);
  CHECK(rank.size() == 2);
  CHECK(rank.at(kLayer + "mlp.gate_up_proj.lora_A.weight").dtype == DType::kBF16);
  CHECK(rank.at(kLayer + "mlp.gate_up_proj.lora_B.weight").dtype == DType::kBF16);
}

TEST_CASE("NxD's shards of an adapter contain its settings, and the lora_A that fused linears have in common") {
  Case c;
  c.adapt("mlp.gate_proj", 4, 4);
  c.adapt("mlp.up_proj", 4, 4);
  c.config["lora_dropout"] = 0.5;
  c.config["target_modules"] = {"gate_proj", "up_proj"};
  shard(c.nxd_request());
  const fs::path file = c.temp / "out/lora_adapter/lora/model/dp_rank_00_tp_rank_01_pp_rank_00.pt";
  const TensorMap tensors = read_torch_tensors(file);
  CHECK(tensors.size() == 2);
  CHECK(tensors.at("model.layers.0.mlp.gate_up_proj.lora_A.weight") == Case::counting({1, 4}));
  CHECK(tensors.at("model.layers.0.mlp.gate_up_proj.lora_B.weight") == TensorData{DType::kF8E4M3, {4, 1}, "cdcd"});
  CHECK(json::parse(saved_lora_config(local_storage(), file).value()) == json{{"lora_rank", 1},
                                                                              {"target_modules", {"gate_up_proj"}},
                                                                              {"lora_alpha", 4},
                                                                              {"lora_dropout", 0.5},
                                                                              {"bias", "none"},
                                                                              {"use_rslora", false},
                                                                              {"init_lora_weights", "default"},
                                                                              {"modules_to_save", nullptr},
                                                                              {"merge_lora", false},
                                                                              {"save_lora_base", false},
                                                                              {"save_lora_config_adapter", true}});
}

TEST_CASE("NxD's shards of an adapter whose fused linears differ are refused, unless their mean is asked for") {
  Case c;
  c.adapt_mlp();
  const Error error = error_of([&] { shard(c.nxd_request()); });
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK(error.tensor() == kLayer + "mlp.gate_up_proj.lora_A.weight");
  CHECK_THAT(error.hint(), Says("`lora-fuse`"));
  CHECK_FALSE(fs::exists(c.temp / "out"));
  Request mean = c.nxd_request();
  mean.target.lora_fuse = LoraFuse::kMean;
  CHECK(shard(mean).inexact == std::vector{kLayer + "mlp.gate_up_proj.lora_A.weight"});
}

TEST_CASE("Adapters that NxD has no settings or places for are refused") {
  Case ranks;
  ranks.adapt("mlp.down_proj", 4, 4, 2);
  ranks.adapt("self_attn.o_proj", 4, 8);
  ranks.config["rank_pattern"] = {{"down_proj", 2}};
  const Error error = error_of([&] { plan_shard(ranks.nxd_request()); });
  CHECK(error.kind() == ErrorKind::kUnsupported);
  CHECK_THAT(error.what(), Says("NxD has one of each for all modules"));
  Case magnitude;
  magnitude.adapt("mlp.down_proj", 4, 4);
  magnitude.tensors[kLayer + "mlp.down_proj.lora_magnitude_vector"] = Case::counting({4});
  CHECK_THAT(error_of([&] { plan_shard(magnitude.nxd_request()); }).what(), Says("has no place in NxD's LoRA"));
}

TEST_CASE("NxD's adapters of models with experts have the projections of attention as the model has them") {
  Case c;
  c.adapt("self_attn.q_proj", 8, 4);
  c.adapt("self_attn.k_proj", 8, 4);
  c.adapt("self_attn.v_proj", 8, 4);
  Request request = c.nxd_request();
  json config = c.model.config();
  config["model_type"] = "mixtral";
  config["num_local_experts"] = 2;
  write_file(c.temp / "model/config.json", config.dump());
  request.target.options.set("qkv-linear", "on");
  shard(request);
  const fs::path file = c.temp / "out/lora_adapter/lora/model/dp_rank_00_tp_rank_00_pp_rank_00.pt";
  CHECK(read_torch_tensors(file).count("model.layers.0.self_attn.qkv_proj.lora_B.weight_qkv") == 1);
  c.adapt("block_sparse_moe.gate", 2, 4);
  Request router = c.nxd_request();
  write_file(c.temp / "model/config.json", config.dump());
  check_refused([&] { plan_shard(router); },
                {.kind = ErrorKind::kUnsupported, .says = "block_sparse_moe.gate, for which the trainer has names"});
  Case llama;
  llama.adapt("mlp.down_proj", 4, 4);
  Request megatron = llama.nxd_request();
  megatron.target.options.set("model-source", "megatron");
  check_refused([&] { plan_shard(megatron); }, {.kind = ErrorKind::kUnsupported, .hint = "merge_and_unload"});
}

TEST_CASE("The order of heads of an output projection that alone is adapted is asked for") {
  Case c;
  c.model.kv_heads = 2;
  c.adapt("self_attn.o_proj", 4, 8);
  Request request = c.nxd_request();
  request.target.tp = 4;
  request.target.options.set("kv-replication", "adjacent");
  shard(request);
  const auto read = [&](const std::vector<std::string>& options) {
    return consolidate_request(c.temp / "out/lora_adapter/lora", c.temp / "back",
                               {.config = c.temp / "model", .source_options = options});
  };
  for (const auto& options : {std::vector<std::string>{}, {"kv-replication=adjacent"}, {"kv-size-multiplier=2"}})
    check_refused([&] { plan_consolidate(read(options)); }, {.kind = ErrorKind::kBadInput,
                                                             .tensor = "model.layers.0.self_attn.o_proj.lora_A.weight",
                                                             .says = "the order of its heads is unknown",
                                                             .hint = "`from-kv-replication`"});
  execute(*plan_consolidate(read({"kv-replication=adjacent", "kv-size-multiplier=2"})), unsynced());
  CHECK((read_tensors(c.temp / "back/adapter_model.safetensors") == c.tensors));
}

TEST_CASE("Options that shards of adapters have no room for are refused") {
  Case c;
  c.adapt("self_attn.o_proj", 4, 8);
  CHECK_NOTHROW(plan_shard(c.request()));
  const std::pair<std::function<void(TargetRequest&)>, const char*> options[] = {
      {[](TargetRequest& s) { s.options.set("kv-replication", "adjacent"); }, "`kv-replication`"},
      {[](TargetRequest& s) { s.options.set_flag("pad-attn-heads", true); }, "`pad-attn-heads`"},
      {[](TargetRequest& s) { s.options.set_flag("pad", true); }, "`pad`"},
      {[](TargetRequest& s) { s.options.set_flag("vocab-parallel", true); }, "`vocab-parallel`"},
      {[](TargetRequest& s) { s.options.set_number("start-rank", 1); }, "`start-rank`"},
      {[](TargetRequest& s) { s.ep = 2; }, "`ep`"}};
  for (const auto& [change, says] : options) {
    Request request = c.request();
    change(request.target);
    check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kUsage, .says = says});
  }
}

TEST_CASE("A fused linear is adapted as a whole or not at all") {
  Case c;
  c.adapt("mlp.up_proj", 4, 4);
  check_error(c.error(), {.kind = ErrorKind::kUnsupported,
                          .says = "adapts model.layers.0.mlp.up_proj, but not model.layers.0.mlp.gate_proj"});
  c.adapt_mlp();
  c.tensors[kLayer + "mlp.up_proj.lora_B.bias"] = Case::counting({4});
  CHECK_THAT(c.error().what(), Says("adapted in different ways"));
  c.tensors[kLayer + "mlp.gate_proj.lora_B.bias"] = Case::counting({4});
  c.adapt("self_attn.q_proj", 8, 4);  // is not fused here
  Request request = c.request();
  CHECK_NOTHROW(plan_shard(request));
  request.target.options.set_flag("fuse-qkv", true);
  CHECK_THAT(error_of([&] { plan_shard(request); }).what(), Says("k_proj, model.layers.0.self_attn.v_proj"));
}

TEST_CASE("Ranks and scales that fused linears cannot share are refused") {
  Case c;
  c.adapt_mlp(1, 2);
  c.config["rank_pattern"] = {{"up_proj", 2}};
  const Error ranks = c.error();
  check_error(ranks, {.says = "not the same rank"});
  CHECK(ranks.hint().empty());
  CHECK_THAT(c.error(2, LoraFuse::kExact).what(), Says("not the same scale"));
  c.config["alpha_pattern"] = {{"up_proj", 8}};
  CHECK_THAT(c.error().hint(), Says("`lora-fuse` exact"));
  CHECK_NOTHROW(plan_shard(c.request(2, LoraFuse::kExact)));
  c.config["use_rslora"] = true;
  CHECK_THAT(c.error(2, LoraFuse::kExact).what(), Says("not the same scale"));
}

TEST_CASE("An adapter that does not fit the model or its own config is refused by the tensor's name") {
  struct Row {
    std::string name;
    Dims shape;
    ErrorKind kind;
    const char* says;
  };
  constexpr ErrorKind kBad = ErrorKind::kBadInput, kNo = ErrorKind::kUnsupported;
  const std::string model = "base_model.model.", down = kLayer + "mlp.down_proj.";
  for (const Row& row : std::vector<Row>{
           {down + "lora_A.weight", {2, 4}, kBad, "make it [1, 4]"},
           {down + "lora_B.weight", {5, 1}, kBad, "make it [4, 1]"},
           {down + "lora_magnitude_vector", {5}, kBad, "make it [4]"},
           {down + "lora_A.mine.weight", {1, 4}, kNo, "contains the name of an adapter"},
           {down + "lora_C.weight", {1, 4}, kBad, "is neither"},
           {model + "model.embed_tokens.token_adapter.trainable_tokens_delta", {2, 4}, kNo, "to trainable tokens"},
           {model + "score.weight", {2, 4}, kNo, "belongs to a head that the adapter adds"},
           {model + "model.language_model.layers.0.mlp.down_proj.lora_A.weight",
            {1, 4},
            kNo,
            "adapts part of a multimodal model"},
           {kLayer + "mlp.sideways.lora_A.weight", {1, 4}, kBad, "the model does not have"},
           {model + "model.layers.1.mlp.down_proj.lora_A.weight", {1, 4}, kBad, "the model does not have"},
           {"model.norm.weight", {4}, kBad, "does not begin with base_model.model."},
           {model + "model.nothing.weight", {4}, kBad, "is neither"},
           {model + "lm_head.weight", {32, 5}, kBad, "make it [32, 4]"},
           {model + "lm_head.weight",
            {36, 4},
            kBad,
            "for a vocabulary of 36 tokens, but vocab_size in config.json is 32"},
           {model + "model.embed_tokens.weight", {36, 4}, kBad, "for a vocabulary of 36 tokens"},
           {model + "lm_head.lora_B.weight", {36, 1}, kBad, "for a vocabulary of 36 tokens"},
           {model + "model.embed_tokens.lora_embedding_A", {1, 36}, kBad, "for a vocabulary of 36 tokens"},
           {down + "lora_magnitude_vector.weight", {4}, kNo, "is lora_magnitude_vector.weight of DoRA"},
           {kLayer + "mlp.gate_proj.weight", {4, 4}, kNo, "fused with others"},
           {kLayer + "self_attn.o_proj.base_layer.weight", {4, 8}, kNo, "has no place"}}) {
    INFO(row.name);
    Case c;
    c.adapt_mlp();
    c.adapt("mlp.down_proj", 4, 4);
    c.tensors[row.name] = Case::counting(row.shape);
    check_error(
        c.error(),
        {.kind = row.kind, .path = c.temp / "peft/adapter_model.safetensors", .tensor = row.name, .says = row.says});
  }
  Case packed;
  packed.config["target_parameters"] = {"mlp.experts.gate_up_proj"};
  packed.tensors[kLayer + "mlp.experts.base_layer.lora_A.weight"] = Case::counting({3, 4});
  check_error(packed.error(),
              {.kind = kNo, .says = "adapts experts that are packed in one tensor (target_parameters)"});
}

TEST_CASE("Wrappers in the names of an adapter are taken out before it is sharded, as convert does") {
  Case plain;
  plain.adapt_mlp();
  execute(*plan_shard(plain.request()), unsynced());
  for (const std::string wrapper : {"_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module."}) {
    CAPTURE(wrapper);
    Case wrapped;
    for (const auto& [name, tensor] : plain.tensors) {
      std::string other = name;
      wrapped.tensors[other.insert(other.find("mlp."), wrapper)] = tensor;
    }
    const auto job = plan_shard(wrapped.request());
    CHECK_THAT(joined_notes(*job), Says("names of tensors are read without " + wrapper.substr(0, wrapper.size() - 1)));
    execute(*job, unsynced());
    for (const int tp_rank : {0, 1}) CHECK((wrapped.rank(tp_rank) == plain.rank(tp_rank)));
  }
}

TEST_CASE("Tensors of an adapter keep the names that PEFT gave them, whatever its method") {
  const std::string base = "base_model.model.";
  const std::vector<std::vector<std::string>> methods{
      {"model.embed_tokens.lora_embedding_A", "model.embed_tokens.lora_embedding_B", "lm_head.weight"},
      {"model.layers.0.mlp.down_proj.ia3_l"},
      {"model.layers.0.mlp.down_proj.oft_R.weight"},
      {"model.layers.0.input_layernorm.weight", "model.norm.weight"},
      {"model.embed_tokens.weight", "lm_head.weight"}};
  for (const auto& names : methods)
    for (const std::string file : {"adapter_model.safetensors", "adapter_model.bin"}) {
      CAPTURE(names.front(), file);
      const TempDir temp;
      Random random(1);
      TensorMap tensors;
      for (const std::string& name : names) tensors[base + name] = random_tensor(random, DType::kBF16, {2, 2});
      write_file(temp / "peft/adapter_config.json", R"({"peft_type": "LORA"})");
      if (file.ends_with(".bin"))
        write_torch(temp / "peft" / file, tensors);
      else
        write_safetensors(temp / "peft" / file, tensors);
      convert(temp / "peft", temp / "out", {.layout = "hf"});
      CHECK((read_tensors(temp / "out/adapter_model.safetensors") == tensors));
    }
}

TEST_CASE("A lora_B or lora_A that is missing is one error, which names it, whether its linear is fused or not") {
  for (const char* linear : {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    for (const auto& [lost, left] : {std::pair("lora_A", "lora_B"), {"lora_B", "lora_A"}}) {
      CAPTURE(linear, lost);
      Case c;
      c.adapt_mlp();
      c.adapt("mlp.down_proj", 4, 4);
      const std::string name = kLayer + linear + "." + lost + ".weight";
      REQUIRE(c.tensors.erase(name) == 1);
      check_error(c.error(), {.path = c.temp / "peft/adapter_model.safetensors",
                              .tensor = name,
                              .says = "is missing, although the module has a " + std::string(left)});
    }
}

TEST_CASE("A bias beside projections for grouped-query attention is refused") {
  Case c;
  c.model.kv_heads = 2;
  for (const auto& [linear, out] :
       {std::pair("self_attn.q_proj", 8u), {"self_attn.k_proj", 4u}, {"self_attn.v_proj", 4u}}) {
    c.adapt(linear, out, 4);
    c.tensors[kLayer + linear + ".lora_B.bias"] = Case::counting({out});
  }
  check_error(c.error(4), {.kind = ErrorKind::kUnsupported, .tensor = kLayer + "self_attn.qkv_proj.lora_B.bias"});
}

TEST_CASE("Directories that hold no adapter, no model or two adapters of one name are refused") {
  Case c;
  c.adapt("mlp.down_proj", 4, 4);
  const auto refused = [&](Request request, ErrorKind kind, const std::string& says) {
    const auto before = snapshot(c.temp.path());
    check_refused([&] { plan_shard(request); }, {.kind = kind, .says = says});
    CHECK((snapshot(c.temp.path()) == before));
  };
  Request request = c.request();
  request.adapters = {c.temp / "model"};
  refused(request, ErrorKind::kBadInput, "contains no adapter");
  request.adapters = {c.temp / "nowhere"};
  refused(request, ErrorKind::kBadInput, "no such directory");
  request = c.request();
  request.source.path = c.temp / "peft/adapter_config.json";
  refused(request, ErrorKind::kBadInput, "has no \"model_type\"");
  request = c.request();
  request.target.format = Format::kSafetensors;
  refused(request, ErrorKind::kUsage, "do not support `format` safetensors");
  request = c.request();
  fs::create_directories(c.temp / "peft/default");
  fs::copy(c.temp / "peft/adapter_config.json", c.temp / "peft/default/adapter_config.json");
  refused(request, ErrorKind::kUsage, "the second adapter called \"default\"");
  fs::rename(c.temp / "peft/default", c.temp / "peft/other");
  refused(request, ErrorKind::kBadInput, "neither adapter_model.safetensors nor adapter_model.bin");
  fs::remove_all(c.temp / "peft/other");
  for (const char* incomplete : {"peft", "peft/other"}) {  // next to a complete adapter
    request = c.request();
    fs::create_directories(c.temp / "peft/other");
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::copy(c.temp / "peft" / file, c.temp / "peft/other" / file);
    fs::remove(c.temp / incomplete / "adapter_config.json");
    refused(request, ErrorKind::kBadInput, "contains adapter_model.safetensors, but no adapter_config.json");
    fs::remove_all(c.temp / "peft/other");
  }
  c.config["peft_type"] = "IA3";
  refused(c.request(), ErrorKind::kUnsupported, "only LORA is supported");
}

TEST_CASE("A folder adapter_shards without shards is ignored") {
  Case c;
  c.adapt("mlp.down_proj", 4, 4);
  Request request = c.request();
  request.adapters = {c.temp / "run"};
  fs::create_directories(c.temp / "run/adapter_shards");
  check_refused([&] { plan_shard(request); }, {.kind = ErrorKind::kBadInput, .says = "contains no adapter"});
  fs::rename(c.temp / "peft", c.temp / "run/mine");
  fs::create_directories(c.temp / "run/mine/adapter_shards");
  shard(request);
  CHECK(fs::exists(c.temp / "out/adapter_mine/adapter_shards/done"));
}

TEST_CASE("Further adapters are called as their folders are, and config.json itself may be given") {
  Case c;
  c.adapt("mlp.down_proj", 4, 4);
  c.tensors[kLayer + "mlp.down_proj.lora_B.bias"] = Case::counting({4});
  c.tensors[kLayer + "mlp.down_proj.lora_magnitude_vector"] = Case::counting({4});
  Request request = c.request();
  fs::create_directories(c.temp / "second/third.x");
  for (const char* place : {"second", "second/third.x"})
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::copy(c.temp / "peft" / file, c.temp / place / file);
  request.adapters.push_back(c.temp / "second/");
  request.source.path = c.temp / "model/config.json";
  shard(request);
  for (const char* name : {"default", "second", "third.x"})
    CHECK(fs::exists(c.temp / "out" / ("adapter_" + std::string(name)) / "adapter_shards/done"));
  request.force = true;
  CHECK_NOTHROW(shard(request));
  consolidate(consolidate_request(c.temp / "out", c.temp / "again"));
  for (const char* folder : {"", "second", "third.x"})
    CHECK((read_tensors(c.temp / "again" / folder / "adapter_model.safetensors") == c.tensors));
}

TEST_CASE("Shards of an adapter that hold anything else are not replaced") {
  Case c;
  c.adapt("mlp.down_proj", 4, 4);
  Request request = c.request();
  shard(request);
  CHECK(error_of([&] { shard(request); }).kind() == ErrorKind::kBadInput);
  write_file(c.temp / "out/adapter_default/adapter_shards/diary.txt", "private");
  request.force = true;
  CHECK_THAT(error_of([&] { shard(request); }).what(), Says("diary.txt"));
}

TEST_CASE("An exact adapter is consolidated elsewhere, is checked for its zeros, and known by its config") {
  Case c;
  c.adapt_mlp();
  shard(c.request(2, LoraFuse::kExact));
  Request back;
  back.source.path = c.temp / "out/adapter_default";
  CHECK(error_of([&] { plan_consolidate(back); }).kind() == ErrorKind::kUsage);
  back.output_directory = c.temp / "again";
  const fs::path rank = c.temp / "out/adapter_default/adapter_shards/model/dp_rank_00_tp_rank_01_pp_rank_00.pt";
  TensorMap tensors = read_torch_tensors(rank);
  tensors.at(kLayer + "mlp.gate_up_proj.lora_B.weight").bytes[1] = 'x';
  write_torch(rank, tensors);  // and the other rank, as the trainer that has saved both
  const fs::path other = rank.parent_path() / "dp_rank_00_tp_rank_00_pp_rank_00.pt";
  write_torch(other, read_torch_tensors(other));
  const auto trained = plan_consolidate(back);
  REQUIRE(trained->notes.size() == 2);
  CHECK_THAT(trained->notes[0], Says("was trained after `lora-fuse` exact"));
  execute(*trained, unsynced());
  CHECK(read_tensors(c.temp / "again/adapter_model.safetensors").at(kLayer + "mlp.up_proj.lora_B.weight").shape ==
        Dims{4, 2});
  const AdapterConfig config = read_adapter_config(c.temp / "again/adapter_config.json");
  for (const char* linear : {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"}) {
    CHECK(config.rank_of(linear) == 2);
    CHECK(config.alpha_of(linear) == 8);
  }
  // The shards beside the config that says how they were trained are not left without it.
  Request in_place = back;
  in_place.output_directory.reset();
  in_place.force = true;
  check_refused([&] { plan_consolidate(in_place); }, {.kind = ErrorKind::kUsage, .hint = "another output directory"});
}

TEST_CASE("A config with other ranks than the files is left as it is, and the scale is said to be unknown") {
  Case c;
  c.adapt_mlp();
  shard(c.request(2, LoraFuse::kExact));
  write_file(c.temp / "out/adapter_default/adapter_config.json", c.config.dump());
  fs::remove(c.temp / "out/adapter_default/adapter_config.unfused.json");
  Request back = consolidate_request(c.temp / "out/adapter_default", c.temp / "again");
  const auto job = plan_consolidate(back);
  REQUIRE(job->notes.size() == 1);
  CHECK_THAT(job->notes[0],
             Says("another rank than lora_A has: model.layers.0.mlp.gate_proj, model.layers.0.mlp.up_proj"));
  CHECK_THAT(job->notes[0], Says("the scale is unknown"));
  execute(*job, unsynced());
  CHECK(read_file(c.temp / "again/adapter_config.json") == c.config.dump());
  // The lora_A of packed experts has the rank of each, so that it is no other rank.
  c.config["target_parameters"] = {"mlp.experts.gate_up_proj"};
  write_file(c.temp / "out/adapter_default/adapter_config.json", c.config.dump());
  back.output_directory = c.temp / "third";
  CHECK(plan_consolidate(back)->notes.empty());
}

TEST_CASE("A plan lists means before casts, and exact fusions as none") {
  using enum Applied::Transform;
  Case test;
  test.adapt_mlp();
  Request request = test.request();
  CHECK(plan_shard(request)->transforms == std::vector<Applied>{{kAverage, 1}});
  request.dtype = DType::kBF16;
  CHECK(plan_shard(request)->transforms == std::vector<Applied>{{kAverage, 1}, {kCast, 4, DType::kBF16}});
  request = test.request(2, LoraFuse::kExact);
  CHECK(plan_shard(request)->transforms.empty());
}

}  // namespace
}  // namespace reshard::test
