#include "reshard/engine/execute.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/layouts/target_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;

void write_text(Storage& storage, const fs::path& path, const std::string& text) {
  const auto sink = storage.create(path, text.size());
  sink->write_at(0, std::as_bytes(std::span(text)));
  sink->sync();
}

void write_parts(Sink& sink, const std::vector<FilePart>& parts) {
  for (const FilePart& part : parts) sink.write_at(part.offset_bytes, std::as_bytes(std::span(part.bytes)));
}

void copy_file(Storage& storage, const CopiedFile& file, const fs::path& root) {
  const auto source = storage.open(file.source);
  const auto sink = storage.create(root / file.path, source->size_bytes());
  std::vector<std::byte> buffer(std::min(kCopyBytes, source->size_bytes()));
  for (std::uint64_t at = 0; at < source->size_bytes(); at += buffer.size()) {
    const std::span part(buffer.data(), std::min<std::uint64_t>(buffer.size(), source->size_bytes() - at));
    source->read_at(at, part);
    sink->write_at(at, part);
  }
  sink->sync();
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
  for (const CopiedFile& file : job.copied_files) copy_file(storage, file, staging.root());
  const std::vector<std::uint32_t> crcs = run_program(job.program, staging.root(), options);
  if (options.progress) options.progress->flushing = true;
  for (const LayoutFile& file : job.target.files) {
    const auto sink = storage.reopen(staging.root() / file.path);
    if (needs_crcs(file)) write_parts(*sink, target_parts(job.target, file, crcs));
    sink->sync();
  }
  for (const TextFile& file : job.text_files) write_text(storage, staging.root() / file.path, file.text);
  if (options.progress && options.progress->stop)
    throw Error(ErrorKind::kInterrupted, "stopped by a signal; nothing was written under a final name");
  staging.publish();
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
