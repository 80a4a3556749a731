#include "reshard/layouts/core/unpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "reshard/base/checked.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/rules/packing.h"

namespace reshard {
namespace {

constexpr std::uint64_t kMaxPackedTensors = std::uint64_t{1} << 18;   // in all packed entries together
constexpr std::uint64_t kMaxUnpackedPieces = std::uint64_t{1} << 24;  // likewise; a tensor has one piece or a few

/// \param left  Limit of tensors; reduced by the number returned.
std::vector<std::string> tensors_in(const PackedEntry& packed, std::uint64_t& left) {
  const Dims numbers = numbers_of(*packed.names->rule, packed.shape);
  const auto count = checked_mul(num_elems(numbers).value_or(UINT64_MAX), packed.names->parameters.size());
  if (count.value_or(UINT64_MAX) > left)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("contains {} tensors, more than any model has", count.value_or(UINT64_MAX)));
  left -= *count;
  return packed.names->tensors(numbers);
}

/// Whether an entry of shape `array` can contain the model's entry of shape `packed`.
bool has_room(const SchemeEntry& rule, const Dims& packed, const Dims& array) {
  for (std::size_t d = 0; d < packed.size(); ++d) {
    const std::vector<std::string>& axes = rule.entry_dims[d];
    const bool may_be_longer = rule.is_padded && axes.size() == 1 && axes.front() == rule.joined;
    if (may_be_longer ? array[d] < packed[d] : array[d] != packed[d]) return false;
  }
  return true;
}

/// Returns the shapes of parameters that share the rows of an entry of shape `array` equally; std::nullopt if the
/// scheme splits it otherwise.
std::optional<std::vector<Dims>> even_parts(const SchemeEntry& rule, const Dims& array) {
  if (!rule.sizes.empty() || rule.is_padded) return std::nullopt;
  Dims part;
  for (const std::vector<std::string>& axes : rule.parameter_dims) {
    const auto dim = std::find(rule.entry_dims.begin(), rule.entry_dims.end(), axes);
    if (dim == rule.entry_dims.end()) return std::nullopt;
    const std::uint64_t size = array[static_cast<std::size_t>(dim - rule.entry_dims.begin())];
    const std::size_t count = axes.front() == rule.joined ? rule.parameters.size() : 1;
    if (size % count != 0) return std::nullopt;
    part.push_back(size / count);
  }
  return std::vector<Dims>(rule.parameters.size(), part);
}

/// Plans all changes before it modifies the map.
class MapUnpacker {
 public:
  MapUnpacker(SourceMap& map, const PackedEntries& packed, const Model* model, std::vector<TrainingState>* states)
      : map_(map), packed_(packed), model_(model), states_(states) {
    if (model == nullptr) return;
    for (const ModelParameter& parameter : model->parameters) shapes_.emplace(parameter.name, &parameter.shape);
  }

  Unpacked run() && {
    for (std::uint32_t l = 0; l < map_.logical.size(); ++l) {
      const auto packed = packed_.by_name.find(map_.logical[l].name);
      if (packed == packed_.by_name.end() || map_.logical[l].constant()) {
        add(l);
        continue;
      }
      try {
        plan(packed->second, l);
      } catch (Error& error) {
        throw error.in(packed_.where).tensor(packed->second.entry);
      }
    }
    validate_unique_names();
    cut();
    return std::move(unpacked_);
  }

 private:
  /// A logical tensor to unpack.
  struct Array {
    std::uint32_t logical;
    std::uint32_t first;  // index of its first tensor in `made_`
    std::uint32_t count;
    Packing packing;  // plain if each tensor is a copy of the whole entry
  };

  void add(std::uint32_t from) {
    made_.push_back(map_.logical[from]);
    from_.push_back(from);
    if (states_ != nullptr) made_states_.push_back((*states_)[from]);
  }

  void plan(const PackedEntry& packed, std::uint32_t l) {
    const LogicalTensor& tensor = map_.logical[l];
    const std::vector<std::string> names = tensors_in(packed, tensors_left_);
    const bool is_copied = tensor.role == TensorRole::kObject || tensor.shape != packed.shape;
    auto array = is_copied ? PackedArray() : array_of(packed, names, tensor.role);
    if (!array) {
      unpacked_.kept = packed.entry;
      return add(l);
    }
    for (const Piece& piece : map_.pieces[l]) {
      const std::uint64_t count = is_copied ? names.size() : array->packing.count_in(piece.box);
      if (count > pieces_left_)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("its chunks and those of other entries would become more than {} pieces of tensors",
                                kMaxUnpackedPieces));
      pieces_left_ -= count;
      if (bits(tensor.dtype) % 8 != 0 && !is_copied)
        for (const Region& region : array->packing.regions_in(piece.box))
          if (view_in(piece, region).offset * bits(tensor.dtype) % 8 != 0)
            throw Error(ErrorKind::kUnsupported, "contains tensors that do not begin at a byte boundary");
    }
    const auto first = static_cast<std::uint32_t>(made_.size()), count = static_cast<std::uint32_t>(names.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      add(l);
      if (states_ != nullptr) made_states_.back().parameter = names[i];
      made_.back().name = states_ != nullptr ? made_states_.back().name_with(names[i]) : names[i];
      if (!is_copied) made_.back().shape = array->parts[i % array->parts.size()];
      if (!is_copied && !packed.names->rule->changes.empty()) change(packed, i);
    }
    arrays_.push_back({l, first, count, std::move(array->packing)});
  }

