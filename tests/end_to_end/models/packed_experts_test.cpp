// Checkpoints with all experts of a layer in one tensor, as Transformers 5 has them in memory, and with each in its own.

#include "reshard/specs/model/packed_experts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/dtensors.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/pickles.h"
#include "support/random.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/zero_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

fs::path golden_model(const std::string& name) {
  return testdata("golden/experts/" + name);
}

/// What a whole model in `source` becomes with experts in this form.
TensorMap in_form(const fs::path& source, const fs::path& output, const std::string& form) {
  ConvertRequest request = convert_request(source, output);
  request.target.options.set("experts", form);
  convert(request);
  return read_model(output);
}

/// The part of a tensor that begins at `begin`, of that size.
TensorData part_of(const TensorData& tensor, const Dims& begin, const Dims& size) {
  return {tensor.dtype, size, dcp::slice(tensor, begin, size)};
}

/// Writes what a trainer has of a packed model on two ranks, along `dim` of the stacks.
void write_trained(const std::string& kind, const fs::path& directory, const TensorMap& packed, std::uint64_t dim,
                   Random& random) {
  const auto first_of = [](std::uint64_t size) { return (size + 1) / 2; };
  if (kind == "dcp") {
    std::vector<dcp::Whole> stored;
    for (const auto& [name, data] : packed) {
      dcp::Whole whole{"model." + name, data, {{Dims(data.shape.size()), data.shape, 0}}};
      if (data.shape.size() == 3) {
        Dims size = data.shape, begin(3);
        size[dim] = begin[dim] = first_of(data.shape[dim]);
        whole.parts = {{Dims(3), size, 0}};
        size[dim] = data.shape[dim] - begin[dim];
        whole.parts.push_back({begin, size, 1});
      }
      stored.push_back(std::move(whole));
    }
    dcp::write(directory, stored);
  } else if (kind == "fsdp-ranks") {
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      SavedFile file;
      std::vector<std::pair<std::string, std::string>> items;
      for (const auto& [name, data] : packed) {
        if (data.shape.size() != 3) {
          items.emplace_back(name, pickled_dtensor(file, data, data.shape, {{2}}, {rank}, {{}}));
          continue;
        }
        Dims size = data.shape, begin(3);
        size[dim] = rank == 0 ? first_of(data.shape[dim]) : data.shape[dim] - first_of(data.shape[dim]);
        if (rank == 1) begin[dim] = first_of(data.shape[dim]);
        items.emplace_back(name,
                           pickled_dtensor(file, part_of(data, begin, size), data.shape, {{2}}, {rank}, {{'S', dim}}));
      }
      file.save(directory / fmt::format("model_world_size_2_rank_{}.pt", rank), pickles::dict(items));
    }
  } else {
    ZeroModel model;
    model.groups.emplace_back();
    for (const auto& [name, data] : packed) {
      model.groups[0].push_back(name);
      model.module[name] = data;
      model.masters[name] = random_tensor(random, DType::kF32, data.shape);
    }
    write_zero(directory, model, kind == "zero-2" ? 2 : 3, 3, 2, random);
  }
}

TEST_CASE("Packed experts are read from all that trainers save, however their ranks cut them") {
  const fs::path model = golden_model("mixtral");
  const TensorMap apart = read_model(model / "original");
  const TensorMap packed = read_model(model / "packed");
  for (const std::string kind : {"dcp", "fsdp-ranks", "zero-2", "zero-3"})
    for (std::uint64_t dim = 0; dim < (kind.starts_with("zero") ? 1 : 3); ++dim) {
      DYNAMIC_SECTION(kind << " along dim " << dim) {
        const TempDir temp;
        Random random(17 + dim);
        write_trained(kind, temp / "in", packed, dim, random);
        fs::copy_file(model / "packed/config.json", temp / "in/config.json");
        ConvertRequest request = convert_request(temp / "in", temp / "out");
        if (kind == "zero-2") request.source.options.set("weights", "model");
        const auto job = plan_convert(local_storage(), request);
        CHECK_THAT(nlohmann::json(job->notes).dump(), Says("as Transformers 5 has them in memory"));
        convert(request);
        const TensorMap back = read_model(temp / "out");
        std::vector<std::string> names, expected;
        for (const auto& [name, tensor] : back) names.push_back(name);
        for (const auto& [name, tensor] : apart) expected.push_back(name);
        REQUIRE(names == expected);
        if (kind != "zero-3") CHECK((back == apart));
        request.output_directory = temp / "packed";
        request.target.options.set("experts", "packed");
        convert(request);
        const TensorMap again = read_model(temp / "packed");
        if (kind != "zero-3") CHECK((again == packed));
        CHECK((in_form(temp / "packed", temp / "apart", "separate") == back));
      }
    }
}

