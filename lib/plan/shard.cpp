#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/storage.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/hf_layout.h"
#include "reshard/layouts/sharded_layout.h"
#include "reshard/plan/job.h"
#include "reshard/specs/metadata.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrainingConfigFile = "trn_config.json";

void prove_directories(const ShardRequest& request) {
  std::error_code ignored;
  if (!fs::is_directory(request.model_directory))
    throw Error(ErrorKind::kBadInput, path_exists(request.model_directory) ? "is not a directory" : "no such directory")
        .in(request.model_directory)
        .hint("give the directory that holds config.json and the weights");
  if (fs::equivalent(request.model_directory, request.output_directory, ignored))
    throw Error(ErrorKind::kUsage, "the output directory is the model's own")
        .in(request.output_directory)
        .hint("choose another OUT_DIR");
}

Mesh mesh_of(const ShardRequest& request) {
  Mesh mesh{request.tp, request.pp.value_or(1), request.vpp};
  prove_mesh(mesh);
  if (request.pp || request.pipeline_cuts.empty()) return mesh;
  const std::size_t stages = request.pipeline_cuts.size() + 1;
  if (stages % mesh.vpp != 0)
    throw Error(ErrorKind::kUsage,
                fmt::format("--pipeline-cuts: {} cuts make {} stages, which --vpp {} does not divide",
                            request.pipeline_cuts.size(), stages, mesh.vpp));
  mesh.pp = static_cast<std::uint32_t>(std::min<std::size_t>(stages / mesh.vpp, kMaxParallelDegree + 1));
  prove_mesh(mesh);
  return mesh;
}

AttentionReport attention_report(const Model& model, const ShardRequest& request) {
  AttentionReport report{
      attention_form(model, request.tp, request.attention), model.heads, model.kv_heads, model.head_dim, {}};
  if (report.form == AttentionForm::kGroupedQuery) report.gqa = gqa_spec(model, request.tp, request.attention);
  return report;
}

void add_notes(Job& job, const Model& model, const ShardRequest& request) {
  const bool gqa = job.attention && job.attention->form == AttentionForm::kGroupedQuery;
  if (request.attention.kv_size_multiplier && !gqa)
    job.notes.push_back(
        fmt::format("--kv-size-multiplier has no effect: {} key/value heads divide over {} ranks as they are",
                    model.kv_heads, request.tp));
  if (request.attention.fuse_qkv && job.attention && job.attention->form == AttentionForm::kSeparate)
    job.notes.push_back(
        fmt::format("--fuse-qkv has no effect: {} query and {} key/value heads are joined only where they "
                    "are as many, or do not divide over the ranks",
                    model.heads, model.kv_heads));
  for (const StoredTensor& tensor : job.source.stored)
    if (tensor.kind == CutKind::kTied)
      job.notes.push_back("config.json ties " + tensor.name +
                          " to the embedding: it is compared with it, and its second copy "
                          "in the files is not kept when they are consolidated");
}

/// `trn_config.json`, as optimum-neuron saves it beside its shards.
std::string training_config_text(const Mesh& mesh, const ShardRequest& request) {
  nlohmann::ordered_json json;
  json["tensor_parallel_size"] = mesh.tp;
  json["pipeline_parallel_size"] = mesh.pp;
  json["virtual_pipeline_parallel_size"] = mesh.vpp;
  json["kv_size_multiplier"] = nullptr;
  if (request.attention.kv_size_multiplier) json["kv_size_multiplier"] = *request.attention.kv_size_multiplier;
  json["fuse_qkv"] = request.attention.fuse_qkv;
  json["use_xser"] = request.form.format == Format::kXser;
  json["sequence_parallel_enabled"] = false;
  return json.dump(4);
}

std::unique_ptr<Job> plan(const ShardRequest& request) {
  if (request.form.kind == ShardsKind::kOptimum && request.form.format == Format::kSafetensors)
    throw Error(ErrorKind::kUsage, "the layout optimum has no safetensors form").hint("choose pytorch or xser");
  const Mesh mesh = mesh_of(request);
  prove_directories(request);
  auto job = std::make_unique<Job>();
  job->command = "shard";
  job->source_directory = request.model_directory;
  job->output_directory = request.output_directory;
  job->force = request.force;

  const ModelConfig config = read_model_config(request.model_directory);
  const Model model = instantiate(find_family(config), config);
  job->family = config.model_type;
  job->mesh = mesh;
  const std::string& layer_prefix = model.family->layers;
  job->partition = request.pipeline_cuts.empty()
                       ? partition_evenly(model.layers, job->mesh)
                       : partition_by_cuts(model.layers, job->mesh, request.pipeline_cuts, layer_prefix);
  for (const std::uint64_t layer : job->partition->cuts())
    job->cut_names.push_back(fmt::format("{}.{}", layer_prefix, layer));

  {
    const std::vector<Container> files = read_hf_checkpoint(request.model_directory);
    for (const Container& file : files)
      for (const std::string& warning : file.warnings)
        job->notes.push_back(file.path.filename().string() + ": " + warning);
    job->source = whole_layout(files, tied_parameters(model));
  }
  prove_against_model(job->source, model, request.model_directory);
  const auto plans = plan_stages(model, job->mesh.tp, *job->partition, request.attention,
                                 [&](const std::string& name) { return job->source.find_logical(name).has_value(); });
  if (model.family->attention) job->attention = attention_report(model, request);
  job->target = sharded_target_layout(plans, job->mesh.tp, job->source.logical, request.form);
  job->program = make_program(job->source, job->target);

  job->text_files = std::move(job->target.text_files);
  if (request.form.kind == ShardsKind::kOptimum)
    job->text_files.push_back({kTrainingConfigFile, training_config_text(job->mesh, request)});
  job->copied_files = companion_files(request.model_directory, {request.output_directory});
  job->whole_folders = {describe(request.form.kind).folder};
  add_notes(*job, model, request);
  return job;
}

}  // namespace

std::unique_ptr<Job> plan_shard(const ShardRequest& request) {
  return with_file_system_errors([&] { return plan(request); });
}

}  // namespace reshard
