// Any model, with optimizer states or without, in any layout that is written, from there in any other, and back: the
// layouts' traits and options say what there is to try. Files are compared with what oracles expect if these know the
// layout, and models and states with what they were. A failure prints its seed; RESHARD_TEST_SEED runs that one alone.

#include <fmt/format.h>

#include <set>

#include "reshard/layouts/training/trainer.h"
#include "reshard/plan/job/request.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/dcp.h"
#include "support/dtensors.h"
#include "support/errors.h"
#include "support/families.h"
#include "support/fault_storage.h"
#include "support/inference_oracle.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/older_folders.h"
#include "support/optimizer_oracle.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/requests.h"
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
  bool sub_byte = false;  // some of them: few meshes leave whole bytes, and torch has no such dtypes
  TensorMap tensors;
  std::optional<TinyModel> tiny;   // that the oracles know
  std::optional<TrainingRun> run;  // with the states of an optimizer
  bool is_flat = false;            // hyperparameters of every parameter by itself
};

void remove_weights(const fs::path& directory) {
  for (const auto& [name, content] : snapshot(directory))
    if (name != "config.json") fs::remove(directory / name);
}

/// Stores the model as a layout that is only read, or in more ways than it is written: `config.json` stays.
void store_as_trained(Random& random, const fs::path& directory, const TensorMap& tensors) {
  remove_weights(directory);
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

/// Stores the model with an optimizer.
void store_run(Random& random, const fs::path& directory, Sample& sample) {
  remove_weights(directory);
  if (sample.tiny) {
    sample.run = random() % 2 ? one_group(random, *sample.tiny) : random_training(random, *sample.tiny);
    sample.tensors = sample.run->weights;
    nlohmann::json config = sample.tiny->config();  // inference casts to its dtype
    config["torch_dtype"] = sample.tensors.begin()->second.dtype == DType::kF32 ? "float32" : "bfloat16";
    write_file(directory / "config.json", config.dump());
  } else {
    sample.run = one_step(random, sample.tensors);
  }
  sample.is_flat = random() % 2;
  write_dcp(directory, *sample.run, random, sample.is_flat);
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
    const std::uint64_t stored = sample.any_dtypes ? 0 : random() % 4;
    if (stored == 1) store_as_trained(random, directory, sample.tensors);
    if (stored > 1) store_run(random, directory, sample);
  } else {
    sample.experts = random() % 2 == 0;
    const std::vector<FamilyCase> cases = family_cases();
    const FamilyCase c = sample.experts
                             ? with_six_experts(kExpertFamilies[pick(random, 0, std::size(kExpertFamilies) - 1)])
                             : cases[pick(random, 0, cases.size() - 1)];
    sample.name = c.name;
    sample.tensors = write_case(c, directory);
    if (!c.json["config"].contains("quantization_config") && random() % 2) store_run(random, directory, sample);
  }
  write_file(directory / "tokenizer.json", "{}");
  return sample;
}

struct Placement {
  TargetRequest request;
  std::optional<OracleOptions> mesh;  // of a training layout whose rank files the oracle knows
  bool is_known = false;              // to the oracle of layouts for inference
};

/// Whether the oracle of layouts for inference knows the rank files. Those of nxdi have the names of llama's layers, and
/// are padded in bfloat16.
bool is_known_to_inference(const Sample& sample, const Layout* to) {
  return sample.tiny && sample.tensors.begin()->second.dtype == DType::kBF16 &&
         (to == layout("presharded") || to == layout("nxdi"));
}

/// Layouts that the oracles know.
constexpr std::string_view kKnown[] = {"ranks", "optimum", "nxd", "nxdi", "presharded"};

