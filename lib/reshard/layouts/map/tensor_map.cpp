#include "reshard/layouts/map/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "reshard/base/error.h"
#include "reshard/tensor/cast/numeric.h"
#include "reshard/tensor/copy/runs.h"

namespace reshard {
namespace {

/// A piece, seen from the stored tensor.
struct Tile {
  Box box;
  std::uint32_t logical;
  std::uint32_t piece;
};

Error tiling_error(const TensorMap& map, std::uint32_t stored, const std::string& message) {
  const StoredTensor& tensor = map.stored[stored];
  return Error(ErrorKind::kBadInput, message).in(map.file_of(tensor).path).tensor(tensor.name);
}

/// Validates that no two tiles overlap. Sorts the tiles by their begin, so that only neighbors along one dim are
/// compared.
void validate_disjoint(const TensorMap& map, std::uint32_t stored, std::vector<Tile>& tiles) {
  std::size_t dim = 0;  // the first dim along which their begins differ
  while (!tiles.empty() && dim + 1 < tiles.front().box.begin.size() &&
         std::all_of(tiles.begin(), tiles.end(),
                     [&](const Tile& tile) { return tile.box.begin[dim] == tiles.front().box.begin[dim]; }))
    ++dim;
  std::sort(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) {
    return a.box.begin.empty() ? false : a.box.begin[dim] < b.box.begin[dim];
  });
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    for (std::size_t j = i + 1; j < tiles.size(); ++j) {
      const Box& a = tiles[i].box;
      const Box& b = tiles[j].box;
      if (a.begin.empty() || b.begin[dim] >= a.begin[dim] + a.size[dim]) break;
      if (const auto shared = intersect(a, b))
        throw tiling_error(map, stored, "its box " + to_string(*shared) + " is filled twice");
    }
  }
}

constexpr std::size_t kFewTiles = 256;  // compared with each other
constexpr std::size_t kMostSplitDims = 6;

/// Whether boxes inside a tensor fill it, each element once; std::nullopt if this would take too long to compute. The
/// number of boxes over each element is determined by its differences along all dims. These are the boxes' corners with
/// a sign, and they must cancel except for the corners of the tensor. O(n log n).
std::optional<bool> fill_exactly(const std::vector<Tile>& tiles, const Dims& shape) {
  std::vector<std::size_t> dims;  // split dims
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (std::any_of(tiles.begin(), tiles.end(), [&](const Tile& tile) { return tile.box.size[d] != shape[d]; }))
      dims.push_back(d);
  if (dims.size() > kMostSplitDims || volume(whole(shape)) == 0) return std::nullopt;
  std::vector<std::pair<Dims, int>> corners;
  corners.reserve((tiles.size() + 1) << dims.size());
  const auto add = [&](const Box& box, int sign) {
    for (std::size_t corner = 0; corner < std::size_t{1} << dims.size(); ++corner) {
      Dims point;
      int own = sign;
      for (std::size_t i = 0; i < dims.size(); ++i) {
        const bool at_end = (corner >> i & 1) != 0;
        point.push_back(box.begin[dims[i]] + (at_end ? box.size[dims[i]] : 0));
        if (at_end) own = -own;
      }
      corners.emplace_back(std::move(point), own);
    }
  };
  for (const Tile& tile : tiles)
    if (volume(tile.box) > 0) add(tile.box, 1);
  add(whole(shape), -1);
  std::sort(corners.begin(), corners.end());
  for (auto begin = corners.begin(); begin != corners.end();) {
    int sum = 0;
    auto end = begin;
    for (; end != corners.end() && end->first == begin->first; ++end) sum += end->second;
    if (sum != 0) return false;
    begin = end;
  }
  return true;
}

void validate_whole_bytes(const TensorMap& map, const StoredTensor& tensor, const Tile& tile) {
  if (bits(tensor.dtype) % 8 == 0) return;
  const LogicalTensor& logical = map.logical[tile.logical];
  const Piece& piece = map.pieces[tile.logical][tile.piece];
  if (make_strided_runs(tensor.dtype, piece.box.size, c_strides(logical.shape), piece.box.begin, tensor.strides(),
                        piece.stored_begin))
    return;
  throw Error(ErrorKind::kUsage,
              fmt::format("the box {} of {} splits a packed byte: elements of {} have {} bits", to_string(piece.box),
                          to_string(logical.shape), name(tensor.dtype), bits(tensor.dtype)))
      .tensor(logical.name)
      .hint("choose a smaller TP degree");
}