TEST_CASE("Shards of packed experts are those of the same experts apart") {
  for (const char* name : {"mixtral", "qwen3_moe", "deepseek_v3", "jamba", "phimoe"}) {
    INFO(name);
    const TempDir temp;
    const fs::path golden_case = testdata("golden/experts") / name;
    for (const char* form : {"packed", "original"})
      execute(*plan_shard(shard_request(golden_case / form, temp / form, 2)), unsynced());
    const auto packed = read_shards(temp / "packed");
    CHECK(packed.size() == 2);
    CHECK((packed == read_shards(temp / "original")));
  }
}

TEST_CASE("Every architecture's experts that Transformers packs come back from one tensor a layer") {
  std::size_t packed_ones = 0;
  for (const std::string& name : sample_of(architecture_names())) {
    const Architecture of = architecture(name);
    if (!has_experts(of)) continue;
    const TempDir temp;
    const TensorMap tensors = write_architecture(of, temp / "model");
    try {
      in_form(temp / "model", temp / "packed", "packed");
    } catch (const Error& error) {
      CAPTURE(name, error.what());
      CHECK(error.kind() == ErrorKind::kUnsupported);
      continue;
    }
    INFO(name);
    const TensorMap packed = read_model(temp / "packed");
    packed_ones += packed.size() < tensors.size() ? 1 : 0;
    CHECK((in_form(temp / "packed", temp / "back", packed.size() < tensors.size() ? "separate" : "auto") == tensors));
  }
  CHECK(packed_ones > (has_all_seeds() ? 20 : 3));
}

TEST_CASE("The names of packed experts are those of Transformers' own mapping") {
  const nlohmann::json families = nlohmann::json::parse(read_file(golden_model("families.json")))["families"];
  for (const auto& [model_type, facts] : families.items()) {
    CAPTURE(model_type);
    std::shared_ptr<const Family> family = builtin_family(model_type);
    REQUIRE(family);
    if (!family->language_model.empty()) family = builtin_family(family->language_model);
    const PackedExperts packed(*family);
    const auto numbered = [&](std::string name) {
      // The family's names are those of a model without other parts.
      for (const char* outer : {"model.language_model.", "language_model.model."})
        if (name.starts_with(outer)) name.replace(0, std::string(outer).size(), "model.");
      name.replace(name.find(".N."), 3, ".5.");
      return name;
    };
    for (const auto& [name, rule] : facts["rules"].items()) {
      const auto stack = packed.find(numbered(name));
      if (!rule.contains("parts")) {
        CHECK((!stack || packed.stay_packed()));
        continue;
      }
      REQUIRE(stack);
      REQUIRE(stack->parts.size() == rule["parts"].size());
      for (std::size_t part = 0; part < stack->parts.size(); ++part) {
        std::string in_file = numbered(rule["parts"][part]["file"]);
        in_file.replace(in_file.find(".E."), 3, ".11.");
        CHECK(stack->name_of(part, 11) == in_file);
        const auto found = packed.place_of(in_file);
        REQUIRE(found);
        CHECK(found->stack.name == stack->name);
        CHECK(found->expert == 11);
        CHECK(found->part == part);
      }
    }
    for (const auto& [name, in_file] : facts["renamed"].items()) {
      if (name.find(".mlp.") == name.npos || model_type == "qwen3_5_moe_text") continue;
      CHECK(packed.own_name(numbered(name)) == numbered(in_file["file"]));
      CHECK(packed.packed_name(numbered(in_file["file"])) == numbered(name));
    }
  }
}

