// Checkpoints with all experts of a layer in one tensor, as Transformers 5 has them in memory, and with each in its own.

#include "reshard/layouts/names/packed_experts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "reshard/base/strings.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/trained.h"
#include "support/training_runs.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

fs::path golden_model(const std::string& name) {
  return testdata("golden/experts/" + name);
}

/// What a whole model in `source` becomes with experts in this form.
TensorMap in_form(const fs::path& source, const fs::path& output, const std::string& form) {
  return converted(source, output, {.options = {"experts=" + form}});
}

/// The part of a tensor that begins at `begin`, of that size.
TensorData part_of(const TensorData& tensor, const Dims& begin, const Dims& size) {
  return {tensor.dtype, size, dcp::slice(tensor, begin, size)};
}

TEST_CASE("Packed experts are read from all that trainers save, however their ranks cut them") {
  const fs::path model = golden_model("mixtral");
  const TensorMap apart = read_model(model / "original");
  const TensorMap packed = read_model(model / "packed");
  for (const std::string kind : kTrainedKinds)
    for (std::uint64_t dim = 0; dim < (kind == "dcp" || kind == "fsdp-ranks" ? 3 : 1); ++dim) {
      DYNAMIC_SECTION(kind << " along dim " << dim) {
        const TempDir temp;
        Random random(17 + dim);
        write_trained(kind, temp / "in", packed, dim, random);
        fs::copy_file(model / "packed/config.json", temp / "in/config.json");
        RequestFields fields;
        if (kind == "zero-2") fields.source_options = {"weights=model"};
        const auto job = plan_convert(convert_request(temp / "in", temp / "out", fields));
        CHECK_THAT(joined_notes(*job), Says("replaced the names of transformers by the model's own"));
        execute(*job, unsynced());
        CHECK((read_model(temp / "out") == apart));
        fields.options = {"experts=packed"};
        CHECK((converted(temp / "in", temp / "packed", fields) == packed));
        CHECK((in_form(temp / "packed", temp / "apart", "separate") == read_model(temp / "out")));
      }
    }
}

TEST_CASE(
    "A training run that packs experts gets the names of the model's files, with its optimizer's states, and back") {
  for (const char* name : {"mixtral", "qwen3_moe", "deepseek_v3", "jamba", "phimoe"})
    for (const std::uint64_t seed : seeds(3)) {
      CAPTURE(name, seed);
      Random random(seed);
      const fs::path model = golden_model(name);
      const TempDir temp;
      Saved packed;
      for (const auto& [tensor, data] : read_model(model / "packed")) {
        packed.tensors.push_back({tensor, data, random_parts(random, data.shape)});
        packed.add("optimizer.state." + tensor + ".exp_avg", random_tensor(random, DType::kF32, data.shape));
        packed.add("optimizer.state." + tensor + ".step", {DType::kF32, {}, "step"});
      }
      packed.write(temp / "packed");
      const auto converted_run = [&](const fs::path& source, const fs::path& output, const char* names) {
        Request request = run_request(source, output, pick(random, 1, 5));
        request.source.config = model / "original";
        request.check_replicas = random() % 2;
        if (names != nullptr) request.target.options.set("names", names);
        convert(request);
        return dcp::read(output).tensors;
      };
      const auto own = converted_run(temp / "packed", temp / "own", nullptr);
      for (const auto& [tensor, data] : read_model(model / "original")) {
        CHECK((own.at(tensor) == data));
        CHECK(own.at("optimizer.state." + tensor + ".exp_avg").shape == data.shape);
        CHECK(own.at("optimizer.state." + tensor + ".step").bytes == "step");
      }
      CHECK((converted_run(temp / "own", temp / "back", "transformers") == dcp::read(temp / "packed").tensors));
    }
}

