#include "reshard/layouts/rules/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

using AxisSizes = std::map<std::string, std::uint64_t, std::less<>>;  // by axis

/// "(head half pair) in"
std::string text_of(const DimAxes& dims) {
  std::vector<std::string> words;
  for (const std::vector<std::string>& axes : dims)
    words.push_back(axes.size() == 1 ? axes.front() : "(" + join(axes, " ") + ")");
  return join(words, " ");
}

/// Returns the sizes that the scheme computes from a model's numbers.
AxisSizes given_sizes(const SchemeEntry& entry, const Model& model) {
  constexpr std::array<std::uint64_t Model::*, kModelNumbers.size()> kNumbers = {&Model::heads, &Model::kv_heads,
                                                                                 &Model::head_dim};
  const auto number = [&](const std::string& key) -> ConfigValue {
    const auto* const known = std::find(kModelNumbers.begin(), kModelNumbers.end(), key);
    return model.*kNumbers.at(static_cast<std::size_t>(known - kModelNumbers.begin()));
  };
  AxisSizes sizes;
  for (const auto& [axis, size] : entry.sizes) try {
      sizes.emplace(axis, size.size(number));
    } catch (const Error& error) {
      throw Error(ErrorKind::kUnsupported, fmt::format("has an axis \"{}\" without a valid size in the model: {} ({})",
                                                       axis, error.message(), entry.where))
          .hint("config.json belongs to another model, or the scheme has another size");
    }
  return sizes;
}

/// Computes the one unknown axis of each dim from `shape`.
/// \throws Error kBadInput if `shape` does not fit.
void solve(const SchemeEntry& entry, const DimAxes& dims, const Dims& shape, AxisSizes& sizes) {
  bool fits = dims.size() == shape.size();
  for (std::size_t d = 0; fits && d < dims.size(); ++d) {
    std::uint64_t known = 1;
    const std::string* unknown = nullptr;
    for (const std::string& axis : dims[d]) {
      const auto size = sizes.find(axis);
      if (size != sizes.end())
        known = checked_mul(known, size->second).value_or(0);
      else
        fits = fits && std::exchange(unknown, &axis) == nullptr;
    }
    if (unknown == nullptr) {
      fits = fits && known == shape[d];
    } else {
      fits = fits && known != 0 && shape[d] % known == 0;
      if (fits) sizes.emplace(*unknown, shape[d] / known);
    }
  }
  if (fits) return;
  std::vector<std::string> known;
  for (const auto& [axis, size] : entry.sizes) known.push_back(fmt::format("{} = {}", axis, sizes.at(axis)));
  throw Error(ErrorKind::kBadInput,
              fmt::format("has the shape {}, expected \"{}\"{}{} ({})", to_string(shape), text_of(dims),
                          known.empty() ? "" : " with ", join(known, ", "), entry.where))
      .hint(known.empty() ? "" : "config.json belongs to another model, or the scheme's entry is wrong");
}

Dims shape_of(const DimAxes& dims, const AxisSizes& sizes) {
  Dims shape;
  for (const std::vector<std::string>& axes : dims) {
    shape.push_back(1);
    for (const std::string& axis : axes) shape.back() *= sizes.at(axis);
  }
  return shape;
}

/// Returns the axes of a parameter's dims in the array.
Packing::Part part_of(const SchemeEntry& entry, const AxisSizes& of_parameter, const AxisSizes& of_entry,
                      std::uint64_t begin) {
  std::map<std::string_view, Packing::Axis> axes;
  Packing::Part part{{}, Dims(entry.entry_dims.size())};
  for (std::size_t d = 0; d < entry.entry_dims.size(); ++d) {
    std::uint64_t step = 1;
    for (std::size_t a = entry.entry_dims[d].size(); a-- > 0;) {
      const std::string& axis = entry.entry_dims[d][a];
      if (axis == entry.joined) part.begin[d] = begin * step;
      const auto own = of_parameter.find(axis);
      if (own != of_parameter.end()) axes[axis] = {own->second, d, step};
      step *= of_entry.at(axis);
    }
  }
  for (const std::vector<std::string>& dim : entry.parameter_dims) {
    std::vector<Packing::Axis>& own = part.dims.emplace_back();
    for (const std::string& axis : dim) {
      const Packing::Axis& next = axes.at(axis);
      const bool continues = !own.empty() && own.back().dim == next.dim && own.back().step == next.size * next.step;
      if (continues)
        own.back() = {own.back().size * next.size, next.dim, next.step};
      else
        own.push_back(next);
    }
  }
  return part;
}

}  // namespace

