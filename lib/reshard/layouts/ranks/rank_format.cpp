#include "reshard/layouts/ranks/rank_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/specs/config/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Returns `folder / name`, or `folder` itself if `name` is empty.
fs::path folder_in(const fs::path& folder, const char* name) {
  return *name == '\0' ? folder : folder / name;
}

/// Returns the checkpoint's directory if the path refers to a folder of shards: the directory with config.json. Without
/// config.json, it is the parent of a folder with the usual name, or a folder with another name itself, as NxD saves
/// it.
fs::path directory_of(Files& files, const fs::path& shards, const std::string& usual_name) {
  fs::path above = directory_above(files, shards);
  if (find_model_config(files, shards)) return shards;
  if (find_model_config(files, above)) return above;
  return own_name(files, shards) == usual_name ? above : shards;
}

/// Returns the weights that `entry` of `folder` is or contains; std::nullopt if it does not belong to a rank.
std::optional<RankFile> rank_file(Files& files, const RankFormat& ranks, const fs::path& folder,
                                  const DirectoryEntry& entry) {
  const auto numbers = ranks.numbers(entry.name);
  if (!numbers) return std::nullopt;
  const fs::path path = folder / entry.name;
  RankFile file{rank_of(*numbers), path};
  if (const auto part = numbers->find("part"); part != numbers->end())
    file.part = static_cast<std::uint32_t>(part->second);
  if (entry.kind == FileKind::kFile) {
    if (path.extension() != ".safetensors") file.format = torch_format_of(files, path);
    return file;
  }
  if (ranks.files_in_folder.empty()) return std::nullopt;
  std::vector<std::string> names, held;
  for (const std::string name : ranks.files_in_folder) {
    if (name.empty()) continue;
    names.push_back(name);
    if (files.exists(path / name)) held.push_back(name);
  }
  if (held.size() > 1)
    throw Error(ErrorKind::kBadInput, "contains both " + join(held, " and "))
        .in(path)
        .hint("these are two checkpoints in one directory; move one of them away");
  if (held.empty())
    throw Error(ErrorKind::kBadInput, (names.size() == 1 ? "contains no " : "contains neither ") + join(names, " nor "))
        .in(path);
  file.path = path / held.front();
  if (held.front() != ranks.files_in_folder.front()) file.format = torch_format_of(files, file.path);
  return file;
}

}  // namespace

NameNumbers numbers_of(RankId rank) {
  NameNumbers numbers{{"tp", rank.tp_rank}, {"pp", rank.pp_rank}, {"dp", rank.dp_rank}};
  if (rank.has_ep) numbers.emplace("ep", rank.ep_rank);
  return numbers;
}

RankId rank_of(const NameNumbers& numbers) {
  const auto number = [&](std::string_view key) {
    const auto found = numbers.find(key);
    return found == numbers.end() ? 0 : static_cast<std::uint32_t>(found->second);
  };
  return {number("tp"), number("pp"), number("dp"), number("ep"), numbers.count("ep") > 0};
}

std::string rank_name(RankId rank, bool dp) {
  NameNumbers numbers = numbers_of(rank);
  if (!dp) numbers.erase("dp");
  return kRankName.print(numbers);
}

std::optional<RankId> rank_of_name(std::string_view name) {
  const auto numbers = kRankName.parse(name);
  return numbers ? std::optional(rank_of(*numbers)) : std::nullopt;
}

Format torch_format_of(Files& files, const fs::path& path) {
  return is_xser(files, path) ? Format::kXser : Format::kPytorch;
}

std::optional<NameNumbers> RankFormat::numbers(std::string_view file_name) const {
  auto parsed = read.parse(file_name);
  const auto is_bounded = [](const auto& number) {
    return number.first == "part" || number.second < kMaxParallelDegree;
  };
  if (parsed && !std::all_of(parsed->begin(), parsed->end(), is_bounded)) parsed.reset();
  return parsed;
}

fs::path RankFormat::weights_in(const fs::path& shards) const {
  return folder_in(shards, weights_folder);
}