TEST_CASE(
    "Every architecture's experts come back from the names of Transformers 5 in dcp, in a part of a model as well") {
  std::size_t packed_ones = 0;
  for (const std::string& name : sample_of(architecture_names())) {
    const Architecture of = architecture(name);
    if (!has_experts(of)) continue;
    CAPTURE(name);
    const TempDir temp;
    const TensorMap tensors = write_architecture(of, temp / "model");
    RequestFields fields{.layout = "dcp", .options = {"names=transformers"}};
    try {
      convert(temp / "model", temp / "dcp", fields);
    } catch (const Error& error) {
      CAPTURE(error.what());
      CHECK((error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kUsage));
      continue;
    }
    const bool is_packed = dcp::read(temp / "dcp").tensors.size() < tensors.size();
    packed_ones += is_packed ? 1 : 0;
    const auto job = plan_convert(convert_request(temp / "dcp", temp / "whole", {.config = temp / "model"}));
    CHECK((joined_notes(*job).find("replaced the names of transformers") != std::string::npos) == is_packed);
    execute(*job, unsynced());
    CHECK((read_model(temp / "whole") == tensors));
  }
  CHECK(packed_ones > (has_all_seeds() ? 20 : 3));
}

TEST_CASE("A run of which some layers are packed and others are not is read, and a wrong config.json is noted") {
  Random random(5);
  const fs::path model = golden_model("qwen3_moe");
  const TensorMap apart = read_model(model / "original"), packed = read_model(model / "packed");
  const auto is_of_layer = [](const std::string& name, const char* layer) {
    return name.find(std::string(".layers.") + layer + ".") != name.npos && name.find(".experts.") != name.npos;
  };
  const TempDir temp;
  Saved saved;
  for (const auto& [name, data] : packed)
    if (!is_of_layer(name, "0")) saved.add(name, data);
  for (const auto& [name, data] : apart)
    if (is_of_layer(name, "0")) saved.add(name, data);
  saved.write(temp / "mixed");
  CHECK((converted(temp / "mixed", temp / "whole", {.config = model / "original"}) == apart));

  nlohmann::json config = nlohmann::json::parse(read_file(model / "original/config.json"));
  config["num_hidden_layers"] = 1;
  config.erase("layer_types");
  write_file(temp / "other/config.json", config.dump());
  check_refused(
      [&] { converted(temp / "mixed", temp / "out", {.config = temp / "other"}); },
      {.says = "num_hidden_layers is 1 in config.json, but the files have layers 0 to 1", .hint = "fix config.json"});
  fs::copy_file(temp / "other/config.json", temp / "mixed/config.json");
  Checkpoint read;
  CHECK_NOTHROW(read = read_checkpoint(local_storage(), temp / "mixed", {.use = ConfigUse::kLenient}));
  CHECK(read.map.find_logical("model.norm.weight"));
}

TEST_CASE("A layer that config.json does not count is split as well, and what only has a stack's name is listed") {
  const fs::path model = golden_model("mixtral");
  const std::string stack = "model.layers.0.mlp.experts.gate_up_proj",
                    other = "model.layers.9.mlp.experts.gate_up_proj";
  TensorMap tensors = read_model(model / "packed");
  const TempDir temp;
  fs::create_directories(temp / "model");
  fs::copy_file(model / "packed/config.json", temp / "model/config.json");
  tensors[other] = tensors.at(stack);
  const auto listed = [&] {
    write_safetensors(temp / "model/model.safetensors", tensors);
    const Checkpoint read = read_checkpoint(local_storage(), temp / "model", {.use = ConfigUse::kLenient});
    std::set<std::string> names;
    for (const LogicalTensor& tensor : read.map.logical) names.insert(tensor.name);
    return names;
  };
  CHECK(listed().count("model.layers.9.block_sparse_moe.experts.1.w3.weight") == 1);
  Request request = convert_request(temp / "model", temp / "whole", {});
  request.names.drop.emplace_back("drop", "^model\\.layers\\.9\\.");
  convert(request);
  CHECK((read_model(temp / "whole") == read_model(model / "original")));
  for (auto& [name, data] : tensors)
    if (name.find(".mlp.experts.") != name.npos) data = {DType::kU8, {64, 1}, std::string(64, 'q')};  // of bitsandbytes
  CHECK(listed().count(stack) == 1);
}

