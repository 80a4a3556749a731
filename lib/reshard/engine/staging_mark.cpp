#include "reshard/engine/staging_mark.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/base/wire.h"
#include "reshard/engine/journal.h"
#include "reshard/engine/output.h"
#include "reshard/engine/publish.h"
#include "reshard/engine/sealed_text.h"
#include "reshard/io/text_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "reshard staging directory 1\n";
constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;  // names of a quarter of a million files

/// The names in the mark of a directory; nothing if it has none.
std::optional<std::set<std::string>> marked_names(Storage& storage, const fs::path& root) {
  try {
    const std::string text = read_text_file(storage, root / kLockFile, kMaxBytes);
    const auto body = unsealed(kFirstLine, text);
    if (!body) return std::nullopt;
    WireReader wire(*body);
    std::set<std::string> names;
    for (std::uint64_t i = wire.count(); i > 0; --i) names.emplace(wire.text());
    return names;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string why_not_ours(Storage& storage, const fs::path& root, const std::optional<std::set<std::string>>& names) {
  if (!storage.directories().is_own(root)) return "it is another user's";
  if (!names) return fmt::format("its {} is not of this program", kLockFile);
  return {};
}

}  // namespace

std::string staging_mark(const Job& job) {
  std::set<std::string> names{kAsideName, kWholeFolder, kUnusedFolder};
  for (const fs::path& file : output_files(job)) names.insert(file.begin()->string());
  WireWriter wire;
  wire.add(names.size());
  for (const std::string& name : names) wire.add(name);
  return sealed(kFirstLine, wire.bytes());
}

std::string why_not_ours(Storage& storage, const fs::path& root) {
  return why_not_ours(storage, root, marked_names(storage, root));
}

std::string why_not_only_ours(Storage& storage, const fs::path& root) {
  const auto names = marked_names(storage, root);
  if (std::string why = why_not_ours(storage, root, names); !why.empty()) return why;
  std::vector<std::string> foreign;
  for (const DirectoryEntry& entry : storage.list(root)) {
    const bool is_journal = entry.name.starts_with(kJournalPrefix) && entry.kind == FileKind::kFile;
    if (entry.is_link || !(is_journal || entry.name == kLockFile || names->contains(entry.name)))
      foreign.push_back(entry.name);
  }
  return foreign.empty() ? std::string() : fmt::format("it holds {}, which no run has made", list_names(foreign));
}

}  // namespace reshard
