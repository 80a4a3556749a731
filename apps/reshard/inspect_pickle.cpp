#include "inspect_pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "json_report.h"
#include "print.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/magic.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/open_store.h"
#include "run_job.h"
#include "table.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFirstLookBytes = 512;

struct NameOfFiles {
  PickleName name;
  std::size_t files = 0;
};

struct Pickles {
  std::size_t files = 0;
  std::vector<NameOfFiles> names;  // in the order of pickle_names
  std::vector<std::string> notes;
  std::optional<Error> refusal;  // why the first refused file was
};

/// Returns the files of a directory that are pickles; a file as it is. Directories that are links are not searched.
std::vector<fs::path> pickle_files(Files& files, const fs::path& path, std::vector<std::string>& notes) {
  if (!files.is_directory(path)) return {path};
  std::vector<fs::path> found;
  std::size_t items = 0;
  std::vector<fs::path> open = {path};
  while (!open.empty()) {
    const fs::path directory = open.back();
    open.pop_back();
    for (const DirectoryEntry& entry : files.list(directory)) {
      const fs::path inside = directory / entry.name;
      if (entry.kind == FileKind::kDirectory && !entry.is_link) open.push_back(inside);
      if (entry.kind != FileKind::kFile || inside.extension() == ".safetensors") continue;
      if (!starts_with_pickle(first_bytes(*files.open(inside), kFirstLookBytes))) continue;
      if (inside.extension() == ".distcp")
        ++items;
      else
        found.push_back(inside);
    }
  }
  if (items > 0)
    notes.push_back(
        fmt::format("the items of {} .distcp file{} are pickles, too, which are not listed; convert and "
                    "verify refuse those that run code",
                    items, items == 1 ? "" : "s"));
  std::sort(found.begin(), found.end());
  return found;
}

Pickles read_pickles(Files& files, const fs::path& path) {
  Pickles pickles;
  const std::vector<fs::path> paths = pickle_files(files, path, pickles.notes);
  if (paths.empty())
    throw Error(ErrorKind::kBadInput, "contains no pickle").in(path).hint("safetensors files have none");
  std::map<std::string, NameOfFiles> names;
  for (const fs::path& file : paths) {
    try {
      for (PickleName& name : read_pickle_names(*files.open(file), file)) {
        NameOfFiles& entry = names.try_emplace(name.name, NameOfFiles{name}).first->second;
        if (entry.files++ == 0) continue;
        entry.name.objects += name.objects;
        entry.name.is = std::min(entry.name.is, name.is);
      }
      ++pickles.files;
    } catch (const Error& error) {
      if (paths.size() == 1) throw;
      if (!pickles.refusal)
        pickles.refusal = error;
      else
        pickles.notes.push_back(fmt::format("also refused: {}", error.what()));
    }
  }
  for (auto& [name, entry] : names) pickles.names.push_back(std::move(entry));
  std::stable_sort(pickles.names.begin(), pickles.names.end(),
                   [](const NameOfFiles& a, const NameOfFiles& b) { return a.name.is < b.name.is; });
  return pickles;
}

std::string_view kind_name(PickleName::Is is) {
  if (is == PickleName::Is::kOnlyNamed) return "named";
  return is == PickleName::Is::kKnown ? "known" : "recorded";
}

std::string pickles_text(const std::string& path, const Pickles& pickles) {
  Table table({{"class or function", Table::Align::kLeft},
               {"objects", Table::Align::kRight},
               {"files", Table::Align::kRight},
               {"kind", Table::Align::kLeft}});
  for (const NameOfFiles& entry : pickles.names)
    table.add({printable(entry.name.name), entry.name.objects == 0 ? "-" : std::to_string(entry.name.objects),
               std::to_string(entry.files),
               fmt::format("{}{}", kind_name(entry.name.is),
                           entry.name.is == PickleName::Is::kRecordedWithStorages ? ", with tensors" : "")});
  return fmt::format("{}: {} file{} with a pickle, read without running anything\n\n", printable(path), pickles.files,
                     pickles.files == 1 ? "" : "s") +
         table.text();
}

Document pickles_document(const std::string& path, const Pickles& pickles) {
  Document json;
  json["command"] = "inspect";
  json["path"] = path;
  json["kind"] = "pickles";
  json["files"] = pickles.files;
  json["names"] = Document::array();
  for (const auto& [name, files] : pickles.names)
    json["names"].push_back({{"name", name.name},
                             {"objects", name.objects},
                             {"files", files},
                             {"kind", kind_name(name.is)},
                             {"with_tensors", name.is == PickleName::Is::kRecordedWithStorages}});
  json["notes"] = pickles.notes;
  return json;
}

}  // namespace

void inspect_pickles(Files& files, const std::string& path, bool json, bool quiet) {
  if (!files.exists(path)) throw nothing_at(files, path);
  const Pickles pickles = read_pickles(files, path);
  if (json && pickles.refusal) throw *pickles.refusal;
  if (json) return print_output(to_text(pickles_document(path, pickles)));
  if (!quiet) print_notes(pickles.notes);
  if (pickles.files > 0) print_text(pickles_text(path, pickles));
  if (pickles.refusal) throw *pickles.refusal;
}

}  // namespace reshard::cli