TEST_CASE("Shards of packed experts are those of the same experts apart") {
  for (const char* name : {"mixtral", "qwen3_moe", "deepseek_v3", "jamba", "phimoe"}) {
    INFO(name);
    const TempDir temp;
    const fs::path golden_case = testdata("golden/experts") / name;
    for (const char* form : {"packed", "original"}) shard(shard_request(golden_case / form, temp / form, 2));
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
      REQUIRE(stack->parameters.size() == rule["parts"].size());
      const std::vector<std::string> tensors = stack->tensors({12});
      for (std::size_t part = 0; part < stack->parameters.size(); ++part) {
        std::string in_file = numbered(rule["parts"][part]["file"]);
        in_file.replace(in_file.find(".E."), 3, ".11.");
        CHECK(tensors[11 * stack->parameters.size() + part] == in_file);
      }
    }
    for (const auto& [name, in_file] : facts["renamed"].items()) {
      if (name.find(".mlp.") == name.npos || model_type == "qwen3_5_moe_text") continue;
      CHECK(packed.own_name(numbered(name)) == numbered(in_file["file"]));
      std::map<std::string, std::string> names;  // in files, by that in memory
      for (const SchemeEntry& entry : packed.scheme()->entries) names[entry.names.front()] = entry.parameters.front();
      CHECK(names.at(with_stars(numbered(name))) == with_stars(numbered(in_file["file"])));
    }
  }
}

TEST_CASE("What cannot be packed or taken apart is refused with its name") {
  const fs::path model = golden_model("mixtral");
  const TempDir temp;
  const std::string layer0 = "model.layers.0.", layer1 = "model.layers.1.";
  const std::string stack = layer1 + "mlp.experts.gate_up_proj";
  const auto w1 = [&](const std::string& expert) {
    return layer0 + "block_sparse_moe.experts." + expert + ".w1.weight";
  };
  struct Row {
    std::string from;  // of the golden model: "packed", or "original" with the experts apart
    std::string to;    // the form, or "ranks"
    std::function<void(TensorMap&)> change;
  };
  check_refusals<Row>(
      [&](const Row& row) {
        fs::remove_all(temp / "in");
        TensorMap tensors = read_model(model / row.from);
        row.change(tensors);
        write_safetensors(temp / "in/model.safetensors", tensors);
        fs::copy_file(model / row.from / "config.json", temp / "in/config.json");
        if (row.to == "ranks")
          shard(shard_request(temp / "in", temp / "out", 2));
        else
          in_form(temp / "in", temp / "out", row.to);
      },
      {.unwritten = temp / "out"},
      {{"an odd number of rows",
        {"packed", "auto",
         [&](TensorMap& tensors) {
           tensors[stack] = part_of(tensors[stack], {0, 0, 0}, {3, 79, 32});
         }},
        {.tensor = stack, .says = "has the shape [3, 79, 32], but the model has [3, 80, 32]"}},
       {"an expert that is there twice",
        {"packed", "auto",
         [&](TensorMap& tensors) {
           TensorData& twice = tensors[layer1 + "block_sparse_moe.experts.2.w3.weight"];
           twice = part_of(tensors[stack], {2, 40, 0}, {1, 40, 32});
           twice.shape = {40, 32};
         }},
        {.tensor = layer1 + "block_sparse_moe.experts.2.w3.weight", .says = {"exists twice", stack}}},
       {"experts that are too few for config.json",
        {"packed", "ranks",
         [&](TensorMap& tensors) {
           for (auto& [name, tensor] : tensors)
             if (tensor.shape.size() == 3) tensor = part_of(tensor, {0, 0, 0}, {2, tensor.shape[1], tensor.shape[2]});
         }},
        {.says = w1("2")}},
       {"matrices in the order of Transformers 4 in a family that never had them packed",
        {"packed", "auto",
         [&](TensorMap& tensors) {
           for (auto& [name, tensor] : tensors)
             if (tensor.shape.size() == 3) std::swap(tensor.shape[1], tensor.shape[2]);
         }},
        {.tensor = layer0 + "mlp.experts.down_proj", .says = "but the model has"}},
       {"more of the experts than their weights",
        {"packed", "auto",
         [&](TensorMap& tensors) {
           tensors[stack + "_scale_inv"] = {DType::kF32, {3, 1, 1}, std::string(12, 'x')};
         }},
        {.kind = ErrorKind::kUnsupported, .tensor = stack + "_scale_inv"}},
       {"a stack of no bytes that claims any number of experts",
        {"packed", "ranks",
         [&](TensorMap& tensors) {
           tensors[stack] = {DType::kBF16, {1'000'000, 2, 0}, {}};
         }},
        {.says = stack}},
       {"experts whose numbers are not written as numbers are",
        {"original", "packed",
         [&](TensorMap& tensors) {
           for (const char* number : {"00", "99999999999999999999999", "999999"})
             tensors[w1(number)] = tensors.at(w1("0"));
         }},
        {.kind = ErrorKind::kUnsupported, .tensor = w1("00")}},
       {"two names that become one",
        {"original", "packed",
         [&](TensorMap& tensors) {
           tensors[layer0 + "mlp.gate.weight"] = tensors.at(layer0 + "block_sparse_moe.gate.weight");
         }},
        {.kind = ErrorKind::kUnsupported, .says = "two tensors would have this name"}},
       {"experts of two dtypes",
        {"original", "packed", [&](TensorMap& tensors) { tensors[w1("1")].dtype = DType::kF16; }},
        {.kind = ErrorKind::kUnsupported, .tensor = layer0 + "mlp.experts.gate_up_proj"}}});
}

