#include "reshard/layouts/core/expert_stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/packing.h"
#include "reshard/layouts/names/packed_experts.h"
#include "reshard/layouts/names/written_names.h"

namespace reshard {
namespace {

using Parameters = std::unordered_map<std::string_view, const ModelParameter*>;

/// Whether the model has all experts of a layer in this parameter.
bool is_own_stack(const ModelParameter& parameter) {
  return parameter.experts > 0 && !parameter.expert;
}

/// The names of stacks, and the number of experts in a layer of the model. A tensor that claims more experts is no stack.
struct Stacks {
  PackedExperts names;
  std::uint64_t most = 0;

  explicit Stacks(const Model& model) : names(*model.family) {
    for (const ModelParameter& parameter : model.parameters) most = std::max(most, parameter.experts);
  }

  bool has(const LogicalTensor& tensor) const {
    return tensor.shape.size() == 3 && !tensor.filler && tensor.shape[0] <= most &&
           num_elems(tensor.shape).value_or(0) > 0 && names.find(tensor.name).has_value();
  }
};

/// Whether the model has these stacks in its files, too, and in this order: Transformers 4 has the last two dims of some
/// families swapped, (E, H, 2 I). A square matrix may be in either order.
/// \throws Error kBadInput if some are in another order than the others.
bool are_models_own(const SourceMap& map, const Stacks& stacks, const Model& model,
                    const std::filesystem::path& where) {
  Parameters parameters;
  for (const ModelParameter& parameter : model.parameters) parameters.emplace(parameter.name, &parameter);
  const LogicalTensor* own = nullptr;
  const LogicalTensor* other = nullptr;
  for (const LogicalTensor& tensor : map.logical) {
    if (!stacks.has(tensor)) continue;
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

/// Adds the pieces of experts' matrices that one piece of a stack consists of.
/// \param logical  the matrices, as `packing` numbers them.
void add_pieces_of(SourceMap& map, const Piece& piece, const Packing& packing,
                   const std::vector<std::uint32_t>& logical) {
  const StoredTensor& stored = map.stored[piece.stored];
  const std::uint64_t rows_of_slice = stored.file_shape()[1];
  if (stored.shape.size() > 2) map.view_as_rows(piece.stored);  // else done for another piece of it
  for (Region& region : packing.regions_in(piece.box)) {
    const std::uint64_t slice = piece.stored_begin[0] + region.begin[0];
    const std::uint64_t row = slice * rows_of_slice + piece.stored_begin[1] + region.begin[1];
    map.pieces[logical[region.tensor]].push_back(
        {piece.stored, std::move(region.box), {row, piece.stored_begin[2] + region.begin[2]}});
  }
}

/// \param in_file  the name of the tensor that contains it.
/// \throws Error kBadInput if there is such a tensor already.
std::uint32_t add_new(Checkpoint& checkpoint, const LogicalTensor& tensor, const std::string& in_file) {
  if (checkpoint.map.find_logical(tensor.name))
    throw Error(ErrorKind::kBadInput, fmt::format("exists twice, once as {}", printable(in_file)))
        .in(checkpoint.path)
        .tensor(tensor.name);
  return checkpoint.map.add_logical(tensor, {});
}

/// The first tensor that holds all experts of a layer, by its name; null if there is none.
const LogicalTensor* first_stack(const SourceMap& map, const Stacks& stacks) {
  const auto first = std::find_if(map.logical.begin(), map.logical.end(),
                                  [&](const LogicalTensor& tensor) { return stacks.has(tensor); });
  return first == map.logical.end() ? nullptr : &*first;
}

/// Validates that all of the experts have been taken apart, into matrices that the model has.
/// \param in_file  the name of the stack that a matrix comes from.
/// \throws Error kBadInput for another shape than config.json asks for; kUnsupported for a tensor of the experts, such as
/// a bias or a scale, that is still packed.
void validate_apart(const Checkpoint& checkpoint, const Stacks& stacks,
                    const std::unordered_map<std::string, std::string>& in_file) {
  Parameters parameters;
  for (const ModelParameter& parameter : checkpoint.model->parameters) parameters.emplace(parameter.name, &parameter);
  for (const LogicalTensor& tensor : checkpoint.map.logical) {
    const auto found = parameters.find(tensor.name);
    const auto stack = in_file.find(tensor.name);
    if (stack == in_file.end() && stacks.names.find(tensor.name))
      throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but a layer of the model has {} experts",
                                                    to_string(tensor.shape), stacks.most))
          .in(checkpoint.path)
          .tensor(tensor.name)
          .hint("config.json belongs to another model, or the checkpoint is damaged");
    if (found == parameters.end() && stack == in_file.end() && tensor.name.find(".experts.") != tensor.name.npos &&
        !PackedExperts::is_of_expert(tensor.name))
      throw Error(ErrorKind::kUnsupported, "belongs to experts that are packed, and is not split among them")
          .in(checkpoint.path)
          .tensor(tensor.name)
          .hint("save the model with save_pretrained of Transformers 5, which writes each expert by itself");
    if (found == parameters.end() || stack == in_file.end() || found->second->shape == tensor.shape) continue;
    throw Error(ErrorKind::kBadInput, fmt::format("has matrices {} for each expert, but config.json asks for {}",
                                                  to_string(tensor.shape), to_string(found->second->shape)))
        .in(checkpoint.path)
        .tensor(stack->second)
        .hint("config.json belongs to another model, or the checkpoint is damaged");
  }
}

/// Replaces each stack by the tensors of its experts, and the model by the one with these tensors.
void take_apart(Checkpoint& checkpoint, const Stacks& stacks) {
  SourceMap& map = checkpoint.map;
  std::unordered_set<std::string> names;
  std::unordered_map<std::string, std::string> stacks_in_file;  // by the tensors that they are made of
  for (auto& [tensor, pieces] : map.take_logical()) {
    if (!stacks.has(tensor)) {
      const std::string in_file = std::exchange(tensor.name, stacks.names.own_name(tensor.name));
      map.pieces[add_new(checkpoint, tensor, in_file)] = std::move(pieces);
      names.insert(tensor.name);
      continue;
    }
    const PackedNames stack = *stacks.names.find(tensor.name);
    const std::size_t parts = stack.parameters.size();
    if (tensor.shape[1] % parts != 0)
      throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, whose rows are not those of {} matrices",
                                                    to_string(tensor.shape), parts))
          .in(checkpoint.path)
          .tensor(tensor.name);
    const std::uint64_t rows = tensor.shape[1] / parts;
    std::vector<std::uint32_t> logical;
    LogicalTensor matrix = tensor;
    matrix.shape = {rows, tensor.shape[2]};
    for (std::string& name : stack.tensors({tensor.shape[0]})) {
      matrix.name = std::move(name);
      logical.push_back(add_new(checkpoint, matrix, tensor.name));
      names.insert(matrix.name);
      stacks_in_file.emplace(matrix.name, tensor.name);
    }
    const std::vector<Dims> shapes(parts, matrix.shape);
    const Packing packing = pack(*stack.rule, shapes, {tensor.shape[0]}, *checkpoint.model).packing;
    for (const Piece& piece : pieces)
      if (volume(piece.box) > 0) add_pieces_of(map, piece, packing, logical);
  }
  const FamilyFrom from = checkpoint.model->family_from;
  checkpoint.model = instantiate(checkpoint.language_model, {names.begin(), names.end()});
  checkpoint.model->family_from = from;
  validate_apart(checkpoint, stacks, stacks_in_file);
}

}  // namespace