/// A placement whose rank files an oracle knows. Chance alone seldom makes sizes that divide: three in four meshes are
/// drawn until they do, as far as the model has any.
Placement known_placement(Random& random, const Sample& sample) {
  Placement placement;
  const std::uint64_t kinds = sample.sub_byte ? 1 : sample.any_dtypes ? 3 : 5;  // inference casts
  const bool is_next_run = sample.run && random() % 2;  // in the layouts that training goes on from
  placement.request.layout = layout(kKnown[is_next_run ? pick(random, 1, 2) : pick(random, 0, kinds - 1)]);
  TargetRequest& request = placement.request;
  const std::string name = request.layout->traits().name;
  const auto formats = request.layout->traits().formats;
  request.format = formats[sample.sub_byte ? 0 : pick(random, 0, formats.size() - 1)];
  request.ep = 1;
  if (request.layout->traits().has_stages()) {
    OracleOptions mesh = random_options(random, *sample.tiny);
    if (random() % 4 != 0 && !is_legal(*sample.tiny, mesh)) mesh = legal_options(random, *sample.tiny);
    if (name == "nxd") choose_qkv_linear(random, *sample.tiny, mesh);
    set_target(request, mesh);
    mesh.fuse_mlp = name != "ranks" || request.format == Format::kSafetensors;
    if (name == "nxd" && mesh.qkv_linear.empty()) request.options.set("qkv-linear", "auto");
    if (sample.run && request.layout->traits().writes_states()) {
      request.options.set_number("dp", pick(random, 1, 5));
      if (random() % 3 == 0) request.options.set("optimizer-groups", random() % 4 ? "norms" : "one");
    }
    placement.mesh = mesh;
    return placement;
  }
  request.tp = static_cast<std::uint32_t>(pick(random, 1, 9));
  request.pp = 1;
  if (name == "presharded")
    request.options.set_flag("pad", true);
  else
    for (const char* option : {"fuse-qkv", "vocab-parallel"}) request.options.set_flag(option, random() % 2);
  placement.is_known = is_known_to_inference(sample, request.layout);
  return placement;
}

/// A placement that knows of no model: many do not fit.
Placement random_placement(Random& random, const Sample& sample) {
  if (sample.any_dtypes || (sample.tiny && random() % (sample.run ? 4 : 2))) return known_placement(random, sample);
  TargetRequest request;
  std::vector<const Layout*> sharded;
  const bool spread = sample.experts && random() % 2 == 0;
  const bool is_unknown = sample.tiny && random() % 3 == 0;  // known_placement draws the others
  for (const Layout* one : layouts()) {
    const std::string_view name = one->traits().name;
    if (!one->traits().has_ranks() || !one->traits().is_written() || (spread && !one->traits().has_experts())) continue;
    if (name == "vllm" && sample.tiny && sample.tiny->inv_freq) continue;  // leaves buffers out
    if (!is_unknown || std::count(std::begin(kKnown), std::end(kKnown), name) == 0) sharded.push_back(one);
  }
  request.layout = sharded[pick(random, 0, sharded.size() - 1)];
  const LayoutTraits& traits = request.layout->traits();
  request.format = traits.formats[pick(random, 0, traits.formats.size() - 1)];
  request.tp = static_cast<std::uint32_t>(spread ? pick(random, 1, 2) : one_of(random, {1, 2, 2, 3, 4, 6, 8}));
  request.pp = traits.has_stages() ? static_cast<std::uint32_t>(pick(random, 1, 2)) : 1;
  request.ep = traits.has_experts() && sample.experts ? static_cast<std::uint32_t>(one_of(random, {1, 2, 3, 6})) : 1;
  for (const LayoutOption* option : request.layout->options()) {
    const std::string name = option->name;
    const bool is_idle = option->of_states && (!sample.run || *request.ep > 1 || random() % 2);
    if (option->only_of_source || is_idle) continue;
    if (name == "model-source") continue;  // known for few families
    if (option->type == LayoutOption::Type::kFlag) request.options.set_flag(name, random() % 4 == 0);
    if (option->type == LayoutOption::Type::kChoice)
      request.options.set(name, option->choices[pick(random, 0, option->choices.size() - 1)]);
    if (name == "names" && random() % 2) request.options.set(name, "torchtitan");
    if ((option->type == LayoutOption::Type::kDegree || option->type == LayoutOption::Type::kCount) &&
        random() % 3 == 0)
      request.options.set_number(name, one_of(random, {1, 2, 3, 4}));
  }
  return {request, {}, is_known_to_inference(sample, request.layout)};
}

std::string text_of(const TargetRequest& request) {
  std::string text = fmt::format("{} {} tp {} pp {} ep {}", request.layout->traits().name, name(*request.format),
                                 *request.tp, *request.pp, *request.ep);
  for (const auto& [option, value] : request.options.all()) text += fmt::format(" {} {}", option, value);
  return text;
}

bool has_option(const Layout* layout, const std::string& name, bool of_source = false) {
  const auto options = layout->options();
  return std::any_of(options.begin(), options.end(), [&](const LayoutOption* option) {
    return option->name == name && (option->of_source || !of_source);
  });
}

