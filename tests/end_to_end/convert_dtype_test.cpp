// Casts on the way from one checkpoint into another.

#include <algorithm>
#include <cstring>
#include <limits>

#include "reshard/base/strings.h"
#include "reshard/engine/job_run.h"
#include "reshard/tensor/cast/cast.h"
#include "support/architectures.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr DType kTargets[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};

TensorData cast_whole(const TensorData& tensor, DType to) {
  TensorData result{to, tensor.shape, std::string(num_bytes(to, tensor.shape).value(), '\0')};
  cast_elements(tensor.dtype, std::as_bytes(std::span(tensor.bytes)), to,
                std::as_writable_bytes(std::span(result.bytes)), Overflow::kSaturate);
  return result;
}

/// Asks for a dtype, also for one that whole models are not cast to.
Request request_for(DType dtype, const fs::path& source, const fs::path& output) {
  Request request = convert_request(source, output, {.dtype = dtype});
  if (bits(dtype) == 8) request.names.keep.emplace_back("keep", ".");
  return request;
}

/// Four random elements.
TensorData four(DType dtype) {
  Random random(8);
  return random_tensor(random, dtype, {4});
}

bool is_float(DType dtype) {
  return describe(dtype).kind == DTypeClass::kFloat;
}

/// Floats, integers and booleans, of one dtype where linears may be fused.
TensorMap mixed_tensors(const TinyModel& model, Random& random) {
  static constexpr DType kSources[] = {DType::kF32,  DType::kBF16,   DType::kF16, DType::kF64,
                                       DType::kBool, DType::kF8E4M3, DType::kI64, DType::kU8};
  std::map<std::string, DType> dtypes;
  TensorMap tensors;
  for (const TinyParameter& parameter : parameters_of(model)) {
    const DType dtype =
        dtypes.emplace(joined_name(parameter.name), kSources[random() % std::size(kSources)]).first->second;
    tensors[parameter.name] = random_tensor(random, dtype, parameter.shape);
  }
  return tensors;
}