void unpack_experts(Checkpoint& checkpoint, const ReadContext& context) {
  if (!checkpoint.model || !checkpoint.language_model.family) return;
  const Stacks stacks(*checkpoint.model);
  const LogicalTensor* first = stacks.names.empty() ? nullptr : first_stack(checkpoint.map, stacks);
  if (first == nullptr) return;
  if (are_models_own(checkpoint.map, stacks, *checkpoint.model, checkpoint.path)) return;
  if (context.reads_states())
    throw Error(ErrorKind::kUnsupported,
                "all experts of a layer are in one tensor, and states of the optimizer are not taken apart for them")
        .in(checkpoint.path)
        .tensor(first->name)
        .hint("do without `with-optimizer`");
  take_apart(checkpoint, stacks);
  checkpoint.notes.emplace_back(
      "all experts of a layer are in one tensor, as Transformers 5 has them in memory: each is read as a tensor of its "
      "own, by the names of the model's files");
}

void separate_experts(Checkpoint& checkpoint) {
  if (!checkpoint.model)
    throw Error(ErrorKind::kUsage, "`experts` separate: the model is not known")
        .in(checkpoint.path)
        .hint("give its config.json with `config`, or its family with `family`");
  if (!checkpoint.language_model.family) return;
  const std::vector<ModelParameter>& parameters = checkpoint.model->parameters;
  const auto first = std::find_if(parameters.begin(), parameters.end(), is_own_stack);
  if (first == parameters.end()) return;
  const std::string name = first->name;
  const Stacks stacks(*checkpoint.model);
  if (first_stack(checkpoint.map, stacks) != nullptr && !stacks.names.stay_packed())
    take_apart(checkpoint, stacks);
  else
    throw Error(ErrorKind::kUnsupported,
                fmt::format("`experts` separate: models of {} have all experts of a layer in one tensor",
                            printable(checkpoint.model->family->model_type)))
        .in(checkpoint.path)
        .tensor(name)
        .hint("leave out `experts`");
}

