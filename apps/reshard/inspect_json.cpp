#include "inspect_json.h"

#include <cmath>

#include "option_names.h"
#include "reshard/layouts/peft/sharded_adapter.h"

namespace reshard::cli {
namespace {

Document values_document(const ValueSummary& v) {
  const auto number = [](double value) {
    return std::isfinite(value) ? Document(value) : Document(number_text(value));
  };
  const bool any = v.count > v.nan_count;
  return {{"min", any ? number(v.min) : Document(nullptr)},
          {"max", any ? number(v.max) : Document(nullptr)},
          {"mean", v.finite_count ? number(v.mean()) : Document(nullptr)},
          {"nan_count", v.nan_count},
          {"inf_count", v.inf_count}};
}

Document tensor_document(const TensorReport& tensor) {
  Document json;
  json["name"] = tensor.name;
  json["dtype"] = name(tensor.dtype);
  json["shape"] = tensor.shape;
  json["bytes"] = tensor.size_bytes();
  json["layout"] = name(tensor.label);
  if (!tensor.stored_as.empty()) json["stored_as"] = tensor.stored_as;
  json["pp_ranks"] = tensor.pp_ranks;
  if (tensor.values) json["values"] = values_document(*tensor.values);
  if (tensor.digest) {
    json["sha256"] = to_hex(tensor.digest->digest);
    if (!tensor.digest->leaves.empty()) json["leaves"] = Document::array();
    for (const Sha256Digest& leaf : tensor.digest->leaves) json["leaves"].push_back(to_hex(leaf));
  }
  return json;
}

/// Returns a value as JSON. Numbers that JSON cannot represent become text.
Document value_document(const PlainValue& value) {
  return std::visit(
      [&](const auto& held) -> Document {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Held, double>) {
          return std::isfinite(held) ? Document(held) : Document(to_string(value));
        } else if constexpr (std::is_same_v<Held, PlainValue::List>) {
          Document list = Document::array();
          for (const PlainValue& item : held) list.push_back(value_document(item));
          return list;
        } else if constexpr (std::is_same_v<Held, PlainValue::Dict>) {
          Document dict = Document::object();
          for (const auto& [key, item] : held) dict[key] = value_document(item);
          return dict;
        } else {
          return held;
        }
      },
      value.value);
}

Document states_document(const std::vector<OptimizerSummary::State>& states) {
  Document json = Document::array();
  for (const OptimizerSummary::State& state : states)
    json.push_back({{"name", state.name},
                    {"dtype", std::string(name(state.dtype))},
                    {"tensors", state.tensors},
                    {"bytes", state.bytes}});
  return json;
}

Document groups_document(const std::vector<OptimizerSummary::Group>& groups) {
  Document json = Document::array();
  for (const OptimizerSummary::Group& group : groups)
    json.push_back({{"parameters", group.parameters}, {"values", value_document({group.values})}});
  return json;
}

Document step_document(const std::optional<double>& step) {
  return step ? Document(*step) : Document(nullptr);
}

Document optimizer_document(const OptimizerSummary& optimizer) {
  Document json = {{"states", states_document(optimizer.states)},
                   {"groups", groups_document(optimizer.groups)},
                   {"sharded", optimizer.is_sharded},
                   {"data_parallel_ranks", optimizer.dp},
                   {"files", optimizer.files},
                   {"bytes", optimizer.bytes},
                   {"most_bytes_per_rank", optimizer.most_rank_bytes},
                   {"master_weights", optimizer.has_masters},
                   {"step", step_document(optimizer.step)},
                   {"complete", optimizer.incomplete.empty()}};
  if (!optimizer.incomplete.empty()) json["incomplete"] = optimizer.incomplete;
  if (!optimizer.incomplete.empty()) json["hint"] = with_options(optimizer.incomplete_hint);
  if (!optimizer.unnamed.empty()) json["unnamed"] = with_options(optimizer.unnamed);
  return json;
}

Document beside_document(const BesideModel& beside) {
  Document json{{"optimizer", {{"tensors", beside.optimizer.tensors}, {"bytes", beside.optimizer.bytes}}},
                {"other", {{"tensors", beside.other.tensors}, {"bytes", beside.other.bytes}}},
                {"unread_files", {{"files", beside.files}, {"bytes", beside.file_bytes}}}};
  if (beside.objects > 0) json["objects"] = {{"objects", beside.objects}, {"bytes", beside.object_bytes}};
  if (!beside.states.empty()) {
    json["optimizer_states"] = states_document(beside.states);
    json["optimizer_groups"] = groups_document(beside.groups);
    json["optimizer_step"] = step_document(beside.step);
  }
  if (beside.summary) json["training_states"] = optimizer_document(*beside.summary);
  if (!beside.unreadable.empty()) json["unreadable"] = with_options(beside.unreadable);
  return json;
}

Document mesh_document(const Mesh& mesh) {
  return {{"tp", mesh.tp}, {"pp", mesh.pp}, {"ep", mesh.ep}};
}

}  // namespace

Document adapters_document(const std::string& path, const std::vector<CheckpointReport>& adapters, const Notes& notes) {
  Document json;
  json["command"] = "inspect";
  json["path"] = path;
  json["kind"] = "adapters";
  json["adapters"] = Document::array();
  for (const CheckpointReport& adapter : adapters) {
    json["adapters"].push_back({{"name", adapter.adapters.front()},
                                {"path", adapter.directory},
                                {"format", name(adapter.format)},
                                {"mesh", mesh_document(*adapter.mesh)},
                                {"tensor_count", adapter.totals.tensors},
                                {"parameters", adapter.totals.elems},
                                {"bytes", adapter.totals.bytes}});
  }
  add_notes(json, notes);
  return json;
}

Document inspect_document(const CheckpointReport& report) {
  Document json;
  json["command"] = "inspect";
  json["path"] = report.path;
  json["kind"] = report.kind;
  if (report.adapters.size() == 1) json["adapter"] = report.adapters.front();
  if (report.adapters.size() > 1) json["adapters"] = report.adapters;
  json["format"] = name(report.format);
  json["model_type"] = report.model_type.empty() ? Document(nullptr) : Document(report.model_type);
  if (!report.quant_method.empty()) json["quant_method"] = report.quant_method;
  json["tensor_count"] = report.totals.tensors;
  json["parameters"] = report.totals.elems;
  json["bytes"] = report.totals.bytes;
  json["dtypes"] = Document::object();
  for (const auto& [dtype, part] : report.by_dtype)
    json["dtypes"][std::string(name(dtype))] = {
        {"tensors", part.tensors}, {"parameters", part.elems}, {"bytes", part.bytes}};
  json["metadata"] = Document::object();
  for (const auto& [key, value] : report.metadata) json["metadata"][key] = value;
  if (report.mesh) {
    json["mesh"] = mesh_document(*report.mesh);
    json["ranks"] = Document::array();
    for (const RankBytes& rank : report.ranks)
      json["ranks"].push_back(
          {{"tp_rank", rank.tp_rank}, {"pp_rank", rank.pp_rank}, {"ep_rank", rank.ep_rank}, {"bytes", rank.bytes}});
  }
  if (report.beside_model) json["beside_model"] = beside_document(*report.beside_model);
  json["files"] = Document::array();
  for (const auto& [path, bytes] : report.files) json["files"].push_back({{"path", path}, {"bytes", bytes}});
  json["tensors"] = Document::array();
  for (const TensorReport& tensor : report.tensors) json["tensors"].push_back(tensor_document(tensor));
  add_notes(json, report.notes);
  return json;
}

}  // namespace reshard::cli
