// Any model in any layout that is written, from there in any other, and back: the layouts' traits and options say what
// there is to try. Rank files are compared with what oracles expect where these know the layout, and models with what
// they were. A failure prints its seed; RESHARD_TEST_SEED runs that one alone.

#include <fmt/format.h>

#include <set>

#include "reshard/layouts/training/training_layout.h"
#include "reshard/plan/job/convert.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/dtensors.h"
#include "support/errors.h"
#include "support/families.h"
#include "support/fault_storage.h"
#include "support/inference_oracle.h"
#include "support/input.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/temp_dir.h"
#include "support/training_runs.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// Linears that may be fused get one dtype; everything else its own. One that the shape cannot have becomes bytes.
TensorMap random_dtypes(const TinyModel& model, bool sub_byte, Random& random) {
  std::map<std::string, DType> dtypes;
  for (const TinyParameter& parameter : parameters_of(model)) {
    DType dtype = kDTypes[random() % std::size(kDTypes)].dtype;
    if (!sub_byte && bits(dtype) < 8) dtype = DType::kBF16;
    dtype = dtypes.emplace(joined_name(parameter.name), dtype).first->second;
    if (!num_bytes(dtype, parameter.shape)) dtypes[joined_name(parameter.name)] = DType::kU8;
  }
  TensorMap tensors;
  for (const TinyParameter& parameter : parameters_of(model))
    tensors[parameter.name] = random_tensor(random, dtypes.at(joined_name(parameter.name)), parameter.shape);
  return tensors;
}

struct Sample {
  std::string name;
  bool experts = false;
  bool any_dtypes = false;
  bool sub_byte = false;    // some of them: few meshes leave whole bytes, and torch has no such dtypes
  bool is_trained = false;  // in a layout that training programs write
  TensorMap tensors;
  std::optional<TinyModel> tiny;  // that the oracles know
};

/// Stores the model as a layout that is only read, or in more ways than it is written: `config.json` stays.
void store_as_trained(Random& random, const fs::path& directory, const TensorMap& tensors) {
  for (const auto& [name, content] : snapshot(directory))
    if (name != "config.json") fs::remove(directory / name);
  const std::uint64_t ranks = pick(random, 1, 3);
  if (random() % 2) {
    Saved saved;
    for (const auto& [name, data] : tensors) saved.add("model." + name, data, ranks);
    saved.write(directory);
    return;
  }
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    SavedFile file;
    std::vector<std::pair<std::string, std::string>> items;
    for (const auto& [name, data] : tensors) {
      const std::vector<dcp::Part> parts = row_parts(data.shape, ranks);
      TensorData part{data.dtype, data.shape, {}};
      part.shape[0] = 0;
      if (rank < parts.size())
        part = {data.dtype, parts[rank].size, dcp::slice(data, parts[rank].begin, parts[rank].size)};
      items.emplace_back(name, pickled_dtensor(file, part, data.shape, {{ranks}}, {rank}, {{'S', 0}}));
    }
    file.save(directory / fmt::format("model_world_size_{}_rank_{}.pt", ranks, rank), pickles::dict(items));
  }
}

/// A model of any family in `directory`.
Sample random_sample(Random& random, const fs::path& directory) {
  Sample sample;
  if (random() % 2 == 0) {
    const TinyModel model = random_model(random);
    sample.name = model.model_type + " " + model.config().dump();
    sample.tiny = model;
    sample.any_dtypes = random() % 4 == 0;
    sample.sub_byte = sample.any_dtypes && random() % 3 == 0;
    sample.tensors = sample.any_dtypes ? random_dtypes(model, sample.sub_byte, random) : random_tensors(model, random);
    TensorMap written = sample.tensors;
    if (model.tied && random() % 2) written["lm_head.weight"] = written["model.embed_tokens.weight"];
    write_model(directory, model, written, pick(random, 1, 3));
    sample.is_trained = !sample.any_dtypes && random() % 2;
    if (sample.is_trained) store_as_trained(random, directory, sample.tensors);
  } else if (random() % 2 == 0) {
    const FamilyCase c = with_six_experts(kExpertFamilies[pick(random, 0, std::size(kExpertFamilies) - 1)]);
    sample = {.name = c.name, .experts = true, .tensors = write_case(c, directory), .tiny = {}};
  } else {
    const std::vector<FamilyCase> cases = family_cases();
    const FamilyCase& c = cases[pick(random, 0, cases.size() - 1)];
    sample = {.name = c.name, .tensors = write_case(c, directory), .tiny = {}};
  }
  write_file(directory / "tokenizer.json", "{}");
  return sample;
}

