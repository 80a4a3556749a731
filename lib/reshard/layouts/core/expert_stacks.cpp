#include "reshard/layouts/core/expert_stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/core/misfits.h"
#include "reshard/layouts/core/unpack.h"
#include "reshard/layouts/names/packed_experts.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/rules/packing.h"

namespace reshard {
namespace {

/// Whether this parameter contains all experts of a layer.
bool is_own_stack(const ModelParameter& parameter) {
  return parameter.experts > 0 && !parameter.expert;
}

/// Finds stacks by their names. A tensor with more experts than any layer of the model is not a stack.
struct Stacks {
  PackedExperts names;
  std::uint64_t most = 0;  // experts per layer

  explicit Stacks(const Model& model) : names(*model.family) {
    for (const ModelParameter& parameter : model.parameters) most = std::max(most, parameter.experts);
  }

  /// Returns the contents of a tensor; std::nullopt if it is not a stack.
  std::optional<PackedNames> find(const LogicalTensor& tensor) const {
    const bool has_shape = tensor.shape.size() == 3 && !tensor.constant() && tensor.shape[0] <= most &&
                           num_elems(tensor.shape).value_or(0) > 0;
    return has_shape ? names.find(tensor.name) : std::nullopt;
  }
};

/// Returns the first tensor that contains all experts of a layer; null if not found.
const LogicalTensor* first_stack(const SourceMap& map, const Stacks& stacks) {
  const auto first = std::find_if(map.logical.begin(), map.logical.end(),
                                  [&](const LogicalTensor& tensor) { return stacks.find(tensor).has_value(); });
  return first == map.logical.end() ? nullptr : &*first;
}

/// Whether the model's own files contain these stacks in the same order. Transformers 4 swaps the last two dims of some
/// families, (E, H, 2 I). Square matrices may be in either order.
/// \throws Error kBadInput if only some stacks are in the model's order.
bool are_models_own(const SourceMap& map, const Stacks& stacks, const Model& model,
                    const std::filesystem::path& where) {
  std::unordered_map<std::string_view, const ModelParameter*> parameters;
  for (const ModelParameter& parameter : model.parameters) parameters.emplace(parameter.name, &parameter);
  const LogicalTensor* own = nullptr;
  const LogicalTensor* other = nullptr;
  for (const LogicalTensor& tensor : map.logical) {
    if (!stacks.find(tensor)) continue;
    const auto found = parameters.find(tensor.name);
    if (found == parameters.end() || found->second->shape != tensor.shape)
      other = &tensor;
    else if (tensor.shape[1] != tensor.shape[2])
      own = &tensor;
  }
  if (own != nullptr && other != nullptr)
    throw Error(ErrorKind::kBadInput, fmt::format("has the experts of a layer in the order {}, but {} has {}",
                                                  to_string(other->shape), printable(own->name), to_string(own->shape)))
        .in(where)
        .tensor(other->name)
        .hint("config.json belongs to another model, or files of several checkpoints are mixed");
  return own != nullptr;
}

/// Replaces each stack by the tensors of its experts, and the model by a model with these tensors.
/// \returns whether no stack stays packed.
/// \throws Error as unpack; kBadInput for a stack whose shape does not match config.json; kUnsupported for a tensor of
///         the experts, such as a bias or a scale, that is still packed.
bool take_apart(Checkpoint& checkpoint, const Stacks& stacks, ConfigUse use) {
  SourceMap& map = checkpoint.map;
  PackedEntries packed{checkpoint.path, {}};
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : map.logical) {
    const auto stack = stacks.find(tensor);
    if (stack)
      packed.by_name.emplace(tensor.name,
                             PackedEntry{std::make_shared<const PackedNames>(*stack), tensor.name, tensor.shape});
    names.push_back(stack || tensor.constant() ? tensor.name : stacks.names.own_name(tensor.name));
  }
  map.rename_logical(names);
  const std::vector<std::string> apart = packed.tensors();
  std::unordered_set<std::string_view> of_model(apart.begin(), apart.end());
  for (const std::string& name : names)
    if (packed.by_name.count(name) == 0) of_model.insert(name);
  const FamilyFrom from = checkpoint.model->family_from;
  checkpoint.model = instantiate(checkpoint.language_model, of_model);
  checkpoint.model->family_from = from;
  const bool are_apart = unpack_entries(map, packed, checkpoint, use);
  for (const LogicalTensor* tensor : find_misfits(map.logical, *checkpoint.model).unlisted) {
    if (packed.by_name.count(tensor->name) == 0 && stacks.names.find(tensor->name))
      throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but a layer of the model has {} experts",
                                                    to_string(tensor->shape), stacks.most))
          .in(checkpoint.path)
          .tensor(tensor->name)
          .hint("config.json belongs to another model, or the checkpoint is damaged");
    if (tensor->name.find(".experts.") != tensor->name.npos && !PackedExperts::is_of_expert(tensor->name) &&
        packed.by_name.count(tensor->name) == 0)
      throw Error(ErrorKind::kUnsupported, "belongs to packed experts, but is not split among them")
          .in(checkpoint.path)
          .tensor(tensor->name)
          .hint("save the model with save_pretrained of Transformers 5, which writes each expert separately");
  }
  return are_apart;
}

