#include "reshard/engine/job_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/check/digests.h"
#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/proof.h"
#include "reshard/engine/publish/staging_mark.h"
#include "reshard/engine/ranks/run_fingerprint.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/io/parallel.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;
constexpr std::size_t kFlushingThreads = 16;
constexpr double kUnitSnap = 0.5;      // fraction of a unit's cost
constexpr std::size_t kMostLots = 32;  // per share
constexpr std::uint32_t kUnitsPerShare = 4 * kMostLots;

void write_text(const RunOptions& options, const TextFile& file, const Staging& staging) {
  const fs::path path = staging.root() / file.path;
  const auto sink = options.stores.target().create(path, file.text.size());
  set_permissions(options.stores.target().directories(), path, staging.permissions().text(file));
  sink->write_at(0, std::as_bytes(std::span(file.text)));
  options.sync ? sink->sync() : sink->finish();
}

void write_parts(Sink& sink, const std::vector<FilePart>& parts) {
  for (const FilePart& part : parts) sink.write_at(part.offset_bytes, std::as_bytes(std::span(part.bytes)));
}

void copy_file(const RunOptions& options, const CopiedFile& file, const Staging& staging) {
  const auto source = options.stores.sources().open(file.source);
  const fs::path path = staging.root() / file.path;
  const auto sink = options.stores.target().create(path, source->size_bytes());
  set_permissions(options.stores.target().directories(), path, staging.permissions().copy(file));
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

}  // namespace

JobRun::JobRun(const Job& job, RunOptions options)
    : job_(job), options_(std::move(options)), unflushed_(job.target.files.size()) {
  options_.digests = job.manifest;
}

void JobRun::prepare(std::uint32_t ranks) {
  start_ = std::chrono::steady_clock::now();
  Storage& storage = options_.stores.target();
  note(finish_swaps(storage, job_));
  if (options_.clean)  // first: staging directories are removed even if the output is complete by now
    note(clean(storage, job_));
  try {
    validate_output(options_.stores, job_);
  } catch (Error& error) {
    hint_at_dead_runs(error, storage, job_);
    throw;
  }
  std::optional<Resumable> earlier;
  if (options_.resume) earlier = find_resumable(storage, job_, journal_header(job_, options_, unit_count()));
  if (earlier) {
    take_over(std::move(*earlier));
  } else {
    if (options_.resume)  // first: the space may be needed
      note(clean_without_journal(storage, job_));
    try {
      OutputSpace space = output_space(storage, job_);
      if (ranks > 1) space.needed_bytes += deal(ranks, true).pages.size_bytes();  // which are written twice
      validate_space(space);
    } catch (Error& error) {
      hint_at_dead_runs(error, storage, job_);
      throw;
    }
    staging_.emplace(job_, options_.stores);
    if (options_.resume) note(Note{NoteKind::kOutput, "nothing to resume: starting from scratch"});
    prepared_.root = staging_->root();
    create_files();
  }
  prepared_.has_lock = staging_->is_locked();
  if (options_.resume && !prepared_.has_lock)
    note(
        Note{NoteKind::kOutput, fmt::format("the file system of {}, or the kernel, has no locks, so an interrupted run "
                                            "cannot be resumed there",
                                            prepared_.root.string())});
  for (const CopiedFile& file : job_.copied_files) copy_file(options_, file, *staging_);
  for (const TextFile& file : job_.text_files)
    if (!file.is_last) write_text(options_, file, *staging_);
}

void JobRun::note(const Notes& notes) {
  if (!options_.on_note) return notes_.add(notes);
  for (const Note& one : notes) options_.on_note(one);
}