struct Placement {
  TargetRequest request;
  std::optional<OracleOptions> mesh;  // of a training layout whose rank files the oracle knows
  bool is_known = false;              // to the oracle of layouts for inference
};

/// Whether the oracle of layouts for inference knows the rank files. Those of nxdi have the names of llama's layers.
bool is_known_to_inference(const Sample& sample, const Layout* to) {
  return sample.tiny && (to == layout("presharded") || to == layout("nxdi"));
}

/// A placement whose rank files an oracle knows. Chance alone seldom makes sizes that divide: three in four meshes are
/// drawn until they do, as far as the model has any.
Placement known_placement(Random& random, const Sample& sample) {
  static constexpr const char* kKnown[] = {"ranks", "optimum", "nxd", "nxdi", "presharded"};
  Placement placement;
  const std::uint64_t kinds = sample.sub_byte ? 1 : sample.any_dtypes ? 3 : 5;  // inference casts
  placement.request.layout = layout(kKnown[pick(random, 0, kinds - 1)]);
  TargetRequest& request = placement.request;
  const std::string name = request.layout->traits().name;
  const auto formats = request.layout->traits().formats;
  request.format = formats[sample.sub_byte ? 0 : pick(random, 0, formats.size() - 1)];
  request.ep = 1;
  if (request.layout->traits().has_stages) {
    OracleOptions mesh = random_options(random, *sample.tiny);
    if (random() % 4 != 0 && !is_legal(*sample.tiny, mesh)) mesh = legal_options(random, *sample.tiny);
    if (name == "nxd") choose_qkv_linear(random, *sample.tiny, mesh);
    set_target(request, mesh);
    mesh.fuse_mlp = name != "ranks" || request.format == Format::kSafetensors;
    if (name == "nxd" && mesh.qkv_linear.empty()) request.options.set("qkv-linear", "auto");
    placement.mesh = mesh;
    return placement;
  }
  request.tp = static_cast<std::uint32_t>(pick(random, 1, 9));
  request.pp = 1;
  if (name == "presharded")
    request.options.set_flag("pad", true);
  else
    for (const char* option : {"fuse-qkv", "vocab-parallel"}) request.options.set_flag(option, random() % 2);
  placement.is_known = true;
  return placement;
}

/// A placement that knows of no model: many do not fit.
Placement random_placement(Random& random, const Sample& sample) {
  if (sample.any_dtypes || (sample.tiny && random() % 2)) return known_placement(random, sample);
  TargetRequest request;
  std::vector<const Layout*> sharded;
  const bool spread = sample.experts && random() % 2 == 0;
  for (const Layout* one : layouts())
    if (one->traits().has_ranks && one->traits().is_written() && (!spread || one->traits().has_experts))
      sharded.push_back(one);
  request.layout = sharded[pick(random, 0, sharded.size() - 1)];
  const LayoutTraits& traits = request.layout->traits();
  request.format = traits.formats[pick(random, 0, traits.formats.size() - 1)];
  request.tp = static_cast<std::uint32_t>(spread ? pick(random, 1, 2) : one_of(random, {1, 2, 2, 3, 4, 6, 8}));
  request.pp = traits.has_stages ? static_cast<std::uint32_t>(pick(random, 1, 2)) : 1;
  request.ep = traits.has_experts && sample.experts ? static_cast<std::uint32_t>(one_of(random, {1, 2, 3, 6})) : 1;
  for (const LayoutOption* option : request.layout->options()) {
    const std::string name = option->name;
    if (option->only_of_source || (sample.is_trained && option->of_states)) continue;
    if (option->type == LayoutOption::Type::kFlag) request.options.set_flag(name, random() % 2);
    if (option->type == LayoutOption::Type::kChoice)
      request.options.set(name, option->choices[pick(random, 0, option->choices.size() - 1)]);
    if (option->type == LayoutOption::Type::kCount && random() % 3 == 0)
      request.options.set_number(name, one_of(random, {1, 2, 3, 4}));
  }
  return {request, {}, is_known_to_inference(sample, request.layout)};
}

std::string text_of(const TargetRequest& request) {
  std::string text = std::string(request.layout->traits().name) + " " + std::string(name(*request.format)) + " tp " +
                     std::to_string(*request.tp) + " pp " + std::to_string(*request.pp) + " ep " +
                     std::to_string(*request.ep);
  for (const LayoutOption* option : request.layout->options())
    if (request.options.has(option->name))
      text +=
          std::string(" ") + option->name +
          (option->type == LayoutOption::Type::kCount ? " " + std::to_string(*request.options.number(*option)) : "");
  return text;
}

