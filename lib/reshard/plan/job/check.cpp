#include "reshard/plan/job/check.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "reshard/tensor/cast/drift.h"

namespace reshard {
namespace {

CheckReason reason_of(const StoredTensor& stored, const LogicalTensor& tensor) {
  if (tensor.constant()) return CheckReason::kConstant;
  return stored.tied ? CheckReason::kTied : CheckReason::kReplica;
}

/// Whether a stored tensor is a replica of a parameter that each rank trains independently. Replicated heads are not:
/// their gradients are summed before the step, which keeps them equal. Nor are copies saved by other data-parallel
/// ranks.
bool is_trained_replica(const SourceMap& map, const StoredTensor& stored, const LogicalTensor& tensor,
                        const std::vector<Piece>& reads) {
  if (!stored.replicated || !can_drift(tensor.dtype) || reads.empty()) return false;
  const SourceFile& first = map.file_of(map.stored[reads.front().stored]);
  const SourceFile& other = map.file_of(stored);
  return first.tp_rank != other.tp_rank || first.ep_rank != other.ep_rank;
}

/// Returns " in FILE" for the file of the reference element.
std::string first_file(const SourceMap& map, const std::vector<Piece>& reads, const Dims& index) {
  const Box element{index, Dims(index.size(), 1)};
  for (const Piece& piece : reads)
    if (intersect(piece.box, element)) return " in " + map.files[map.stored[piece.stored].file].path.string();
  return {};
}

/// Returns the message and the hint for a box that does not contain its constant.
std::pair<std::string, std::string> words_of(const Constant& constant, TensorRole role, const Dims& index) {
  switch (constant.kind()) {
    case Constant::Kind::kRankNumber:
      return {fmt::format("is not the number of {}, the rank in the name of its file", constant.element_bits()),
              "rank files were renamed or swapped"};
    case Constant::Kind::kRequired:
      return {fmt::format("differs from the value that the layout has there, first at {}", to_string(index)),
              "the file belongs to another layout, or to another version of its reader"};
    case Constant::Kind::kPadding:
      return {
          fmt::format("contains values other than {} in its padding, first at {}",
                      constant.element_bits() == 0 ? "zeros" : "the lowest of its dtype", to_string(index)),
          role == TensorRole::kState
              ? "the files come from two saves, or rank files were swapped, or the optimizer belongs to another model"
              : "config.json belongs to another model, or the weights were changed after they were padded"};
  }
  return {};
}

/// Whether it is a counter that all ranks share, such as an optimizer's step.
bool is_count(const LogicalTensor& tensor) {
  return tensor.role == TensorRole::kState && tensor.shape.empty();
}

/// Whether a caller may keep the first of two replicas that differ. Equal replicas confirm an inferred partition, but
/// those of a parameter known to be replicated on every rank are not needed for it. Ranks with different step counts
/// come from two saves.
bool may_differ(const SourceMap& map, const StoredTensor& stored, const LogicalTensor& tensor) {
  if (is_count(tensor) || !tensor.unconfirmed_hint.empty()) return false;
  return map.inferred_partition_hint.empty() || stored.label == PartitionLabel::kReplicated;
}

std::string hint_of(const SourceMap& map, const StoredTensor& stored, const LogicalTensor& tensor) {
  const bool is_state = tensor.role == TensorRole::kState;
  if (stored.tied) return "if the two are meant to differ, config.json must say \"tie_word_embeddings\": false";
  if (is_count(tensor)) return "the files come from two saves, or rank files were swapped";
  if (!tensor.unconfirmed_hint.empty()) return std::string(tensor.unconfirmed_hint);
  if (!may_differ(map, stored, tensor))
    return is_state ? "the files come from two saves, or rank files were swapped, or the partition that was "
                      "inferred without metadata is wrong: `replicas` first has no effect"
                    : map.inferred_partition_hint;
  return fmt::format("{}, or training let them diverge; `replicas` first takes the first rank's values",
                     is_state ? "the files come from two saves, or rank files were swapped"
                              : "the ranks are mixed up, or come from different checkpoints");
}

}  // namespace

Check make_check(const SourceMap& map, std::uint32_t logical, const std::vector<Piece>& reads, const Piece& piece) {
  const StoredTensor& stored = map.stored[piece.stored];
  const LogicalTensor& tensor = map.logical[logical];
  Check check(piece, reason_of(stored, tensor));
  if (check.reason != CheckReason::kReplica) return check;
  check.may_drift =
      !is_count(tensor) && tensor.unconfirmed_hint.empty() && is_trained_replica(map, stored, tensor, reads);
  check.may_differ = may_differ(map, stored, tensor);
  return check;
}

Error failed_check(const SourceMap& map, std::uint32_t logical, const std::vector<Piece>& reads, const Check& check,
                   const Dims& index, std::string_view detail) {
  const StoredTensor& stored = map.stored[check.stored];
  const LogicalTensor& tensor = map.logical[logical];
  auto [message, hint] =
      tensor.constant() ? words_of(*tensor.constant(), tensor.role, index)
                        : std::pair(fmt::format("is a replica of {}{}, but differs from it{}", tensor.name,
                                                first_file(map, reads, index),
                                                tensor.shape.empty() ? "" : ", first at element " + to_string(index)),
                                    hint_of(map, stored, tensor));
  if (!detail.empty()) message.append("; ").append(detail);
  return Error(ErrorKind::kBadInput, std::move(message))
      .in(map.files[stored.file].path)
      .tensor(stored.name)
      .hint(std::move(hint));
}

}  // namespace reshard
