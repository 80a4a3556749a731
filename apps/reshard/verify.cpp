#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <optional>
#include <tuple>

#include "arguments.h"
#include "commands.h"
#include "comparison_report.h"
#include "idle_options.h"
#include "json_report.h"
#include "option_names.h"
#include "print.h"
#include "progress.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/io/listed_files.h"
#include "reshard/io/open_store.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/expert_stacks.h"
#include "reshard/layouts/core/weights_option.h"
#include "reshard/layouts/dcp/original_dtypes.h"
#include "reshard/layouts/found.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/peft/sharded_adapter.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/layouts/states/compare_states.h"
#include "reshard/plan/output/companions.h"
#include "reshard/plan/output/trainer_files.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/plan/source/tags.h"
#include "reshard/specs/config/model_config.h"
#include "run_job.h"
#include "table.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;

struct VerifyArguments : MovingArguments, OutputArguments {
  std::string a;
  std::string b;
  std::string rtol;  // empty: not given
  std::string atol;
  std::optional<std::string> manifest;  // instead of b
  bool complete = false;
  OptionValues source_options;
  ReplicaArguments replicas;
  SourceArguments source;
};

double parse_tolerance(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: \"{}\" is not a number that is 0 or more", option, printable(text)));
  return value;
}

/// Options that had an effect.
struct UsedOptions {
  bool tag = false;
  bool with_optimizer = false;
};

/// Reads the checkpoint at `path`; in a training run's directory, the one named by --tag or the newest. `with_groups`
/// reads an optimizer's groups as values if they are plain values. `config` is for a side without a config.json.
Checkpoint read_side(Files& files, const std::string& path, const fs::path& config_path,
                     const VerifyArguments& arguments, bool with_groups, UsedOptions& used) {
  const bool has_tags = files.is_directory(path) && !found_at(files, path).is_checkpoint();
  const FoundCheckpoint found = find_checkpoint(files, path, has_tags ? arguments.source.tag : std::nullopt);
  used.tag = used.tag || has_tags;
  const ConfigChoice config{config_path, true};
  const Beside read = with_groups ? Beside::kReadPlainGroups : Beside::kRead;
  Checkpoint side =
      read_checkpoint(files, found,
                      {ConfigUse::kLenient, family_spec(arguments), arguments.source_options, config,
                       arguments.source.with_optimizer ? read : Beside::kCount, extra_tensors_of(arguments.source)});
  if (side.unexplained) throw Error(*side.unexplained);
  take_original_dtypes(files, side);
  used.with_optimizer = used.with_optimizer || !side.states.empty();
  return side;
}

/// Reads the checkpoint at `path`. If it cannot be read without a config.json, reads it with that of `other`.
Checkpoint read_beside(Files& files, const std::string& path, const std::string& other,
                       const VerifyArguments& arguments, UsedOptions& used) {
  const fs::path given = config_of(arguments.source);
  try {
    return read_side(files, path, given, arguments, true, used);
  } catch (const Error& error) {
    if (!given.empty() || error.kind() != ErrorKind::kBadInput || !find_model_config(files, other)) throw;
    return read_side(files, path, other, arguments, true, used);
  }
}

/// Validates that options had an effect, and that there is something to compare.
void validate_used(const VerifyArguments& arguments, const UsedOptions& used,
                   std::initializer_list<const Checkpoint*> sides) {
  const bool one = sides.size() == 1;
  if (arguments.source.tag && !used.tag)
    throw Error(ErrorKind::kUsage, fmt::format("--tag has no effect: {}",
                                               one ? "A is a checkpoint itself" : "A and B are checkpoints themselves"))
        .hint("give the directory that contains the folder of that name");
  if (arguments.source.with_optimizer && !used.with_optimizer)
    throw Error(ErrorKind::kUsage,
                fmt::format("--with-optimizer has no effect: {}",
                            one ? "A has no states of an optimizer" : "neither A nor B has states of an optimizer"))
        .hint("they are read from sources in layout " +
              layout_names([](const Layout& layout) { return layout.traits().reads_states(); }));
  for (const Checkpoint* checkpoint : sides)
    if (checkpoint->map.logical.empty())
      throw Error(ErrorKind::kBadInput, "contains no tensors, so there is nothing to compare").in(checkpoint->path);
}

/// Returns a note if --config was given and each side has its own config.json; otherwise none.
Notes idle_config(const VerifyArguments& arguments, std::initializer_list<const Checkpoint*> sides) {
  const auto takes_it = [](const Checkpoint* side) { return side->config.is_given; };
  if (!arguments.source.config || std::any_of(sides.begin(), sides.end(), takes_it)) return {};
  return Note{NoteKind::kNoEffect, fmt::format("`config` has no effect: {} own config.json",
                                               sides.size() == 1 ? "A has its" : "A and B both have their")};
}