TEST_CASE("Experts that Transformers 4 or 5 saved packed are taken apart to the same tensors") {
  const fs::path model = golden_model("qwen3_vl_moe");  // (E, H, 2 I) as Transformers 4 saved it, (E, 2 I, H) as 5 does
  const TempDir temp;
  TensorMap turned = read_model(model / "original");
  const TensorMap apart = in_form(model / "original", temp / "four", "separate");
  CHECK(apart.size() > turned.size());
  for (auto& [name, tensor] : turned) {
    if (!name.ends_with("experts.gate_up_proj") && !name.ends_with("experts.down_proj")) continue;
    const Dims shape = tensor.shape;
    std::string bytes = tensor.bytes;
    const std::uint64_t size = bytes.size() / num_elems(shape).value();
    for (std::uint64_t e = 0; e < shape[0]; ++e)
      for (std::uint64_t r = 0; r < shape[1]; ++r)
        for (std::uint64_t c = 0; c < shape[2]; ++c)
          bytes.replace(((e * shape[2] + c) * shape[1] + r) * size, size,
                        tensor.bytes.substr(((e * shape[1] + r) * shape[2] + c) * size, size));
    tensor = {tensor.dtype, {shape[0], shape[2], shape[1]}, bytes};
  }
  fs::copy(model / "original", temp / "model");
  write_safetensors(temp / "model/model.safetensors", turned);
  CHECK((in_form(temp / "model", temp / "five", "separate") == apart));
  CHECK((in_form(temp / "five", temp / "packed", "auto") == turned));
}

TEST_CASE("Stacks in two orders, and packing where no family has packed experts, are refused") {
  const Input input;
  check_refused([&] { in_form(input / "model", input / "out", "packed"); },
                {.kind = ErrorKind::kUnsupported,
                 .says = "models of llama have no experts that Transformers packs",
                 .unwritten = input / "out"});
  fs::copy(golden_model("qwen3_vl_moe") / "original", input / "two");
  const std::string turned = "model.language_model.layers.1.mlp.experts.gate_up_proj";
  change_tensors(input / "two/model.safetensors",
                 [&](TensorMap& tensors) { std::swap(tensors[turned].shape[1], tensors[turned].shape[2]); });
  for (const char* form : {"auto", "separate"})
    check_refused([&] { in_form(input / "two", input / "out", form); },
                  {.tensor = turned, .says = "has the experts of a layer in the order", .unwritten = input / "out"});
  fs::remove(input / "model/config.json");
  for (const std::string form : {"packed", "separate"})
    check_refused([&] { in_form(input / "model", input / "out", form); },
                  {.kind = ErrorKind::kUsage,
                   .says = "`experts` " + form + ": the model is unknown",
                   .unwritten = input / "out"});
}

}  // namespace
}  // namespace reshard::test
