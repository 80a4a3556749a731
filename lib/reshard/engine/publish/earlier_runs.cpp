#include "reshard/engine/publish/earlier_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/move/page_fragments.h"
#include "reshard/engine/publish/old_outputs.h"
#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/publish.h"
#include "reshard/engine/publish/staging_mark.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::uint64_t size_of_tree(Files& files, const fs::path& directory) {
  std::uint64_t bytes = 0;
  try {
    for (const DirectoryEntry& entry : files.list(directory)) {
      if (entry.is_link) continue;
      if (entry.kind == FileKind::kDirectory) bytes += size_of_tree(files, directory / entry.name);
      if (entry.kind == FileKind::kFile) bytes += files.size_bytes(directory / entry.name);
    }
  } catch (const Error&) {
    // Unreadable entries are not counted: their run may be removing them.
  }
  return bytes;
}

/// Takes the lock of a dead run. Returns null if the run lives or if that is unknown, and sets `state` accordingly.
std::unique_ptr<FileLock> take_lock(Storage& storage, const fs::path& root, EarlierRun::State& state) {
  state = EarlierRun::State::kUnknown;
  try {
    if (!storage.is_file(root / kLockFile)) return nullptr;
    auto lock = storage.directories().lock(root / kLockFile, false);
    state = lock ? EarlierRun::State::kDead : EarlierRun::State::kLives;
    return lock;
  } catch (const Error&) {
    return nullptr;
  }
}

/// The same, but returns null if the run died while it was publishing (State::kSwaps).
std::unique_ptr<FileLock> lock_dead(Storage& storage, const fs::path& root, EarlierRun::State& state) {
  auto lock = take_lock(storage, root, state);
  if (!lock || !read_swap_record(storage, root)) return lock;
  state = EarlierRun::State::kSwaps;
  return nullptr;
}

/// Takes the lock of a dead run that this program may remove. If it may not, returns null and sets the reason in `run`.
std::unique_ptr<FileLock> lock_removable(Storage& storage, const Job& job, EarlierRun& run) {
  auto lock = lock_dead(storage, run.root, run.state);
  if (!lock) return nullptr;
  run.why_foreign = why_not_only_ours(storage, run.root, job);
  if (run.why_foreign.empty()) return lock;
  run.state = EarlierRun::State::kForeign;
  return nullptr;
}

/// A run locks its directory within this time after creating it, unless it is killed in between.
constexpr auto kStart = std::chrono::milliseconds(500);

/// Creates the lock file of a run that was killed before it had one, or whose lock was moved away. A live run has one
/// if the file system supports locks.
void make_missing_lock(Storage& storage, const Job& job, const fs::path& root) {
  try {
    const auto is_locked = [&] { return storage.kind_of(root / kLockFile) != FileKind::kNone; };
    if (is_locked() || !why_not_only_ours(storage, root, job).empty()) return;
    std::this_thread::sleep_for(kStart);
    if (is_locked()) return;
    storage.directories().lock(root / kLockFile, true);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kUnsupported) storage.directories().remove_tree(root / kLockFile);
  }
}

/// Removes a dead run's staging directory. \returns the run; std::nullopt if it may not be removed.
std::optional<EarlierRun> remove_run(Storage& storage, const Job& job, const fs::path& root) {
  EarlierRun run{root, EarlierRun::State::kUnknown, size_of_tree(storage, root), JournalFound::kNone, {}};
  make_missing_lock(storage, job, root);
  auto lock = lock_removable(storage, job, run);
  if (!lock) return std::nullopt;
  remove_staging(storage, root, std::move(lock));
  return run;
}

/// Returns the first link among the folders that contain entries of a swap, or an empty path. Anyone can write a swap
/// record, and a link may point anywhere.
/// \param directory  resolved.
fs::path linked_folder(Storage& storage, const fs::path& directory, const std::vector<fs::path>& entries) {
  std::set<fs::path> seen;
  for (const fs::path& entry : entries)
    for (fs::path folder = entry.parent_path(); !folder.empty() && seen.insert(folder).second;
         folder = folder.parent_path())
      if (storage.exists(directory / folder) && storage.resolve(directory / folder) != directory / folder)
        return directory / folder;
  return {};
}

bool is_there(Storage& storage, const fs::path& path) {
  return storage.kind_of(path) != FileKind::kNone;
}

/// Whether another run has published the same file.
bool is_published(Storage& storage, const fs::path& staged, const fs::path& final) {
  return storage.is_file(staged) && storage.is_file(final) && same_content(storage, staged, storage, final);
}