/// Returns the notes on both checkpoints and on each.
Notes notes_of(const VerifyArguments& arguments, const Checkpoint& a, const Checkpoint& b) {
  Notes notes;
  for (const Note& note : a.notes)
    if (b.notes.contains(note.text)) notes.add(note);
  for (const auto& [given, one, other] : {std::tuple(arguments.a, &a, &b), std::tuple(arguments.b, &b, &a)})
    for (Note note : one->notes) {
      if (other->notes.contains(note.text)) continue;
      if (!note.text.starts_with(given + ":")) note.text = fmt::format("{}: {}", given, note.text);
      notes.add(std::move(note));
    }
  return notes;
}

std::string states_left_note(std::uint64_t count, const Checkpoint& checkpoint) {
  return fmt::format("the manifest has {} of training state, which {} not compared{}",
                     plural(count, "entry", "entries"), count == 1 ? "is" : "are",
                     checkpoint.leaves_states ? ": `with-optimizer` compares them" : "");
}

std::string unlisted_note(const std::string& manifest, const FilesVerification& result) {
  return fmt::format(
      "{} does not list {}: {}", manifest,
      result.unlisted.size() == 1 ? "a file of tensors" : fmt::format("{} files of tensors", result.unlisted.size()),
      list_names(result.unlisted));
}

/// Prints the report and the notes `found` by the comparison, including those on replicas that differ; the report's
/// other notes have been printed. \returns the exit code.
int finish(const VerifyArguments& arguments, ComparisonReport report, Notes found) {
  found.add(divergent_notes(report.divergent));
  report.notes.add(found);
  if (arguments.json) {
    print_output(to_text(comparison_document(report)));
  } else if (!arguments.quiet) {
    print_notes(found);
    print_text(comparison_text(report));
  }
  return report.same() ? 0 : kExitDifferent;
}

/// Compares the files of A with a SHA256SUMS.
int run_verify_sums(const Command& command, const VerifyArguments& arguments, const std::string& text,
                    const RunOptions& options, Together& together) {
  const std::string& file = *arguments.manifest;
  validate_alone(command, {"manifest"}, "a SHA256SUMS, which is of files");
  const std::vector<FileDigest> files = parse_sha256sums(text, file);
  if (files.empty())
    throw Error(ErrorKind::kBadInput, "lists no files").in(file).hint("give the SHA256SUMS as it was written");
  if (!all_files().is_directory(arguments.a))
    throw Error(ErrorKind::kBadInput, "is not a directory, which a SHA256SUMS is of")
        .in(arguments.a)
        .hint("give the directory whose files it lists");
  std::uint64_t bytes = 0;
  for (const FileDigest& listed : files)
    if (const fs::path path = fs::path(arguments.a) / listed.path; all_files().is_file(path))
      bytes += all_files().size_bytes(path);
  FilesVerification result;
  {
    const ProgressBar bar(*options.progress, bytes, "comparing", arguments.progress, arguments.quiet);
    result = verify_files(arguments.a, files, options, together);
  }
  Notes found;
  if (!result.unlisted.empty()) found.mismatch(unlisted_note(file, result)).in(file);
  return finish(arguments, {.a = arguments.a, .b = file, .found = std::move(result)}, std::move(found));
}

/// Whether A is the manifest's directory and thus its own output, so that its files can be compared.
bool is_own_output(const VerifyArguments& arguments) {
  const fs::path beside = all_files().absolute(*arguments.manifest).parent_path();
  return all_files().is_directory(arguments.a) && all_files().is_same(arguments.a, beside);
}

/// Whether the output was PEFT's directories of several adapters, one in another.
bool has_several_adapters(const Manifest& manifest) {
  return std::count_if(manifest.files.begin(), manifest.files.end(), [](const Manifest::File& file) {
           return is_peft_weights_name(fs::path(file.path).filename().string());
         }) > 1;
}

