#include "reshard/layouts/lone_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reshard/base/strings.h"
#include "reshard/layouts/found.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// A path as a rank of a layout.
struct NamedRank {
  const RankFormat* format;
  fs::path folder;      // contains the files or folders of all ranks
  NameNumbers numbers;  // without the data-parallel rank, whose files are replicas
};

NameNumbers without_replicas(NameNumbers numbers) {
  numbers.erase("dp");
  return numbers;
}

std::vector<NamedRank> ranks_named(Files& files, const fs::path& path) {
  std::vector<NamedRank> named;
  const std::string name = own_name(files, path);
  for (const Layout* layout : layouts()) {
    const RankFormat* format = layout->ranks();
    if (format == nullptr) continue;
    const auto& in_folder = format->files_in_folder;
    const bool is_in_rank = std::find(in_folder.begin(), in_folder.end(), name) != in_folder.end();
    const fs::path rank = is_in_rank ? directory_above(files, path) : path;
    if (const auto numbers = format->numbers(own_name(files, rank)))
      named.push_back({format, directory_above(files, rank), without_replicas(*numbers)});
  }
  return named;
}

/// Returns the names in `folder`. Empty if it cannot be listed.
std::vector<std::string> listed_names(Files& files, const fs::path& folder) {
  std::vector<std::string> names;
  try {
    for (const DirectoryEntry& entry : files.list(folder)) names.push_back(entry.name);
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
  }
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

/// Returns a clause that says why the names show several ranks; empty if they do not.
std::string proof_of(Files& files, const NamedRank& rank) {
  const std::vector<std::string> names = listed_names(files, rank.folder);
  const auto is_other = [&](const std::string& name) {
    const auto numbers = rank.format->numbers(name);
    return numbers && without_replicas(*numbers) != rank.numbers;
  };
  if (const auto other = std::find_if(names.begin(), names.end(), is_other); other != names.end())
    return printable(*other) + " is next to it";
  const bool has_folder = *rank.format->weights_folder != '\0';
  for (const std::string& name : has_folder ? listed_names(files, directory_above(files, rank.folder)) : names)
    if (metadata_pp_rank(name)) return printable(name) + " describes how it is split";
  for (const auto& [key, number] : rank.numbers)
    if (number != 0) return "its name has the number of a later rank";
  return {};
}

}  // namespace

bool has_rank_name(Files& files, const fs::path& path) {
  return !ranks_named(files, path).empty();
}

std::optional<Error> explain_lone_rank(Files& files, const fs::path& path) {
  for (const NamedRank& rank : ranks_named(files, path)) {
    const std::string proof = proof_of(files, rank);
    if (proof.empty()) continue;
    return Error(ErrorKind::kBadInput, "is one rank of a sharded checkpoint, not a complete model: " + proof)
        .in(path)
        .hint(hint_for_one_rank(files, path));
  }
  return std::nullopt;
}

std::string hint_for_one_rank(Files& files, const fs::path& path) {
  fs::path above = path;
  for (int level = 0; level < 2; ++level) {
    above = directory_above(files, above);
    try {
      if (find_shards(files, above)) return "give the directory of all ranks: " + above.string();
    } catch (const Error&) {  // cannot be listed, or contains several checkpoints
    }
  }
  return "give the directory of all ranks";
}

}  // namespace reshard