/// What has to be said of the source where the placement is read again.
OptionValues source_options_of(const TargetRequest& placement) {
  OptionValues values = placement.options;
  for (const std::string& name : values.names()) {
    const auto options = placement.layout->options();
    const bool of_source = std::any_of(options.begin(), options.end(), [&](const LayoutOption* option) {
      return option->of_source && name == option->name;
    });
    if (!of_source) values.erase(name);
  }
  return values;
}

/// \returns null if the model cannot be placed so. `why` gets the reason.
std::unique_ptr<Job> place(const fs::path& model, const fs::path& output, const TargetRequest& placement,
                           const RunOptions& options = unsynced(), std::string* why = nullptr) {
  ShardRequest request = shard_request(model, output);
  request.target = placement;
  std::unique_ptr<Job> job;
  try {
    job = plan_shard(request);
  } catch (const Error& error) {
    INFO(error.what());
    CHECK((error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kUnsupported));
    CHECK_FALSE(error.hint().empty());
    CHECK_FALSE(fs::exists(output));
    if (why) *why = error.what();
    return nullptr;
  }
  execute(*job, options);
  return job;
}

/// Compares rank files with the oracle's.
void check_ranks(const fs::path& output, const Sample& sample, const Placement& placement) {
  if (placement.mesh) CHECK((read_shards(output) == expected_ranks(*sample.tiny, sample.tensors, *placement.mesh)));
  if (!placement.is_known) return;
  const TargetRequest& request = placement.request;
  const auto ranks = read_weights(output);
  REQUIRE(ranks.size() == *request.tp);
  for (std::uint32_t rank = 0; rank < *request.tp; ++rank)
    CHECK((ranks.at("weights/tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors") ==
           (request.layout == layout("nxdi")
                ? expected_nxdi(*sample.tiny, sample.tensors, *request.tp, rank, request.options.has("fuse-qkv"),
                                request.options.has("vocab-parallel"))
                : expected_presharded(sample.tensors, *request.tp, rank))));
}

/// Blocks of any size make the same files.
void check_blocks(const Job& job, Random& random, const fs::path& small) {
  if (random() % 3 != 0) return;
  run_in_blocks(job, small, one_of(random, {1, 7, 64, 1000}), static_cast<unsigned>(pick(random, 1, 3)));
  for (const TensorFile& file : job.target.files)
    CHECK((read_file(small / file.path) == read_file(job.output_directory / file.path)));
  fs::remove_all(small);
}

/// Says by options what a conversion keeps of its source's attention. \returns false if there is no such option.
bool say_what_is_kept(const Job& conversion, std::uint32_t source_tp, TargetRequest& target) {
  const PartitionOptions& source = conversion.source_partition;
  if (dynamic_cast<const TrainingLayout*>(target.layout) == nullptr || !conversion.attention) return true;
  const AttentionReport& attention = *conversion.attention;
  const auto options = target.layout->options();
  const bool has_switch = std::any_of(options.begin(), options.end(), [](const LayoutOption* option) {
    return option->name == std::string("qkv-linear");
  });
  const bool is_auto = !has_switch || target.options.all().at("qkv-linear") == "auto";
  if (is_auto && is_fused(source.attention)) target.options.set("fuse-qkv");
  if (has_switch && is_auto && is_grouped_query(source.attention)) target.options.set("qkv-linear", "on");
  if (source_tp == *target.tp) {
    if (has_switch) target.options.set_flag("pad-attn-heads", target.options.has("pad-attn-heads") || source.pad_heads);
    const bool pad = target.options.has("pad-attn-heads");
    if (source.kv_size_multiplier && !target.options.has("kv-size-multiplier") &&
        multiplier_problem(attention.heads, attention.kv_heads, source_tp, *source.kv_size_multiplier, pad).empty()) {
      target.options.set_number("kv-size-multiplier", *source.kv_size_multiplier);
    }
  }
  return has_switch || !is_grouped_query(attention.form) || needs_gqa_qkv(attention.kv_heads, *target.tp);
}

bool is_torch(const Job& job) {
  return job.format == Format::kPytorch || job.format == Format::kXser;
}

