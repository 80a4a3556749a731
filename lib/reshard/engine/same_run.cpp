#include "reshard/engine/same_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/wire.h"
#include "reshard/engine/run_fingerprint.h"

namespace reshard {
namespace {

void add_files(RunIdentity& identity, const TensorMap& map) {
  for (const TensorFile& file : map.files)
    identity.files.push_back({file.path.filename().generic_string(), file.size_bytes});
}

std::string files_text(const RunIdentity& identity) {
  WireWriter wire;
  wire.add(identity.files.size());
  for (const RunIdentity::File& file : identity.files) {
    wire.add(file.name);
    wire.add(file.size_bytes);
  }
  return std::move(wire.bytes());
}

std::vector<RunIdentity::File> files_of(const std::string& text) {
  WireReader wire(text);
  std::vector<RunIdentity::File> files(wire.count(16));
  for (RunIdentity::File& file : files) {
    file.name = wire.text();
    file.size_bytes = wire.number();
  }
  return files;
}

/// What of the sources differs, in the words of rank 0.
std::string difference(const std::vector<RunIdentity::File>& ours, const std::vector<RunIdentity::File>& theirs) {
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    if (i >= ours.size()) return fmt::format("{} is there, which is not here", theirs[i].name);
    if (i >= theirs.size()) return fmt::format("{} is missing there", ours[i].name);
    if (ours[i].name != theirs[i].name) return fmt::format("{} is there in place of {}", theirs[i].name, ours[i].name);
    if (ours[i].size_bytes != theirs[i].size_bytes)
      return fmt::format("{} has {} bytes there, and {} here", ours[i].name, theirs[i].size_bytes, ours[i].size_bytes);
  }
  return "the headers of its files differ";
}

}  // namespace

RunIdentity run_identity(const Job& job, const RunOptions& options) {
  RunIdentity identity;
  identity.command = job.command;
  identity.sources = to_string(fingerprint_of(job.source));
  identity.all = to_string(run_fingerprint(job, options));
  identity.options = (job.manifest ? 1u : 0u) + (job.force ? 2u : 0u) + (options.sync ? 4u : 0u);
  identity.output = options.storage->absolute(job.output_directory).lexically_normal().generic_string();
  add_files(identity, job.source);
  return identity;
}

RunIdentity run_identity(const std::vector<const TensorMap*>& maps, const std::string& what) {
  RunIdentity identity;
  identity.command = what;
  for (const TensorMap* map : maps) {
    identity.sources += to_string(fingerprint_of(*map));
    add_files(identity, *map);
  }
  return identity;
}

void validate_same_run(const RunIdentity& mine, Together& together) {
  WireWriter wire;
  wire.add(mine.command);
  wire.add(mine.sources);
  wire.add(mine.all);
  wire.add(mine.options);
  wire.add(mine.output);
  const std::vector<std::string> all = together.gather("compare", std::move(wire.bytes()));
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& one) { return one != all.front(); });
  if (other == all.end()) return;
  const auto rank = static_cast<std::uint32_t>(other - all.begin());
  const std::vector<std::string> files = together.gather("compare files", files_text(mine));
  WireReader ours(all.front()), theirs(*other);
  const bool same_command = ours.text() == theirs.text();
  const bool same_sources = ours.text() == theirs.text();
  if (same_command && !same_sources)
    throw AgreedError(
        std::move(Error(ErrorKind::kBadInput,
                        fmt::format("{} reads other files than {}: {}", together.process(rank), together.process(0),
                                    difference(files_of(files.front()), files_of(files[rank]))))
                      .hint("give a path that all ranks share, to files that nobody writes to")));
  const bool same_program = ours.text() == theirs.text() && ours.number() == theirs.number();
  if (same_command && same_program)
    throw AgreedError(
        std::move(Error(ErrorKind::kUsage, fmt::format("{} writes to {}, and {} to {}", together.process(0),
                                                       ours.text(), together.process(rank), theirs.text()))
                      .hint("give one output directory, the same path on all ranks")));
  throw AgreedError(
      std::move(Error(ErrorKind::kUsage, fmt::format("{} was given other options than {}, and would do something else",
                                                     together.process(rank), together.process(0)))
                    .hint("start all ranks with the same command line, and with the same version of reshard")));
}

}  // namespace reshard