/// Swaps the last two dims of each stack.
void turn_stacks(SourceMap& map, const Stacks& stacks) {
  for (std::size_t l = 0; l < map.logical.size(); ++l) {
    if (!stacks.find(map.logical[l])) continue;
    std::swap(map.logical[l].shape[1], map.logical[l].shape[2]);
    for (Piece& piece : map.pieces[l]) {
      for (Dims* dims : {&piece.box.begin, &piece.box.size, &piece.stored_begin}) std::swap((*dims)[1], (*dims)[2]);
      StoredTensor& stored = map.stored[piece.stored];
      stored.set_view(stored.view().transposed());
    }
  }
}

}  // namespace

void unpack_experts(Checkpoint& checkpoint, const ReadContext& context) {
  if (!checkpoint.model || !checkpoint.language_model.family) return;
  const Stacks stacks(*checkpoint.model);
  const LogicalTensor* first = first_stack(checkpoint.map, stacks);
  if (first == nullptr) return;
  if (are_models_own(checkpoint.map, stacks, *checkpoint.model, checkpoint.path)) return;
  if (context.reads_states())
    throw Error(ErrorKind::kUnsupported,
                "all experts of a layer are in one tensor, and their optimizer states cannot be split")
        .in(checkpoint.path)
        .tensor(first->name)
        .hint("leave out `with-optimizer`");
  if (take_apart(checkpoint, stacks, context.use))
    checkpoint.notes.changed(
        "all experts of a layer are in one tensor, as in the memory of Transformers 5: each expert is read as a "
        "separate tensor, under the name that the model's files use");
}

void separate_experts(Checkpoint& checkpoint) {
  if (!checkpoint.model)
    throw Error(ErrorKind::kUsage, "`experts` separate: the model is unknown")
        .in(checkpoint.path)
        .hint("set `config` to its config.json, or `family` to its family");
  if (!checkpoint.language_model.family) return;
  const std::vector<ModelParameter>& parameters = checkpoint.model->parameters;
  const auto first = std::find_if(parameters.begin(), parameters.end(), is_own_stack);
  if (first == parameters.end()) return;
  const Stacks stacks(*checkpoint.model);
  if (first_stack(checkpoint.map, stacks) == nullptr)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("`experts` separate: models of {} have all experts of a layer in one tensor",
                            printable(checkpoint.model->family->model_type)))
        .in(checkpoint.path)
        .tensor(first->name)
        .hint("leave out `experts`");
  const bool are_turned =
      stacks.names.stay_packed() && are_models_own(checkpoint.map, stacks, *checkpoint.model, checkpoint.path);
  if (are_turned) turn_stacks(checkpoint.map, stacks);
  take_apart(checkpoint, stacks, ConfigUse::kStrict);
}

