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

Document tensor_document(const SourceMap& map, const TensorRow& row) {
  const LogicalTensor& tensor = map.logical[row.logical];
  Document json;
  json["name"] = tensor.name;
  json["dtype"] = name(tensor.dtype);
  json["shape"] = tensor.shape;
  json["bytes"] = num_bytes(tensor.dtype, tensor.shape).value_or(0);
  json["layout"] = name(row.label);
  if (!row.stored_as.empty()) json["stored_as"] = row.stored_as;
  json["pp_ranks"] = row.pp_ranks;
  if (row.values) json["values"] = values_document(*row.values);
  if (row.digest) {
    json["sha256"] = to_hex(row.digest->digest);
    if (!row.digest->leaves.empty()) json["leaves"] = Document::array();
    for (const Sha256Digest& leaf : row.digest->leaves) json["leaves"].push_back(to_hex(leaf));
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

}  // namespace

Document adapters_document(const std::string& path, const std::vector<Checkpoint>& adapters) {
  Document json;
  json["command"] = "inspect";
  json["path"] = path;
  json["kind"] = "adapters";
  json["adapters"] = Document::array();
  json["notes"] = Document::array();
  for (const Checkpoint& adapter : adapters) {
    const Totals totals = totals_of(adapter.map);
    json["adapters"].push_back({{"name", adapter.adapters.front().name},
                                {"path", adapter.directory.string()},
                                {"format", name(adapter.format)},
                                {"mesh", {{"tp", adapter.mesh.tp}, {"pp", adapter.mesh.pp}, {"ep", adapter.mesh.ep}}},
                                {"tensor_count", totals.tensors},
                                {"parameters", totals.elems},
                                {"bytes", totals.bytes}});
    for (const std::string& note : adapter.notes) json["notes"].push_back(note);
  }
  return json;
}

Document inspect_document(const std::string& path, const Checkpoint& inspection, const std::vector<TensorRow>& all,
                          const std::vector<TensorRow>& shown) {
  const Totals totals = totals_of(inspection.map, all);
  Document json;
  json["command"] = "inspect";
  json["path"] = path;
  json["kind"] = what_name(inspection);
  if (inspection.adapters.size() == 1) json["adapter"] = inspection.adapters.front().name;
  if (inspection.adapters.size() > 1)
    for (const Adapter& adapter : inspection.adapters) json["adapters"].push_back(adapter.name);
  json["format"] = name(inspection.format);
  json["model_type"] = inspection.model_type.empty() ? Document(nullptr) : Document(inspection.model_type);
  if (inspection.model && !inspection.model->quant_method.empty())
    json["quant_method"] = inspection.model->quant_method;
  json["tensor_count"] = totals.tensors;
  json["parameters"] = totals.elems;
  json["bytes"] = totals.bytes;
  json["dtypes"] = Document::object();
  for (const auto& [dtype, part] : totals_by_dtype(inspection.map, all))
    json["dtypes"][std::string(name(dtype))] = {
        {"tensors", part.tensors}, {"parameters", part.elems}, {"bytes", part.bytes}};
  json["metadata"] = Document::object();
  for (const auto& [key, value] : inspection.file_metadata) json["metadata"][key] = value;
  if (inspection.has_mesh()) {
    json["mesh"] = {{"tp", inspection.mesh.tp}, {"pp", inspection.mesh.pp}, {"ep", inspection.mesh.ep}};
    json["ranks"] = Document::array();
    for (const RankBytes& rank : rank_bytes(inspection.map))
      json["ranks"].push_back(
          {{"tp_rank", rank.tp_rank}, {"pp_rank", rank.pp_rank}, {"ep_rank", rank.ep_rank}, {"bytes", rank.bytes}});
  }
  if (inspection.beside_model) {
    const BesideModel& beside = *inspection.beside_model;
    json["beside_model"] = {{"optimizer", {{"tensors", beside.optimizer.tensors}, {"bytes", beside.optimizer.bytes}}},
                            {"other", {{"tensors", beside.other.tensors}, {"bytes", beside.other.bytes}}},
                            {"unread_files", {{"files", beside.files}, {"bytes", beside.file_bytes}}}};
    if (!beside.states.empty()) {
      json["beside_model"]["optimizer_states"] = states_document(beside.states);
      json["beside_model"]["optimizer_groups"] = groups_document(beside.groups);
      json["beside_model"]["optimizer_step"] = step_document(beside.step);
    }
    if (beside.summary) json["beside_model"]["training_states"] = optimizer_document(*beside.summary);
    if (!beside.unreadable.empty()) json["beside_model"]["unreadable"] = with_options(beside.unreadable);
  }
  json["files"] = Document::array();
  for (const SourceFile& file : inspection.map.files)
    json["files"].push_back({{"path", file.path.string()}, {"bytes", file.size_bytes}});
  json["tensors"] = Document::array();
  for (const TensorRow& row : shown) json["tensors"].push_back(tensor_document(inspection.map, row));
  json["notes"] = with_options(inspection.notes);
  return json;
}

}  // namespace reshard::cli
