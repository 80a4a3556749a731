#include "reshard/engine/ranks/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "reshard/base/sha256.h"
#include "reshard/base/wire.h"
#include "reshard/engine/ranks/run_fingerprint.h"
#include "reshard/io/parallel.h"

namespace reshard {
namespace {

void add_files(RunIdentity& identity, const SourceMap& map) {
  for (const SourceFile& file : map.files)
    identity.files.push_back({file.path, file.path.filename().generic_string(), file.size_bytes});
}

/// Returns a digest of the files' stamps, which is the same on all ranks that see the same files.
std::string stamps_of(const RunIdentity& identity, Files& files) {
  WireWriter wire;
  for (const RunIdentity::File& file : identity.files) wire.add(files.lasting_stamp(file.path).text());
  const Sha256Digest digest = sha256(std::as_bytes(std::span(wire.bytes())));
  return to_hex(digest);
}

/// Returns the digest of some blocks of a file: enough to distinguish checkpoints, which differ everywhere.
Sha256Digest sample(Files& files, const std::filesystem::path& path) {
  constexpr std::uint64_t kBlocks = 4, kBlockBytes = 4096;
  const auto source = files.open(path);
  const std::uint64_t size_bytes = source->size_bytes();
  std::vector<std::byte> block(std::min(kBlockBytes, size_bytes));
  Sha256 hash;
  for (std::uint64_t i = 1; i <= kBlocks; ++i) {  // the last one ends the file
    source->read_at((size_bytes - block.size()) / kBlocks * i + (size_bytes - block.size()) % kBlocks * (i == kBlocks),
                    block);
    hash.update(block);
  }
  return hash.finish();
}

/// Compares samples of files that have equal names and sizes.
void validate_same_samples(const RunIdentity& mine, const RunOptions& options, Together& together) {
  Progress own;
  std::vector<Sha256Digest> samples(mine.files.size());
  together.step("sample files", options.progress ? *options.progress : own, [&] {
    for_each_number(samples.size(), thread_count(options),
                    [&](std::size_t i) { samples[i] = sample(options.stores.sources(), mine.files[i].path); });
  });
  std::string text;
  for (const Sha256Digest& one : samples) text.append(reinterpret_cast<const char*>(one.data()), one.size());
  const std::vector<std::string> all = together.gather("compare samples", std::move(text));
  for (std::uint32_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto at = std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end()).first;
    const auto file = static_cast<std::size_t>(at - all[0].begin()) / sizeof(Sha256Digest);
    throw AgreedError(std::move(
        Error(ErrorKind::kBadInput, fmt::format("{} reads other files than {}: {} has different data there",
                                                together.process(rank), together.process(0), mine.files[file].name))
            .hint("use a path that all ranks share, to files that no process is writing to, or identical copies of one "
                  "checkpoint")));
  }
}

/// Describes the difference of the sources, from rank 0's point of view.
std::string difference(const std::vector<RunIdentity::File>& ours, const std::vector<RunIdentity::File>& theirs) {
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    if (i >= ours.size()) return fmt::format("{} exists only there", theirs[i].name);
    if (i >= theirs.size()) return fmt::format("{} is missing there", ours[i].name);
    if (ours[i].name != theirs[i].name) return fmt::format("{} is there instead of {}", theirs[i].name, ours[i].name);
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
  identity.output = options.stores.target().absolute(job.output_directory).lexically_normal().generic_string();
  add_files(identity, job.source);
  return identity;
}

RunIdentity run_identity(const std::vector<const SourceMap*>& maps, const std::string& what) {
  RunIdentity identity;
  identity.command = what;
  for (const SourceMap* map : maps) {
    identity.sources += to_string(fingerprint_of(*map));
    add_files(identity, *map);
  }
  return identity;
}

void validate_same_run(const RunIdentity& mine, const RunOptions& options, Together& together) {
  const std::string own = wire_bytes(mine.command, mine.sources, mine.all, mine.options, mine.output);
  std::vector<std::string> all;
  std::set<std::string> stamps;
  for (const std::string& bytes :
       together.gather("compare", wire_bytes(own, stamps_of(mine, options.stores.sources())))) {
    WireReader reader(bytes);
    all.push_back(reader.read<std::string>());
    stamps.insert(reader.read<std::string>());
  }
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& one) { return one != all.front(); });
  if (other == all.end()) {
    if (stamps.size() > 1) validate_same_samples(mine, options, together);
    return;
  }
  const auto rank = static_cast<std::uint32_t>(other - all.begin());
  const auto files_of = [](const std::string& bytes) {
    return WireReader(bytes).read<std::vector<RunIdentity::File>>();
  };
  const std::vector<std::string> files = together.gather("compare files", wire_bytes(mine.files));
  WireReader ours(all.front()), theirs(*other);
  const auto next_is_same = [&] { return ours.read<std::string_view>() == theirs.read<std::string_view>(); };
  const bool same_command = next_is_same();
  const bool same_sources = next_is_same();
  if (same_command && !same_sources)
    throw AgreedError(
        std::move(Error(ErrorKind::kBadInput,
                        fmt::format("{} reads other files than {}: {}", together.process(rank), together.process(0),
                                    difference(files_of(files.front()), files_of(files[rank]))))
                      .hint("use a path that all ranks share, to files that no process is writing to")));
  const bool same_program = next_is_same() && ours.read<std::uint64_t>() == theirs.read<std::uint64_t>();
  if (same_command && same_program)
    throw AgreedError(
        std::move(Error(ErrorKind::kUsage,
                        fmt::format("{} writes to {}, and {} to {}", together.process(0), ours.read<std::string_view>(),
                                    together.process(rank), theirs.read<std::string_view>()))
                      .hint("give one output directory, the same path on all ranks")));
  throw AgreedError(std::move(
      Error(ErrorKind::kUsage, fmt::format("{} was given other options than {} and would behave differently{}",
                                           together.process(rank), together.process(0), together.other_options(rank)))
          .hint("start all ranks with the same command line, and with the same version of reshard")));
}

}  // namespace reshard
