#include "reshard/layouts/dcp/dcp_replaced.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/io/memory_files.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/names/state_names.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Returns the entries of a checkpoint that are not the model's.
std::vector<std::string> beyond_model(const DcpMetadata& metadata) {
  std::vector<std::string> tensors, others;
  for (const DcpTensor& tensor : metadata.tensors) tensors.push_back(tensor.name);
  for (const DcpBytes& object : metadata.bytes) others.push_back(object.name);
  const StateNames names = find_state_names(tensors, {nullptr}, others);
  std::erase_if(others, [](const std::string& name) { return name.ends_with("_extra_state"); });  // of a module
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (names.names[i].empty() || names.is_of_optimizer(tensors[i])) others.push_back(tensors[i]);
  return others;
}

}  // namespace

void validate_dcp_replaced(Files& files, const fs::path& directory, const std::string& metadata) {
  if (!holds_dcp_metadata(files, directory)) return;
  std::vector<std::string> lost;
  try {
    std::vector<std::string> notes;
    lost = beyond_model(read_dcp_directory(files, directory, DcpPaths::kLeave, notes).all);
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return;  // no program can load it
  }
  if (lost.empty()) return;
  const DcpMetadata written = read_dcp_metadata(MemorySource(metadata), directory / kDcpMetadataFile, DcpPaths::kLeave);
  std::unordered_set<std::string_view> kept;
  for (const DcpTensor& tensor : written.tensors) kept.insert(tensor.name);
  for (const DcpBytes& object : written.bytes) kept.insert(object.name);
  std::erase_if(lost, [&](const std::string& name) { return kept.count(name) > 0; });
  if (lost.empty()) return;
  throw Error(
      ErrorKind::kBadInput,
      fmt::format("would be replaced, but its checkpoint also contains {} entr{} of training state that the new "
                  "one would not have: {}",
                  lost.size(), lost.size() == 1 ? "y" : "ies", list_names(lost)))
      .in(directory)
      .hint(
          "choose another output directory; training state is never deleted, so delete that checkpoint yourself if "
          "you do not need it");
}

}  // namespace reshard