/// Continues in the staging directory of a dead run.
void JobRun::take_over(Resumable earlier) {
  Storage& storage = options_.stores.target();
  take_apart(storage, earlier.root);
  validate_no_foreign_files(storage, job_, earlier.root);
  for (const TargetFile& file : job_.target.files) {
    const fs::path path = earlier.root / file.path;
    if (!storage.is_file(path) || storage.size_bytes(path) != file.size_bytes)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("is not the file of {} bytes that the interrupted run created", file.size_bytes))
          .in(path)
          .hint("start from scratch once with `clean` instead of `resume`");
  }
  staging_.emplace(job_, options_.stores, earlier.root, std::move(earlier.lock));
  prepared_.root = staging_->root();
  prepared_.attempt = next_attempt(storage, prepared_.root);
  // From here on, a failure leaves the directory as it was.
  earlier_ = std::move(earlier.units);
  for (const UnitReport& unit : earlier_) {
    prepared_.done_units.push_back(unit.unit);
    resumed_bytes_ += unit.written_bytes;
  }
  std::sort(prepared_.done_units.begin(), prepared_.done_units.end());
  for_each_number(job_.target.files.size(), thread_count(options_), [&](std::size_t i) {
    const TargetFile& file = job_.target.files[i];
    const fs::path path = prepared_.root / file.path;
    set_permissions(storage.directories(), path, staging_->permissions().weights());  // inputs may have become private
    if (!needs_crcs(file)) write_parts(*storage.reopen(path), target_parts(job_.target, file));
  });
  std::vector<std::string> fragments = journal_and_fragment_files(storage, prepared_.root);
  std::erase_if(fragments, [](const std::string& name) { return !is_fragments_file(name); });
  write_fragments(storage, prepared_.root, fragments, job_.target, true);
  std::fill(unflushed_.begin(), unflushed_.end(), true);
  const Units units(job_.maps(), job_.program, unit_count(), job_.manifest, kUnitSnap);
  std::uint64_t cost = 0;
  for (const std::uint32_t unit : prepared_.done_units) cost += units.cost(unit);
  resumed_read_bytes_ = cost - std::min(cost, resumed_bytes_);
  if (options_.progress) options_.progress->resumed_bytes = resumed_bytes_;
}

/// Number of units, independent of ranks, threads and memory.
std::uint32_t JobRun::unit_count() const {
  constexpr std::uint64_t kMostUnits = 1u << 14;
  const std::uint64_t moved = job_.program.read_bytes + job_.program.check_bytes + job_.program.write_bytes;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(moved / options_.tuning.unit_bytes, 1, kMostUnits));
}

bool JobRun::keep(ErrorKind why) noexcept {
  if (kept_) return true;
  // Without a root, some outputs are published and could not be restored.
  if (!staging_ || staging_->root().empty() || !(journals() || resumes())) return false;
  const bool may_go_on = why == ErrorKind::kNoSpace || why == ErrorKind::kIo || why == ErrorKind::kLost ||
                         (why == ErrorKind::kInterrupted && options_.resume) || resumes();
  if (!may_go_on) return false;
  // By any rank. Not if the sources have changed, since no run can resume then.
  const auto began = [&] {
    const JournalHeader header = journal_header(job_, options_, unit_count());
    const bool all_seen = std::none_of(header.sources.begin(), header.sources.end(),
                                       [](const JournalHeader::Source& source) { return source.state.empty(); });
    return has_journal(options_.stores.target(), prepared_.root, all_seen ? &header : nullptr);
  };
  try {
    if (!options_.resume && !began()) return false;
    if (journal_) journal_->write_rest();  // no-op if it is closed
  } catch (const std::exception&) {
    // The existing journal suffices.
  }
  try {
    if (!began()) return false;
  } catch (const std::exception&) {
    return false;
  }
  journal_.reset();
  staging_->keep();
  staging_.reset();
  return kept_ = true;
}

JobRun::~JobRun() {
  if (abandoned_) options_.stores.target().directories().remove_tree(prepared_.root);
}

void JobRun::abandon() {
  staging_.reset();
  abandoned_ = true;
}

