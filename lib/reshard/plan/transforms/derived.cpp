#include "reshard/plan/transforms/derived.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/tensor/recipes/mean.h"
#include "reshard/tensor/recipes/same.h"

namespace reshard {
namespace {

/// Whether two tensors of a map are stored in the same bytes of the same files.
bool is_same_place(const SourceMap& map, std::uint32_t a, std::uint32_t b) {
  return std::ranges::equal(map.pieces[a], map.pieces[b], [&](const Piece& x, const Piece& y) {
    const StoredTensor &in_x = map.stored[x.stored], &in_y = map.stored[y.stored];
    return in_x.file == in_y.file && in_x.offset_bytes == in_y.offset_bytes && in_x.view() == in_y.view() &&
           x.box == y.box && x.stored_begin == y.stored_begin;
  });
}

/// Moves repeated inputs to the copies.
Computed without_repetitions(const SourceMap& source, const Computed& computed) {
  Computed once{computed.recipe, {}};
  std::vector<std::uint32_t> distinct;
  for (const std::string& name : computed.inputs) {
    const std::uint32_t input = source.find_logical(name).value();
    const bool is_copy = std::any_of(distinct.begin(), distinct.end(),
                                     [&](std::uint32_t other) { return is_same_place(source, other, input); });
    (is_copy ? once.copies : once.inputs).push_back(name);
    if (!is_copy) distinct.push_back(input);
  }
  return once;
}

/// Adds a derived tensor to `source`. \returns its dtype.
DType install(SourceMap& source, LogicalTensor tensor) {
  for (const std::string& name : tensor.computed->inputs)
    if (!source.find_logical(name)) throw Error(ErrorKind::kInternal, "is no tensor of the source").tensor(name);
  const std::string key = tensor.computed->recipe->key();
  if (key == kMeanKey || key == kSameKey)
    tensor.computed = std::make_shared<const Computed>(without_repetitions(source, *tensor.computed));
  tensor.dtype = source.logical[source.find_logical(tensor.computed->inputs.front()).value()].dtype;
  source.add_logical(tensor, {});
  return tensor.dtype;
}

/// Counts the means among the transforms. They are computed in the dtype of the files, before casts.
void count_means(Draft& draft) {
  const std::vector<LogicalTensor>& tensors = draft.source.map.logical;
  const auto count = std::count_if(tensors.begin(), tensors.end(), [](const LogicalTensor& tensor) {
    return tensor.computed && tensor.computed->recipe->key() == kMeanKey && tensor.computed->inputs.size() > 1;
  });
  const auto cast = std::find_if(draft.transforms.begin(), draft.transforms.end(),
                                 [](const Applied& one) { return one.transform == Applied::Transform::kCast; });
  if (count > 0) draft.transforms.insert(cast, {Applied::Transform::kAverage, static_cast<std::size_t>(count)});
}

}  // namespace

void install_derived(Draft& draft, std::vector<LogicalTensor> derived, const TargetMap& target) {
  SourceMap& source = draft.source.map;
  std::map<DType, std::size_t> narrow;  // number of master weights made from narrow weights
  for (LogicalTensor& tensor : derived) {
    const bool is_state = tensor.role == TensorRole::kState;
    const DType dtype = install(source, std::move(tensor));
    if (is_state && bits(dtype) < bits(DType::kF32)) ++narrow[dtype];
  }
  for (const auto& [dtype, count] : narrow)
    draft.source.notes.changed(
        fmt::format("the source has no master weights of {} parameter{}: computed them from {} weights", count,
                    count == 1 ? "" : "s", name(dtype)));
  count_means(draft);
  for (const LogicalTensor& tensor : target.logical) {
    if (!tensor.computed || tensor.constant() || source.find_logical(tensor.name)) continue;
    LogicalTensor part = tensor;
    part.role = TensorRole::kPart;
    source.add_logical(part, {});
  }
}

}  // namespace reshard
