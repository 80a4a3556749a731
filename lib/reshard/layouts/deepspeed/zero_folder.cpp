#include "reshard/layouts/deepspeed/zero_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/numbered_name.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRank = 1 << 20;
constexpr NumberedName kModelName("[zero_pp_rank_{dp}_]mp_rank_{mp:2}_model_states.pt", kMaxRank);
constexpr NumberedName kOptimName("[bf16_][fp16_]zero_pp_rank_{dp}_mp_rank_{mp:2}_optim_states.pt", kMaxRank);

/// Whether the file belongs to a pipeline stage or to experts.
bool is_part_of_model(std::string_view name) {
  constexpr std::string_view kEndings[] = {"_model_states.pt", "_optim_states.pt", "-model_states.pt"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](std::string_view ending) {
    if (!name.ends_with(ending)) return false;
    const std::string_view rest = name.substr(0, name.size() - ending.size());
    return rest.starts_with("layer_") || (ending.front() == '_' && rest.starts_with("expp_rank_"));
  });
}

Error parts_of_model(const fs::path& path, const char* what) {
  return Error(ErrorKind::kUnsupported,
               fmt::format("belongs to a model that is split over {}, which is not supported", what))
      .in(path)
      .hint("load it in the training code and save the whole weights");
}

void add(std::map<std::uint32_t, fs::path>& ranks, std::uint32_t rank, const fs::path& path) {
  const auto [found, is_new] = ranks.emplace(rank, path);
  if (!is_new)
    throw Error(ErrorKind::kBadInput,
                fmt::format("belongs to rank {}, as does {}", rank, found->second.filename().string()))
        .in(path)
        .hint("files of two checkpoints are mixed in one folder");
}

/// Validates that ranks are numbered from 0 without gaps.
void validate_row(const fs::path& folder, const std::map<std::uint32_t, fs::path>& ranks, const char* what) {
  std::uint32_t expected = 0;
  for (const auto& [rank, path] : ranks) {
    if (rank != expected)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("contains {} of rank {}, but none of rank {}", what, rank, expected))
          .in(folder)
          .hint("copy the files of all ranks here");
    ++expected;
  }
}

}  // namespace

std::optional<ZeroFileName> zero_file_name(std::string_view name) {
  using Kind = ZeroFileName::Kind;
  if (is_part_of_model(name)) return ZeroFileName{Kind::kPartOfModel, {}};
  auto numbers = kModelName.parse(name);
  const Kind kind = numbers ? Kind::kModelStates : Kind::kOptimStates;
  if (!numbers) numbers = kOptimName.parse(name);
  if (!numbers) return std::nullopt;
  ZeroFileName found{kind, {}, static_cast<std::uint32_t>(numbers->at("mp"))};
  if (const auto dp = numbers->find("dp"); dp != numbers->end()) found.dp_rank = static_cast<std::uint32_t>(dp->second);
  return found;
}

std::optional<Error> explain_zero_file(Files& files, const fs::path& path) {
  const auto name = zero_file_name(own_name(files, path));
  if (!name || !files.is_file(path)) return std::nullopt;
  const fs::path folder = directory_above(files, path);
  if (name->kind == ZeroFileName::Kind::kPartOfModel) return parts_of_model(path, "pipeline stages or experts");
  for (const DirectoryEntry& entry : files.list(folder)) {
    const auto other = zero_file_name(entry.name);
    if (other && other->mp_rank != 0) return parts_of_model(path, "model-parallel ranks");
  }
  if (name->mp_rank != 0) return parts_of_model(path, "model-parallel ranks");
  if (!name->dp_rank) return std::nullopt;
  return Error(ErrorKind::kBadInput, "is one rank's file of DeepSpeed's ZeRO, not a complete model")
      .in(path)
      .hint("give the directory that contains the files of all ranks: " + folder.string());
}

bool is_zero_folder(Files& files, const fs::path& folder) {
  if (!files.is_directory(folder)) return false;
  const std::vector<DirectoryEntry> entries = files.list(folder);
  return std::any_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) {
    return entry.kind != FileKind::kDirectory && zero_file_name(entry.name).has_value();
  });
}

ZeroFolder list_zero_folder(Files& files, const fs::path& folder) {
  using Kind = ZeroFileName::Kind;
  ZeroFolder found;
  found.path = folder;
  found.is_universal = files.is_directory(folder / kUniversalFolder);
  for (const DirectoryEntry& entry : files.list(folder)) {
    const auto name = zero_file_name(entry.name);
    if (!name || entry.kind == FileKind::kDirectory) continue;
    const fs::path path = folder / entry.name;
    if (name->kind == Kind::kPartOfModel) throw parts_of_model(path, "pipeline stages or experts");
    if (name->mp_rank != 0) throw parts_of_model(path, "model-parallel ranks");
    if (name->kind == Kind::kOptimStates)
      add(found.optim_states, *name->dp_rank, path);
    else if (name->dp_rank)
      add(found.ranks_model_states, *name->dp_rank, path);
    else
      found.model_states = path;
  }
  if (found.model_states && !found.ranks_model_states.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("contains {} of ZeRO 1 or 2 and {} of ZeRO 3", found.model_states->filename().string(),
                            found.ranks_model_states.begin()->second.filename().string()))
        .in(folder)
        .hint("files of two checkpoints are mixed in one folder");
  if (!found.model_states && found.ranks_model_states.empty())
    throw Error(ErrorKind::kBadInput, "contains no *_model_states.pt, which records the parameters' names and shapes")
        .in(folder)
        .hint("copy the files of all ranks here");
  validate_row(folder, found.ranks_model_states, "model states");
  validate_row(folder, found.optim_states, "optimizer states");
  return found;
}

}  // namespace reshard
