#include "json_report.h"

#include <algorithm>
#include <variant>

#include "option_names.h"
#include "progress.h"
#include "reshard/plan/job/fingerprint.h"
#include "reshard/plan/proof/job_manifest.h"
#include "reshard/plan/proof/manifest.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

const char* form_name(AttentionForm form) {
  switch (form) {
    case AttentionForm::kSeparate: return "separate";
    case AttentionForm::kFused: return "fused";
    case AttentionForm::kGroupedQuery:
    case AttentionForm::kFusedGroupedQuery: return "grouped query";
  }
  return "";
}

Document attention_document(const AttentionReport& report) {
  Document json;
  json["form"] = form_name(report.form);
  json["num_attention_heads"] = report.heads;
  json["num_key_value_heads"] = report.kv_heads;
  json["head_dim"] = report.head_dim;
  json["fuse_qkv"] = is_fused(report.form);
  if (report.ranks.empty()) return json;
  json["kv_size_multiplier"] = report.copies;
  json["ranks"] = Document::array();
  for (const AttentionReport::RankHeads& rank : report.ranks)
    json["ranks"].push_back(
        {{"tp_rank", json["ranks"].size()}, {"query_heads", rank.query}, {"key_value_heads", rank.key_value}});
  return json;
}

Document stages_document(const PipelinePartition& partition) {
  Document stages = Document::array();
  for (std::uint32_t s = 0; s < partition.stages(); ++s)
    stages.push_back({{"stage", s},
                      {"pp_rank", partition.rank_of_stage(s)},
                      {"first_layer", partition.first[s]},
                      {"last_layer", partition.first[s + 1] - 1}});
  return stages;
}

/// Options by name; numbers and switches keep their types.
Document options_document(const Job& job) {
  Document json = Document::object();
  for (const LayoutOption* option : job.layout->options())
    if (const auto value = given_option(job, *option))
      json[option->name] = std::visit([](const auto& one) { return Document(one); }, *value);
  return json;
}

/// Training state that is written with the model; null if the target has no such state.
Document states_document(const TargetMap& target) {
  std::uint64_t entries = 0, bytes = 0;
  for (const LogicalTensor& tensor : target.logical) {
    if (tensor.constant() || tensor.role == TensorRole::kParameter) continue;
    ++entries;
    bytes += num_bytes(tensor.dtype, tensor.shape).value_or(0);
  }
  return entries > 0 ? Document{{"entries", entries}, {"bytes", bytes}} : Document(nullptr);
}

Document transforms_document(const std::vector<Applied>& transforms) {
  Document all = Document::array();
  for (const Applied& one : transforms) {
    all.push_back({{"transform", name(one.transform)}, {"tensors", one.tensors}});
    if (one.dtype) all.back()["dtype"] = name(*one.dtype);
  }
  return all;
}

Document files_document(const Job& job) {
  Document files = Document::array();
  const auto add = [&](const std::filesystem::path& path, std::uint64_t bytes, const char* kind) {
    files.push_back({{"path", path.string()}, {"bytes", bytes}, {"kind", kind}});
  };
  for (const TargetFile& file : job.target.files) add(file.path, file.size_bytes, "weights");
  for (const TextFile& file : job.text_files) add(file.path, file.text.size(), "metadata");
  for (const CopiedFile& file : job.copied_files) add(file.path, file.size_bytes, "copied");
  return files;
}

}  // namespace

Document divergent_document(const std::vector<Divergence>& divergent) {
  Document all = Document::array();
  for (const Divergence& one : divergent) {
    Document entry{{"tensor", one.tensor}, {"text", one.text}, {"drift", one.is_drift}};
    if (one.is_drift) entry["max_abs_difference"] = one.max_abs, entry["relative_difference"] = one.relative;
    all.push_back(std::move(entry));
  }
  return all;
}

double bytes_per_second(const RunResult& result) {
  const std::uint64_t written = result.written_bytes - std::min(result.written_bytes, result.resumed_bytes);
  return result.seconds > 0 ? static_cast<double>(written) / result.seconds : 0;
}

Document job_document(const Job& job, const OutputSpace& space, const RunResult* result) {
  Document json;
  json["command"] = job.command;
  json["dry_run"] = result == nullptr;
  json["source"] = job.source_directory.string();
  json["output"] = job.output_directory.string();
  json["layout"] = job.layout->traits().name;
  json["options"] = options_document(job);
  json["model_type"] = job.family.empty() ? Document(nullptr) : Document(job.family);
  json["mesh"] = {{"tp", job.mesh.tp}, {"pp", job.mesh.pp}, {"vpp", job.mesh.vpp}, {"ep", job.mesh.ep}};
  if (job.mesh.fsdp) json["mesh"]["fsdp"] = *job.mesh.fsdp;
  if (job.mesh.dp) json["mesh"]["dp"] = *job.mesh.dp;
  if (job.partition) {
    json["pipeline_cuts"] = job.cut_names;
    json["stages"] = stages_document(*job.partition);
  }
  if (job.attention) json["attention"] = attention_document(*job.attention);
  json["tensors"] = job.source.tensor_count();
  json["transforms"] = transforms_document(job.transforms);
  if (Document states = states_document(job.target); !states.is_null()) json["states"] = std::move(states);
  if (result == nullptr) json["fingerprint"] = to_string(fingerprint_of(job));
  json["bytes"] = {{"read", job.program.read_bytes + job.program.check_bytes},
                   {"placed", job.program.read_bytes},
                   {"compared", job.program.check_bytes},
                   {"not_read", job.program.skipped_bytes},
                   {"dropped", job.program.dropped_bytes},
                   {"written", job.output_bytes()},
                   {"free", space.free_bytes}};
  json["files"] = files_document(job);
  if (job.manifest) json["manifest"] = {kManifestFile, kSha256SumsFile};
  json["notes"] = with_options(job.notes);
  for (const std::string& note : mean_notes(job, result)) json["notes"].push_back(with_options(note));
  if (result != nullptr) {
    for (const std::string& note : divergent_notes(result->divergent)) json["notes"].push_back(with_options(note));
    for (const std::string& note : loss_notes(*result)) json["notes"].push_back(with_options(note));
    for (const std::string& note : result->notes) json["notes"].push_back(with_options(note));
    json["divergent_replicas"] = divergent_document(result->divergent);
    json["resumed_bytes"] = result->resumed_bytes;
    json["seconds"] = result->seconds;
    json["bytes_per_second"] = bytes_per_second(*result);
    json["peak_memory_bytes"] = peak_memory_bytes();
    if (job.manifest) {
      json["hashing_seconds"] = result->hashing_seconds;
      json["rereading_seconds"] = result->rereading_seconds;
    }
  }
  return json;
}

std::string to_text(const Document& document) {
  return document.dump(2, ' ', false, Document::error_handler_t::replace) + "\n";
}

}  // namespace reshard::cli