TEST_CASE("What cannot be packed or taken apart is refused with its name") {
  const fs::path model = golden_model("mixtral");
  const TempDir temp;
  fs::copy(model / "packed", temp / "in");
  TensorMap tensors = read_model(model / "packed");
  const std::string stack = "model.layers.1.mlp.experts.gate_up_proj";

  SECTION("an odd number of rows") {
    TensorData& tensor = tensors[stack];
    --tensor.shape[1];
    tensor.bytes.resize(*num_bytes(tensor.dtype, tensor.shape));
    write_safetensors(temp / "in/model.safetensors", tensors);
    check_refused([&] { in_form(temp / "in", temp / "out", "auto"); },
                  {.tensor = stack, .says = "has the shape [3, 79, 32], whose rows are not those of 2 matrices"});
  }
  SECTION("an expert that is there twice") {
    tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"] = part_of(tensors[stack], {2, 40, 0}, {1, 40, 32});
    tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"].shape = {40, 32};
    write_safetensors(temp / "in/model.safetensors", tensors);
    check_refused(
        [&] { in_form(temp / "in", temp / "out", "auto"); },
        {.tensor = "model.layers.1.block_sparse_moe.experts.2.w3.weight", .says = "exists twice, once as " + stack});
  }
  SECTION("experts that are too few for config.json") {
    for (auto& [name, tensor] : tensors)
      if (tensor.shape.size() == 3) tensor = part_of(tensor, {0, 0, 0}, {2, tensor.shape[1], tensor.shape[2]});
    write_safetensors(temp / "in/model.safetensors", tensors);
    check_refused([&] { shard(shard_request(temp / "in", temp / "out", 2)); },
                  {.says = "model.layers.0.block_sparse_moe.experts.2.w1.weight"});
  }
  SECTION("matrices in the order of Transformers 4 in a family that never had them packed") {
    for (auto& [name, tensor] : tensors)
      if (tensor.shape.size() == 3) std::swap(tensor.shape[1], tensor.shape[2]);
    write_safetensors(temp / "in/model.safetensors", tensors);
    check_refused(
        [&] { in_form(temp / "in", temp / "out", "auto"); },
        {.tensor = "model.layers.0.mlp.experts.down_proj", .says = "for each expert, but config.json asks for"});
  }
  SECTION("stacks in two orders") {
    fs::copy(golden_model("qwen3_vl_moe") / "original", temp / "two");
    TensorMap two = read_model(temp / "two");
    TensorData& turned = two["model.language_model.layers.1.mlp.experts.gate_up_proj"];
    std::swap(turned.shape[1], turned.shape[2]);
    fs::remove(temp / "two/model.safetensors");
    write_safetensors(temp / "two/model.safetensors", two);
    for (const char* form : {"auto", "separate"})
      check_refused([&] { in_form(temp / "two", temp / "out", form); },
                    {.tensor = "model.language_model.layers.1.mlp.experts.gate_up_proj",
                     .says = "has the experts of a layer in the order"});
  }
  SECTION("more of the experts than their weights") {
    tensors["model.layers.1.mlp.experts.gate_up_proj_scale_inv"] = {DType::kF32, {3, 1, 1}, std::string(12, 'x')};
    write_safetensors(temp / "in/model.safetensors", tensors);
    check_refused([&] { in_form(temp / "in", temp / "out", "auto"); },
                  {.kind = ErrorKind::kUnsupported, .tensor = "model.layers.1.mlp.experts.gate_up_proj_scale_inv"});
  }
  SECTION("experts whose numbers are not written as numbers are") {
    TensorMap apart = read_model(model / "original");
    for (const char* number : {"00", "99999999999999999999999", "999999"})
      apart[fmt::format("model.layers.0.block_sparse_moe.experts.{}.w1.weight", number)] =
          apart.at("model.layers.0.block_sparse_moe.experts.0.w1.weight");
    fs::create_directory(temp / "apart");
    fs::copy_file(model / "original/config.json", temp / "apart/config.json");
    write_safetensors(temp / "apart/model.safetensors", apart);
    const Error error = error_of([&] { in_form(temp / "apart", temp / "out", "packed"); });
    CHECK(error.kind() == ErrorKind::kUnsupported);
    CHECK_THAT(error.tensor(), Says(".w1.weight"));
  }
  SECTION("two names that become one") {
    TensorMap apart = read_model(model / "original");
    apart["model.layers.0.mlp.gate.weight"] = apart.at("model.layers.0.block_sparse_moe.gate.weight");
    fs::create_directory(temp / "apart");
    fs::copy_file(model / "original/config.json", temp / "apart/config.json");
    write_safetensors(temp / "apart/model.safetensors", apart);
    check_refused([&] { in_form(temp / "apart", temp / "out", "packed"); },
                  {.kind = ErrorKind::kUnsupported, .says = "two tensors would have this name"});
  }
  SECTION("a stack of no bytes that claims any number of experts") {
    tensors[stack] = {DType::kBF16, {1'000'000, 2, 0}, {}};
    write_safetensors(temp / "in/model.safetensors", tensors);
    check_refused([&] { shard(shard_request(temp / "in", temp / "out", 2)); }, {.says = stack});
  }
  SECTION("experts of two dtypes") {
    TensorMap apart = read_model(model / "original");
    TensorData& tensor = apart["model.layers.0.block_sparse_moe.experts.1.w1.weight"];
    tensor.dtype = DType::kF16;
    fs::create_directory(temp / "apart");
    fs::copy_file(model / "original/config.json", temp / "apart/config.json");
    write_safetensors(temp / "apart/model.safetensors", apart);
    check_refused([&] { in_form(temp / "apart", temp / "out", "packed"); },
                  {.kind = ErrorKind::kUnsupported, .tensor = "model.layers.0.mlp.experts.gate_up_proj"});
  }
  SECTION("a model without experts") {
    Random random(3);
    const TinyModel tiny;
    write_model(temp / "dense", tiny, random_tensors(tiny, random));
    check_refused([&] { in_form(temp / "dense", temp / "out", "packed"); },
                  {.kind = ErrorKind::kUnsupported, .says = "models of llama have no experts that Transformers packs"});
  }
  SECTION("a model that nobody knows") {
    fs::remove(temp / "in/config.json");
    for (const std::string form : {"packed", "separate"})
      check_refused([&] { in_form(temp / "in", temp / "out", form); },
                    {.kind = ErrorKind::kUsage, .says = "`experts` " + form + ": the model is not known"});
  }
  CHECK_FALSE(fs::exists(temp / "out"));
}

}  // namespace
}  // namespace reshard::test