/// Returns the piece as seen from the stored tensor, after validating that it is inside both tensors.
Tile fitting_tile(const TensorMap& map, std::uint32_t logical_index, std::uint32_t piece_index) {
  const Piece& piece = map.pieces[logical_index][piece_index];
  const LogicalTensor& logical = map.logical[logical_index];
  const StoredTensor& tensor = map.stored[piece.stored];
  Tile tile{{piece.stored_begin, piece.box.size}, logical_index, piece_index};
  if (!contains(logical.shape, piece.box) || !contains(tensor.shape, tile.box) || tensor.dtype != logical.dtype)
    throw tiling_error(map, piece.stored,
                       fmt::format("the piece {} of {} does not fit it", to_string(piece.box), logical.name));
  validate_whole_bytes(map, tensor, tile);
  return tile;
}

/// Validates that the pieces, which are inside the stored tensor, have as many elements as the tensor.
void validate_filled(const TensorMap& map, std::uint32_t stored, std::uint64_t filled) {
  const std::uint64_t elems = num_elems(map.stored[stored].shape).value_or(0);
  if (filled < elems)
    throw tiling_error(map, stored, fmt::format("{} of its {} elements belong to no tensor", elems - filled, elems));
  if (filled > elems) throw tiling_error(map, stored, "its pieces overlap");
}

/// Returns "; the rule expects 25 per rank" if the rule alone determines the size; otherwise an empty string.
std::string expected_size(const PartitionRule& rule, std::uint32_t rank) {
  const auto size = stated_size(rule, rank);
  return size ? fmt::format("; the rule expects {} per rank", *size) : std::string();
}

/// Renames the tensors that a tensor is computed from.
template <typename Rename>
void rename_inputs(LogicalTensor& tensor, Rename&& rename) {
  if (!tensor.computed || tensor.computed->inputs.empty()) return;
  Computed renamed = *tensor.computed;
  for (std::vector<std::string>* names : {&renamed.inputs, &renamed.copies})
    std::for_each(names->begin(), names->end(), rename);
  tensor.computed = std::make_shared<const Computed>(std::move(renamed));
}

}  // namespace

void StoredTensor::set_view(View view) {
  InFile made{file_shape(), std::move(view.strides)};
  shape = std::move(view.shape);
  in_file.reset();
  if (made != InFile{shape, c_strides(shape)}) in_file = std::make_shared<const InFile>(std::move(made));
}

StoredTensor StoredTensor::part(std::uint64_t offset, View view) const {
  StoredTensor made = *this;
  made.offset_bytes += offset * bits(dtype) / 8;
  made.shape = view.shape;
  made.in_file.reset();
  made.set_view(std::move(view));
  return made;
}

void TensorMap::reserve_logical(std::size_t count) {
  logical.reserve(count);
  pieces.reserve(count);
  logical_by_name_.reserve(count);
}

std::uint32_t TensorMap::add_logical(const LogicalTensor& tensor, const std::filesystem::path& where) {
  auto& by_name = tensor.constant() ? constant_by_name_ : logical_by_name_;
  const auto [found, is_new] = by_name.try_emplace(tensor.name, static_cast<std::uint32_t>(logical.size()));
  if (is_new) {
    logical.push_back(tensor);
    pieces.emplace_back();
    return found->second;
  }
  const LogicalTensor& known = logical[found->second];
  if (known.dtype != tensor.dtype || known.shape != tensor.shape)
    throw Error(ErrorKind::kBadInput,
                fmt::format("declares it {} {}, but other files declare it {} {}", name(tensor.dtype),
                            to_string(tensor.shape), name(known.dtype), to_string(known.shape)))
        .in(where)
        .tensor(tensor.name)
        .hint("the files belong to different checkpoints, or one of them is damaged");
  return found->second;
}

std::optional<std::uint32_t> TensorMap::find_logical(const std::string& name) const {
  const auto found = logical_by_name_.find(name);
  if (found == logical_by_name_.end()) return std::nullopt;
  return found->second;
}

std::size_t TensorMap::tensor_count() const {
  return static_cast<std::size_t>(std::count_if(logical.begin(), logical.end(), [&](const LogicalTensor& tensor) {
    return is_entry(tensor) && tensor.role == TensorRole::kParameter;
  }));
}

bool TensorMap::is_padded() const {
  return std::any_of(logical.begin(), logical.end(), [](const LogicalTensor& tensor) { return tensor.is_padding(); });
}

std::vector<LogicalTensor> TensorMap::state_dict() const {
  std::vector<LogicalTensor> tensors;
  std::copy_if(logical.begin(), logical.end(), std::back_inserter(tensors),
               [&](const LogicalTensor& tensor) { return is_entry(tensor); });
  return tensors;
}