  /// Makes the last tensor, which is number `i` in the entry, one whose values follow from the parameter's.
  void change(const PackedEntry& packed, std::size_t i) {
    const auto& changes = packed.names->rule->changes;
    const ValueChange& values = changes[i % changes.size()].values;
    LogicalTensor& tensor = made_.back();
    if (tensor.role != TensorRole::kParameter) {
      if (!is_moment(std::string_view(tensor.name).substr(tensor.name.rfind('.') + 1)))
        throw Error(ErrorKind::kUnsupported, "has a state other than moments, and values that the program changes")
            .hint("leave out `with-optimizer`");
      return;
    }
    restored_.emplace_back(tensor.name, values);
    tensor.name = values.name_of(tensor.name);
    unpacked_.notes.changed(
        fmt::format("{} contains sums ({}), which were rounded: digits that parameters have lost cannot be recovered",
                    printable(packed.entry), printable(with_stars(tensor.name))));
  }

  /// Returns how an entry is packed; std::nullopt if this depends on an unknown model.
  /// \param names  Names of the tensors in the entry.
  std::optional<PackedArray> array_of(const PackedEntry& packed, const std::vector<std::string>& names,
                                      TensorRole role) {
    const SchemeEntry& rule = *packed.names->rule;
    const auto missing =
        std::find_if(names.begin(), names.end(), [&](const std::string& name) { return shapes_.count(name) == 0; });
    if (missing != names.end()) {
      auto array = unpack_single(rule, packed.shape);
      if (array || model_ == nullptr) return array;
      const bool are_all_missing =
          std::none_of(names.begin(), names.end(), [&](const std::string& name) { return shapes_.count(name) > 0; });
      if (are_all_missing)  // such as an extra layer beyond num_hidden_layers
        if (auto parts = even_parts(rule, packed.shape))
          return pack(rule, *std::move(parts), numbers_of(rule, packed.shape), *model_);
      throw Error(ErrorKind::kBadInput, fmt::format("contains {}, which the model does not have", printable(*missing)))
          .hint("config.json belongs to another model");
    }
    std::vector<Dims> parts;
    for (std::size_t p = 0; p < packed.names->parameters.size(); ++p) parts.push_back(*shapes_.at(names[p]));
    PackedArray array = pack(rule, std::move(parts), numbers_of(rule, packed.shape), *model_);
    if (!has_room(rule, array.shape, packed.shape))
      throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but the model has {} ({})",
                                                    to_string(packed.shape), to_string(array.shape), rule.where))
          .hint("config.json belongs to another model, or the scheme's entry lacks \"padded\"");
    if (array.shape != packed.shape && role == TensorRole::kParameter)
      unpacked_.notes
          .changed(fmt::format("removed the padding of {}, from {} to {}", printable(packed.entry),
                               to_string(array.shape), to_string(packed.shape)))
          .of({packed.entry});
    return array;
  }

  /// Returns a region of a piece's box as a view of the stored tensor.
  PlacedView view_in(const Piece& piece, Region region) const {
    for (std::size_t d = 0; d < region.begin.size(); ++d) region.begin[d] += piece.stored_begin[d];
    return view_of(region, map_.stored[piece.stored].strides());
  }

  void validate_unique_names() const {
    const auto entry_of = [&](std::uint32_t l) {
      const std::vector<Piece>& pieces = map_.pieces[l];
      return printable(pieces.empty() ? map_.logical[l].name : map_.stored[pieces.front().stored].name.text());
    };
    std::unordered_map<std::string_view, std::uint32_t> from;
    for (std::size_t i = 0; i < made_.size(); ++i) {
      const auto [other, is_new] = from.emplace(made_[i].name, from_[i]);
      if (!is_new && !made_[i].constant() && !map_.logical[other->second].constant())
        throw Error(ErrorKind::kBadInput,
                    fmt::format("exists twice, in {} and in {}", entry_of(other->second), entry_of(from_[i])))
            .in(packed_.where)
            .tensor(made_[i].name)
            .hint("files of two saves are mixed in one folder");
    }
  }

  void cut() {
    std::vector<std::vector<Piece>> pieces(made_.size());
    std::vector<bool> used(map_.stored.size(), true);
    for (const Array& array : arrays_)
      for (const Piece& piece : map_.pieces[array.logical]) used[piece.stored] = false;
    auto array = arrays_.begin();
    for (std::uint32_t l = 0, next = 0; l < map_.logical.size(); ++l) {
      if (array == arrays_.end() || array->logical != l) {
        for (const Piece& piece : map_.pieces[l]) used[piece.stored] = true;
        pieces[next++] = std::move(map_.pieces[l]);
        continue;
      }
      for (const Piece& piece : map_.pieces[l]) add_parts(*array, piece, pieces);
      next += array++->count;
    }
    // Sort by row, so that a partially assembled tensor consists of few boxes.
    for (const Array& one : arrays_)
      for (std::uint32_t i = one.first; i < one.first + one.count; ++i)
        std::stable_sort(pieces[i].begin(), pieces[i].end(),
                         [](const Piece& a, const Piece& b) { return a.box.begin < b.box.begin; });
    map_.set_logical(std::move(made_), std::move(pieces), from_);
    if (states_ != nullptr) *states_ = std::move(made_states_);
    used.resize(map_.stored.size(), true);
    if (!arrays_.empty()) map_.keep_stored(used);
    for (const auto& [name, values] : restored_) add_restored(map_, name, {values.name_of(name)}, {values});
  }

  /// Splits `piece` and adds its parts to the pieces of the unpacked tensors.
  void add_parts(const Array& array, const Piece& piece, std::vector<std::vector<Piece>>& pieces) {
    const auto add_part = [&](std::uint32_t tensor, Box box, PlacedView placed) {
      const std::uint32_t part = map_.add_stored(map_.stored[piece.stored].part(placed.offset, std::move(placed.view)));
      const Dims zeros(box.size.size());
      pieces[array.first + tensor].push_back({part, std::move(box), zeros});
    };
    if (array.packing.is_plain()) {
      const View view{piece.box.size, map_.stored[piece.stored].strides()};
      for (std::uint32_t i = 0; i < array.count; ++i) add_part(i, piece.box, {view.offset(piece.stored_begin), view});
      return;
    }
    for (Region& region : array.packing.regions_in(piece.box)) {
      PlacedView placed = view_in(piece, region);
      add_part(region.tensor, std::move(region.box), std::move(placed));
    }
  }

  SourceMap& map_;
  const PackedEntries& packed_;
  const Model* model_;
  std::vector<TrainingState>* states_;
  std::unordered_map<std::string_view, const Dims*> shapes_;  // shapes of the model's parameters
  std::uint64_t tensors_left_ = kMaxPackedTensors, pieces_left_ = kMaxUnpackedPieces;
  std::vector<LogicalTensor> made_;
  std::vector<std::uint32_t> from_;  // index of the logical tensor that each comes from
  std::vector<TrainingState> made_states_;
  std::vector<std::pair<std::string, ValueChange>> restored_;  // parameters that follow from changed tensors
  std::vector<Array> arrays_;
  Unpacked unpacked_;
};

}  // namespace

