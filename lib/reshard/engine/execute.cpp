#include "reshard/engine/execute.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/engine/output.h"
#include "reshard/engine/parallel.h"
#include "reshard/engine/publish.h"
#include "reshard/layouts/target_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;
constexpr std::size_t kFlushingThreads = 16;

void write_text(const RunOptions& options, const TextFile& file, const Staging& staging) {
  const fs::path path = staging.root() / file.path;
  const auto sink = options.storage->create(path, file.text.size());
  set_permissions(path, staging.permissions().text(file));
  sink->write_at(0, std::as_bytes(std::span(file.text)));
  options.sync ? sink->sync() : sink->finish();
}

void write_parts(Sink& sink, const std::vector<FilePart>& parts) {
  for (const FilePart& part : parts) sink.write_at(part.offset_bytes, std::as_bytes(std::span(part.bytes)));
}

void copy_file(const RunOptions& options, const CopiedFile& file, const Staging& staging) {
  const auto source = options.storage->open(file.source);
  const fs::path path = staging.root() / file.path;
  const auto sink = options.storage->create(path, source->size_bytes());
  set_permissions(path, staging.permissions().copy(file));
  if (!sink->copy_from(*source, 0, 0, source->size_bytes())) {
    std::vector<std::byte> buffer(std::min(kCopyBytes, source->size_bytes()));
    for (std::uint64_t at = 0; at < source->size_bytes(); at += buffer.size()) {
      const std::span part(buffer.data(), std::min<std::uint64_t>(buffer.size(), source->size_bytes() - at));
      source->read_at(at, part);
      sink->write_at(at, part);
    }
  }
  options.sync ? sink->sync() : sink->finish();
}

/// Creates the target's files, with what of them is known before any tensor.
void create_files(const Job& job, const Staging& staging, const RunOptions& options) {
  const std::vector<TensorFile>& files = job.target.files;
  for_each_number(files.size(), thread_count(options), [&](std::size_t i) {
    prove_not_stopped(options);
    const fs::path path = staging.root() / files[i].path;
    const auto sink = options.storage->create(path, files[i].size_bytes);
    set_permissions(path, staging.permissions().weights());
    if (!needs_crcs(files[i])) write_parts(*sink, target_parts(job.target, files[i]));
  });
}

/// Writes what of the target's files is known only now, and has the disk confirm them: several at a time, since each
/// waits.
void finish_files(const Job& job, const fs::path& root, const RunOptions& options,
                  std::span<const std::uint32_t> crcs) {
  const std::vector<TensorFile>& files = job.target.files;
  for_each_number(files.size(), options.sync ? kFlushingThreads : thread_count(options), [&](std::size_t i) {
    prove_not_stopped(options);
    const auto sink = options.storage->reopen(root / files[i].path);
    if (needs_crcs(files[i])) write_parts(*sink, target_parts(job.target, files[i], crcs));
    options.sync ? sink->sync() : sink->finish();
  });
}

RunResult run_and_publish(const Job& job, RunOptions options) {
  const auto start = std::chrono::steady_clock::now();
  prove_output(job);
  prove_space(output_space(job));
  Staging staging(job);
  RunResult result;
  options.on_divergence = [&](Divergence one) { result.divergent.push_back(std::move(one)); };
  create_files(job, staging, options);
  for (const CopiedFile& file : job.copied_files) copy_file(options, file, staging);
  const std::vector<std::uint32_t> crcs = run_program(job.maps(), job.program, staging.root(), options);
  if (options.progress) options.progress->flushing = true;
  finish_files(job, staging.root(), options, crcs);
  for (const TextFile& file : job.text_files) write_text(options, file, staging);
  prove_not_stopped(options);
  result.notes = staging.publish(options.sync);
  std::sort(result.divergent.begin(), result.divergent.end(),  // threads find them in any order
            [](const Divergence& a, const Divergence& b) { return a.text < b.text; });
  result.files = job.target.files.size() + job.copied_files.size() + job.text_files.size();
  result.read_bytes = job.program.read_bytes + job.program.check_bytes;
  result.written_bytes = job.output_bytes();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace

RunResult execute(const Job& job, RunOptions options) {
  return with_file_system_errors([&] { return run_and_publish(job, std::move(options)); });
}

}  // namespace reshard
