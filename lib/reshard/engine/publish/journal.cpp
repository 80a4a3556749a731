#include "reshard/engine/publish/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/wire.h"
#include "reshard/engine/move/page_fragments.h"
#include "reshard/engine/ranks/run_fingerprint.h"
#include "reshard/formats/common/format.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/layout.h"

namespace reshard {
namespace {

constexpr std::string_view kFamily = "reshard journal ";
constexpr std::string_view kJournalLine = "reshard journal 4\n";

Format format_of(const TargetMap& map) {
  using Encoding = TargetFile::Encoding;
  const auto any = [&](Encoding encoding) {
    return std::any_of(map.files.begin(), map.files.end(),
                       [=](const TargetFile& file) { return file.encoding == encoding; });
  };
  if (any(Encoding::kTorchTensor)) return Format::kXser;
  return any(Encoding::kTorch) || any(Encoding::kDcpItems) ? Format::kPytorch : Format::kSafetensors;
}

/// "bf16, f32"
std::string dtypes_of(const TargetMap& map) {
  std::set<std::string> names;
  for (const LogicalTensor& tensor : map.logical)
    if (!tensor.constant()) names.emplace(name(tensor.dtype));
  std::string text;
  for (const std::string& one : names) text += (text.empty() ? "" : ", ") + one;
  return text;
}

}  // namespace

JournalHeader journal_header(const Job& job, const RunOptions& options, std::uint32_t units) {
  JournalHeader header;
  header.fingerprint = to_string(run_fingerprint(job, options));
  header.units = units;
  header.options = {{"command", job.command},
                    {"layout", job.layout ? job.layout->traits().name : ""},
                    {"tp", std::to_string(job.mesh.tp)},
                    {"pp", std::to_string(job.mesh.pp)},
                    {"ep", std::to_string(job.mesh.ep)},
                    {"format", std::string(name(format_of(job.target)))},
                    {"manifest", job.manifest ? "yes" : "no"}};
  header.given = job.options.all();
  header.given.emplace("dtype", dtypes_of(job.target));
  header.given.emplace("vpp", std::to_string(job.mesh.vpp));
  const auto add = [&](const std::filesystem::path& path, std::uint64_t size_bytes) {
    header.sources.push_back(
        {path.filename().generic_string(), size_bytes, options.stores.sources().lasting_stamp(path).text()});
  };
  for (const SourceFile& file : job.source.files) add(file.path, file.size_bytes);
  for (const CopiedFile& file : job.copied_files) add(file.source, file.size_bytes);
  return header;
}

std::string journal_text(const Journal& journal) {
  return sealed(kJournalLine, wire_bytes(journal));
}

std::optional<Journal> parse_journal(std::string_view text) {
  const auto whole = unsealed(text);
  if (!whole || !whole->starts_with(kFamily)) return std::nullopt;
  if (!whole->starts_with(kJournalLine))
    throw Error(ErrorKind::kUnsupported, "is the journal of another version of reshard")
        .hint("continue with that version, or start from scratch once with `clean` instead of `resume`");
  auto journal = WireReader(whole->substr(kJournalLine.size())).read<Journal>();
  for (const std::string& file : journal.fragment_files)
    if (!is_fragments_file(file) || file.find('/') != std::string::npos)
      throw Error(ErrorKind::kBadInput, "names a file that is not a fragment file");
  for (const UnitReport& unit : journal.units)
    if (unit.unit >= journal.header.units) throw Error(ErrorKind::kBadInput, "names a unit that does not exist");
  return journal;
}

std::optional<Journal> read_journal(Files& files, const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  return parse_journal(read_text_file(files, path, kMaxBytes));
}

JournalFound find_journal(Files& files, const std::filesystem::path& root, const JournalHeader* header) noexcept {
  JournalFound found = JournalFound::kNone;
  try {
    for (const std::string& name : journal_files(files, root)) {
      try {
        const auto journal = read_journal(files, root / name);
        if (journal && !journal->units.empty() && (header == nullptr || journal->header == *header))
          return JournalFound::kWhole;
      } catch (const Error&) {
        found = JournalFound::kUnreadable;
      }
    }
  } catch (const std::exception&) {
    // The directory cannot be listed.
  }
  return found;
}

JournalWriter::JournalWriter(Storage& storage, std::filesystem::path root, std::string prefix, JournalHeader header,
                             std::chrono::milliseconds interval, Flush flush)
    : storage_(storage),
      root_(std::move(root)),
      prefix_(std::move(prefix)),
      header_(std::move(header)),
      interval_(interval),
      flush_(std::move(flush)) {}

JournalWriter::~JournalWriter() {
  try {
    finish();
  } catch (const std::exception&) {
    // Callers that need the failure call finish.
  }
}

void JournalWriter::add(UnitReport unit) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  waiting_.push_back(std::move(unit));
  if (interval_.count() == 0) return write_rest();
  if (thread_.joinable() || ends_) return;
  try {
    thread_ = std::thread([this] { run(); });
    return;
  } catch (const std::system_error&) {
    // No more threads are available: this one writes the journal.
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - written_at_ < interval_) return;
  written_at_ = now;
  write_rest();
}