void JobRun::attach(PreparedRun prepared) {
  Storage& storage = options_.stores.target();
  const fs::path& root = prepared.root;
  if (!storage.is_directory(root)) {
    // A network file system may cache the directory's absence; listing its parent refreshes the cache.
    if (storage.is_directory(root.parent_path())) storage.list(root.parent_path());
  }
  if (!storage.is_directory(root))
    throw Error(ErrorKind::kIo, "was created by another rank of this run, but is not visible here")
        .in(root)
        .hint("choose an output directory on a file system that all ranks share");
  if (prepared.has_lock && !(lock_ = storage.directories().lock(root / kLockFile, true)))
    throw Error(ErrorKind::kIo, "is locked by another run").in(root / kLockFile).hint("wait until that run finishes");
  prepared_ = std::move(prepared);
}

/// Writes the parts that are known before any tensor is moved.
void JobRun::create_files() {
  const std::vector<TargetFile>& files = job_.target.files;
  for_each_number(files.size(), thread_count(options_), [&](std::size_t i) {
    throw_if_stopped(options_);
    const fs::path path = prepared_.root / files[i].path;
    const auto sink = options_.stores.target().create(path, files[i].size_bytes);
    set_permissions(options_.stores.target().directories(), path, staging_->permissions().weights());
    if (!needs_crcs(files[i])) write_parts(*sink, target_parts(job_.target, files[i]));
  });
  std::fill(unflushed_.begin(), unflushed_.end(), true);
}

JobRun::Dealt JobRun::deal(std::uint32_t count, bool with_lots) const {
  const ProgramMaps maps = job_.maps();
  const bool counts_units = journals() || resumes();
  if (count == 1 && !counts_units) return {{{whole_program(maps, job_.program)}, {}}, {}};
  // Without a journal, the number of units only needs to suffice for all lots.
  const std::uint32_t fewest = with_lots ? count * kUnitsPerShare : count;
  const std::uint32_t wanted = counts_units ? unit_count() : std::max(unit_count(), fewest);
  const Units units(maps, job_.program, wanted, job_.manifest, kUnitSnap);
  std::vector<std::uint32_t> missing;
  for (std::uint32_t unit = 0; unit < units.count(); ++unit)
    if (!std::binary_search(prepared_.done_units.begin(), prepared_.done_units.end(), unit)) missing.push_back(unit);
  const double share_bytes = static_cast<double>(job_.program.write_bytes) / count;
  for (std::size_t most_lots = with_lots && count > 1 ? kMostLots : 0;; most_lots /= 2) {
    Dealt dealt{deal_shares(maps, job_.program, units, missing, count, most_lots), {}};
    if (count > 1) dealt.pages = SharedPages(maps, job_.program, dealt.shares.writers(), options_.tuning.page_bytes);
    const auto shared_bytes = static_cast<double>(dealt.pages.size_bytes());
    if (most_lots == 0 || shared_bytes <= share_bytes * options_.tuning.max_shared_part) return dealt;
  }
}

/// When a run resumes, files that no journalled unit has touched must exist, too.
void JobRun::flush_entries() {
  for_each_number(job_.target.files.size(), kFlushingThreads, [&](std::size_t i) {
    options_.stores.target().reopen(prepared_.root / job_.target.files[i].path)->sync();
  });
  options_.stores.target().reopen(prepared_.root / kMarkFile)->sync();
  flush_tree(options_.stores.target(), prepared_.root);
}

void JobRun::begin_journal(std::uint32_t share) {
  const auto flush_files = [this](const std::vector<std::uint32_t>& files) {
    if (fragments_) fragments_->spill();
    if (staging_ && !std::exchange(entries_flushed_, true)) flush_entries();
    for_each_number(files.size(), kFlushingThreads, [&](std::size_t i) {
      options_.stores.target().reopen(prepared_.root / job_.target.files[files[i]].path)->sync();
    });
    return fragments_ ? fragments_->files() : std::vector<std::string>();
  };
  journal_ = std::make_unique<JournalWriter>(
      options_.stores.target(), prepared_.root, journal_prefix(prepared_.attempt, share),
      journal_header(job_, options_, unit_count()), options_.journal_interval, flush_files);
}

