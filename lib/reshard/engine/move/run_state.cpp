#include "reshard/engine/move/run_state.h"

#include <sys/resource.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/engine/units/lots.h"

namespace reshard {

std::size_t open_files() {
  constexpr std::size_t kFewest = 4;
  constexpr std::size_t kMost = 256;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMost;
  return std::clamp<std::size_t>(limit.rlim_cur / 8, kFewest, kMost);
}

RunState::RunState(const ProgramMaps& the_maps, const Program& the_program, const std::vector<Part>& parts,
                   const std::filesystem::path& root, const RunOptions& run_options, const BlockVisitor& block_visitor,
                   unsigned thread_count, const BlockSizes& blocks)
    : maps(the_maps),
      program(the_program),
      target_root(root),
      options(run_options),
      visitor(block_visitor),
      threads(thread_count),
      joined_bytes(blocks.joined_bytes),
      queue(the_maps, the_program, parts, blocks, thread_count, run_options.digests),
      sources(open_files()),
      others(open_files()),
      sinks(open_files(),
            [this](Sink& sink) {
              if (spoiled || (failed && !options.resume)) return;  // all outputs will be removed
              try {
                sink.finish();
              } catch (...) {
                fail(std::current_exception());
              }
            }),
      checksums(the_maps.target),
      write_back(the_maps.target ? the_maps.target->files.size() : 0, open_files()),
      written(the_maps.target ? the_maps.target->files.size() : 0) {
  if (options.on_unit) ledger = std::make_unique<UnitLedger>(maps, program, parts, options.on_unit);
  if (!options.digests || maps.target == nullptr) return;
  digests.reserve(maps.target->logical.size());
  for (const LogicalTensor& tensor : maps.target->logical) digests.emplace_back(tensor.dtype, tensor.shape);
}

bool RunState::add_lot(unsigned worker) {
  if (options.lots == nullptr) return false;
  throw_if_stopped(options);
  const Lot* lot = options.lots->take();
  if (lot == nullptr) return options.lots->wait();
  if (ledger) ledger->expect(lot->parts);
  queue.add(worker, lot->parts);
  return true;
}

std::shared_ptr<Source> RunState::open(const SourceMap& map, FilePool<Source>& files, std::uint32_t file) const {
  return files.get(file, [&] {
    const SourceFile& tensors = map.files[file];
    auto source = options.stores.sources().open(tensors.path);
    validate_unchanged(options.stores.sources(), tensors);
    if (tensors.frame) return open_zstd(std::move(source), *tensors.frame, tensors.size_bytes, tensors.path);
    return source;
  });
}

void validate_unchanged(Files& files, const SourceFile& file) {
  if (!file.stamp || files.stamp(file.path) == *file.stamp) return;
  throw Error(ErrorKind::kIo, "was replaced or modified after its header was read")
      .in(file.path)
      .hint("run again when no other process writes to it");
}

void RunState::fail(std::exception_ptr why) {
  if (as_error(why).kind() != ErrorKind::kInterrupted) {
    spoiled = true;
    if (options.on_failure) options.on_failure();
  }
  const std::lock_guard lock(failure_mutex);
  if (!failure) failure = std::move(why);
  failed = true;
}

}  // namespace reshard
