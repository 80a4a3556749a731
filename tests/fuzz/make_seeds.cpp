// make_seeds DIRECTORY: small inputs for every fuzz target, in a folder each, made from testdata and by hand.

#include <cstdio>
#include <filesystem>

#include "support/dcp.h"
#include "support/dtensors.h"
#include "support/files.h"
#include "support/pickles.h"
#include "support/saved_file.h"
#include "support/zips.h"
#include "support/zstd_frames.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostSeedBytes = 1 << 16;
constexpr std::size_t kMostOfAKind = 12;

std::string pickle_of(const std::string& zip) {
  const std::size_t begin = zip.find("\x80\2");
  return begin == zip.npos ? std::string() : zip.substr(begin, zip.find("PK\7\x8", begin) - begin);
}

void seed_from_testdata(const fs::path& out) {
  std::size_t torch = 0;
  std::size_t headers = 0;
  std::size_t metadata = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testdata("golden"))) {
    if (!entry.is_regular_file() || entry.file_size() > kMostSeedBytes) continue;
    const std::string content = read_file(entry.path());
    if (entry.path().extension() == ".pt" && content.starts_with("PK") && torch++ < kMostOfAKind) {
      const std::string name = std::to_string(torch);
      write_file(out / "zip_directory" / name, content);
      write_file(out / "pickle" / name, pickle_of(content));
      write_file(out / "torch_file" / name, content);
      write_file(out / "torch_file" / ("pickle" + name), "@" + pickle_of(content));
    }
    if (entry.path().filename() == ".metadata" && metadata++ < kMostOfAKind)
      write_file(out / "dcp_metadata" / std::to_string(metadata), content);
    if (entry.path().extension() == ".safetensors" && headers++ < kMostOfAKind) {
      std::uint64_t header_bytes = 0;
      content.copy(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
      write_file(out / "safetensors_header" / std::to_string(headers),
                 le_bytes<std::uint64_t>(content.size() - 8 - header_bytes) + content.substr(8, header_bytes));
    }
  }
}

/// Of DeepSpeed and FSDP: their pickles refer to storages that the target does not have, but for the first two.
void seed_ranks(const fs::path& out) {
  for (const char* folder : {"golden/deepspeed", "golden/fsdp_ranks"})
    for (const auto& entry : fs::recursive_directory_iterator(testdata(folder))) {
      const std::string name = entry.path().filename();
      const bool is_wanted = name.find("rank_0") != name.npos || name.find("rank0") != name.npos || name == "fp32.pt";
      if (!entry.is_regular_file() || entry.file_size() > kMostSeedBytes || !is_wanted) continue;
      const std::string content = read_file(entry.path());
      if (content.starts_with("PK"))
        write_file(out / "rank_files" / sha256_hex(content).substr(0, 16), pickle_of(content));
    }
}

/// The same with the storages that the target has: 12 and 16 elements of 4 bytes.
void seed_ranks_by_hand(const fs::path& out) {
  using namespace pickles;
  SavedFile file;
  const TensorData local{DType::kF32, {12}, std::string(48, 's')};
  const std::string dtensor = pickled_dtensor(file, local, {192}, {{16}}, {1}, {{'S', 0}});
  write_file(out / "rank_files/dtensor", stream(dict({{"w", dtensor}})));
  SavedFile strided;
  const std::string shard = pickled_dtensor(strided, local, {96}, {{4, 4}}, {0, 1}, {{'T', 0, 2}, {'R'}});
  write_file(out / "rank_files/strided", stream(dict({{"w", shard}})));
  const std::string shape = call("torch", "Size", {numbers({3, 4})}), flat = tensor({.shape = {12}, .strides = {1}});
  write_file(out / "rank_files/model_states", stream(dict({{"module", dict({{"w", tensor()}})},
                                                           {"buffer_names", list({text("b")})},
                                                           {"param_shapes", list({dict({{"w", shape}})})},
                                                           {"frozen_param_shapes", dict({{"f", shape}})},
                                                           {"frozen_param_fragments", dict({{"f", tensor()}})},
                                                           {"shared_params", dict({{"v", text("w")}})}})));
  const std::string slice = object("deepspeed.utils.tensor_fragment", "fragment_address",
                                   dict({{"numel", number(12)}, {"start", number(0)}}));
  const std::string state = dict({{"state", dict({{"0", dict({{"exp_avg", flat}})}})}});
  const std::string optim = dict({{"zero_stage", number(2)},
                                  {"partition_count", list({number(1)})},
                                  {"single_partition_of_fp32_groups", list({flat})},
                                  {"base_optimizer_state", state},
                                  {"param_slice_mappings", list({dict({{"w", slice}})})}});
  write_file(out / "rank_files/optim_states", stream(dict({{"optimizer_state_dict", optim}})));
  const std::string split = dict({{"kind", text("sharded")}, {"partition_dim", number(0)}});
  const std::string attention = dict({{"original_names_to_gqa_qkv_names", dict({{"a.q.weight", text("a.p.weight_q")},
                                                                                {"a.k.weight", text("a.p.weight_k")},
                                                                                {"a.v.weight", text("a.p.weight_v")}})},
                                      {"output_projections_names", list({text("a.o.weight")})},
                                      {"num_attention_heads", number(8)},
                                      {"num_key_value_heads", number(2)},
                                      {"kv_size_multiplier", number(2)}});
  write_file(out / "rank_files/described", stream(dict({{"model", dict({{"w", tensor()}})},
                                                        {"sharded_metadata", dict({{"w", split}})},
                                                        {"gqa_qkv_metadata", attention}})));
  write_file(out / "rank_files/universal", stream(dict({{"cat_dim", number(0)}, {"param", flat}})));
}