void align_experts(Checkpoint& a, Checkpoint& b) {
  const auto may_take_apart = [](const Checkpoint& checkpoint) {
    if (!checkpoint.model || !checkpoint.language_model.family || !checkpoint.states.empty()) return false;
    const Stacks stacks(*checkpoint.model);
    return !stacks.names.stay_packed() && first_stack(checkpoint.map, stacks) != nullptr;
  };
  if (const bool is_a = may_take_apart(a); is_a != may_take_apart(b)) separate_experts(is_a ? a : b);
}

namespace {

/// Whether `logical` contains matrices of experts that Transformers packs under known names.
bool saves_experts_apart(std::span<const LogicalTensor> logical, const PackedExperts& packed) {
  if (packed.empty() || !packed.is_known()) return false;
  std::unordered_set<std::string_view> parameters;
  for (const SchemeEntry& entry : packed.scheme()->entries)
    if (!entry.is_plain()) parameters.insert(entry.parameters.begin(), entry.parameters.end());
  return std::any_of(logical.begin(), logical.end(),
                     [&](const LogicalTensor& tensor) { return parameters.count(with_stars(tensor.name)) > 0; });
}

}  // namespace

std::vector<OutputTensor> entries_of(std::span<const LogicalTensor> logical) {
  std::vector<OutputTensor> entries;
  entries.reserve(logical.size());
  for (std::uint32_t l = 0; l < logical.size(); ++l) entries.push_back({logical[l].name, {l}, logical[l].shape});
  return entries;
}

std::vector<OutputTensor> packed_entries_of(std::span<const LogicalTensor> logical, const Model& model) {
  constexpr std::uint32_t kMissing = UINT32_MAX;
  const auto refuse = [](const std::string& why, const std::string& tensor = {}) {
    Error error(ErrorKind::kUnsupported, "`experts` packed: " + why);
    if (!tensor.empty()) error.tensor(tensor);
    return std::move(error.hint("leave out `experts`"));
  };
  const PackedExperts packed(*model.family);
  if (!saves_experts_apart(logical, packed)) {
    if (std::any_of(model.parameters.begin(), model.parameters.end(), is_own_stack))
      return entries_of(logical);  // already packed in the model's files
    throw refuse(
        fmt::format("models of {} have no experts that Transformers packs", printable(model.family->model_type)));
  }
  const WrittenNames written(model, packed.scheme(), 0);
  std::vector<OutputTensor> entries;
  std::unordered_map<std::string, std::size_t> by_name;
  for (std::uint32_t l = 0; l < logical.size(); ++l) {
    const std::string& name = logical[l].name;
    const WrittenNames::Place place = written.find(name);
    const bool is_packed = place.entry != nullptr && !place.entry->rule->is_plain();
    if (!is_packed && PackedExperts::is_of_expert(name))
      throw refuse("the packed form contains only weights, so it has no place for it", name);
    const auto [at, is_new] = by_name.emplace(place.entry == nullptr ? name : place.entry->name, entries.size());
    if (is_new) entries.push_back({at->first, {}, logical[l].shape});
    OutputTensor& entry = entries[at->second];
    if (is_new && is_packed) {
      entry.logical.assign(place.entry->tensors.size(), kMissing);
      entry.shape = pack(*place.entry->rule, place.entry->parts, place.entry->numbers, model).shape;
    } else if (!is_packed) {
      if (!is_new) throw refuse("two tensors would have this name", name);
      entry.logical = {l};
      continue;
    }
    if (entry.logical.size() != place.entry->tensors.size()) throw refuse("two tensors would have this name", name);
    entry.logical[place.tensor] = l;
  }
  for (const OutputTensor& entry : entries)
    for (const std::uint32_t l : entry.logical) {
      const std::uint32_t first = entry.logical.front();
      if (l == kMissing || first == kMissing || logical[l].dtype != logical[first].dtype ||
          logical[l].shape != logical[first].shape)
        throw refuse("an expert is missing, or differs in dtype or shape", entry.name);
    }
  return entries;
}

bool saves_packed(std::span<const LogicalTensor> logical, const Model& model) {
  const PackedExperts packed(*model.family);
  return packed.stay_packed() && !model.quantized && saves_experts_apart(logical, packed);
}

}  // namespace reshard