/// Whether the tensor is in the state dict.
bool TensorMap::is_entry(const LogicalTensor& tensor) const {
  if (tensor.role == TensorRole::kPart || tensor.constant()) return false;
  if (!tensor.computed) return true;
  const auto input = find_logical(tensor.computed->inputs.front());
  return input && logical[*input].role == TensorRole::kPart;
}

std::uint32_t TensorMap::add_stored(StoredTensor tensor) {
  stored.push_back(std::move(tensor));
  return static_cast<std::uint32_t>(stored.size() - 1);
}

std::uint32_t SourceMap::add_file(const ContainerFile& file, RankId rank) {
  files.push_back({{file.path, file.size_bytes, rank.tp_rank, rank.pp_rank, rank.ep_rank}});
  files.back().stamp = file.stamp;
  return static_cast<std::uint32_t>(files.size() - 1);
}

std::uint32_t SourceMap::add_files(const Container& container, RankId rank) {
  const auto first = static_cast<std::uint32_t>(files.size());
  for (const ContainerFile& file : container.files) add_file(file, rank);
  if (FileMetadata kept = further_metadata(container); !kept.empty())
    files[first].metadata = std::make_shared<const FileMetadata>(std::move(kept));
  return first;
}

std::uint32_t SourceMap::add_stored(const TensorEntry& tensor, std::uint32_t first_file, PartitionLabel label) {
  StoredTensor added{tensor.name, tensor.dtype, tensor.shape, first_file + tensor.file, tensor.offset_bytes, label};
  if (!tensor.strides.empty()) added.set_view({tensor.shape, tensor.strides});
  return add_stored(std::move(added));
}

void TensorMap::add_whole(std::uint32_t stored_index, const std::string& logical_name) {
  const StoredTensor& tensor = stored[stored_index];
  const std::uint32_t index = add_logical({logical_name, tensor.dtype, tensor.shape, {}}, file_of(tensor).path);
  pieces[index].push_back({stored_index, whole(tensor.shape), Dims(tensor.shape.size(), 0)});
}

void TensorMap::add_pieces(std::uint32_t stored_index, const PartitionRule& rule, std::uint32_t rank) {
  const StoredTensor& tensor = stored[stored_index];
  const auto& path = file_of(tensor).path;
  const auto shapes = logical_shapes(rule, rank, tensor.shape);
  if (!shapes)
    throw Error(ErrorKind::kBadInput, fmt::format("its shape {} does not fit its partition along dim {}{}",
                                                  to_string(tensor.shape), split_dim(rule), expected_size(rule, rank)))
        .in(path)
        .tensor(tensor.name)
        .hint("the last ranks are missing, or the metadata or config.json belongs to other shards");
  std::vector<std::uint32_t> indices;
  indices.reserve(rule.parts.size());
  for (std::size_t i = 0; i < rule.parts.size(); ++i) {
    const std::string& part = rule.parts[i].logical_name;
    const Dims& shape = (*shapes)[i];
    if (!num_bytes(tensor.dtype, shape))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("{} would have the shape {}, whose bytes overflow 64 bits", part, to_string(shape)))
          .in(path)
          .tensor(tensor.name);
    indices.push_back(add_logical({part, tensor.dtype, shape, {}}, path));
  }
  add_pieces(stored_index, rule, rank, indices, *shapes);
}

void TensorMap::add_pieces(std::uint32_t stored_index, const PartitionRule& rule, std::uint32_t rank,
                           std::span<const std::uint32_t> indices, const std::vector<Dims>& shapes) {
  if (rule.constant) add_numbers(stored_index, *rule.constant, rank);
  for (PartPiece& piece : pieces_of(rule, rank, shapes)) {
    if (piece.is_padding)
      add_constant(stored_index, {piece.stored_begin, piece.box.size}, Constant::Kind::kPadding,
                   rule.parts[piece.part].lowest ? lowest_bits(stored[stored_index].dtype) : 0);
    else
      pieces[indices[piece.part]].push_back({stored_index, std::move(piece.box), std::move(piece.stored_begin)});
  }
}

/// A box for each run of equal elements. Of several numbers, only the last dim has more than one element.
void TensorMap::add_numbers(std::uint32_t stored_index, const PartitionRule::Constant& constant, std::uint32_t rank) {
  const auto kind = constant.is_rank_number ? Constant::Kind::kRankNumber : Constant::Kind::kRequired;
  const std::vector<std::uint64_t>& values = constant.of(rank);
  if (values.size() == 1) return add_constant(stored_index, whole(constant.shape), kind, values.front());
  for (std::size_t begin = 0; begin < values.size();) {
    std::size_t end = begin + 1;
    while (end < values.size() && values[end] == values[begin]) ++end;
    Box run = whole(constant.shape);
    run.begin.back() = begin;
    run.size.back() = end - begin;
    add_constant(stored_index, run, kind, values[begin]);
    begin = end;
  }
}