void align_experts(Checkpoint& a, Checkpoint& b) {
  const auto may_take_apart = [](const Checkpoint& checkpoint) {
    if (!checkpoint.model || !checkpoint.language_model.family || !checkpoint.states.empty()) return false;
    const Stacks stacks(*checkpoint.model);
    return !stacks.names.empty() && !stacks.names.stay_packed() && first_stack(checkpoint.map, stacks) != nullptr;
  };
  if (const bool is_a = may_take_apart(a); is_a != may_take_apart(b)) separate_experts(is_a ? a : b);
}

namespace {

/// Whether some of `logical` are matrices of experts that Transformers packs, and by which names is known.
bool saves_experts_apart(std::span<const LogicalTensor> logical, const PackedExperts& packed) {
  if (packed.empty() || !packed.is_known()) return false;
  std::unordered_set<std::string_view> parameters;
  for (const Scheme::Entry& entry : packed.scheme()->entries)
    if (!entry.is_plain()) parameters.insert(entry.parameters.begin(), entry.parameters.end());
  return std::any_of(logical.begin(), logical.end(),
                     [&](const LogicalTensor& tensor) { return parameters.count(with_stars(tensor.name)) > 0; });
}

}  // namespace

std::vector<WholeEntry> entries_of(std::span<const LogicalTensor> logical) {
  std::vector<WholeEntry> entries;
  entries.reserve(logical.size());
  for (std::uint32_t l = 0; l < logical.size(); ++l) entries.push_back({logical[l].name, {l}, logical[l].shape});
  return entries;
}

std::vector<WholeEntry> packed_entries_of(std::span<const LogicalTensor> logical, const Model& model) {
  constexpr std::uint32_t kMissing = UINT32_MAX;
  const auto refuse = [](const std::string& why, const std::string& tensor = {}) {
    Error error(ErrorKind::kUnsupported, "`experts` packed: " + why);
    if (!tensor.empty()) error.tensor(tensor);
    return std::move(error.hint("leave out `experts`"));
  };
  const PackedExperts packed(*model.family);
  if (!saves_experts_apart(logical, packed)) {
    if (std::any_of(model.parameters.begin(), model.parameters.end(), is_own_stack))
      return entries_of(logical);  // they are packed in the model's files
    throw refuse(
        fmt::format("models of {} have no experts that Transformers packs", printable(model.family->model_type)));
  }
  const WrittenNames written(model, packed.scheme(), 0);
  std::vector<WholeEntry> entries;
  std::unordered_map<std::string, std::size_t> by_name;
  for (std::uint32_t l = 0; l < logical.size(); ++l) {
    const std::string& name = logical[l].name;
    const WrittenNames::Place place = written.find(name);
    const bool is_packed = place.entry != nullptr && !place.entry->rule->is_plain();
    if (!is_packed && PackedExperts::is_of_expert(name))
      throw refuse("the packed form has no place for it, as it has weights alone", name);
    const auto [at, is_new] = by_name.emplace(place.entry == nullptr ? name : place.entry->name, entries.size());
    if (is_new) entries.push_back({at->first, {}, logical[l].shape});
    WholeEntry& entry = entries[at->second];
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
  for (const WholeEntry& entry : entries)
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