/// Compares the tensors of A with a manifest.
int run_verify_tensors(const Command& command, const VerifyArguments& arguments, const std::string& text,
                       RunOptions options, Together& together) {
  const std::string& file = *arguments.manifest;
  ComparisonReport report{.a = arguments.a, .b = file};
  options.on_divergence = [&](Divergence one) { report.divergent.push_back(std::move(one)); };
  const Manifest manifest = parse_manifest(text, file);
  UsedOptions used;
  Checkpoint a;
  together.step("plan", *options.progress, [&] {
    ListedFiles files(all_files());
    a = has_several_adapters(manifest)
            ? read_peft_adapters(files, {arguments.a})
            : read_side(files, arguments.a, config_of(arguments.source), arguments, false, used);
    add_states(a.map, std::move(a.states.map));
    validate_used(arguments, used, {&a});
    a.notes.add(idle_replica_options(command, {&a.map}));
    a.notes.add(idle_config(arguments, {&a}));
  });
  if (arguments.talks()) print_notes(a.notes);
  ManifestVerification result;
  {
    std::uint64_t bytes = 0;
    for (const LogicalTensor& tensor : a.map.logical) bytes += num_bytes(tensor.dtype, tensor.shape).value_or(0);
    const bool compares_files = is_own_output(arguments);
    if (compares_files)
      for (const Manifest::File& listed : manifest.files) bytes += listed.size_bytes;
    const ProgressBar bar(*options.progress, bytes, "comparing", arguments.progress, arguments.quiet);
    result = verify_manifest(a.map, manifest, file, options, together);
    if (compares_files) result.files = verify_manifest_files(manifest, arguments.a, options, together);
  }
  Notes found;
  if (result.states_left > 0) found.left_out(states_left_note(result.states_left, a)).in(file);
  if (result.files && !result.files->unlisted.empty()) found.mismatch(unlisted_note(file, *result.files)).in(file);
  report.notes = a.notes;
  report.found = std::move(result);
  return finish(arguments, std::move(report), std::move(found));
}

/// Whether the text is JSON, possibly after white space and the byte order mark that some editors add. No line of a
/// SHA256SUMS begins like this.
bool is_json_object(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

int run_verify_manifest(const Command& command, const VerifyArguments& arguments, Together& together) {
  validate_source_options(arguments.source_options);
  RunOptions options = run_options(arguments, arguments.replicas);
  Progress progress;
  options.progress = &progress;
  std::string text;
  together.step("read the manifest", progress,
                [&] { text = read_text_file(all_files(), *arguments.manifest, kMaxManifestBytes); });
  if (is_json_object(text)) return run_verify_tensors(command, arguments, text, options, together);
  return run_verify_sums(command, arguments, text, options, together);
}

void validate_arguments(const VerifyArguments& arguments) {
  if (!arguments.manifest) {
    if (arguments.b.empty())
      throw Error(ErrorKind::kUsage, "B is missing").hint("give another checkpoint, or a manifest with --manifest");
    return;
  }
  if (arguments.complete)
    throw Error(ErrorKind::kUsage, "--complete compares with B: it has no effect with --manifest");
  if (arguments.manifest->empty()) throw Error(ErrorKind::kUsage, "--manifest is empty");
  if (!arguments.b.empty())
    throw Error(ErrorKind::kUsage, "--manifest takes the place of B, such as " + printable(arguments.b))
        .hint("leave out one of the two");
  if (!arguments.rtol.empty() || !arguments.atol.empty())
    throw Error(ErrorKind::kUsage, "--rtol and --atol have no effect with --manifest: digests are equal or not");
}

/// Compares optimizer states that were read as values, and leaves the others to be compared byte by byte.
/// \returns lines that describe the differences.
std::vector<std::string> compare_values(Files& files, Checkpoint& a, Checkpoint& b, const OptionValues& options) {
  name_states_alike(a.states, b.states);
  leave_group_objects(a.states, b.states);
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    read_number_tensors(files, one->map.files, one->states, other->states);
    const std::size_t masters = leave_lone_masters(one->states, other->states);
    if (masters > 0 && !wants_master_weights(options))  // otherwise they are compared as the model's weights
      one->notes.left_out(fmt::format("{} master weights are not compared: the other optimizer has none", masters));
  }
  return different_values(a.states, b.states);
}

/// Adds a note on the trainer's files, which are not opened.
void note_trainer_files(Files& files, Checkpoint& side) {
  if (side.states.empty()) return;
  std::vector<std::string> names;
  for (const CopiedFile& file : trainer_files(files, side)) names.push_back(file.path.string());
  if (!names.empty()) side.notes.left_out("the trainer's files are not compared: " + list_names(names));
}

/// Notes that tensors of `side` may be the other's under other names, or packed, if only the other's model is known.
void note_unknown_model(Checkpoint& side, const Checkpoint& other) {
  if (side.model || !side.adapters.empty() || !other.model || !side.config.path.empty()) return;
  const std::vector<LogicalTensor>& logical = side.map.logical;
  if (std::any_of(logical.begin(), logical.end(), [&](const LogicalTensor& tensor) {
        return !tensor.constant() && !other.map.find_logical(tensor.name);
      }))
    side.notes.assumed(
        "its config.json is unknown, so tensors with other names, or packed into others, are compared unchanged: set "
        "`config` to its path");
}

