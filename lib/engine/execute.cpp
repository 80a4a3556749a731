#include "reshard/engine/execute.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/layouts/target_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;
constexpr std::size_t kFlushingThreads = 16;

void write_text(const RunOptions& options, const fs::path& path, const std::string& text) {
  const auto sink = options.storage->create(path, text.size());
  sink->write_at(0, std::as_bytes(std::span(text)));
  options.sync ? sink->sync() : sink->finish();
}

void write_parts(Sink& sink, const std::vector<FilePart>& parts) {
  for (const FilePart& part : parts) sink.write_at(part.offset_bytes, std::as_bytes(std::span(part.bytes)));
}

void copy_file(const RunOptions& options, const CopiedFile& file, const fs::path& root) {
  const auto source = options.storage->open(file.source);
  const auto sink = options.storage->create(root / file.path, source->size_bytes());
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

/// Writes what of the target's files is known only now, and has the disk confirm them: several at a time, since each
/// waits.
void finish_files(const Job& job, const fs::path& root, const RunOptions& options,
                  std::span<const std::uint32_t> crcs) {
  const std::vector<LayoutFile>& files = job.target.files;
  std::atomic<std::size_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto finish = [&] {
    try {
      for (std::size_t i; (i = next++) < files.size();) {
        if (options.progress && options.progress->stop)
          throw Error(ErrorKind::kInterrupted, "stopped by a signal; nothing was written under a final name");
        const auto sink = options.storage->reopen(root / files[i].path);
        if (needs_crcs(files[i])) write_parts(*sink, target_parts(job.target, files[i], crcs));
        options.sync ? sink->sync() : sink->finish();
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      next = files.size();
    }
  };
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; options.sync && i < std::min(kFlushingThreads, files.size()); ++i)
      others.emplace_back(finish);
  } catch (const std::exception&) {
    // No more threads to be had: those that run do the work of all.
  }
  finish();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

RunResult run_and_publish(const Job& job, RunOptions options) {
  const auto start = std::chrono::steady_clock::now();
  prove_output(job);
  prove_space(output_space(job));
  Storage& storage = *options.storage;
  Staging staging(job);
  RunResult result;
  options.on_divergence = [&](const Error& error) { result.divergent.push_back(error.what()); };
  for (const LayoutFile& file : job.target.files) {
    const auto sink = storage.create(staging.root() / file.path, file.size_bytes);
    if (!needs_crcs(file)) write_parts(*sink, target_parts(job.target, file));
  }
  for (const CopiedFile& file : job.copied_files) copy_file(options, file, staging.root());
  const std::vector<std::uint32_t> crcs = run_program(job.program, staging.root(), options);
  if (options.progress) options.progress->flushing = true;
  finish_files(job, staging.root(), options, crcs);
  for (const TextFile& file : job.text_files) write_text(options, staging.root() / file.path, file.text);
  if (options.progress && options.progress->stop)
    throw Error(ErrorKind::kInterrupted, "stopped by a signal; nothing was written under a final name");
  staging.publish(options.sync);
  std::sort(result.divergent.begin(), result.divergent.end());  // threads find them in any order
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