std::vector<std::string> PackedEntries::tensors() const {
  std::vector<std::string> names;
  std::uint64_t left = kMaxPackedTensors;
  for (const auto& [name, packed] : by_name) try {
      for (std::string& one : tensors_in(packed, left)) names.push_back(std::move(one));
    } catch (Error& error) {
      throw error.in(where).tensor(packed.entry);
    }
  return names;
}

Unpacked unpack(SourceMap& map, const PackedEntries& packed, const Model* model, std::vector<TrainingState>* states) {
  if (packed.by_name.empty()) return {};
  return MapUnpacker(map, packed, model, states).run();
}

bool unpack_entries(SourceMap& map, const PackedEntries& packed, Checkpoint& checkpoint, ConfigUse use,
                    std::vector<TrainingState>* states) {
  const Model* const model = checkpoint.model ? &*checkpoint.model : nullptr;
  Unpacked unpacked;
  try {
    unpacked = unpack(map, packed, model, states);
  } catch (const Error& error) {
    if (use != ConfigUse::kLenient || model == nullptr) throw;
    unpacked = unpack(map, packed, nullptr, states);
    unpacked.notes.mismatch(error.what()).in(error.path());
  }
  checkpoint.notes.add(unpacked.notes);
  if (use != ConfigUse::kLenient && !unpacked.kept.empty())
    throw Error(ErrorKind::kUnsupported, "has its elements in an order that depends on config.json")
        .in(packed.where)
        .tensor(unpacked.kept)
        .hint("set `config` to the model's config.json");
  return unpacked.kept.empty();
}

}  // namespace reshard