LogicalTensor changed_tensor(const LogicalTensor& parameter, const std::string& name, const ValueChange& change) {
  LogicalTensor tensor = parameter;
  tensor.name = name;
  tensor.shape = change.shape_of(parameter.shape);
  tensor.dtype = change.dtype_of(parameter.dtype);
  tensor.computed = std::make_shared<const Computed>(Computed{change_recipe(change, tensor.dtype), {parameter.name}});
  return tensor;
}

void note_rounded(const std::set<std::string>& names, Notes& notes) {
  if (names.empty()) return;
  notes
      .changed(
          "sums and quotients are rounded to the dtype of the files, and parameters lose digits that cannot be "
          "recovered: " +
          list_names(std::vector<std::string>(names.begin(), names.end())))
      .of({names.begin(), names.end()});
}

void add_restored(SourceMap& map, const std::string& parameter, std::vector<std::string> names,
                  std::vector<ValueChange> changes) {
  for (const std::string& name : names) map.logical[*map.find_logical(name)].role = TensorRole::kPart;
  LogicalTensor tensor = map.logical[*map.find_logical(names.front())];
  tensor.name = parameter;
  tensor.role = TensorRole::kParameter;
  const ValueChange& change = changes.front();
  if (change.arrangement) {
    tensor.shape = change.arrangement->from_shape();
    if (change.arrangement->word() > 1) tensor.dtype = DType::kU8;
  } else {
    tensor.shape.back() *= change.step;
  }
  tensor.computed = std::make_shared<const Computed>(Computed{restore_recipe(std::move(changes)), std::move(names)});
  map.add_logical(tensor, {});
}

Dims numbers_of(const SchemeEntry& entry, const Dims& shape) {
  if (shape.size() != entry.entry_dims.size() || num_elems(shape).value_or(0) == 0)
    throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, expected \"{}\" ({})", to_string(shape),
                                                  text_of(entry.entry_dims), entry.where))
        .hint("another version of the program wrote the checkpoint, or the scheme is wrong");
  Dims numbers;
  for (const std::size_t dim : entry.numbered_dims()) numbers.push_back(shape[dim]);
  return numbers;
}

PackedArray pack(const SchemeEntry& entry, std::vector<Dims> parts, const Dims& numbers, const Model& model) {
  AxisSizes sizes = given_sizes(entry, model);
  std::vector<AxisSizes> of_parts;
  std::uint64_t joined = 0;  // size of the joined axis in the entry
  for (const Dims& shape : parts) {
    AxisSizes own = sizes;
    solve(entry, entry.parameter_dims, shape, own);
    for (const auto& [axis, size] : own)
      if (axis != entry.joined) sizes.emplace(axis, size);
    joined += entry.joined.empty() ? 0 : own.at(entry.joined);
    of_parts.push_back(std::move(own));
  }
  if (!entry.joined.empty()) sizes[entry.joined] = joined;
  PackedArray array;
  const std::vector<std::size_t> numbered = entry.numbered_dims();
  for (std::size_t n = 0; n < numbered.size(); ++n) {
    sizes.emplace(entry.entry_dims[numbered[n]].front(), numbers[n]);
    array.packing.numbers.push_back({numbers[n], numbered[n], 1});
  }
  std::uint64_t begin = 0;
  for (const AxisSizes& own : of_parts) {
    array.packing.parts.push_back(part_of(entry, own, sizes, begin));
    if (!entry.joined.empty()) begin += own.at(entry.joined);
  }
  array.shape = shape_of(entry.entry_dims, sizes);
  array.parts = std::move(parts);
  return array;
}

std::optional<PackedArray> unpack_single(const SchemeEntry& entry, const Dims& shape) {
  if (entry.parameters.size() != 1 || entry.is_padded || !entry.sizes.empty()) return std::nullopt;
  const Dims numbers = numbers_of(entry, shape);
  AxisSizes sizes;
  solve(entry, entry.entry_dims, shape, sizes);
  return pack(entry, {shape_of(entry.parameter_dims, sizes)}, numbers, Model{});
}

}  // namespace reshard
