#include "idle_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "option_names.h"
#include "reshard/base/error.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/specs/config/model_config.h"
#include "reshard/tensor/values/float_format.h"
#include "reshard/tensor/values/shape.h"

namespace reshard::cli {
namespace {

constexpr const char* kReplicaOptions[] = {"--replicas", "--no-check-replicas", "--allow-divergent-replicas"};

/// Whether elements of a tensor are stored more than once, apart from tied names.
bool has_replicas(const SourceMap& map) {
  for (std::size_t l = 0; l < map.logical.size(); ++l) {
    if (map.logical[l].constant()) continue;
    std::uint64_t stored = 0;
    for (const Piece& piece : map.pieces[l])
      if (!map.stored[piece.stored].tied) stored += num_elems(piece.box.size).value_or(0);
    if (stored > num_elems(map.logical[l].shape).value_or(0)) return true;
  }
  return false;
}

template <typename Wanted>
bool casts(const Job& job, const Wanted& wanted) {
  return std::any_of(job.program.transfers.begin(), job.program.transfers.end(), [&](const Transfer& transfer) {
    const LogicalTensor* result = transfer.result(job.maps());
    return transfer.source && result != nullptr && transfer.tensor(job.maps()).dtype != result->dtype &&
           wanted(transfer.tensor(job.maps()).dtype);
  });
}

bool casts_any(const Job& job) {
  return casts(job, [](DType) { return true; });
}

/// Whether the requested dtype changes nothing: neither tensors, nor the dtype that they would have otherwise, nor
/// config.json.
bool has_dtype_already(const Job& job) {
  const bool writes_config = std::any_of(job.text_files.begin(), job.text_files.end(),
                                         [](const TextFile& file) { return file.path == kConfigFile; });
  const bool has_model_dtypes = std::any_of(job.source.logical.begin(), job.source.logical.end(),
                                            [](const LogicalTensor& tensor) { return tensor.model_dtype; });
  const bool is_dequantized = std::any_of(job.transforms.begin(), job.transforms.end(), [](const Applied& one) {
    return one.transform == Applied::Transform::kDequantize;
  });
  return !is_dequantized && !has_model_dtypes && !writes_config && !job.layout->traits().casts_to_config_dtype &&
         !casts_any(job);
}

struct Row {
  const char* option;
  const char* why;
  bool (*is_idle)(const Job& job);
};

constexpr Row kRows[] = {
    {"--dtype", "no tensor is cast", has_dtype_already},
    {"--overflow", "no tensor is cast", [](const Job& job) { return !casts_any(job); }},
};

bool is_given(const Command& command, const char* name) {
  const std::optional<Option> option = command.find_option(name);
  return option && option->count() > 0;
}

std::string no_effect(const char* option, const char* why) {
  return fmt::format("{} has no effect: {}", option, why);
}

}  // namespace

Notes idle_options(const Command& command, const Job& job) {
  Notes notes;
  for (const Row& row : kRows)
    if (is_given(command, row.option) && row.is_idle(job)) notes.no_effect(no_effect(row.option, row.why));
  for (const char* option : kReplicaOptions)
    if (is_given(command, option) && !has_replicas(job.source))
      notes.no_effect(no_effect(option, "the source stores no tensor twice"));
  return notes;
}

Notes idle_replica_options(const Command& command, std::initializer_list<const SourceMap*> sides) {
  Notes notes;
  for (const char* option : kReplicaOptions)
    if (is_given(command, option) &&
        std::none_of(sides.begin(), sides.end(), [](const SourceMap* map) { return has_replicas(*map); }))
      notes.no_effect(no_effect(option, sides.size() == 1 ? "the checkpoint stores no tensor twice"
                                                          : "neither checkpoint stores a tensor twice"));
  return notes;
}

void validate_alone(const Command& command, std::initializer_list<const char*> allowed, const std::string& with) {
  for (const Option& option : command.options()) {
    if (option.count() == 0 || option.long_names().empty() || option.info().of_run) continue;
    const std::string name = option.long_names().front();
    const auto is_it = [&](std::string_view other) { return name == other; };
    if (std::any_of(allowed.begin(), allowed.end(), is_it)) continue;
    throw Error(ErrorKind::kUsage, fmt::format("--{} has no effect with {}", name, with))
        .hint("leave out one of the two");
  }
}

}  // namespace reshard::cli