/// Returns the old outputs that a killed run has not moved away, in the order of `entries`.
/// \throws Error kBadInput naming the first file or folder that is not the run's and has the name of an output; kIo.
std::vector<fs::path> old_in_place(Storage& storage, const fs::path& root, const fs::path& output,
                                   const std::vector<fs::path>& entries) {
  const OldOutputs old = OldOutputs::read(storage, root);
  std::vector<fs::path> in_place;
  for (const fs::path& entry : entries) {
    if (!is_there(storage, root / entry) || !is_there(storage, output / entry)) continue;
    if (!is_there(storage, root / kReplacedFolder / entry) && old.cover(storage, output, entry))
      in_place.push_back(entry);
    else if (!is_published(storage, root / entry, output / entry))
      throw Error(
          ErrorKind::kBadInput,
          "was created or changed after a run was killed while it published its outputs, and is not replaced by "
          "the output of that name")
          .in(output / entry)
          .hint("move it away and run the command again, which first completes that publishing from " + root.string());
  }
  return in_place;
}

/// Moves away old outputs whose replacements are still in `root`, last entry first; then moves the new outputs in.
/// \throws as old_in_place, before anything is moved.
void finish_swap(Storage& storage, const fs::path& root, const fs::path& output, const std::vector<fs::path>& entries) {
  Directories& directories = storage.directories();
  const std::vector<fs::path> old = old_in_place(storage, root, output, entries);
  for (auto it = old.rbegin(); it != old.rend(); ++it)
    rename_new(directories, output / *it, make_replaced(directories, root, *it));
  const auto access = directories.access(output);
  std::set<fs::path> named;
  for (const fs::path& entry : entries) {
    fs::path folder = output;
    for (const fs::path& part : entry.parent_path()) directories.make(folder /= part, access ? access->bits : 0700);
    named.insert(folder);
    if (is_there(storage, root / entry) && !is_published(storage, root / entry, output / entry))
      rename_new(directories, root / entry, output / entry);
  }
  directories.open(named, root)->flush();
  directories.remove_tree(root / kSwapFile);
}

/// Whether a run that writes other ranks into the same directory left `root`.
bool is_of_other_ranks(Storage& storage, const fs::path& root, const Job& job) {
  return job.shares_directory && !has_mark_of(storage, root, job);
}

std::string removed_text(const EarlierRun& run) {
  return fmt::format("{}: deleted, left by an interrupted run ({})", run.root.string(), format_bytes(run.size_bytes));
}

/// Describes the first option that differs between two runs: "was not given `dtype`". Empty if all are equal.
std::string other_request(const JournalHeader& theirs, const JournalHeader& ours) {
  for (std::size_t i = 0; i < std::min(theirs.options.size(), ours.options.size()); ++i)
    if (theirs.options[i] != ours.options[i])
      return fmt::format("had {} {} instead of {}", theirs.options[i].first, theirs.options[i].second,
                         ours.options[i].second);
  std::set<std::string> names;
  for (const JournalHeader* header : {&theirs, &ours})
    for (const auto& entry : header->given) names.insert(entry.first);
  for (const std::string& name : names) {
    const auto had = theirs.given.find(name), has = ours.given.find(name);
    if (had == theirs.given.end()) return fmt::format("was not given `{}`", name);
    if (has == ours.given.end())
      return fmt::format("was given `{}`{}", name, had->second == "true" ? "" : " " + had->second);
    if (had->second != has->second) return fmt::format("had `{}` {} instead of {}", name, had->second, has->second);
  }
  return {};
}

/// Returns the error that explains why a run cannot resume from another's journal.
Error mismatch(const fs::path& root, const JournalHeader& theirs, const JournalHeader& ours) {
  const auto refuse = [&](ErrorKind kind, const std::string& text) {
    return std::move(Error(kind, "the run that left this " + text)
                         .in(root)
                         .hint("repeat the same command with the same files, or start from scratch once with `clean` "
                               "instead of `resume`"));
  };
  const auto [a, b] =
      std::mismatch(theirs.sources.begin(), theirs.sources.end(), ours.sources.begin(), ours.sources.end());
  const bool has_a = a != theirs.sources.end(), has_b = b != ours.sources.end();
  if (has_a && has_b && a->name == b->name)
    return refuse(ErrorKind::kBadInput, fmt::format("read another {}: it was replaced or modified since", a->name));
  // Options may change which files are read, so they are compared before missing files are reported.
  if (const std::string text = other_request(theirs, ours); !text.empty()) return refuse(ErrorKind::kUsage, text);
  if (has_a || has_b)
    return refuse(ErrorKind::kBadInput,
                  fmt::format("read another {}: the source has other files now", has_a ? a->name : b->name));
  return refuse(ErrorKind::kUsage, "had other options, or was started by another version of reshard");
}

