#include "reshard/layouts/ranks/record_validation.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/map/rank_record.h"

namespace reshard {
namespace {

constexpr const char* kMixed =
    "the ranks come from different checkpoints, or another program rewrote some of the files; use all ranks of one "
    "save";

/// One rank number of a file, from its name and from its metadata.
struct SaidRank {
  const char* kind;
  std::uint32_t by_name;
  std::uint32_t number_there_are;
  std::uint32_t rank;
  std::uint32_t degree;
};

void validate_rank(const Container& file, const SaidRank& said) {
  if (said.degree != said.number_there_are)
    throw Error(ErrorKind::kBadInput,
                fmt::format("its metadata records that there {} {} {} rank{}, but the folder contains {}",
                            said.degree == 1 ? "is" : "are", said.degree, said.kind, said.degree == 1 ? "" : "s",
                            said.number_there_are))
        .in(file.path)
        .hint(said.degree > said.number_there_are
                  ? "the others are missing, or the ranks come from different checkpoints"
                  : "the ranks come from different checkpoints; move the ranks of one of them away");
  if (said.rank != said.by_name)
    throw Error(ErrorKind::kBadInput,
                fmt::format("its name says {} rank {}, its metadata rank {}", said.kind, said.by_name, said.rank))
        .in(file.path)
        .hint("rank files were renamed or swapped");
}

/// Returns the record's ranks as text, for comparisons and errors.
std::string rank_text(const RankRecord& record) {
  return fmt::format("tp {}/{}, pp {}/{}, ep {}/{}", record.tp_rank, record.tp_degree, record.pp_rank, record.pp_degree,
                     record.ep_rank, record.ep_degree);
}

/// Validates that `file` has a record if `first` has one, and that both describe the same logical tensors.
void validate_same_checkpoint(const Container& file, const std::optional<RankRecord>& record, const Container& first,
                              const std::optional<RankRecord>& of_first) {
  if (record.has_value() != of_first.has_value())
    throw Error(ErrorKind::kBadInput, fmt::format("{} its rank, but {} {}", record ? "records" : "does not record",
                                                  first.path.string(), record ? "does not" : "does"))
        .in(file.path)
        .hint(kMixed);
  if (record && (record->transposed != of_first->transposed || record->scaled != of_first->scaled))
    throw Error(ErrorKind::kBadInput,
                "its metadata records other transposed or scaled tensors than " + first.path.string())
        .in(file.path)
        .hint("the ranks come from different checkpoints");
  if (record && *record->originals != *of_first->originals)
    throw Error(ErrorKind::kBadInput,
                "its metadata has other shapes of the original tensors than " + first.path.string())
        .in(file.path)
        .hint("the ranks come from different checkpoints");
}

}  // namespace

void validate_part_record(const Container& part, const Container& first) {
  const auto of_part = read_record(part), of_first = read_record(first);
  if (of_part && of_first && rank_text(*of_part) != rank_text(*of_first))
    throw Error(ErrorKind::kBadInput,
                fmt::format("its metadata records rank {}, but that of {} records {}", rank_text(*of_part),
                            first.path.filename().string(), rank_text(*of_first)))
        .in(part.path)
        .hint("rank files were renamed or swapped");
  validate_same_checkpoint(part, of_part, first, of_first);
}

void validate_record(const Container& file, RankId rank, ShardedCheckpoint& checkpoint) {
  const auto record = read_record(file);
  if (record) {
    validate_rank(file, {"tensor-parallel", rank.tp_rank, checkpoint.tp, record->tp_rank, record->tp_degree});
    validate_rank(file, {"pipeline", rank.pp_rank, checkpoint.pp, record->pp_rank, record->pp_degree});
    validate_rank(file, {"expert-parallel", rank.ep_rank, checkpoint.ep, record->ep_rank, record->ep_degree});
  }
  const Container& first = checkpoint.files.front().front();
  if (&file == &first)
    checkpoint.record = record;
  else
    validate_same_checkpoint(file, record, first, checkpoint.record);
}

}  // namespace reshard