void TensorMap::add_constant(std::uint32_t stored_index, const Box& box, Constant::Kind kind,
                             std::uint64_t element_bits, TensorRole role) {
  if (volume(box) == 0) return;
  const StoredTensor& tensor = stored[stored_index];
  auto recipe = std::make_shared<const Constant>(kind, tensor.dtype, element_bits);
  LogicalTensor added{fmt::format("{} ({})", tensor.name.text(), recipe->key()), tensor.dtype, tensor.shape, {}, role};
  // States of different parameters may have one name in the files of different stages.
  const auto known = constant_by_name_.find(added.name);
  if (known != constant_by_name_.end() &&
      (logical[known->second].shape != added.shape || logical[known->second].dtype != added.dtype))
    added.name += fmt::format(" {} {}", name(added.dtype), to_string(added.shape));
  added.computed = std::make_shared<const Computed>(Computed{std::move(recipe), {}});
  const std::uint32_t index = add_logical(added, {});
  pieces[index].push_back({stored_index, box, box.begin});
}

void SourceMap::add_chunk(std::uint32_t index, StoredTensor chunk, Box box) {
  Dims zeros(box.size.size());
  pieces[index].push_back({add_stored(std::move(chunk)), std::move(box), std::move(zeros)});
}

void SourceMap::tie_logical(std::uint32_t tied, std::uint32_t source) {
  for (Piece& piece : pieces[tied]) {
    StoredTensor& replica = stored[piece.stored];
    replica.tied = true;
    replica.label = PartitionLabel::kTied;
    replica.replicated = false;
    pieces[source].push_back(std::move(piece));
  }
  std::vector<std::uint32_t> others(logical.size());
  std::iota(others.begin(), others.end(), 0u);
  others.erase(others.begin() + tied);
  keep_logical(others);
}

void SourceMap::keep_logical(const std::vector<std::uint32_t>& order) {
  std::vector<LogicalTensor> kept;
  std::vector<std::vector<Piece>> kept_pieces;
  kept.reserve(order.size());
  kept_pieces.reserve(order.size());
  for (const std::uint32_t index : order) {
    kept.push_back(std::move(logical[index]));
    kept_pieces.push_back(std::move(pieces[index]));
  }
  logical = std::move(kept);
  pieces = std::move(kept_pieces);
  index_logical();
}

void SourceMap::set_logical(std::vector<LogicalTensor> tensors, std::vector<std::vector<Piece>> of_tensors,
                            const std::vector<std::uint32_t>& from) {
  const bool any_inputs = std::any_of(logical.begin(), logical.end(), [](const LogicalTensor& tensor) {
    return tensor.computed && !tensor.computed->inputs.empty();
  });
  std::unordered_map<std::string, std::string> renamed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const LogicalTensor& old = logical[from[i]];
    tensors[i].computed = old.computed;
    tensors[i].model_dtype = old.model_dtype;
    tensors[i].unconfirmed_hint = old.unconfirmed_hint;
    if (any_inputs) renamed.emplace(old.name, tensors[i].name);
  }
  for (LogicalTensor& tensor : tensors)
    rename_inputs(tensor, [&](std::string& input) {
      if (const auto found = renamed.find(input); found != renamed.end()) input = found->second;
    });
  logical = std::move(tensors);
  pieces = std::move(of_tensors);
  index_logical();
}

void SourceMap::keep_stored(const std::vector<bool>& used) {
  std::vector<std::uint32_t> numbers(stored.size());
  std::uint32_t count = 0;
  for (std::uint32_t s = 0; s < stored.size(); ++s) {
    if (!used[s]) continue;
    if (count != s) stored[count] = std::move(stored[s]);
    numbers[s] = count++;
  }
  stored.erase(stored.begin() + count, stored.end());
  for (std::vector<Piece>& of_logical : pieces) {
    std::erase_if(of_logical, [&](const Piece& piece) { return !used[piece.stored]; });
    for (Piece& piece : of_logical) piece.stored = numbers[piece.stored];
  }
}

void SourceMap::append(SourceMap other, const std::string& logical_prefix) {
  const auto first_file = static_cast<std::uint32_t>(files.size());
  std::move(other.files.begin(), other.files.end(), std::back_inserter(files));
  for (LogicalTensor& tensor : other.logical)
    rename_inputs(tensor, [&](std::string& input) { input.insert(0, logical_prefix); });
  append_tensors(other, first_file, logical_prefix);
}