/// The whole model again, in torch's format or safetensors, with small files and blocks at times.
TensorMap put_together(const fs::path& shards, const fs::path& output, const Sample& sample,
                       const TargetRequest& placement, Random& random) {
  fs::remove_all(output);
  ConsolidateRequest request = consolidate_request(shards, output);
  request.source.options = source_options_of(placement);
  if (!sample.sub_byte && random() % 4 == 0) request.target.format = Format::kPytorch;
  if (random() % 3 == 0) request.target.options.set_number("max-shard-size", pick(random, 1, 5000));
  FaultStorage storage;  // spares the disk the syncs
  const auto job = plan_consolidate(request);
  execute(*job, random_run(random, storage));
  CHECK((check_crcs(output) > 0) == (job->format == Format::kPytorch));
  check_blocks(*job, random, output.string() + "-blocks");
  if (job->format == Format::kPytorch) return converted(output, output.string() + "-again");
  return read_model(output);
}

/// What a test run has met, of which there must be enough.
struct Met {
  std::set<std::string> families;
  std::map<const Layout*, std::size_t> placed, converted, known;
  std::size_t padded = 0, adjacent = 0, spread = 0, illegal = 0;

  void add(const Sample& sample, const Placement& placement, const Job& job) {
    const TargetRequest& request = placement.request;
    families.insert(sample.name.substr(0, sample.name.find(' ')));
    ++placed[request.layout];
    known[request.layout] += placement.mesh || placement.is_known;
    padded += std::any_of(job.target.logical.begin(), job.target.logical.end(),
                          [](const LogicalTensor& tensor) { return tensor.filler.fill() == Filler::Fill::kPadding; });
    for (const LayoutOption* option : request.layout->options())
      adjacent += option->type == LayoutOption::Type::kChoice && request.options.choice(*option) == "adjacent";
    spread += *request.ep > 1;
  }

  void check() const {
    CHECK(families.size() > 25);
    for (const Layout* one : layouts()) {
      if (!one->traits().has_ranks || !one->traits().is_written()) continue;
      CAPTURE(one->traits().name);
      CHECK(placed.at(one) > 5);
      CHECK(converted.at(one) > 2);
    }
    for (const char* name : {"ranks", "optimum", "nxd", "nxdi", "presharded"}) {
      CAPTURE(name);
      CHECK(known.at(layout(name)) > 10);
    }
    CHECK(padded > 10);
    CHECK(adjacent > 5);
    CHECK(spread > 10);
    CHECK(illegal > 10);
  }
};

/// From the first placement to the second, as if the second had been made of the model, and back.
void check_conversion(const fs::path& directory, const Sample& sample, const TargetRequest& first,
                      const TargetRequest& second, Random& random) {
  ConvertRequest request = convert_request(directory / "first", directory / "converted");
  request.source.options = source_options_of(first);
  request.target = second;
  const auto conversion = plan_convert(request);
  execute(*conversion, unsynced());
  check_blocks(*conversion, random, directory / "converted-blocks");
  TargetRequest said = second;
  const bool can_say = say_what_is_kept(*conversion, *first.tp, said);
  fs::remove_all(directory / "second");
  REQUIRE(place(directory / "model", directory / "second", said));
  if (!second.layout->traits().needs_no_mesh && can_say)
    CHECK((read_shards(directory / "converted") == read_shards(directory / "second")));
  CHECK((put_together(directory / "converted", directory / "whole", sample, second, random) == sample.tensors));
}

TEST_CASE("Any model is what the oracle expects in any layout, becomes any other layout, and comes back") {
  Met met;
  for (const std::uint64_t seed : seeds(480)) {
    Random random(seed);
    const TempDir temp;
    const Sample sample = random_sample(random, temp / "model");
    const Placement first = random_placement(random, sample), second = random_placement(random, sample);
    INFO("RESHARD_TEST_SEED=" << seed << " " << sample.name << "\n"
                              << text_of(first.request) << "\n"
                              << text_of(second.request));
    const auto before = snapshot(temp.path());
    FaultStorage storage;
    std::string why;
    const auto job = place(temp / "model", temp / "first", first.request, random_run(random, storage), &why);
    const bool is_legal_mesh = !first.mesh || is_legal(*sample.tiny, *first.mesh);
    if (first.mesh && !sample.any_dtypes) CHECK((job != nullptr) == is_legal_mesh);
    if (!job) {
      // Elements of less than a byte may not divide where others do.
      if (first.mesh && sample.any_dtypes && is_legal_mesh) CHECK(why.find("packed byte") != why.npos);
      CHECK(snapshot(temp.path()) == before);
      met.illegal += !is_legal_mesh;
      continue;
    }
    CHECK(is_legal_mesh);
    check_ranks(temp / "first", sample, first);
    if (!first.request.layout->traits().needs_no_mesh) CHECK((check_crcs(temp / "first") > 0) == is_torch(*job));
    check_blocks(*job, random, temp / "first-blocks");
    CHECK((put_together(temp / "first", temp / "whole", sample, first.request, random) == sample.tensors));
    CHECK(read_file(temp / "whole/tokenizer.json") == "{}");
    met.add(sample, first, *job);
    if (!place(temp / "model", temp / "second", second.request)) continue;
    check_ranks(temp / "second", sample, second);
    check_conversion(temp.path(), sample, first.request, second.request, random);
    ++met.converted[second.request.layout];
  }
  if (has_all_seeds()) met.check();
}

