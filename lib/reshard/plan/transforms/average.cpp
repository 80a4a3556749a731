#include "reshard/plan/transforms/average.h"

#include <algorithm>
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

}  // namespace

SourceMap average(SourceMap source, const std::vector<Average>& means) {
  for (const Average& mean : means) {
    Computed computed{mean.how == LoraFuse::kSame ? same_recipe() : mean_recipe(), {}};
    std::vector<std::uint32_t> distinct;
    for (const std::string& name : mean.terms) {
      const auto term = source.find_logical(name);
      if (!term) throw Error(ErrorKind::kInternal, "a mean of a tensor that is not there").tensor(name);
      const bool is_copy = std::any_of(distinct.begin(), distinct.end(),
                                       [&](std::uint32_t other) { return is_same_place(source, other, *term); });
      (is_copy ? computed.copies : computed.inputs).push_back(name);
      if (!is_copy) distinct.push_back(*term);
    }
    LogicalTensor tensor = source.logical[distinct.front()];
    tensor.name = mean.name;
    tensor.computed = std::make_shared<const Computed>(std::move(computed));
    source.add_logical(tensor, {});
  }
  return source;
}

void add_computed(SourceMap& source, const TargetMap& target) {
  for (const LogicalTensor& tensor : target.logical) {
    if (!tensor.computed || tensor.constant() || source.find_logical(tensor.name)) continue;
    LogicalTensor part = tensor;
    part.role = TensorRole::kPart;
    source.add_logical(part, {});
  }
}

}  // namespace reshard