/// Validates the unit, since anyone can write a journal.
/// \throws Error kBadInput.
void validate_unit(const UnitReport& unit, const Job& job) {
  const TargetMap& target = job.target;
  const auto below = [](std::size_t count) { return [=](const auto index) { return index < count; }; };
  const bool fits = unit.written_bytes <= job.program.write_bytes &&
                    std::all_of(unit.files.begin(), unit.files.end(), below(target.files.size())) &&
                    std::all_of(unit.inexact.begin(), unit.inexact.end(), below(job.program.transfers.size())) &&
                    std::all_of(unit.lost.begin(), unit.lost.end(),
                                [&](const LostIn& one) { return one.transfer < job.program.transfers.size(); }) &&
                    std::all_of(unit.crcs.begin(), unit.crcs.end(),
                                [&](const UnitReport::Crc& crc) { return crc.stored < target.stored.size(); }) &&
                    std::all_of(unit.leaves.begin(), unit.leaves.end(), [&](const UnitReport::Leaf& leaf) {
                      return leaf.target < target.logical.size() &&
                             leaf.first_elem < num_elems(target.logical[leaf.target].shape).value_or(0);
                    });
  if (!fits) throw Error(ErrorKind::kBadInput, "contains a unit that does not belong to this run");
}

}  // namespace

bool run_lives(Storage& storage, const fs::path& root) {
  EarlierRun::State state{};
  lock_dead(storage, root, state);
  return state == EarlierRun::State::kLives;
}

void validate_no_foreign_files(Files& files, const Job& job, const fs::path& root) {
  std::set<fs::path> ours{kLockFile, kMarkFile, kOldFile, kManifestFile, kSha256SumsFile};
  std::set<fs::path> folders;
  for (const fs::path& file : output_files(job)) {
    ours.insert(file);
    for (fs::path above = file.parent_path(); !above.empty(); above = above.parent_path()) folders.insert(above);
  }
  for (const std::string& name : journal_and_fragment_files(files, root)) ours.insert(name);
  const std::function<void(const fs::path&)> look = [&](const fs::path& folder) {
    for (const DirectoryEntry& entry : files.list(root / folder)) {
      const fs::path relative = folder / entry.name;
      if (entry.kind == FileKind::kDirectory && !entry.is_link && folders.contains(relative))
        look(relative);
      else if (entry.is_link || !ours.contains(relative))
        throw Error(ErrorKind::kBadInput, "does not belong to the run to resume")
            .in(root / relative)
            .hint("move it away");
    }
  };
  look({});
}

void remove_staging(Storage& storage, const fs::path& root, std::unique_ptr<FileLock> lock) noexcept {
  Directories& directories = storage.directories();
  try {
    for (const DirectoryEntry& entry : storage.list(root))
      if (entry.name != kLockFile && entry.name != kMarkFile && entry.name != kOldFile)
        directories.remove_tree(root / entry.name);
  } catch (const std::exception&) {
    // The final remove_tree tries again.
  }
  directories.remove_tree(root / kOldFile);   // proves that the others may be removed
  directories.remove_tree(root / kMarkFile);  // a directory without a mark is removed only if it is empty
  directories.remove_tree(root / kLockFile);  // a network file system keeps an open file in its directory
  lock.reset();
  directories.remove_tree(root);
}

std::vector<EarlierRun> earlier_runs(Storage& storage, const Job& job) {
  std::vector<EarlierRun> runs;
  for (const fs::path& root : stale_stagings(storage, job)) {
    EarlierRun run{root, EarlierRun::State::kUnknown, size_of_tree(storage, root), JournalFound::kNone, {}};
    const auto lock = lock_removable(storage, job, run);
    if (lock) run.journal = find_journal(storage, root);
    runs.push_back(std::move(run));
  }
  return runs;
}

Notes finish_swaps(Storage& storage, const Job& job) {
  Notes notes;
  const fs::path output = storage.resolve(job.output_directory);
  for (const fs::path& root : stale_stagings(storage, job)) {
    const auto entries = root.parent_path() == output ? read_swap_record(storage, root) : std::nullopt;
    if (!entries) continue;
    EarlierRun::State state{};
    auto lock = take_lock(storage, root, state);
    if (state == EarlierRun::State::kLives) continue;
    std::string why = why_not_ours(storage, root);
    if (!lock && why.empty()) why = "this process cannot determine whether that run is still active";
    for (const fs::path& directory : {output, root})
      if (const fs::path link = linked_folder(storage, directory, *entries); why.empty() && !link.empty())
        why = fmt::format("{} is a link", link.string());
    if (!read_swap_record(storage, root)) continue;  // another run has finished it in the meantime
    if (!why.empty())
      throw Error(
          ErrorKind::kBadInput,
          "contains outputs of a run that was killed while it published them, and publishing cannot be completed: " +
              why)
          .in(root)
          .hint(
              "run the command again as the user who started that run, on a file system with locks; or delete this "
              "directory, and rewrite all outputs with `force`");
    finish_swap(storage, root, output, *entries);
    why = why_not_only_ours(storage, root, job);
    if (why.empty()) remove_staging(storage, root, std::move(lock));
    notes
        .output(fmt::format("{}: completed the interrupted publishing of an earlier run's outputs{}", root.string(),
                            why.empty() ? "" : "; the files they replaced are kept there, since " + why))
        .in(root);
  }
  return notes;
}