/// What has to be said of the source where the placement is read again.
OptionValues source_options_of(const TargetRequest& placement) {
  OptionValues values = placement.options;
  for (const std::string& name : values.names())
    if (!has_option(placement.layout, name, true)) values.erase(name);
  return values;
}

/// Whether the optimizer's states have a place.
bool takes_states(const TargetRequest& target) {
  return target.layout->traits().writes_states() && *target.ep == 1;
}

void drop_state_options(TargetRequest& target) {
  for (const LayoutOption* option : target.layout->options())
    if (option->of_states) target.options.erase(option->name);
}

/// Plans `request` without the states that it asks for, which is noted, or with states if it asks for none, which is
/// refused: `source` has no states, or the target has no place for them.
template <typename Request, typename Plan>
void check_other_plan(Request request, const LayoutTraits& source, bool has_states, const Plan& plan) {
  const LayoutTraits& target = request.target.layout->traits();
  request.source.with_optimizer = !request.source.with_optimizer;
  drop_state_options(request.target);
  if (!request.source.with_optimizer) {
    CHECK_THAT(joined_notes(*plan(request)), Says("`with-optimizer` includes its optimizer"));
    return;
  }
  Refusal refusal{.kind = ErrorKind::kUsage, .unwritten = request.output_directory};
  if (!target.writes_states()) {
    refusal.says = fmt::format("of layout {} have no place for optimizer states", target.name);
    refusal.hint = "layouts with optimizer states: ";
  } else if (!source.reads_states()) {
    refusal.says = fmt::format("one in layout {} is not a checkpoint whose optimizer can be read", source.name);
    refusal.hint = "it is for sources in layout ";
  } else if (!has_states) {
    refusal.kind = ErrorKind::kBadInput;
    refusal.says = "contains no optimizer files";
    refusal.hint = "the run was saved without its optimizer";
  } else if (request.target.format != Format::kXser) {
    CHECK_NOTHROW(plan(request));  // expert_states_test compares such states
    return;
  } else {
    refusal.kind = ErrorKind::kUnsupported;
    refusal.says = fmt::format(" {} expert-parallel ranks", *request.target.ep);
    refusal.hint = ", or leave out `with-optimizer`";
  }
  check_refused([&] { plan(request); }, refusal);
}

/// \returns null if the model cannot be placed so. `why` gets the reason.
std::unique_ptr<Job> place(const fs::path& model, const Sample& sample, const fs::path& output,
                           const TargetRequest& placement, const RunOptions& options = unsynced(),
                           std::string* why = nullptr) {
  Request request = shard_request(model, output);
  request.target = placement;
  request.source.with_optimizer = sample.run && takes_states(placement);
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
  if (sample.run)
    check_other_plan(request, layout("dcp")->traits(), true, [](const auto& other) { return plan_shard(other); });
  execute(*job, options);
  return job;
}

/// The rule by which parameters are grouped anew, or nothing.
std::string group_rule(const TargetRequest& target) {
  return target.options.has("optimizer-groups") ? target.options.all().at("optimizer-groups") : "";
}

/// The folder of a training layout that has the folders model and optim.
fs::path stage_folder(const fs::path& output, const TargetRequest& target) {
  return fs::exists(output / "model") ? output : output / target.layout->traits().folder;
}

/// Compares the optimizer's files and the notes on its groups with what the oracle expects.
void check_optimizer(const fs::path& output, const Sample& sample, const Placement& placement, const Job& job) {
  const fs::path folder = stage_folder(output, placement.request);
  const bool by_norms = group_rule(placement.request) == "norms";
  check_saved_trees(folder / "optim",
                    expected_optimizer(by_norms ? grouped_by_rule(*sample.run) : *sample.run, *placement.mesh,
                                       *placement.request.options.number(kDataParallel), folder / "model"));
  for (const char* marker : {"checkpoint", "done"}) CHECK(read_file(folder / marker) == "1");
  const auto says = [&](const char* text) { return joined_notes(job).find(text) != std::string::npos; };
  CHECK(says("the source has hyperparameters per parameter") ==
        (sample.is_flat && group_rule(placement.request).empty()));
  CHECK(says("parameter groups, but the source has 1") == (by_norms && !sample.run->has_two_groups));
}