/// After a signal there is time to journal completed units, so that a later run does not write them again.
/// \throws Error if the journal failed, which may have caused the failure of the run.
void JobRun::end_journal(bool is_interrupted) {
  if (!journal_) return;
  journal_->finish();
  if (is_interrupted && options_.resume) journal_->write_rest();
}

ShareReport JobRun::run(const Share& share, Lots* lots) {
  if (prepared_.root.empty()) throw Error(ErrorKind::kInternal, "a share runs before the run is prepared");
  if (share.index >= share.count)
    throw Error(ErrorKind::kUsage, fmt::format("share {} of {} does not exist", share.index, share.count));
  if (!ran_.insert(share.index).second)
    throw Error(ErrorKind::kInternal, fmt::format("share {} of {} has already run", share.index, share.count));
  RunOptions options = options_;
  auto [shares, pages] = deal(share.count, lots != nullptr);
  const std::vector<Part> parts = std::move(shares.own[share.index]);
  options.lots = lots;
  if (lots) lots->begin(bytes_of(job_.maps(), job_.program, parts), std::move(shares.lots));
  fragments_.reset();
  if (share.count > 1) {
    fragments_ = std::make_unique<PageFragments>(options_.stores.target(), prepared_.root,
                                                 journal_prefix(prepared_.attempt, share.index), std::move(pages),
                                                 options_.sync);
    options.fragments = fragments_.get();
  }
  if (journals()) {
    if (!journal_) begin_journal(share.index);
    options.on_unit = [this](UnitReport unit) { journal_->add(std::move(unit)); };
    options.on_failure = [this] { journal_->close(); };
  }
  ShareReport report;
  try {
    report = run_parts(job_.maps(), job_.program, parts, prepared_.root, std::move(options));
  } catch (...) {
    end_journal(as_error(std::current_exception()).kind() == ErrorKind::kInterrupted);
    throw;
  }
  end_journal(false);
  if (fragments_) {
    fragments_->spill();
    report.fragment_files = fragments_->files();
  }
  if (staging_) {
    if (options_.digests && report.digests.empty()) throw Error(ErrorKind::kInternal, "no digests were computed");
    for (const UnitReport& unit : earlier_) merge(report, unit, job_.target);
    earlier_.clear();
  }
  for (const std::uint32_t file : report.written_files) unflushed_[file] = true;
  return report;
}

/// Writes the data that depends on CRCs to files, unless `crcs` is null, and flushes the files: several at a time,
/// since each flush waits.
void JobRun::flush(const std::vector<std::uint32_t>& files, const std::vector<std::uint32_t>* crcs) try {
  if (options_.progress) options_.progress->phase = RunPhase::kFlushing;
  for_each_number(files.size(), options_.sync ? kFlushingThreads : thread_count(options_), [&](std::size_t i) {
    throw_if_stopped(options_);
    const TargetFile& file = job_.target.files[files[i]];
    const auto sink = options_.stores.target().reopen(prepared_.root / file.path);
    if (crcs && needs_crcs(file)) write_parts(*sink, target_parts(job_.target, file, *crcs));
    options_.sync ? sink->sync() : sink->finish();
  });
  for (const std::uint32_t file : files) unflushed_[file] = false;
} catch (const Error& error) {
  // The disk reports a failed write only once.
  if (error.kind() == ErrorKind::kInterrupted)
    end_journal(true);
  else if (journal_)
    journal_->close();
  throw;
}

void JobRun::finish(const ShareReport& report) {
  std::vector<std::uint32_t> files;
  for (const std::uint32_t file : report.written_files)
    if (unflushed_[file] && !(staging_ && needs_crcs(job_.target.files[file]))) files.push_back(file);
  flush(files, nullptr);
  if (staging_) return;
  journal_.reset();
  lock_.reset();  // before the leader publishes
}