std::optional<fs::path> RankFormat::optimizer_in(const fs::path& shards) const {
  return optimizer ? std::optional(folder_in(shards, optimizer->folder)) : std::nullopt;
}

bool RankFormat::looks_like(Files& files, const fs::path& directory) const {
  const fs::path folder = weights_in(directory);
  if (!files.is_directory(folder)) return false;
  const std::vector<DirectoryEntry> entries = files.list(folder);
  return std::any_of(entries.begin(), entries.end(),
                     [&](const DirectoryEntry& entry) { return numbers(entry.name).has_value(); });
}

fs::path rank_path(const Layout& layout, Format format, RankId rank, std::uint32_t part) {
  const RankFormat& ranks = *layout.ranks();
  const fs::path folder = layout.traits().folder;  // the shards folder, or the weights folder in it
  NameNumbers numbers = numbers_of(rank);
  numbers.emplace("part", part);
  const fs::path path = (folder == ranks.weights_folder ? folder : ranks.weights_in(folder)) /
                        (ranks.name.print(numbers) + ranks.ending.print(numbers));
  const auto number = static_cast<std::size_t>(format);
  return number < ranks.files_in_folder.size() ? path / ranks.files_in_folder[number] : path;
}

std::vector<FoundLayout> recognise_ranks(Files& files, const Layout& layout, const fs::path& path) {
  const RankFormat& ranks = *layout.ranks();
  std::vector<FoundLayout> found;
  if (!files.is_directory(path)) return found;
  // A path to the weights folder inside a shards folder refers to the shards folder.
  const fs::path above = directory_above(files, path);
  if (*ranks.weights_folder != '\0' && own_name(files, path) == ranks.weights_folder && ranks.looks_like(files, above))
    return recognise_ranks(files, layout, above);
  for (const char* folder : ranks.shards_folders)
    if (ranks.looks_like(files, path / folder)) found.push_back({&layout, path / folder, path});
  const std::string usual = ranks.shards_folders.empty() ? "" : ranks.shards_folders.front();
  if (ranks.looks_like(files, path)) found.push_back({&layout, path, directory_of(files, path, usual)});
  return found;
}

std::vector<RankFile> list_rank_files(Files& files, const FoundLayout& found) {
  const RankFormat& ranks = ranks_of(found);
  std::map<RankId, RankFile> by_rank;
  std::map<RankId, std::map<std::uint32_t, fs::path>> parts;
  const fs::path folder = ranks.weights_in(found.path);
  for (const DirectoryEntry& entry : files.list(folder)) {
    const auto file = rank_file(files, ranks, folder, entry);
    if (!file) continue;
    if (file->part && !parts[file->rank].emplace(*file->part, folder / entry.name).second)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("duplicates part {} of rank {}", *file->part, ranks.name_of(file->rank)))
          .in(folder / entry.name);
    if (!by_rank.emplace(file->rank, *file).second && !file->part)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("duplicates tp rank {}, pp rank {}", file->rank.tp_rank, file->rank.pp_rank))
          .in(folder / entry.name);
  }
  for (const auto& [rank, of_rank] : parts) {
    if (of_rank.rbegin()->first >= of_rank.size())
      throw Error(ErrorKind::kBadInput, fmt::format("a part of rank {} is missing: there are {}, up to number {}",
                                                    ranks.name_of(rank), of_rank.size(), of_rank.rbegin()->first))
          .in(found.path)
          .hint("copy the missing files here");
    RankFile& file = by_rank.at(rank);
    file.path = of_rank.begin()->second;
    for (auto part = std::next(of_rank.begin()); part != of_rank.end(); ++part) file.more_parts.push_back(part->second);
  }
  if (by_rank.empty())
    throw Error(ErrorKind::kBadInput, fmt::format("contains no rank files of layout {}", found.layout->traits().name))
        .in(found.path)
        .hint("copy the files of all ranks here, or give another directory");
  std::vector<RankFile> all;
  for (auto& [rank, file] : by_rank) all.push_back(std::move(file));
  return all;
}

}  // namespace reshard