std::string floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST_CASE("A checkpoint that is cast holds each tensor as it is cast by itself, in any form") {
  const std::uint64_t seed = GENERATE(from_range(seeds(60)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const TempDir temp;
  const TinyModel model = random_model(random);
  const TensorMap originals = mixed_tensors(model, random);
  write_model(temp / "model", model, originals);
  Request request = request_for(kTargets[seed % std::size(kTargets)], temp / "model", temp / "out");
  request.cast_all = random() % 2;
  INFO("to " << name(*request.dtype) << (request.cast_all ? ", integers too" : ""));
  TensorMap expected;
  for (const auto& [name, tensor] : originals)
    expected[name] = is_float(tensor.dtype) || request.cast_all ? cast_whole(tensor, *request.dtype) : tensor;
  OracleOptions mesh = legal_options(random, model);
  if (random() % 3) {
    request.target.layout = random() % 2 ? layout("ranks") : layout("optimum");
    request.target.format = random() % 2 ? Format::kPytorch : Format::kXser;
    set_target(request.target, mesh);
    mesh.fuse_mlp = request.target.layout != layout("ranks");
  } else if (random() % 2) {
    request.target.format = Format::kPytorch;
  }
  FaultStorage storage;
  const auto job = plan_convert(request);
  execute(*job, random_run(random, storage));
  if (request.target.layout)
    CHECK((read_shards(temp / "out") == expected_ranks(model, expected, mesh)));
  else
    CHECK((read_whole(temp / "out") == expected));
  check_crcs(temp / "out");
  run_in_blocks(*job, temp / "blocks", one_of(random, {1, 8, 100}), 2);
  for (const TargetFile& file : job->target.files)
    CHECK((read_file(temp / "blocks" / file.path) == read_file(temp / "out" / file.path)));
}

TEST_CASE("Shards that are cast while they are consolidated are what their originals are when they are cast") {
  const Input input({.heads = 8}, {.layout = "optimum", .tp = 4}, 6, DType::kF32);
  for (const DType dtype : kTargets) {
    DYNAMIC_SECTION(name(dtype)) {
      convert(request_for(dtype, input.path(), input / "whole"));
      TensorMap expected;
      for (const auto& [name, tensor] : input.tensors) expected[name] = cast_whole(tensor, dtype);
      CHECK((read_model(input / "whole") == expected));
    }
  }
}

TEST_CASE("A value that does not fit is an error with its tensor and index where that is asked for, else saturated") {
  const TempDir temp;
  const Dims shape{3, 700, 800};  // several blocks, of whole and of broken rows
  std::vector<float> values(3ull * 700 * 800, 1.5f);
  values[2 * 700 * 800 + 345 * 800 + 678] = 65520;  // the first that float16 rounds up to infinity
  values[0] = std::numeric_limits<float>::infinity();
  values[1] = 65519;
  write_safetensors(temp / "in/model.safetensors",
                    {{"big", {DType::kF32, shape, floats(values)}}, {"small", {DType::kF32, {2}, floats({1, -2})}}});
  Request request = convert_request(temp / "in", temp / "out");
  request.dtype = DType::kF16;
  RunOptions options;
  options.max_memory_bytes = kMinMemoryBytes;
  for (const unsigned threads : {1u, 2u, 5u}) {
    DYNAMIC_SECTION("error, threads " << threads) {
      options.threads = threads;
      options.overflow = Overflow::kError;
      check_refused([&] { convert(request, options); },
                    {.tensor = "big", .says = "[2, 345, 678] does not fit F16", .hint = "`overflow` saturate"});
      CHECK(snapshot(temp.path()).size() == 2);  // the input alone
    }
  }
  SECTION("saturated") {
    options.overflow = Overflow::kSaturate;
    options.threads = GENERATE(1u, 5u);
    const RunResult result = convert(request, options);
    CHECK((result.saturated == std::vector{std::pair(std::string("big"), std::uint64_t{1})}));
    const TensorMap whole = read_model(temp / "out");
    CHECK((whole.at("big") == cast_whole({DType::kF32, shape, floats(values)}, DType::kF16)));
    std::uint16_t largest = 0;
    std::memcpy(&largest, &whole.at("big").bytes[2ull * (2 * 700 * 800 + 345 * 800 + 678)], 2);
    CHECK(largest == 0x7BFF);
  }
}

/// A model of random numbers: some tensors in float32, some or all others in BF16.
TensorMap write_mixed(const Architecture& of, const fs::path& directory, Random& random) {
  TensorMap tensors = write_architecture(of, directory);
  const std::uint64_t in_float32 = one_of(random, {1, 2, 4});
  for (auto& [name, tensor] : tensors)
    if (is_float(tensor.dtype) && bits(tensor.dtype) >= 16)
      tensor = random_tensor(random, random() % in_float32 == 0 ? DType::kF32 : DType::kBF16, tensor.shape);
  write_safetensors(directory / "model.safetensors", tensors);
  return tensors;
}

TEST_CASE(
    "Parameters that a model needs in float32 stay as stored, and a note names others that shrink next to smaller "
    "ones") {
  const std::vector<std::string> names = architecture_names();
  const std::uint64_t seed = GENERATE(from_range(seeds(60)));
  INFO("RESHARD_TEST_SEED=" << seed);
  Random random(seed);
  const Architecture of = architecture(names[random() % names.size()]);
  INFO(of.name);
  const TempDir temp;
  const TensorMap originals = write_mixed(of, temp / "model", random);
  Request request = convert_request(temp / "model", temp / "out", {.dtype = random() % 2 ? DType::kBF16 : DType::kF16});
  request.target.options.set("experts", "separate");
  request.cast_all = random() % 4 == 0;
  std::unique_ptr<Job> job;
  try {
    job = plan_convert(request);
  } catch (const Error& error) {  // quantised
    CHECK((error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kUsage));
    return;
  }
  const std::string notes = joined_notes(*job);
  execute(*job, unsynced());
  std::size_t float32 = 0, others = 0;
  for (const LogicalTensor& tensor : job->source.logical)
    if (is_float(tensor.dtype)) ++(tensor.dtype == DType::kF32 ? float32 : others);
  const bool is_mixed = float32 < others;
  for (const auto& [name, tensor] : read_whole(temp / "out")) {
    const auto original = originals.find(name);
    if (original == originals.end() || !is_float(tensor.dtype)) continue;  // packed in another way, or dequantised
    INFO(name << ", notes: " << notes);
    const bool changed = tensor.dtype != original->second.dtype;
    if (!changed) CHECK((tensor == original->second));
    if (changed) CHECK((tensor == cast_whole(original->second, *request.dtype)));
    const bool is_bias = name.ends_with("e_score_correction_bias") || name.ends_with(".A_log");
    if (is_bias && tensor.dtype == *request.dtype && changed) CHECK(request.cast_all);
    const bool is_named = notes.find(with_stars(name)) != notes.npos || notes.find(" in all)") != notes.npos;
    if (original->second.dtype == DType::kF32 && changed && is_mixed) CHECK(is_named);
    if (!changed && tensor.dtype != *request.dtype && tensor.dtype != DType::kF64 && bits(tensor.dtype) > 8)
      CHECK(is_named);
  }
}

TEST_CASE(
    "The router's bias stays in float32 from all that are cast, and is cast with the rest where that is asked for") {
  const TempDir temp;
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  TensorMap tensors = write_architecture(architecture("deepseek_v3"), temp / "model");
  REQUIRE(tensors.count(bias) == 1);
  for (auto& [name, tensor] : tensors) tensor = cast_whole(tensor, name == bias ? DType::kF32 : DType::kBF16);
  write_safetensors(temp / "model/model.safetensors", tensors);
  const auto cast = [&](bool all) {
    Request request = convert_request(temp / "model", temp / "out", {.dtype = DType::kF16, .force = true});
    request.cast_all = all;
    const auto job = plan_convert(request);
    const std::string notes = joined_notes(*job);
    INFO(notes);
    CHECK((notes.find("as stored, because the model computes with") != notes.npos) == !all);
    CHECK((notes.find("in float32: model.layers.*.mlp.gate.e_score_correction_bias; `cast-all`") != notes.npos) ==
          !all);
    execute(*job, unsynced());
    return read_whole(temp / "out").at(bias);
  };
  CHECK((cast(false) == tensors.at(bias)));
  CHECK((cast(true) == cast_whole(tensors.at(bias), DType::kF16)));
  SECTION("a model of an unknown family keeps it next to smaller tensors only") {
    write_file(temp / "model/config.json", R"({"model_type": "unheard_of"})");
    CHECK((cast(false) == tensors.at(bias)));
    for (auto& [name, tensor] : tensors) tensor = cast_whole(tensor, DType::kF32);
    write_safetensors(temp / "model/model.safetensors", tensors);
    CHECK(converted(temp / "model", temp / "out", {.dtype = DType::kBF16}).at(bias).dtype == DType::kBF16);
  }
}

TEST_CASE("A dtype casts no scales of hqq") {
  const TempDir temp;
  const TensorMap tensors{{"l.W_q", four(DType::kU8)},
                          {"l.scale", four(DType::kF32)},
                          {"l.zero", four(DType::kF32)},
                          {"n.scale", four(DType::kF32)}};
  write_safetensors(temp / "in/model.safetensors", tensors);
  write_file(temp / "in/config.json", R"({"model_type": "x", "quantization_config": {"quant_method": "hqq"}})");
  const TensorMap cast = converted(temp / "in", temp / "out", {.dtype = DType::kF16});
  for (const char* name : {"l.W_q", "l.scale", "l.zero"}) CHECK((cast.at(name) == tensors.at(name)));
  CHECK(cast.at("n.scale").dtype == DType::kF16);
}

TEST_CASE("A tensor is reported if a cast makes more than a hundredth of its values 0, with their number") {
  const TempDir temp;
  const float tiny = std::ldexp(1.0f, -25);  // the largest that float16 rounds to 0
  TensorMap tensors;
  const auto add = [&](const std::string& name, std::size_t zeroed) {
    std::vector<float> values(500, 1.0f);
    for (std::size_t i = 0; i < zeroed; ++i) values[i] = i % 2 == 0 ? tiny : -tiny;
    values[498] = 0.0f, values[499] = std::nextafter(tiny, 1.0f);
    tensors[name] = {DType::kF32, {500}, floats(values)};
  };
  add("none", 0), add("few", 5), add("some", 6), add("most", 498);
  write_safetensors(temp / "in/model.safetensors", tensors);
  const auto zeroed = [&](DType dtype) { return convert(temp / "in", temp / name(dtype), {.dtype = dtype}).zeroed; };
  CHECK((zeroed(DType::kF16) == std::vector<std::pair<std::string, std::uint64_t>>{{"most", 498}, {"some", 6}}));
  CHECK(zeroed(DType::kBF16).empty());
}

TEST_CASE("Shares and resumed runs count the values that do not fit as one run does") {
  const TempDir temp;
  std::vector<float> values(3ull * 700 * 800, 1.5f);
  for (std::size_t i = 0; i < values.size(); i += 1000) values[i] = -1e30f;
  for (std::size_t i = 1; i < values.size(); i += 50) values[i] = 1e-30f;
  write_safetensors(temp / "in/model.safetensors", {{"big", {DType::kF32, {3, 700, 800}, floats(values)}},
                                                    {"fits", {DType::kF32, {2}, floats({1, -2})}}});
  const auto job = plan_convert(convert_request(temp / "in", temp / "out", {.dtype = DType::kF16}));
  const std::vector expected{std::pair(std::string("big"), std::uint64_t{1680})};
  const std::vector expected_zeroed{std::pair(std::string("big"), std::uint64_t{33600})};
  const RunResult alone = execute(*job, unsynced());
  CHECK((alone.saturated == expected));
  CHECK((alone.zeroed == expected_zeroed));
  const std::uint32_t count = GENERATE(2u, 5u);
  const auto parts = plan_convert(convert_request(temp / "in", temp / "parts", {.dtype = DType::kF16}));
  JobRun run(*parts, unsynced());
  run.prepare();
  ShareReport merged;
  for (std::uint32_t index = count; index-- > 0;) {
    ShareReport report = run.run({index, count});
    run.finish(report);
    merge(merged, read_report(report_bytes(report), parts->target));
  }
  const RunResult shared = run.publish(std::move(merged));
  CHECK((shared.saturated == expected));
  CHECK((shared.zeroed == expected_zeroed));
}

TEST_CASE("A dtype that cannot be cast is unsupported by name, unless it is left out or has that dtype already") {
  const TempDir temp;
  write_safetensors(temp / "in/model.safetensors",
                    {{"a", four(DType::kF32)}, {"packed", four(DType::kF4)}, {"z", four(DType::kC64)}});
  Request request = convert_request(temp / "in", temp / "out", {.dtype = DType::kBF16});
  check_refused([&] { plan_convert(request); }, {.kind = ErrorKind::kUnsupported,
                                                 .tensor = "packed",
                                                 .says = "is F4, which cannot be cast to BF16",
                                                 .hint = "`drop`"});
  request.names.drop.emplace_back("drop", "^packed$");
  check_refused([&] { plan_convert(request); }, {.kind = ErrorKind::kUnsupported, .tensor = "z"});
  request.names.drop.emplace_back("drop", "z");
  convert(request);
  CHECK(read_model(temp / "out").size() == 1);
}

TEST_CASE("A quantised weight is not cast without its scales, whatever says that it has some") {
  const TempDir temp;
  const char* const plain = R"({"model_type": "x"})";
  const char* const quantized = R"({"model_type": "x", "quantization_config": {"quant_method": "fp8", "dtype": "x"}})";
  struct Case {
    const char* scale;  // its name; none if empty
    const char* config;
    DType dtype;  // of the weight
    bool cast_all;
  };
  const Case cases[] = {
      {"l.weight_scale", plain, DType::kF8E4M3, false}, {"l.weight_scale_inv", plain, DType::kF8E5M2, false},
      {"l.scale", plain, DType::kF8E4M3FNUZ, false},    {"", quantized, DType::kF8E4M3, false},
      {"l.weight_scale", plain, DType::kI8, true},      {"", quantized, DType::kI32, true}};
  for (const Case& one : cases) {
    DYNAMIC_SECTION((*one.scale ? one.scale : "quantization_config") << ", " << name(one.dtype)) {
      TensorMap tensors{{"l.weight", four(one.dtype)}, {"norm", four(DType::kF32)}};
      if (*one.scale) tensors[one.scale] = four(DType::kF32);
      write_safetensors(temp / "in/model.safetensors", tensors);
      write_file(temp / "in/config.json", one.config);
      Request request = convert_request(temp / "in", temp / "out");
      CHECK_NOTHROW(plan_convert(request));
      request.cast_all = one.cast_all;
      for (const DType dtype : {DType::kF8E4M3, DType::kBF16}) {
        request.dtype = dtype;
        check_refused([&] { plan_convert(request); }, {.kind = ErrorKind::kUnsupported,
                                                       .tensor = "l.weight",
                                                       .says = {"is quantised", "scales"},
                                                       .hint = "`dtype`",
                                                       .unwritten = temp / "out"});
      }
      request.names.drop.emplace_back("drop", "^l\\.weight$");
      CHECK_NOTHROW(plan_convert(request));
    }
  }
}

TEST_CASE("A model is not cast to float8, which needs scales, but tensors without a model are, with a note") {
  const Input input;
  write_safetensors(input / "tensors/model.safetensors",
                    {{"a", four(DType::kF32)}, {"b", four(DType::kF8E5M2)}, {"i", four(DType::kI64)}});
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    const std::string name = describe(dtype).torch_name;
    INFO(name);
    const Refusal refusal{.kind = ErrorKind::kUnsupported,
                          .says = {"`dtype` " + name + " would cast all of the model", "no scales"},
                          .hint = {"a tool that writes scales", "`keep`"}};
    for (const std::string layout : {"hf", "ranks", "dcp"}) {
      RequestFields to{.layout = layout, .dtype = dtype};
      if (layout == "ranks") to.tp = 2;
      Request request = convert_request(input / "model", input / "out", to);
      check_refused([&] { plan_convert(request); }, refusal);
      request.names.keep.emplace_back("keep", ".");
      const auto notes = plan_convert(request)->notes;
      CHECK(std::count_if(notes.begin(), notes.end(), [&](const std::string& note) {
              return note.find("cast to " + name + " as plain numbers, without scales") != note.npos;
            }) == 1);
    }
    const RequestFields ranks{.tp = 2, .dtype = dtype};
    check_refused([&] { shard(input / "model", input / "out", ranks); }, {.kind = ErrorKind::kUnsupported});
    const auto notes = plan_convert(convert_request(input / "tensors", input / "out", {.dtype = dtype}))->notes;
    REQUIRE(notes.size() == 2);  // the first says that there is no config.json
    CHECK_THAT(notes[1], Says((dtype == DType::kF8E5M2 ? "1 tensor is" : "2 tensors are") + std::string(" cast to ") +
                              name + " as plain numbers"));
  }
}

TEST_CASE("Floats of 8 bits without scales are numbers as others, and are cast") {
  const TempDir temp;
  const TensorData weight = four(DType::kF8E4M3);
  write_safetensors(temp / "in/model.safetensors", {{"l.weight", weight}});
  write_file(temp / "in/config.json", R"({"model_type": "x", "quantization_config": null})");
  CHECK((converted(temp / "in", temp / "out", {.dtype = DType::kBF16}).at("l.weight") ==
         cast_whole(weight, DType::kBF16)));
}

TEST_CASE("Of a model whose quantised weights are integers the rest is cast, and a note says so") {
  const TempDir temp;
  TensorMap tensors{{"l.weight", four(DType::kI8)}, {"l.weight_scale", four(DType::kF16)}, {"norm", four(DType::kF16)}};
  write_safetensors(temp / "in/model.safetensors", tensors);
  const Notes unchanged = plan_convert(convert_request(temp / "in", temp / "out"))->notes;
  REQUIRE(unchanged.size() == 1);
  CHECK_THAT(unchanged[0], Says("there is no config.json"));
  const auto job = plan_convert(convert_request(temp / "in", temp / "out", {.dtype = DType::kBF16}));
  REQUIRE(job->notes.size() == 2);
  CHECK_THAT(job->notes[1], Says("quantised weights stay as they are"));
  execute(*job, unsynced());
  for (const char* name : {"l.weight_scale", "norm"}) tensors[name] = cast_whole(tensors[name], DType::kBF16);
  CHECK((read_model(temp / "out") == tensors));
}

}  // namespace
}  // namespace reshard::test
