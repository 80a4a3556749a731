#include "reshard/layouts/expert_stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/specs/packed_experts.h"

namespace reshard {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

using Parameters = std::unordered_map<std::string_view, const ModelParameter*>;

/// Whether the model has all experts of a layer in this parameter.
bool is_own_stack(const ModelParameter& parameter) {
  return parameter.experts > 0 && !parameter.expert;
}

/// The names of stacks, and how many experts a layer of the model has: what claims more is none of its stacks.
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

/// Whether all tensors that the model has packed, too, have its shapes. Transformers 4 has the last two dims of some
/// families the other way round: (E, H, 2 I). Of a square matrix that cannot be told, but the other one is none then.
bool are_models_own(const TensorMap& map, const Stacks& stacks, const Model& model) {
  Parameters parameters;
  for (const ModelParameter& parameter : model.parameters) parameters.emplace(parameter.name, &parameter);
  bool any = false;
  for (const LogicalTensor& tensor : map.logical) {
    if (!stacks.has(tensor)) continue;
    const auto own = parameters.find(tensor.name);
    if (own == parameters.end() || own->second->shape != tensor.shape) return false;
    any = any || tensor.shape[1] != tensor.shape[2];
  }
  return any;
}

/// Takes a stored tensor of three dims for the matrices that it is made of, one under the other.
void take_as_rows(TensorMap& map, std::uint32_t stored) {
  StoredTensor& tensor = map.stored[stored];
  if (tensor.shape.size() == 2) return;  // another piece of it has been here
  const auto strided = map.strides.find(stored);
  if (strided != map.strides.end()) {
    const Dims steps = strided->second;
    if (tensor.shape[0] > 1 && steps[0] != steps[1] * tensor.shape[1])
      throw Error(ErrorKind::kUnsupported, "holds experts whose matrices do not lie one after another")
          .in(map.files[tensor.file].path)
          .tensor(tensor.name);
    strided->second = {steps[1], steps[2]};
  }
  tensor.slices = static_cast<std::uint32_t>(tensor.shape[0]);
  tensor.shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2]};
}

/// Adds what `piece`, of a stack in which each part of an expert has `rows` rows, is of the logical tensors `parts`, by
/// expert and part.
void add_pieces_of(TensorMap& map, const Piece& piece, std::uint64_t rows_of_slice, std::uint64_t rows,
                   const std::vector<std::uint32_t>& logical, std::size_t parts) {
  const Box& box = piece.box;
  const std::uint64_t end = box.begin[1] + box.size[1];
  for (std::uint64_t i = 0; i < box.size[0]; ++i)
    for (std::size_t part = 0; part < parts; ++part) {
      const std::uint64_t from = std::max(box.begin[1], part * rows), to = std::min(end, (part + 1) * rows);
      if (from >= to) continue;
      const std::uint64_t slice = piece.stored_begin[0] + i;
      const std::uint64_t row = slice * rows_of_slice + piece.stored_begin[1] + (from - box.begin[1]);
      map.pieces[logical[(box.begin[0] + i) * parts + part]].push_back(
          {piece.stored, {{from - part * rows, box.begin[2]}, {to - from, box.size[2]}}, {row, piece.stored_begin[2]}});
    }
}

/// \throws Error kBadInput if there is such a tensor already.
std::uint32_t add_new(TensorMap& map, const LogicalTensor& tensor, const std::string& in_file) {
  if (map.find_logical(tensor.name))
    throw Error(ErrorKind::kBadInput, fmt::format("is there by its own name and as {}", in_file)).tensor(tensor.name);
  return map.add_logical(tensor, {});
}

}  // namespace

namespace {

/// The first tensor that holds all experts of a layer, by its name; null if there is none.
const LogicalTensor* first_stack(const TensorMap& map, const Stacks& stacks) {
  const auto first = std::find_if(map.logical.begin(), map.logical.end(),
                                  [&](const LogicalTensor& tensor) { return stacks.has(tensor); });
  return first == map.logical.end() ? nullptr : &*first;
}

/// Makes of each stack the tensors of its experts, and the model that has these.
void take_apart(Checkpoint& checkpoint, const Stacks& stacks) {
  TensorMap& map = checkpoint.map;
  std::unordered_set<std::string> names;
  for (auto& [tensor, pieces] : map.take_logical()) {
    if (!stacks.has(tensor)) {
      tensor.name = stacks.names.own_name(tensor.name);
      map.pieces[add_new(map, tensor, tensor.name)] = std::move(pieces);
      names.insert(tensor.name);
      continue;
    }
    const PackedExperts::Stack stack = *stacks.names.find(tensor.name);
    const std::size_t parts = stack.parts.size();
    if (tensor.shape[1] % parts != 0)
      throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, of which each expert has {} matrices, one under "
                                                    "the other",
                                                    to_string(tensor.shape), parts))
          .in(checkpoint.path)
          .tensor(tensor.name);
    const std::uint64_t rows = tensor.shape[1] / parts;
    std::vector<std::uint32_t> logical;
    LogicalTensor matrix = tensor;
    matrix.shape = {rows, tensor.shape[2]};
    for (std::uint64_t expert = 0; expert < tensor.shape[0]; ++expert)
      for (std::size_t part = 0; part < parts; ++part) {
        matrix.name = stack.name_of(part, expert);
        logical.push_back(add_new(map, matrix, tensor.name));
        names.insert(matrix.name);
      }
    for (const Piece& piece : pieces) {
      if (volume(piece.box) == 0) continue;
      const StoredTensor& stored = map.stored[piece.stored];
      const std::uint64_t rows_of_slice = stored.file_shape()[1];
      take_as_rows(map, piece.stored);
      add_pieces_of(map, piece, rows_of_slice, rows, logical, parts);
    }
  }
  const FamilyFrom from = checkpoint.model->family_from;
  checkpoint.model = instantiate(checkpoint.language_model, {names.begin(), names.end()});
  checkpoint.model->family_from = from;
}

}  // namespace