void TargetMap::append(TargetMap other, const std::string& logical_prefix) {
  const auto first_file = static_cast<std::uint32_t>(files.size());
  for (TargetFile& file : other.files) {
    file.first_stored += static_cast<std::uint32_t>(stored.size());
    files.push_back(std::move(file));
  }
  append_tensors(other, first_file, logical_prefix);
  std::move(other.text_files.begin(), other.text_files.end(), std::back_inserter(text_files));
}

void SourceMap::rename_logical(const std::vector<std::string>& names) {
  std::vector<LogicalTensor> renamed = logical;
  for (std::size_t i = 0; i < renamed.size(); ++i) renamed[i].name = names[i];
  std::vector<std::uint32_t> same(logical.size());
  std::iota(same.begin(), same.end(), 0u);
  set_logical(std::move(renamed), std::move(pieces), same);
}

const SourceFile& SourceMap::file_of(const StoredTensor& tensor) const {
  static const SourceFile kNone;
  return tensor.file < files.size() ? files[tensor.file] : kNone;
}

void SourceMap::order_logical(const std::vector<std::string>& names) {
  std::vector<std::size_t> key(logical.size(), names.size());
  for (std::size_t i = names.size(); i-- > 0;)  // the first of equal names has precedence
    if (const auto found = find_logical(names[i])) key[*found] = i;
  if (std::is_sorted(key.begin(), key.end())) return;
  std::vector<std::uint32_t> order(logical.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return key[a] < key[b]; });
  keep_logical(order);
}

void TensorMap::append_tensors(TensorMap& other, std::uint32_t first_file, const std::string& logical_prefix) {
  const auto first_stored = static_cast<std::uint32_t>(stored.size());
  for (StoredTensor& tensor : other.stored) {
    tensor.file += first_file;
    stored.push_back(std::move(tensor));
  }
  for (std::size_t l = 0; l < other.logical.size(); ++l) {
    LogicalTensor& tensor = other.logical[l];
    tensor.name = logical_prefix + tensor.name;
    const std::uint32_t index = add_logical(tensor, {});
    for (Piece& piece : other.pieces[l]) {
      piece.stored += first_stored;
      pieces[index].push_back(std::move(piece));
    }
  }
}

void TensorMap::index_logical() {
  logical_by_name_.clear();
  constant_by_name_.clear();
  for (std::uint32_t i = 0; i < logical.size(); ++i)
    (logical[i].constant() ? constant_by_name_ : logical_by_name_).emplace(logical[i].name, i);
}

void validate_tiling(const TensorMap& map) {
  struct Place {
    std::uint32_t stored;
    std::uint32_t logical;
    std::uint32_t piece;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<std::uint32_t> counts(map.stored.size());  // number of pieces of each
  for (const auto& pieces : map.pieces)
    for (const Piece& piece : pieces) ++counts[piece.stored];

  // There may be millions of pieces, and nearly all are whole stored tensors. These are validated immediately.
  std::vector<Place> others;
  for (std::uint32_t l = 0; l < map.logical.size(); ++l) {
    for (std::uint32_t p = 0; p < map.pieces[l].size(); ++p) {
      const std::uint32_t stored = map.pieces[l][p].stored;
      if (counts[stored] == 1)
        validate_filled(map, stored, volume(fitting_tile(map, l, p).box));
      else
        others.push_back({stored, l, p});
    }
  }
  for (std::uint32_t s = 0; s < map.stored.size(); ++s)
    if (counts[s] == 0) validate_filled(map, s, 0);

  std::sort(others.begin(), others.end());
  std::vector<Tile> tiles;  // tiles of one stored tensor
  for (auto begin = others.begin(); begin != others.end();) {
    const std::uint32_t stored = begin->stored;
    const auto end = begin + counts[stored];
    tiles.clear();
    std::uint64_t filled = 0;
    for (; begin != end; ++begin) {
      tiles.push_back(fitting_tile(map, begin->logical, begin->piece));
      filled += volume(tiles.back().box);
    }
    const auto proof = tiles.size() > kFewTiles ? fill_exactly(tiles, map.stored[stored].shape) : std::nullopt;
    if (proof == true) continue;
    if (!proof) validate_disjoint(map, stored, tiles);
    validate_filled(map, stored, filled);
    if (proof) throw tiling_error(map, stored, "its pieces overlap and leave gaps");
  }
}

}  // namespace reshard