TEST_CASE("Every family is padded where the ranks do not divide and it may be, and comes back") {
  std::size_t filled = 0, refused = 0;
  for (const FamilyCase& c : family_cases()) {
    const TempDir temp;
    const TensorMap tensors = write_case(c, temp / "model");
    for (const std::uint32_t tp : {2u, 3u, 5u, 7u}) {
      CAPTURE(c.name, tp);
      fs::remove_all(temp / "out");
      const RequestFields padded{.layout = "presharded", .tp = tp, .options = {"pad"}};
      if (!place(temp / "model", temp / "out", shard_request({}, {}, padded).target)) {
        ++refused;
        continue;
      }
      std::uint32_t rank = 0;
      const auto ranks = read_weights(temp / "out");
      REQUIRE(ranks.size() == tp);
      for (const auto& [file, held] : ranks) {
        for (const auto& tensor : c.json["tensors"]) {
          const auto tensor_name = tensor["name"].get<std::string>();
          const int dim = tensor["split"].get<int>();
          const TensorData& whole = tensors.at(tensor_name);
          CAPTURE(file, tensor_name);
          REQUIRE(held.count(tensor_name) == 1);
          const std::uint64_t size = dim < 0 ? 0 : whole.shape[static_cast<std::size_t>(dim)];
          // Blocks and groups of what is quantised stay whole; how much that makes is another test's.
          const bool quantized = c.json["config"].contains("quantization_config");
          const std::uint64_t held_size = dim < 0 ? 0 : held.at(tensor_name).shape[static_cast<std::size_t>(dim)];
          if (size % tp == 0 && (!quantized || held_size == size / tp)) {
            CHECK((held.at(tensor_name) == rank_part(c, tensor, whole, tp, rank)));
            continue;
          }
          // Rows of a bias get the lowest bfloat16, as NxD's layers have it, all else zeros.
          const bool bias = tensor_name.ends_with(".bias");
          const std::uint64_t each = quantized ? held_size : (size + tp - 1) / tp;
          REQUIRE(each * tp >= size);
          const std::string filler = bias ? std::string("\x7f\xff") : std::string(bits(whole.dtype) / 8, '\0');
          CHECK((held.at(tensor_name) ==
                 slices(whole, static_cast<std::size_t>(dim), {{rank * each, (rank + 1) * each}}, filler)));
          ++filled;
        }
        ++rank;
      }
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
  }
  CHECK(filled > 500);
  CHECK(refused > 10);
}

TEST_CASE("Threads and memory do not change a byte of any output") {
  const Input input({}, [](const fs::path& directory) {
    const TinyModel model{.hidden = 384, .layers = 3, .vocab = 8192, .tied = true};  // tensors of several blocks
    Random random(5);
    const TensorMap tensors = random_tensors(model, random);
    write_model(directory, model, tensors, 2);
    return tensors;
  });
  std::map<std::string, std::string> ranks, whole;
  for (const unsigned threads : {1u, 2u, 3u, 7u}) {
    RunOptions options;
    options.threads = threads;
    options.max_memory_bytes = threads == 3 ? std::uint64_t{64} << 20 : kMinMemoryBytes * threads;
    for (const char* output : {"ranks", "whole"}) fs::remove_all(input / output);
    shard(shard_request(input / "model", input / "ranks", 4, 2), options);
    consolidate(consolidate_request(input / "ranks", input / "whole"), options);
    if (threads == 1) {
      ranks = snapshot(input / "ranks"), whole = snapshot(input / "whole");
      CHECK((read_model(input / "whole") == input.tensors));
    }
    CHECK((snapshot(input / "ranks") == ranks));
    CHECK((snapshot(input / "whole") == whole));
  }
}

}  // namespace
}  // namespace reshard::test