std::vector<EarlierRun> remove_dead_runs(Storage& storage, const Job& job) {
  std::vector<EarlierRun> removed;
  for (const fs::path& root : stale_stagings(storage, job))
    if (auto run = remove_run(storage, job, root)) removed.push_back(std::move(*run));
  return removed;
}

Notes clean(Storage& storage, const Job& job) {
  Notes notes;
  for (const EarlierRun& run : remove_dead_runs(storage, job)) notes.output(removed_text(run)).in(run.root);
  for (const EarlierRun& run : earlier_runs(storage, job))
    if (run.state == EarlierRun::State::kForeign)
      notes.output(fmt::format("{}: left alone, since {}", run.root.string(), run.why_foreign)).in(run.root);
    else if (run.state == EarlierRun::State::kUnknown)
      notes
          .output(fmt::format(
              "{}: left alone, since a run may still use it, which cannot be determined here; if none does, delete it",
              run.root.string()))
          .in(run.root);
  return notes;
}

Notes clean_without_journal(Storage& storage, const Job& job) {
  Notes notes;
  for (const EarlierRun& run : earlier_runs(storage, job)) {
    const bool is_useless = run.state == EarlierRun::State::kDead && run.journal == JournalFound::kNone;
    if (is_useless && !is_of_other_ranks(storage, run.root, job) && remove_run(storage, job, run.root))
      notes.output(removed_text(run) + " without a journal").in(run.root);
  }
  return notes;
}

Notes clean_after_resume(Storage& storage, const Job& job) {
  Notes notes;
  for (const fs::path& root : stale_stagings(storage, job)) {
    if (is_of_other_ranks(storage, root, job)) continue;
    if (const auto run = remove_run(storage, job, root)) notes.output(removed_text(*run)).in(root);
  }
  return notes;
}

void hint_at_dead_runs(Error& error, Storage& storage, const Job& job) {
  for (const EarlierRun& run : earlier_runs(storage, job))
    if (run.state == EarlierRun::State::kDead)
      error.hint(fmt::format("{}{}an interrupted run left {} in {}; delete it with `clean`", error.hint(),
                             error.hint().empty() ? "" : "; ", format_bytes(run.size_bytes), run.root.string()));
}

std::optional<Resumable> find_resumable(Storage& storage, const Job& job, const JournalHeader& header) {
  std::optional<Error> why_not;
  std::optional<Resumable> best;
  for (const fs::path& root : stale_stagings(storage, job)) {
    EarlierRun::State state{};
    Resumable found{root, lock_dead(storage, root, state), {}};
    if (!found.lock || !why_not_ours(storage, root).empty()) continue;
    std::set<std::uint32_t> known;
    for (const std::string& name : journal_files(storage, root)) {
      try {
        auto journal = read_journal(storage, root / name);
        if (!journal) continue;  // torn
        if (journal->header != header) {
          if (is_of_other_ranks(storage, root, job) && journal->header.sources == header.sources) continue;
          if (!why_not) why_not = mismatch(root, journal->header, header);
          continue;
        }
        if (!std::all_of(journal->fragment_files.begin(), journal->fragment_files.end(),
                         [&](const std::string& file) { return is_whole_fragments_file(storage, root / file); }))
          continue;  // treated like a torn journal
        for (const UnitReport& unit : journal->units) validate_unit(unit, job);
        for (UnitReport& unit : journal->units)
          if (known.insert(unit.unit).second) found.units.push_back(std::move(unit));
      } catch (Error& error) {
        error.in(root / name);
        if (error.hint().empty()) error.hint("start from scratch once with `clean` instead of `resume`");
        if (!why_not) why_not = error;
      }
    }
    if (!best || found.units.size() > best->units.size()) best = std::move(found);
  }
  if (best && !best->units.empty()) return best;
  if (why_not) throw Error(*why_not);
  return std::nullopt;
}

}  // namespace reshard
