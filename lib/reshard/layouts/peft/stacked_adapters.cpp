#include "reshard/layouts/peft/stacked_adapters.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_map>

#include "reshard/layouts/map/lower_metadata.h"

namespace reshard {
namespace {

constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

/// The rows of a diagonal matrix, from `begin` on, whose columns but those of `part` are zeros.
struct Rows {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  const PartitionRule::Part* part = nullptr;
};

/// The rows of each part; nothing if the matrix has another shape than the rule makes.
std::vector<Rows> rows_of(const PartitionRule& rule, std::uint32_t rank, const Dims& stored) {
  const auto shapes = logical_shapes(rule, rank, stored);
  std::vector<Rows> rows;
  if (!shapes) return rows;
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < rule.parts.size(); ++i) {
    const PartitionRule::Part& part = rule.parts[i];
    const std::uint64_t count = (*shapes)[i][0] / part.placement->units * part.placement->of(rank).size();
    rows.push_back({begin, count, &part});
    begin += count;
  }
  return rows;
}

/// A matrix in C order, many rows at a time.
bool has_zeros_beside(const Source& source, const TensorEntry& tensor, const Rows& rows) {
  const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
  const std::uint64_t row_bytes = tensor.shape[1] * elem_bytes;
  const std::uint64_t left = rows.part->first_column * elem_bytes;
  const std::uint64_t right = left + rows.part->columns * elem_bytes;
  const std::uint64_t at_once = std::max<std::uint64_t>(1, kPartBytes / row_bytes);
  std::vector<std::byte> bytes;
  for (std::uint64_t done = 0; done < rows.count; done += at_once) {
    const std::uint64_t count = std::min(at_once, rows.count - done);
    bytes.resize(count * row_bytes);
    source.read_at(tensor.offset_bytes + (rows.begin + done) * row_bytes, bytes);
    for (std::uint64_t row = 0; row < count; ++row) {
      const std::span<const std::byte> whole(bytes.data() + row * row_bytes, row_bytes);
      if (!all_zero(whole.first(left)) || !all_zero(whole.subspan(right))) return false;
    }
  }
  return true;
}

/// The same of a view with strides, element by element.
bool has_strided_zeros_beside(const Source& source, const TensorEntry& tensor, const Rows& rows) {
  const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
  std::vector<std::byte> element(elem_bytes);
  for (std::uint64_t row = rows.begin; row < rows.begin + rows.count; ++row)
    for (std::uint64_t column = 0; column < tensor.shape[1]; ++column) {
      if (column >= rows.part->first_column && column < rows.part->first_column + rows.part->columns) continue;
      source.read_at(tensor.offset_bytes + (row * tensor.strides[0] + column * tensor.strides[1]) * elem_bytes,
                     element);
      if (!all_zero(element)) return false;
    }
  return true;
}

bool is_diagonal(Files& files, const Container& file, const TensorEntry& tensor, const PartitionRule& rule,
                 std::uint32_t rank) {
  const std::vector<Rows> parts = rows_of(rule, rank, tensor.shape);
  if (parts.empty() || bits(tensor.dtype) % 8 != 0) return false;
  const auto source = files.open(file.files[tensor.file].path);
  return std::all_of(parts.begin(), parts.end(), [&](const Rows& rows) {
    return tensor.strides.empty() ? has_zeros_beside(*source, tensor, rows)
                                  : has_strided_zeros_beside(*source, tensor, rows);
  });
}

/// Of the fused linears in one rank's file.
bool is_stacked(Files& files, const Container& file, std::uint32_t rank,
                const std::unordered_map<std::string, const PartitionRule*>& rules) {
  return std::all_of(file.tensors.begin(), file.tensors.end(), [&](const TensorEntry& tensor) {
    const auto found = rules.find(tensor.name);
    if (found == rules.end()) return true;
    const PartitionRule& rule = *found->second;
    if (rule.diagonal_columns != 0) return is_diagonal(files, file, tensor, rule, rank);
    const bool is_stack = rule.parts.size() > 1 && tensor.name.ends_with(".lora_A.weight");
    return !is_stack || logical_shapes(rule, rank, tensor.shape).has_value();
  });
}

}  // namespace

bool holds_stacked(Files& files, const ShardedCheckpoint& checkpoint, const std::vector<StageMetadata>& stacked) {
  for (std::uint32_t pp_rank = 0; pp_rank < checkpoint.pp; ++pp_rank) {
    const std::vector<PartitionRule> rules = partition_rules(stacked[pp_rank], checkpoint.tp);
    std::unordered_map<std::string, const PartitionRule*> by_name;
    for (const PartitionRule& rule : rules) by_name.emplace(rule.stored_name, &rule);
    const std::vector<Container>& of_stage = checkpoint.files[pp_rank];
    for (std::uint32_t i = 0; i < of_stage.size(); ++i)
      if (!is_stacked(files, of_stage[i], i % checkpoint.tp, by_name)) return false;
    for (const ShardedCheckpoint::Copy& copy : checkpoint.copies)
      if (copy.rank.pp_rank == pp_rank && !is_stacked(files, copy.file, copy.rank.tp_rank, by_name)) return false;
  }
  return true;
}

}  // namespace reshard