void unpack_experts(Checkpoint& checkpoint, const ReadContext& context) {
  if (!checkpoint.model || !checkpoint.language_model.family) return;
  const Stacks stacks(*checkpoint.model);
  const LogicalTensor* first = stacks.names.empty() ? nullptr : first_stack(checkpoint.map, stacks);
  if (first == nullptr) return;
  if (are_models_own(checkpoint.map, stacks, *checkpoint.model)) return;
  if (context.with_optimizer)
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
  if (!checkpoint.model || !checkpoint.language_model.family) return;
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

std::vector<WholeEntry> entries_of(std::span<const LogicalTensor> logical) {
  std::vector<WholeEntry> entries;
  entries.reserve(logical.size());
  for (std::uint32_t l = 0; l < logical.size(); ++l) entries.push_back({logical[l].name, {l}});
  return entries;
}

std::vector<WholeEntry> packed_entries_of(std::span<const LogicalTensor> logical, const Model& model) {
  const PackedExperts packed(*model.family);
  std::vector<WholeEntry> entries;
  std::unordered_map<std::string, std::size_t> stacks;  // indices of entries
  std::string left;                                     // a tensor of an expert that has no place in them
  for (std::uint32_t l = 0; l < logical.size(); ++l) {
    const auto found = packed.stack_of(logical[l].name);
    if (!found || found->second >= logical.size()) {
      left = left.empty() && PackedExperts::is_of_expert(logical[l].name) ? logical[l].name : left;
      entries.push_back({packed.packed_name(logical[l].name), {l}});
      continue;
    }
    const auto& [stack, expert] = *found;
    const std::size_t parts = stack.parts.size();
    const auto [at, is_new] = stacks.emplace(stack.name, entries.size());
    if (is_new) entries.push_back({stack.name, {}});
    std::size_t part = 0;
    while (stack.name_of(part, expert) != logical[l].name) ++part;
    std::vector<std::uint32_t>& members = entries[at->second].logical;
    members.resize(std::max<std::size_t>(members.size(), (expert + 1) * parts), kNone);
    members[expert * parts + part] = l;
    entries[at->second].slices = static_cast<std::uint32_t>(members.size() / parts);
  }
  if (stacks.empty() && std::any_of(model.parameters.begin(), model.parameters.end(), is_own_stack))
    return entries_of(logical);  // they are packed in the model's files
  if (stacks.empty())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("`experts` packed: models of {} have no experts that Transformers packs",
                            printable(model.family->model_type)))
        .hint("leave out `experts`");
  if (!left.empty())
    throw Error(ErrorKind::kUnsupported, "`experts` packed: has no place in the packed form, which has weights alone")
        .tensor(left)
        .hint("leave out `experts`");
  for (const WholeEntry& entry : entries) {
    if (entry.slices == 0) continue;
    const auto is_other = [&](std::uint32_t l) {
      return l == kNone || logical[l].dtype != logical[entry.logical.front()].dtype ||
             logical[l].shape != logical[entry.logical.front()].shape || logical[l].shape.size() != 2;
    };
    if (entry.logical.front() == kNone || std::any_of(entry.logical.begin(), entry.logical.end(), is_other))
      throw Error(ErrorKind::kUnsupported,
                  "`experts` packed: of its experts, one is missing or differs in dtype or shape")
          .tensor(entry.name)
          .hint("leave out `experts`");
  }
  return entries;
}

bool saves_packed(std::span<const LogicalTensor> logical, const Model& model) {
  const PackedExperts packed(*model.family);
  return packed.stay_packed() && !model.quantized &&
         std::any_of(logical.begin(), logical.end(),
                     [&](const LogicalTensor& tensor) { return packed.stack_of(tensor.name).has_value(); });
}

}  // namespace reshard