/// Rereads the outputs, and writes the manifest and digests.
void JobRun::write_manifest(const ShareReport& report, RunResult& result) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<TensorDigest> digests(report.digests.size());
  for (std::size_t t = 0; t < digests.size(); ++t)
    if (!job_.target.logical[t].constant()) digests[t] = report.digests[t].digest();
  std::vector<Manifest::File> files = proved_files(job_);
  std::vector<fs::path> paths;
  paths.reserve(files.size());
  for (const Manifest::File& file : files) paths.push_back(prepared_.root / file.path);
  const std::vector<Sha256Digest> of_files = digest_files(options_.stores.target(), paths, options_);
  for (std::size_t i = 0; i < files.size(); ++i) files[i].digest = of_files[i];
  Proof proof = proof_of(job_, to_string(run_fingerprint(job_, options_)), digests, std::move(files));
  for (const TextFile& file : {TextFile{kManifestFile, std::move(proof.manifest), {}},
                               TextFile{kSha256SumsFile, std::move(proof.sha256sums), {}}}) {
    write_text(options_, file, *staging_);
    result.written_bytes += file.text.size();
  }
  result.hashing_seconds = report.hashing_seconds;
  result.rereading_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

RunResult JobRun::publish(ShareReport report) {
  if (!staging_) throw Error(ErrorKind::kInternal, "only the process that prepared a run can publish it");
  if (report.written_bytes != job_.program.write_bytes)
    throw Error(ErrorKind::kInternal, fmt::format("the shares wrote {} of {} bytes, so some are missing or ran twice",
                                                  report.written_bytes, job_.program.write_bytes))
        .in(job_.output_directory);
  for (const std::uint32_t file :
       write_fragments(options_.stores.target(), prepared_.root, report.fragment_files, job_.target, false))
    unflushed_[file] = true;
  std::vector<std::uint32_t> files;
  for (std::uint32_t file = 0; file < unflushed_.size(); ++file)
    if (unflushed_[file] || needs_crcs(job_.target.files[file])) files.push_back(file);
  flush(files, &report.crcs);
  throw_if_stopped(options_);
  for (const TextFile& file : job_.text_files)
    if (file.is_last) write_text(options_, file, *staging_);
  RunResult result;
  result.resumed_bytes = resumed_bytes_;
  result.notes = std::move(notes_);
  if (journal_ && journal_->is_full())
    result.notes.output(
        "there was no space for the journal: if this run had been killed, `resume` could not have continued it");
  if (job_.manifest) write_manifest(report, result);
  if (options_.progress) options_.progress->phase = RunPhase::kPublishing;
  Notes notes;
  try {
    notes = staging_->publish(options_.sync);
  } catch (...) {
    prepared_.root = staging_->root();  // it may have moved
    throw;
  }
  journal_.reset();
  result.notes.add(notes);
  result.divergent = std::move(report.divergent);
  std::sort(result.divergent.begin(), result.divergent.end(),  // threads find them in any order
            [](const Divergence& a, const Divergence& b) { return a.text < b.text; });
  for (const std::size_t transfer : report.inexact)
    result.inexact.push_back(job_.program.transfers[transfer].result(job_.maps())->name);
  for (const auto& [transfer, values] : report.lost) {
    const LogicalTensor& tensor = *job_.program.transfers[transfer].result(job_.maps());
    if (values.saturated > 0) result.saturated.emplace_back(tensor.name, values.saturated);
    if (values.zeroed > num_elems(tensor.shape).value_or(0) / 100)
      result.zeroed.emplace_back(tensor.name, values.zeroed);
  }
  result.files = output_files(job_).size();
  const std::uint64_t all_read_bytes = job_.program.read_bytes + job_.program.check_bytes;
  result.read_bytes = all_read_bytes - std::min(all_read_bytes, resumed_read_bytes_);
  result.written_bytes += job_.output_bytes();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  staging_.reset();  // also deletes replaced outputs
  // Otherwise a job that is killed and restarted repeatedly fills the disk with unusable directories.
  if (options_.resume) result.notes.add(clean_after_resume(options_.stores.target(), job_));
  return result;
}

}  // namespace reshard