/// Compares rank files with the oracle's.
void check_ranks(const fs::path& output, const Sample& sample, const Placement& placement, const Job& job) {
  if (placement.mesh) CHECK((read_shards(output) == expected_ranks(*sample.tiny, sample.tensors, *placement.mesh)));
  if (placement.mesh && sample.run && takes_states(placement.request)) check_optimizer(output, sample, placement, job);
  if (!placement.is_known) return;
  const TargetRequest& request = placement.request;
  const auto ranks = read_weights(output);
  REQUIRE(ranks.size() == *request.tp);
  for (std::uint32_t rank = 0; rank < *request.tp; ++rank)
    CHECK((ranks.at("weights/tp" + std::to_string(rank) + "_sharded_checkpoint.safetensors") ==
           (request.layout == layout("nxdi")
                ? expected_nxdi(*sample.tiny, sample.tensors, *request.tp, rank, request.options.has("fuse-qkv"),
                                request.options.has("vocab-parallel") && sample.tiny->model_type == "llama")
                : expected_presharded(sample.tensors, *request.tp, rank))));
}

/// Blocks of any size make the same files.
void check_blocks(const Job& job, Random& random, const fs::path& small) {
  if (random() % 3 != 0) return;
  run_in_blocks(job, small, one_of(random, {1, 7, 64, 1000}), static_cast<unsigned>(pick(random, 1, 3)));
  for (const TargetFile& file : job.target.files)
    CHECK((read_file(small / file.path) == read_file(job.output_directory / file.path)));
  fs::remove_all(small);
}

/// Says by options what a conversion keeps of its source: attention, fused linears, how states are spread. \returns false if there is no such option.
bool say_what_is_kept(const Job& conversion, const TargetRequest& first, TargetRequest& target) {
  const PartitionOptions& source = conversion.source_partition;
  for (const LayoutOption* option : target.layout->options()) {
    const std::string name = option->name;
    const bool is_open = option->of_states && (!target.options.has(name) || target.options.all().at(name) == "auto");
    if (is_open && takes_states(target) && first.options.has(name))
      target.options.set(name, first.options.all().at(name));
  }
  if (!target.layout->traits().has_stages() || !conversion.attention) return true;
  const AttentionReport& attention = *conversion.attention;
  const bool has_switch = has_option(target.layout, "qkv-linear");
  const bool is_auto = !has_switch || target.options.all().at("qkv-linear") == "auto";
  if (is_auto && is_fused(source.attention)) target.options.set("fuse-qkv");
  if (has_switch && is_auto && is_grouped_query(source.attention)) target.options.set("qkv-linear", "on");
  if (source.fuse_linears.value_or(false) && target.format == Format::kPytorch &&
      has_option(target.layout, "fuse-linears"))
    target.options.set("fuse-linears");
  if (*first.tp == *target.tp) {
    if (has_switch) target.options.set_flag("pad-attn-heads", target.options.has("pad-attn-heads") || source.pad_heads);
    const bool pad = target.options.has("pad-attn-heads");
    if (source.kv_size_multiplier && !target.options.has("kv-size-multiplier") &&
        multiplier_problem(attention.heads, attention.kv_heads, *first.tp, *source.kv_size_multiplier, pad).empty()) {
      target.options.set_number("kv-size-multiplier", *source.kv_size_multiplier);
    }
  }
  return has_switch || !is_grouped_query(attention.form) || needs_gqa_qkv(attention.kv_heads, *target.tp);
}

/// The whole model again, in torch's format or safetensors, with small files and blocks at times.
TensorMap put_together(const fs::path& shards, const fs::path& output, const Sample& sample,
                       const TargetRequest& placement, Random& random) {
  fs::remove_all(output);
  Request request = consolidate_request(shards, output);
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

/// Through torch.distributed.checkpoint, weights and states are what they were. Master weights are lost on the way if
/// `source` or what it was made of is in rank files: torch's optimizers have none.
void check_states(const fs::path& source, const TargetRequest& placement, bool has_masters, const fs::path& output,
                  const Sample& sample, Random& random) {
  fs::remove_all(output);
  Request request = convert_request(source, output, {.layout = "dcp", .with_optimizer = true});
  request.source.options = source_options_of(placement);
  request.target.options.set_number("fsdp", pick(random, 1, 3));
  convert(request);
  TensorMap weights, states, expected;
  for (auto& [name, data] : dcp::read(output).tensors) {
    const std::size_t begin = name.starts_with("optim.") ? 6 : name.starts_with("optimizer.") ? 10 : 0;
    (begin > 0 ? states : weights)[name.substr(begin)] = std::move(data);
  }
  for (const auto& [state, of] : sample.run->states)
    if (state != "master" || has_masters)
      for (const auto& [name, data] : of) expected[fmt::format("state.{}.{}", name, state)] = data;
  CHECK((states == expected));
  for (const auto& [name, data] : sample.tensors) CHECK((weights.at(name) == data));
}

/// The optimizer's files under `directory`.
std::map<std::string, std::string> optimizer_files(const fs::path& directory) {
  auto files = snapshot(directory);
  std::erase_if(files, [](const auto& file) { return file.first.find("optim/") == std::string::npos; });
  return files;
}

/// Arranges the rank files in `folder` as those of NxD's older folders, with the files beside them, in `to`.
void save_in_older_form(Random& random, const fs::path& directory, const fs::path& folder, const fs::path& to,
                        bool has_stages) {
  arrange_older(folder, to, static_cast<OlderForm>(one_of(random, {0, 1, has_stages ? 1u : 2u})), random() % 2);
  for (const fs::path& from : {directory, folder})
    for (const fs::directory_entry& entry : fs::directory_iterator(from))
      if (entry.path().extension() == ".json")
        fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing);
}

