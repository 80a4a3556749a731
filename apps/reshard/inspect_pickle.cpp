#include "inspect_pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "json_report.h"
#include "print.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/magic.h"
#include "reshard/formats/dcp/dcp_item.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/dcp/dcp_directory.h"
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

/// What the files at a path are.
struct PickleFiles {
  std::vector<fs::path> pickles;
  std::map<fs::path, std::set<std::string>> of_items;  // .distcp by directory, which contain a pickle for each chunk
  std::vector<std::string> others;                     // binary files that are neither pickles nor safetensors
};

struct Pickles {
  std::size_t files = 0;
  std::vector<NameOfFiles> names;  // in the order of pickle_names
  Notes notes;
  std::vector<Error> failures;  // one for each file that cannot be read
};

bool is_binary(std::string_view start) {
  return start.find('\0') != start.npos;
}

/// Looks at the files of a directory, or at one file. Directories that are links are not searched.
PickleFiles find_pickles(Files& files, const fs::path& path) {
  if (!files.is_directory(path)) return {.pickles = {path}, .of_items = {}, .others = {}};
  PickleFiles found;
  std::vector<fs::path> open = {path};
  while (!open.empty()) {
    const fs::path directory = open.back();
    open.pop_back();
    for (const DirectoryEntry& entry : files.list(directory)) {
      const fs::path inside = directory / entry.name;
      if (entry.kind == FileKind::kDirectory && !entry.is_link) open.push_back(inside);
      if (entry.kind != FileKind::kFile) continue;
      if (is_dcp_items_name(entry.name)) {
        found.of_items[directory].insert(entry.name);
        continue;
      }
      const auto source = files.open(inside);
      if (holds_pickle(*source, inside))
        found.pickles.push_back(inside);
      else if (is_binary(first_bytes(*source, kFirstLookBytes)) && !is_safetensors(*source))
        found.others.push_back(inside.lexically_relative(path).string());
    }
  }
  std::sort(found.pickles.begin(), found.pickles.end());
  std::sort(found.others.begin(), found.others.end());
  return found;
}

/// Collects the names of all files.
class Collector {
 public:
  /// Adds the names that `read` returns for one file. Records its error instead, if it throws one.
  void add(const std::function<std::vector<PickleName>()>& read) {
    try {
      std::set<std::string> of_file;
      for (const PickleName& name : read()) {
        NameOfFiles& entry = names_.try_emplace(name.name, NameOfFiles{{name.name, 0, name.is}}).first->second;
        if (of_file.insert(name.name).second) ++entry.files;
        entry.name.objects += name.objects;
        entry.name.is = std::min(entry.name.is, name.is);
      }
      ++pickles_.files;
    } catch (const Error& error) {
      pickles_.failures.push_back(error);
    }
  }

  Pickles take() {
    for (auto& [name, entry] : names_) pickles_.names.push_back(std::move(entry));
    std::stable_sort(pickles_.names.begin(), pickles_.names.end(),
                     [](const NameOfFiles& a, const NameOfFiles& b) { return a.name.is < b.name.is; });
    return std::move(pickles_);
  }

 private:
  Pickles pickles_;
  std::map<std::string, NameOfFiles> names_;
};

/// Adds the names of all items in the files of a directory of torch.distributed.checkpoint.
/// \param file_names  its files. Removes those that the metadata names.
void add_items(Files& files, const fs::path& directory, std::set<std::string>& file_names, Collector& collector) {
  DcpMetadata metadata;
  std::vector<std::map<std::uint64_t, DcpPlace>> places;  // of each file, by offset: entries may share an item
  const auto add = [&](const DcpPlace& place) { places[place.file].emplace(place.offset_bytes, place); };
  if (!holds_dcp_metadata(files, directory)) return;
  try {
    Notes notes;
    metadata = read_dcp_directory(files, directory, DcpPaths::kLeave, notes).all;
  } catch (const Error&) {
    return;  // the metadata is a pickle, too, and its error is reported
  }
  places.resize(metadata.files.size());
  for (const DcpTensor& tensor : metadata.tensors)
    for (const DcpChunk& chunk : tensor.chunks) add(chunk.place);
  for (const DcpBytes& object : metadata.bytes) add(object.place);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].empty()) continue;
    file_names.erase(metadata.files[i]);
    collector.add([&] {
      DcpFile file(files, directory / metadata.files[i]);
      std::vector<PickleName> names;
      for (const auto& [offset, place] : places[i])
        for (PickleName& name : file.pickle_names(place, metadata.transforms[place.transforms]))
          names.push_back(std::move(name));
      return names;
    });
  }
}

Pickles read_pickles(Files& files, const fs::path& path) {
  PickleFiles found = find_pickles(files, path);
  Collector collector;
  for (const fs::path& file : found.pickles) collector.add([&] { return read_pickle_names(*files.open(file), file); });
  for (auto& [directory, file_names] : found.of_items) {
    add_items(files, directory, file_names, collector);
    for (const std::string& name : file_names)
      found.others.push_back((directory / name).lexically_relative(path).string());
  }
  Pickles pickles = collector.take();
  std::string not_read;
  if (!found.others.empty())
    not_read = "not examined, being neither pickles nor safetensors, or without metadata: " + list_names(found.others);
  if (pickles.files == 0 && pickles.failures.empty())
    throw Error(ErrorKind::kBadInput, "contains no file of torch.save and no pickle")
        .in(path)
        .hint(not_read.empty() ? "safetensors files have none" : not_read);
  if (!not_read.empty()) pickles.notes.left_out(not_read);
  for (std::size_t i = 1; i < pickles.failures.size(); ++i)
    pickles.notes.left_out(fmt::format("also refused: {}", pickles.failures[i].what()));
  return pickles;
}

std::string_view kind_name(PickleName::Is is) {
  switch (is) {
    case PickleName::Is::kOnlyNamedCode: return "code";
    case PickleName::Is::kRecorded:
    case PickleName::Is::kRecordedWithStorages: return "recorded";
    case PickleName::Is::kKnown: return "known";
    case PickleName::Is::kOnlyNamed: break;
  }
  return "named";
}

/// Explains the kinds that are not data of torch, as far as there are any.
std::string legend(const Pickles& pickles) {
  std::string text;
  const auto explain = [&](std::string_view kind, std::string_view line) {
    if (std::any_of(pickles.names.begin(), pickles.names.end(),
                    [&](const NameOfFiles& entry) { return kind_name(entry.name.is) == kind; }))
      text += fmt::format("\n{}: {}", kind, line);
  };
  explain("code", "only named, but runs code if it is called");
  explain("recorded", "a class that reshard does not know; its objects are data here, but Python would create them");
  return text.empty() ? text : text + "\n";
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
  return fmt::format("{}: {} with a pickle, read without running anything\n\n", printable(path),
                     plural(pickles.files, "file")) +
         table.text() + legend(pickles);
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
  json["refused"] = Document::array();
  for (const Error& error : pickles.failures) json["refused"].push_back(error.what());
  add_notes(json, pickles.notes);
  return json;
}

}  // namespace

void inspect_pickles(Files& files, const std::string& path, bool json, bool quiet) {
  if (!files.exists(path)) throw nothing_at(files, path);
  const Pickles pickles = read_pickles(files, path);
  if (json) {
    print_output(to_text(pickles_document(path, pickles)));
  } else {
    if (!quiet) print_notes(pickles.notes);
    if (pickles.files > 0) print_text(pickles_text(path, pickles));
  }
  if (!pickles.failures.empty()) throw pickles.failures.front();
}

}  // namespace reshard::cli