void JournalWriter::run() {
  const auto start = std::chrono::steady_clock::now();
  auto last = start;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto wait = std::max<std::chrono::steady_clock::duration>(interval_, (last - start) / 50);
    changed_.wait_until(lock, last + wait, [&] { return ends_; });
    if (ends_) return;
    last = std::chrono::steady_clock::now();
    std::vector<UnitReport> units = std::exchange(waiting_, {});
    if (units.empty()) continue;
    lock.unlock();
    try {
      write(units);
    } catch (...) {
      lock.lock();
      failure_ = std::current_exception();
      return;
    }
    lock.lock();
  }
}

/// Flushes the units' data to disk, and then journals the units.
void JournalWriter::write(const std::vector<UnitReport>& units) {
  std::set<std::uint32_t> files;
  for (const UnitReport& unit : units) files.insert(unit.files.begin(), unit.files.end());
  if (closed_) return;
  Journal journal{header_, {}, units};
  try {
    journal.fragment_files = flush_({files.begin(), files.end()});
  } catch (...) {
    closed_ = true;  // a flush of another descriptor would succeed
    throw;
  }
  if (closed_) return;
  const std::filesystem::path path = root_ / fmt::format("{}{}", prefix_, number_++);
  try {
    write_file(path, journal);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNoSpace) throw;
    closed_ = full_ = true;  // the outputs have their space, so the run continues
  }
  // The disk reports a failed write to only one descriptor: possibly that of another thread, just before this flush.
  if (closed_) return storage_.directories().remove_tree(path);
  storage_.directories().open({root_}, root_)->flush();
}

void JournalWriter::write_file(const std::filesystem::path& path, const Journal& journal) {
  const std::string text = journal_text(journal);
  const auto sink = storage_.create(path, text.size());
  sink->write_at(0, std::as_bytes(std::span(text)));
  sink->sync();
}

void JournalWriter::finish() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(failure_);
}

void JournalWriter::write_rest() {
  if (!waiting_.empty()) write(std::exchange(waiting_, {}));
}

std::vector<std::string> journal_files(Files& files, const std::filesystem::path& root) {
  std::vector<std::string> names = journal_and_fragment_files(files, root);
  std::erase_if(names, is_fragments_file);
  return names;
}

std::vector<std::string> journal_and_fragment_files(Files& files, const std::filesystem::path& root) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : files.list(root))
    if (entry.name.starts_with(kJournalPrefix) && entry.kind == FileKind::kFile) names.push_back(entry.name);
  return names;
}

std::uint64_t next_attempt(Files& files, const std::filesystem::path& root) {
  std::uint64_t attempt = 0;
  for (const std::string& name : journal_and_fragment_files(files, root)) {
    std::uint64_t number = 0;
    const char* begin = name.data() + kJournalPrefix.size();
    if (std::from_chars(begin, name.data() + name.size(), number).ec == std::errc{} && number < UINT64_MAX)
      attempt = std::max(attempt, number + 1);
  }
  return attempt;
}

std::string journal_prefix(std::uint64_t attempt, std::uint32_t rank) {
  return fmt::format("{}{}-{}-", kJournalPrefix, attempt, rank);
}

}  // namespace reshard