/// What a test run has met, of which there must be enough.
struct Met {
  std::set<std::string> families;
  std::map<const Layout*, std::size_t> placed, converted, known, with_states;  // the last by the source's layout
  std::size_t padded = 0, adjacent = 0, spread = 0, illegal = 0, through_dcp = 0;

  void add(const Sample& sample, const Placement& placement, const Job& job) {
    const TargetRequest& request = placement.request;
    families.insert(sample.name.substr(0, sample.name.find(' ')));
    ++placed[request.layout];
    known[request.layout] += placement.mesh || placement.is_known;
    padded += std::any_of(job.target.logical.begin(), job.target.logical.end(),
                          [](const LogicalTensor& tensor) { return tensor.is_padding(); });
    for (const LayoutOption* option : request.layout->options())
      adjacent += option->type == LayoutOption::Type::kChoice && request.options.choice(*option) == "adjacent";
    spread += *request.ep > 1;
  }

  void check() {
    CHECK(families.size() > 25);
    for (const Layout* one : layouts()) {
      if (!one->traits().has_ranks() || !one->traits().is_written()) continue;
      CAPTURE(one->traits().name);
      CHECK(placed.at(one) > 5);
      CHECK(converted.at(one) > 2);
    }
    for (const std::string_view name : kKnown) {
      CAPTURE(name);
      CHECK(known.at(layout(name)) > 15);
    }
    CHECK(padded > 10);
    CHECK(adjacent > 3);
    CHECK(spread > 10);
    CHECK(illegal > 10);
    for (const Layout* one : layouts())
      if (one->traits().reads_states()) CHECK(with_states[one] > 5);
    CHECK(through_dcp > 3);
  }
};

/// A checkpoint of a sample.
struct Stored {
  fs::path path;
  const Layout* layout;
  bool has_states;
};

/// From the first placement to the second, as if the second had been made of the model, and back.
void check_conversion(const fs::path& directory, const Sample& sample, const Stored& source, const TargetRequest& first,
                      const TargetRequest& second, Random& random) {
  Request request = convert_request(source.path, directory / "converted");
  request.source.options = source_options_of(first);
  request.source.with_optimizer = source.has_states && takes_states(second);
  request.target = second;
  if (!source.has_states) drop_state_options(request.target);
  std::unique_ptr<Job> conversion;
  try {
    conversion = plan_convert(request);
  } catch (const Error& error) {  // the source's attention module is kept, which `second` alone does without
    REQUIRE(second.options.has("kv-size-multiplier"));
    CHECK_THAT(error.what(), Says("with a key/value multiplier of"));
    return;
  }
  if (sample.run)
    check_other_plan(request, source.layout->traits(), source.has_states,
                     [](const auto& other) { return plan_convert(other); });
  execute(*conversion, unsynced());
  check_blocks(*conversion, random, directory / "converted-blocks");
  TargetRequest said = second;
  const bool can_say = say_what_is_kept(*conversion, first, said);
  fs::remove_all(directory / "second");
  REQUIRE(place(directory / "model", sample, directory / "second", said));
  if (!second.layout->traits().needs_no_mesh() && can_say)
    CHECK((read_shards(directory / "converted") == read_shards(directory / "second")));
  CHECK((put_together(directory / "converted", directory / "whole", sample, second, random) == sample.tensors));
  if (!request.source.with_optimizer) return;
  if (can_say) CHECK((optimizer_files(directory / "converted") == optimizer_files(directory / "second")));
  const bool has_masters = source.layout == second.layout && second.layout == layout("dcp");
  check_states(directory / "converted", second, has_masters, directory / "states", sample, random);
}