/// Adds the tensors of adapters and further models to checkpoints of one layout. Other layouts have none.
/// \throws Error kUsage if the checkpoints have them on other numbers of ranks; else as UnreadTensors::read.
void add_unread(Checkpoint& a, Checkpoint& b) {
  if (a.layout != b.layout || !a.unread.read || !b.unread.read) return;
  SourceMap of_a = a.unread.read(), of_b = b.unread.read();
  if (of_a.logical.empty() && of_b.logical.empty()) return;
  if (!of_a.logical.empty() && !of_b.logical.empty() && a.mesh.tp != b.mesh.tp)
    throw Error(
        ErrorKind::kUsage,
        fmt::format("has {} ranks, and the other checkpoint {}: adapters, drafts and Medusa's heads are compared "
                    "as each rank stores them",
                    a.mesh.tp, b.mesh.tp))
        .in(a.path)
        .hint("set `fused-model` to target to compare the model alone");
  for (const auto& [side, unread] : {std::pair(&a, &of_a), std::pair(&b, &of_b)}) {
    side->notes.remove(side->unread.notes);
    side->notes.chosen(
        "adapters, drafts and Medusa's heads are compared as each rank stores them: `fused-model` target compares the "
        "model alone");
    side->map.append(std::move(*unread), "");
  }
}

int run_verify(const Command& command, const VerifyArguments& arguments, Together& together) {
  validate_arguments(arguments);
  if (arguments.manifest) return run_verify_manifest(command, arguments, together);
  VerifyOptions how;
  if (!arguments.rtol.empty() || !arguments.atol.empty()) how.tolerance.emplace();
  if (!arguments.rtol.empty()) how.tolerance->relative = parse_tolerance("--rtol", arguments.rtol);
  if (!arguments.atol.empty()) how.tolerance->absolute = parse_tolerance("--atol", arguments.atol);
  validate_source_options(arguments.source_options);
  RunOptions options = run_options(arguments, arguments.replicas);
  UsedOptions used;
  Checkpoint a, b;
  ComparisonReport report{.a = arguments.a, .b = arguments.b};
  Progress progress;
  together.step("plan", progress, [&] {
    ListedFiles files(all_files());
    a = read_beside(files, arguments.a, arguments.b, arguments, used);
    b = read_beside(files, arguments.b, arguments.a, arguments, used);
    align_experts(a, b);
    note_unknown_model(a, b);
    note_unknown_model(b, a);
    add_unread(a, b);
    if (arguments.complete) report.left_behind = left_behind(files, a, b);
    report.other_values = compare_values(files, a, b, arguments.source_options);
    for (Checkpoint* side : {&a, &b}) note_trainer_files(files, *side);
    for (Checkpoint* side : {&a, &b}) add_states(side->map, std::move(side->states.map));
    validate_used(arguments, used, {&a, &b});
  });
  report.notes = notes_of(arguments, a, b);
  const auto has_counted_states = [](const Checkpoint& side) { return side.beside_model->optimizer.tensors > 0; };
  if (a.leaves_states && b.leaves_states && !(has_counted_states(a) && has_counted_states(b)))
    report.notes.left_out("the optimizers are not compared: `with-optimizer` compares them");
  report.notes.add(idle_replica_options(command, {&a.map, &b.map}));
  report.notes.add(idle_config(arguments, {&a, &b}));
  if (arguments.talks()) print_notes(report.notes);
  options.progress = &progress;
  options.on_divergence = [&](Divergence one) { report.divergent.push_back(std::move(one)); };
  {
    std::uint64_t bytes = 0;
    for (const SourceMap* map : {&a.map, &b.map})
      for (const LogicalTensor& tensor : map->logical) bytes += num_bytes(tensor.dtype, tensor.shape).value_or(0);
    const ProgressBar bar(progress, bytes, "comparing", arguments.progress, arguments.quiet);
    report.found = verify(a.map, b.map, how, options, together);
  }
  return finish(arguments, std::move(report), {});
}

}  // namespace

void add_verify(Command app, int& exit_code, Together& together) {
  auto arguments = std::make_shared<VerifyArguments>();
  Command command = add_command(app, "verify");
  add(command, "A", arguments->a);
  add(command, "B", arguments->b);
  add(command, "--manifest", arguments->manifest);
  add(command, "--complete", arguments->complete);
  add(command, "--rtol", arguments->rtol);
  add(command, "--atol", arguments->atol);
  add_source(command, arguments->source);
  add(command, "--with-optimizer", arguments->source.with_optimizer);
  add(command, "--extra-tensors", arguments->source.extra_tensors);
  add_replicas(command, arguments->replicas, false);
  add_source_options(command, arguments->source_options);
  add_moving(command, *arguments);
  add_output(command, *arguments);
  command.callback(
      [arguments, command, &exit_code, &together] { exit_code = run_verify(command, *arguments, together); });
}

}  // namespace reshard::cli
