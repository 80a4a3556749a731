#include "json_report.h"

#include <algorithm>
#include <span>
#include <variant>

#include "option_names.h"
#include "progress.h"

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

/// "weights", "metadata" or "copied"
const char* name(JobReport::File::Kind kind) {
  constexpr const char* kNames[] = {"weights", "metadata", "copied"};
  return kNames[static_cast<std::size_t>(kind)];
}

Document transforms_document(const std::vector<Applied>& transforms) {
  Document all = Document::array();
  for (const Applied& one : transforms) {
    all.push_back({{"transform", name(one.transform)}, {"tensors", one.tensors}});
    if (one.dtype) all.back()["dtype"] = name(*one.dtype);
  }
  return all;
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

void add_notes(Document& document, const Notes& notes) {
  constexpr std::size_t kMostTensors = 100;  // of one note, which may be about all of a model's
  Document texts = Document::array(), findings = Document::array();
  for (const Note& note : notes) {
    texts.push_back(with_options(note));
    Document finding{{"kind", name(note.kind)}, {"text", texts.back()}};
    if (!note.tensors.empty()) {
      const auto listed = std::span(note.tensors).first(std::min(note.tensors.size(), kMostTensors));
      finding["tensor_count"] = note.tensors.size();
      finding["tensors"] = Document::array_t(listed.begin(), listed.end());
    }
    if (!note.file.empty()) finding["file"] = note.file;
    findings.push_back(std::move(finding));
  }
  document["notes"] = std::move(texts);
  document["findings"] = std::move(findings);
}

Document job_document(const JobReport& report) {
  Document json;
  json["command"] = report.command;
  json["dry_run"] = report.result == nullptr;
  json["source"] = report.source;
  json["output"] = report.output;
  json["layout"] = report.layout;
  json["options"] = Document::object();
  for (const auto& [name, value] : report.options)
    json["options"][name] = std::visit([](const auto& one) { return Document(one); }, value);
  json["model_type"] = report.family.empty() ? Document(nullptr) : Document(report.family);
  json["mesh"] = {{"tp", report.mesh.tp}, {"pp", report.mesh.pp}, {"vpp", report.mesh.vpp}, {"ep", report.mesh.ep}};
  if (report.mesh.fsdp) json["mesh"]["fsdp"] = *report.mesh.fsdp;
  if (report.mesh.dp) json["mesh"]["dp"] = *report.mesh.dp;
  if (!report.stages.empty()) json["pipeline_cuts"] = report.cut_names;
  for (const auto& [stage, pp_rank, first, last] : report.stages)
    json["stages"].push_back({{"stage", stage}, {"pp_rank", pp_rank}, {"first_layer", first}, {"last_layer", last}});
  if (report.attention) json["attention"] = attention_document(*report.attention);
  json["tensors"] = report.tensors;
  json["transforms"] = transforms_document(report.transforms);
  if (report.states > 0) json["states"] = {{"entries", report.states}, {"bytes", report.state_bytes}};
  if (report.result == nullptr) json["fingerprint"] = report.fingerprint;
  json["bytes"] = {{"read", report.read_bytes + report.check_bytes},
                   {"placed", report.read_bytes},
                   {"compared", report.check_bytes},
                   {"not_read", report.skipped_bytes},
                   {"dropped", report.dropped_bytes},
                   {"written", report.written_bytes},
                   {"free", report.space.free_bytes}};
  json["files"] = Document::array();
  for (const JobReport::File& file : report.files)
    json["files"].push_back({{"path", file.path}, {"bytes", file.size_bytes}, {"kind", name(file.kind)}});
  if (report.manifest) json["manifest"] = {kManifestFile, kSha256SumsFile};
  add_notes(json, report.notes);
  if (report.result != nullptr) {
    const RunResult& result = *report.result;
    json["divergent_replicas"] = divergent_document(result.divergent);
    json["resumed_bytes"] = result.resumed_bytes;
    json["seconds"] = result.seconds;
    json["bytes_per_second"] = bytes_per_second(result);
    json["peak_memory_bytes"] = peak_memory_bytes();
    if (report.manifest) {
      json["hashing_seconds"] = result.hashing_seconds;
      json["rereading_seconds"] = result.rereading_seconds;
    }
  }
  return json;
}

std::string to_text(const Document& document) {
  return document.dump(2, ' ', false, Document::error_handler_t::replace) + "\n";
}

}  // namespace reshard::cli