/// The states of a checkpoint are those of the sample, and make the same checkpoint again.
void check_first_states(const fs::path& directory, const Sample& sample, const TargetRequest& first, Random& random) {
  const bool has_masters = first.layout == layout("dcp");
  check_states(directory / "first", first, has_masters, directory / "states", sample, random);
  if (!has_masters && sample.run->states.count("master") > 0) return;
  REQUIRE(place(directory / "states", sample, directory / "again", first));
  CHECK((snapshot(directory / "again") == snapshot(directory / "first")));
}

/// The first placement, which NxD may have saved in other forms than those that are written.
Stored stored_by_trainer(Random& random, const fs::path& directory, const Sample& sample, const Placement& first,
                         Met& met) {
  Stored stored{directory / "first", first.request.layout, sample.run && takes_states(first.request)};
  if (stored.has_states && first.mesh) {
    const fs::path folder = stage_folder(stored.path, first.request);
    const TrainingRun& run = *sample.run;
    const bool has_other_form = stored.layout == layout("nxd") && first.request.format == Format::kPytorch &&
                                group_rule(first.request) != "norms" && !run.has_two_groups &&
                                run.states.count("master") == 0 && run.states.at("step").count("model.norm.weight") > 0;
    if (has_other_form) {
      save_through_dcp(random, folder, run, *first.mesh);
      ++met.through_dcp;
    } else if (random() % 2) {
      save_in_older_form(random, stored.path, folder, directory / "older", *first.request.pp > 1);
      stored = {directory / "older", layout("ranks"), true};
    }
    check_states(stored.path, first.request, false, directory / "states", sample, random);
  }
  met.with_states[stored.layout] += stored.has_states;
  return stored;
}

TEST_CASE("Any model is what the oracle expects in any layout, becomes any other layout, and comes back") {
  Met met;
  for (const std::uint64_t seed : seeds(560)) {
    Random random(seed);
    const TempDir temp;
    const Sample sample = random_sample(random, temp / "model");
    const Placement first = random_placement(random, sample), second = random_placement(random, sample);
    INFO("RESHARD_TEST_SEED=" << seed << " " << sample.name << (sample.run ? ", with states" : "") << "\n"
                              << text_of(first.request) << "\n"
                              << text_of(second.request));
    const auto before = snapshot(temp.path());
    FaultStorage storage;
    std::string why;
    const auto job = place(temp / "model", sample, temp / "first", first.request, random_run(random, storage), &why);
    const bool is_legal_mesh = !first.mesh || is_legal(*sample.tiny, *first.mesh);
    const bool joins_groups = sample.run && sample.run->has_two_groups && group_rule(first.request) == "one";
    if (first.mesh && !sample.any_dtypes) CHECK((job != nullptr) == (is_legal_mesh && !joins_groups));
    if (!job) {
      // Elements of less than a byte may not divide where others do.
      if (first.mesh && sample.any_dtypes && is_legal_mesh) CHECK(why.find("packed byte") != why.npos);
      if (first.mesh && joins_groups && is_legal_mesh)
        CHECK_THAT(why, Says("according to rule one it is in one group with"));
      CHECK(snapshot(temp.path()) == before);
      met.illegal += !is_legal_mesh;
      continue;
    }
    CHECK(is_legal_mesh);
    check_ranks(temp / "first", sample, first, *job);
    if (!first.request.layout->traits().needs_no_mesh())
      CHECK((check_crcs(temp / "first") > 0) == (job->format != Format::kSafetensors));
    check_blocks(*job, random, temp / "first-blocks");
    CHECK((put_together(temp / "first", temp / "whole", sample, first.request, random) == sample.tensors));
    CHECK(read_file(temp / "whole/tokenizer.json") == "{}");
    met.add(sample, first, *job);
    if (sample.run && takes_states(first.request)) check_first_states(temp.path(), sample, first.request, random);
    const Stored source = stored_by_trainer(random, temp.path(), sample, first, met);
    const auto job_of_second = place(temp / "model", sample, temp / "second", second.request);
    if (!job_of_second) continue;
    check_ranks(temp / "second", sample, second, *job_of_second);
    met.add(sample, second, *job_of_second);
    check_conversion(temp.path(), sample, source, first.request, second.request, random);
    ++met.converted[second.request.layout];
  }
  if (has_all_seeds()) met.check();
}

}  // namespace
}  // namespace reshard::test
