#include "run_job.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>

#include "dry_run.h"
#include "idle_options.h"
#include "json_report.h"
#include "launcher.h"
#include "option_names.h"
#include "print.h"
#include "progress.h"
#include "reshard/base/strings.h"
#include "reshard/engine/check/check_inputs.h"
#include "reshard/engine/execute.h"
#include "reshard/engine/publish/earlier_runs.h"
#include "reshard/engine/publish/output.h"
#include "reshard/plan/job/fingerprint.h"
#include "signals.h"
#include "table.h"

namespace reshard::cli {
namespace {

/// Prints the plan, and then reports why it cannot run.
/// \param refused  why the output cannot be written, or null.
void dry_run(const Job& job, const CommonArguments& arguments, Storage& storage, const std::exception_ptr& refused) {
  const OutputSpace space = output_space(storage, job);
  JobReport report = report_on(job, space, nullptr);
  if (arguments.json) {
    report.fingerprint = to_string(fingerprint_of(job));  // takes time that the text does not need
    print_output(to_text(job_document(report)));
  } else {
    print_text(dry_run_text(report));
  }
  if (refused) std::rethrow_exception(refused);
  validate_space(space);
}

std::string last_line(const JobReport& report, const Together& together) {
  const RunResult& result = *report.result;
  const double rate = bytes_per_second(result);
  std::string hashed;
  if (report.manifest)
    hashed = fmt::format("; manifest: {:.2f} s of CPU to hash tensors, {:.2f} s to read files back",
                         result.hashing_seconds, result.rereading_seconds);
  const std::string resumed = result.resumed_bytes > 0
                                  ? fmt::format(" ({} by an earlier run)", format_bytes(result.resumed_bytes))
                                  : std::string();
  const std::string ranks = together.size() > 1 ? fmt::format(" of rank 0 of {}", together.size()) : std::string();
  return fmt::format("wrote {}{}, {}; read {}; {:.{}f} s, {:.2f} GB/s, peak memory {}{}{}",
                     format_bytes(result.written_bytes), resumed, plural(result.files, "file"),
                     result.resumed_bytes > 0 ? format_bytes(result.read_bytes) : read_text(report), result.seconds,
                     result.seconds < 10 ? 2 : 1, rate / 1e9, format_memory(peak_memory_bytes()), ranks, hashed);
}

/// \throws ReaderGone, or an Error that also states that the outputs are complete.
void print_report(const Job& job, const CommonArguments& arguments, const OutputSpace& space, const RunResult& result,
                  const Together& together) {
  if (arguments.quiet && !arguments.json) return;
  try {
    const JobReport report = report_on(job, space, &result);
    if (arguments.json) return print_output(to_text(job_document(report)));
    print_notes(run_notes(job, &result));
    print_text(last_line(report, together) + "\n");
  } catch (const ReaderGone&) {
    throw;
  } catch (...) {
    const Error error = as_error(std::current_exception());
    throw Error(error.kind(),
                fmt::format("the outputs in {} are complete, but {}", job.output_directory.string(), error.what()));
  }
}

void validate_arguments(const CommonArguments& arguments) {
  if (arguments.check_against && arguments.check_against->empty())
    throw Error(ErrorKind::kUsage, "--check-against is empty");
  if (arguments.resume && arguments.clean)
    throw Error(ErrorKind::kUsage, "--clean deletes what --resume continues from").hint("leave out one of the two");
  if (arguments.resume && arguments.no_sync)
    throw Error(ErrorKind::kUsage,
                "--resume has no effect with --no-sync: data that the disk has not confirmed cannot be relied on")
        .hint("leave out one of the two");
  for (const auto& [given, option] : {std::pair(arguments.resume, "--resume"),
                                      {arguments.clean, "--clean"},
                                      {arguments.check_inputs, "--check-inputs"},
                                      {arguments.check_against.has_value(), "--check-against"}})
    if (given && arguments.dry_run)
      throw Error(ErrorKind::kUsage, fmt::format("{} has no effect with --dry-run", option))
          .hint("leave out one of the two");
}

/// Total size of all source files.
std::uint64_t source_bytes(const Job& job) {
  std::uint64_t bytes = 0;
  for (const SourceFile& file : job.source.files) bytes += file.size_bytes;
  for (const CopiedFile& file : job.copied_files) bytes += file.size_bytes;
  return bytes;
}

/// Where the outputs may not be written, what killed runs have left is removed all the same, or named.
void look_at_output(const Job& job, const CommonArguments& arguments, const Stores& stores,
                    const std::function<void(const Note&)>& tell) {
  Storage& storage = stores.target();
  const Notes finished = arguments.dry_run ? Notes() : finish_swaps(storage, job);
  for (const Note& note : finished) tell(note);
  try {
    validate_output(stores, job);
  } catch (Error& error) {
    if (arguments.clean)
      for (const Note& note : clean(storage, job)) tell(note);
    if ((arguments.resume || !finished.empty()) && error.code() == std::errc::file_exists)
      error.hint(
          "if an earlier run of this command completed, these are its outputs, and nothing is left to resume; "
          "otherwise " +
          error.hint());
    hint_at_dead_runs(error, storage, job);
    throw;
  }
}

/// Describes the staging directory of an earlier run, and says what to do about it. Empty if another note does.
std::string advice_on(const EarlierRun& run, const CommonArguments& arguments) {
  using State = EarlierRun::State;
  if (run.state == State::kLives) return "in use by a running reshard";
  if (run.state == State::kSwaps)
    return "left by a run that was killed while it published its outputs: the next run into this directory moves the "
           "rest";
  if (arguments.clean || (arguments.resume && run.journal == JournalFound::kNone)) return {};
  if (run.state == State::kUnknown)
    return "left by an interrupted run, or in use by a running reshard on another machine, which cannot be seen from "
           "here; if no reshard is running, delete it or try --clean";
  if (run.state == State::kForeign)
    return "looks like a stale staging directory, but is left alone: " + run.why_foreign;
  if (run.journal == JournalFound::kUnreadable)
    return "left by an interrupted run, with a journal that is damaged or from another version of reshard: --clean "
           "deletes it";
  if (run.journal == JournalFound::kNone)
    return "left by an interrupted run that cannot be resumed (it has no journal): --clean deletes it";
  return arguments.resume ? "" : "left by an interrupted run: --resume continues it, --clean deletes it";
}

/// Notes on staging directories of earlier runs, in the output directory and next to it.
Notes look_for_earlier_runs(const Job& job, const CommonArguments& arguments, Storage& storage) {
  Notes notes;
  for (const EarlierRun& run : earlier_runs(storage, job))
    if (const std::string advice = advice_on(run, arguments); !advice.empty())
      notes.output(fmt::format("{}: {}, {}", run.root.string(), format_bytes(run.size_bytes), advice)).in(run.root);
  return notes;
}

/// Compares the source files with their known SHA-256, for --check-inputs and --check-against. \returns notes on how many
/// have one.
Notes check_sources(Job& job, const CommonArguments& arguments, RunOptions options, Together& together) {
  Progress progress;
  options.progress = &progress;
  {
    const ProgressBar bar(progress, source_bytes(job), "checking inputs", arguments.progress, arguments.quiet);
    job.source_digests = check_inputs(job, options, together, arguments.check_against.value_or(""));
  }
  const std::size_t count = job.source_digests.size();
  const auto others = std::count_if(job.source.files.begin(), job.source.files.end(),
                                    [&](const SourceFile& file) { return job.source_digests.count(file.path) == 0; });
  Notes notes;
  if (others > 0)
    notes.assumed(
        fmt::format("{} without a known SHA-256 ha{} the CRC-32 that torch.save wrote: that finds damage, not forgery",
                    plural(others, "source file"), others == 1 ? "s" : "ve"));
  if (count > 0)
    notes.hint(fmt::format("{} ha{} the expected SHA-256", plural(count, "source file"), count == 1 ? "s" : "ve"));
  return notes;
}

}  // namespace

void print_notes(const Notes& notes) {
  // Not shortened, since the advice is at the end. Names from files are shortened when they are added to a note.
  for (const Note& note : notes) print_message("reshard: note: " + with_options(note));
}

void run_job(const Command& command, const std::function<std::unique_ptr<Job>()>& plan,
             const CommonArguments& arguments, RunOptions options, Together& together) {
  validate_arguments(arguments);
  Progress progress;
  options.progress = &progress;
  options.sync = !arguments.no_sync;
  options.resume = arguments.resume;
  options.clean = arguments.clean;
  options.journal_interval =
      std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds_of(::getenv, "RESHARD_JOURNAL_INTERVAL", 10)));
  std::unique_ptr<Job> planned;
  together.step("plan", progress, [&] { planned = plan(); });
  planned->manifest = arguments.manifest;
  options.stores = {all_files(), open_storage(planned->output_directory)};
  Job& job = *planned;
  job.notes.add(idle_options(command, job));
  const auto tell = [&](const Note& note) {
    if (arguments.json)
      job.notes.add(note);
    else if (!arguments.quiet)
      print_notes(note);
  };
  // Before the notes, which describe changes to the tensors.
  std::exception_ptr refused;  // the error that a dry run ends with
  together.step("look at the output", progress, [&] {
    try {
      if (together.leads()) look_at_output(job, arguments, options.stores, tell);
    } catch (const Error&) {
      if (!arguments.dry_run) throw;
      refused = std::current_exception();
    }
  });
  if (arguments.talks()) print_notes(job.notes);
  together.step("look for earlier runs", progress, [&] {
    if (!together.leads()) return;
    for (const Note& note : look_for_earlier_runs(job, arguments, options.stores.target())) tell(note);
  });
  options.on_note = tell;
  if (arguments.dry_run) {
    if (arguments.talks()) print_notes(run_notes(job, nullptr));
    if (together.leads()) dry_run(job, arguments, options.stores.target(), refused);
    return;
  }
  const OutputSpace space = together.leads() ? output_space(options.stores.target(), job) : OutputSpace();
  if (arguments.check_inputs || arguments.check_against)
    for (const Note& note : check_sources(job, arguments, options, together)) tell(note);
  RunResult result;
  {
    const ProgressBar bar(progress, job.program.write_bytes, "writing", arguments.progress, arguments.quiet);
    result = execute(job, options, together);
    note_done();
  }
  if (together.leads()) print_report(job, arguments, space, result, together);
}

}  // namespace reshard::cli