void seed_by_hand(const fs::path& out) {
  using namespace pickles;
  const std::vector<ZipPart> parts{{"a/x", "xxxx"}, {"a/y", ""}};
  write_file(out / "zip_directory/zip64", zip_bytes(parts, {.zip64 = true, .comment = "comment"}));
  write_file(out / "zip_directory/padded", zip_bytes(parts, {.descriptors = true, .padding_bytes = 9}));
  const std::string parameter = call("torch._utils", "_rebuild_parameter", {tensor(), kTrue, ordered_dict()});
  const std::string v3 = tensor_v3({.elems = 48, .shape = {3}, .strides = {4}}, "uint32");
  const std::string state_dict = dict({{"a", tensor()}, {"b", parameter}, {"c", v3}, {"n", number(1)}});
  const std::string all =
      stream(dict({{"model", state_dict}, {"args", object("argparse", "Namespace", dict({{"lr", kNone}}))}}));
  write_file(out / "pickle/tensors", all);
  write_file(out / "torch_file/tensors", "@" + all);
  write_file(out / "pickle/texts", "(S'a\\x41'\nV\\u00fc\nI01\nL12L\nF1.5\np0\ng0\nl.");
  write_file(out / "pickle/protocol4",
             std::string("\x80\4\x95\1\0\0\0\0\0\0\0\x8c\1a\x94\x8c\1b\x94\x93)\x81}b\x8f(h\0\x90.", 30));
  for (const bool compressed : {false, true}) {
    const std::string item = dcp::item_bytes("float32", {2, 2}, std::string(16, 'f'));
    const std::string stored = compressed ? zstd_frame(item) : item;
    dcp::Tensor chunked{
        "w", "float32", {2, 2}, {{{0, 0}, {2, 2}, {"f", 0, static_cast<std::int64_t>(stored.size()), {}}}}};
    if (compressed) chunked.chunks[0].place.transforms = {"stream.zstd/1"};
    write_file(out / (compressed ? "dcp_metadata/zstd" : "dcp_metadata/item"),
               dcp::metadata_bytes({{chunked}, {}}) + "@@" + stored);
  }
  const std::string reference = object("torch_xla.utils.serialization", "TensorReference", dict({{"tid", number(0)}}));
  const std::string of_tensor =
      dict({{"dtype", global("torch", "float32")}, {"shape", call("torch", "Size", {numbers({3, 4})})}});
  const std::string refers = stream(dict({{"a", reference}, {"tied", reference}, {"here", tensor()}}));
  write_file(out / "xser/without_info", refers + "@@" + stream(tensor()));
  write_file(out / "xser/whole", refers + "@@" + stream(tensor()) + "@@" + stream("}(" + number(0) + of_tensor + "u"));
  const auto by_id = [](const std::string& value) { return "}" + number(0) + value + "s"; };
  for (const std::string& state : {tensor(), reference})
    write_file(out / ("optimizer_file/" + std::string(state == reference ? "references" : "tensors")),
               stream(dict({{"state", dict({})},
                            {"param_groups", list({dict({{"lr", number(1)}, {"params", numbers({0})}})})},
                            {"base_state", by_id(dict({{"step", number(3)}, {"exp_avg", state}}))},
                            {"shape_info", by_id(numbers({3, 4}))},
                            {"sharded_master_weights", by_id(state)}})) +
                   (state == reference ? "@@" + stream(tensor()) : std::string()));
  const std::string head = stream("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + stream(number(1001)) +
                           stream(dict({{"little_endian", kTrue}}));
  write_file(out / "torch_file/stream", head + stream(state_dict) + stream(list({text("0")})) +
                                            le_bytes<std::uint64_t>(12) + std::string(48, 's'));
}

/// The first character says which file the rest is.
void seed_json(const fs::path& out) {
  std::size_t seeds = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testdata("golden"))) {
    const std::string name = entry.path().filename();
    const char* kind = name == "config.json"           ? "c"
                       : name == "adapter_config.json" ? "a"
                       : name.ends_with(".index.json") ? "i"
                                                       : nullptr;
    if (kind != nullptr && entry.is_regular_file() && entry.file_size() < kMostSeedBytes && seeds++ < 4 * kMostOfAKind)
      write_file(out / "json_files" / (name + std::to_string(seeds)), kind + read_file(entry.path()));
  }
  write_file(out / "json_files/adapter",
             R"(a{"peft_type": "LORA", "r": 8, "rank_pattern": {"q": 4}, "alpha_pattern": {"q": 1.5}})");
  write_file(out / "json_files/like",
             R"(d{"model_type": "x", "like": "llama", "rename": {"mlp": "ffn"}, "define": {"n": "hidden_size"},)"
             R"( "modules": [{"name": "model.layers.*.a", "plan": "colwise", "shape": ["n", 4]}]})");
  write_file(out / "json_files/description",
             R"(d{"model_type": "x", "modules": [{"name": "a", "plan": "replicate", "shape": [1]}]})");
}

}  // namespace
}  // namespace reshard::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds DIRECTORY\n");
    return 2;
  }
  reshard::test::seed_from_testdata(argv[1]);
  reshard::test::seed_ranks(argv[1]);
  reshard::test::seed_ranks_by_hand(argv[1]);
  reshard::test::seed_by_hand(argv[1]);
  reshard::test::seed_json(argv[1]);
  return 0;
}
