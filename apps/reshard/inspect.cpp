#include <fmt/format.h>

#include <memory>
#include <numeric>

#include "arguments.h"
#include "commands.h"
#include "idle_options.h"
#include "inspect_json.h"
#include "inspect_pickle.h"
#include "inspect_report.h"
#include "print.h"
#include "progress.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/check/digests.h"
#include "reshard/engine/check/stats.h"
#include "reshard/io/listed_files.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/found.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/job/name_rules.h"
#include "reshard/plan/source/metadata_model.h"
#include "reshard/plan/source/tags.h"
#include "run_job.h"

namespace reshard::cli {
namespace {

struct InspectArguments : MovingArguments, OutputArguments {
  std::string path;
  std::string print_family;
  bool print_spec = false;
  std::string filter;
  OptionValues source_options;
  SourceArguments source;
  bool tensors = false;
  bool stats = false;
  bool digest = false;
  bool pickle = false;
  std::string sort;
  std::string limit;
};

std::vector<std::uint32_t> matching_tensors(const SourceMap& map, const std::string& filter) {
  std::vector<std::uint32_t> wanted(map.logical.size());
  std::iota(wanted.begin(), wanted.end(), 0u);
  std::erase_if(wanted, [&](std::uint32_t index) {
    return map.logical[index].constant() != nullptr || map.logical[index].role == TensorRole::kPart;
  });
  if (filter.empty()) return wanted;
  const NamePattern pattern("--filter", filter);
  std::erase_if(wanted, [&](std::uint32_t index) { return !pattern.matches(map.logical[index].name); });
  return wanted;
}

TensorOrder order_of(const std::string& text) {
  if (text == "size") return TensorOrder::kSize;
  if (text == "name") return TensorOrder::kName;
  return text == "layer" ? TensorOrder::kLayer : TensorOrder::kStored;
}

/// --digest prints one line per tensor.
TensorView view_of(const InspectArguments& arguments) {
  TensorView view{arguments.tensors || arguments.digest, order_of(arguments.sort)};
  if (!arguments.limit.empty()) view.limit = parse_degree("--limit", arguments.limit, UINT32_MAX);
  return view;
}

/// Reads the values of the report's tensors for --stats and --digest.
void read_values(const SourceMap& map, const InspectArguments& arguments, RunOptions options, CheckpointReport& report,
                 Together& together) {
  std::vector<Divergence> divergent;
  options.on_divergence = [&](Divergence one) { divergent.push_back(std::move(one)); };
  Progress progress;
  options.progress = &progress;
  std::vector<std::uint32_t> wanted;
  std::uint64_t bytes = 0;
  for (const TensorReport& tensor : report.tensors) {
    wanted.push_back(tensor.logical);
    bytes += tensor.size_bytes();
  }
  if (arguments.stats && arguments.digest) bytes *= 2;
  {
    const ProgressBar bar(progress, bytes, "reading", arguments.progress, arguments.quiet);
    if (arguments.stats) {
      const std::vector<ValueSummary> values = compute_stats(map, wanted, options, together);
      for (std::size_t i = 0; i < values.size(); ++i) report.tensors[i].values = values[i];
    }
    if (arguments.digest) {
      std::vector<TensorDigest> digests = compute_digests(map, wanted, options, false, together);
      for (std::size_t i = 0; i < digests.size(); ++i) report.tensors[i].digest = std::move(digests[i]);
    }
  }
  report.notes.add(divergent_notes(divergent));
}

/// Prints an overview of several adapters in one directory.
void inspect_adapters(Files& files, const std::string& path, const FoundCheckpoint& found,
                      const InspectArguments& arguments) {
  std::vector<CheckpointReport> adapters;
  const ReadContext context{ConfigUse::kLenient, {}, arguments.source_options, {}};
  read_each_adapter(files, found, context, [&](const Checkpoint& adapter) {
    adapters.push_back(report_on(path, adapter, matching_tensors(adapter.map, {})));
  });
  Notes notes = found.notes;
  for (const CheckpointReport& adapter : adapters) notes.add(adapter.notes);
  if (arguments.json) return print_output(to_text(adapters_document(path, adapters, notes)));
  if (!arguments.quiet) print_notes(notes);
  print_text(adapters_text(path, adapters));
}

/// Returns the description of a checkpoint: derived from its metadata, or else that of its family.
std::string description_of(const Checkpoint& checkpoint) {
  if (!checkpoint.adapters.empty())
    throw Error(ErrorKind::kUnsupported, "an adapter has no description").in(checkpoint.path);
  if (!checkpoint.metadata.empty()) return description_of_metadata(checkpoint);
  if (checkpoint.model && !checkpoint.model->family->json_text.empty()) return checkpoint.model->family->json_text;
  throw Error(ErrorKind::kUnsupported,
              "has neither rank metadata nor the config.json of a known family, so there is no description")
      .in(checkpoint.path)
      .hint("--print-family llama prints a built-in description to start from");
}

void inspect(const Command& command, const InspectArguments& arguments, Together& together) {
  if (!arguments.print_family.empty() && !arguments.path.empty())
    throw Error(ErrorKind::kUsage,
                "--print-family prints a built-in description and reads no PATH, such as " + printable(arguments.path))
        .hint("leave out one of the two");
  if (!arguments.print_family.empty()) validate_alone(command, {"print-family"}, "--print-family");
  for (const char* option : {"tensors", "filter", "sort", "limit", "stats", "digest"})
    if (arguments.print_spec && command.count(fmt::format("--{}", option)) > 0)
      throw Error(ErrorKind::kUsage, fmt::format("--{} has no effect with --print-spec", option))
          .hint("leave out one of the two");
  if (!arguments.print_family.empty())
    return print_output(named_family("--print-family", arguments.print_family)->json_text);
  if (arguments.print_spec && builtin_family(arguments.path) && !all_files().exists(arguments.path))
    return print_output(builtin_family(arguments.path)->json_text);
  if (arguments.path.empty()) throw Error(ErrorKind::kUsage, "PATH is missing").hint("give a file or a directory");
  if (arguments.pickle) {
    validate_alone(command, {"pickle"}, "--pickle");
    return inspect_pickles(all_files(), arguments.path, arguments.json, arguments.quiet);
  }
  if (!arguments.filter.empty()) NamePattern("filter", arguments.filter);  // reports a wrong one before reading
  validate_source_options(arguments.source_options);
  const RunOptions options = run_options(arguments);
  const TensorView view = view_of(arguments);
  ListedFiles files(all_files());
  const FoundCheckpoint found = find_checkpoint(files, arguments.path, arguments.source.tag);
  const std::string path = arguments.path == found.path ? arguments.path : found.path.string();
  const bool one_wanted = arguments.print_spec || arguments.tensors || arguments.stats || arguments.digest ||
                          !arguments.filter.empty() || !arguments.sort.empty() || !arguments.limit.empty() ||
                          arguments.source.config;
  if (!one_wanted && found.adapter_shards.size() > 1) return inspect_adapters(files, path, found, arguments);
  const Checkpoint checkpoint = read_checkpoint(files, found,
                                                {.use = ConfigUse::kLenient,
                                                 .family = family_spec(arguments),
                                                 .options = arguments.source_options,
                                                 .config = {config_of(arguments.source)},
                                                 .beside = Beside::kLook});
  if (arguments.print_spec) {
    if (!arguments.quiet) print_notes(checkpoint.notes);
    return print_output(description_of(checkpoint));
  }
  CheckpointReport report = report_on(path, checkpoint, matching_tensors(checkpoint.map, arguments.filter));
  sort_tensors(report.tensors, view.order);
  if ((view.each || arguments.json) && report.tensors.size() > view.limit) report.tensors.resize(view.limit);
  if (report.tensors.empty() && !arguments.filter.empty()) report.notes.no_effect("--filter matches no tensor");
  if (arguments.stats || arguments.digest) read_values(checkpoint.map, arguments, options, report, together);
  if (arguments.json) return print_output(to_text(inspect_document(report)));
  if (!arguments.quiet) print_notes(report.notes);
  print_text(inspect_text(report, view));
}

}  // namespace

void add_inspect(Command app, Together& together) {
  auto arguments = std::make_shared<InspectArguments>();
  Command command = add_command(app, "inspect");
  add(command, "PATH", arguments->path);
  add(command, "--tensors", arguments->tensors);
  add(command, "--filter", arguments->filter);
  add(command, "--sort", arguments->sort);
  add(command, "--limit", arguments->limit);
  add(command, "--stats", arguments->stats);
  add(command, "--digest", arguments->digest);
  add(command, "--pickle", arguments->pickle);
  add(command, "--print-family", arguments->print_family);
  add(command, "--print-spec", arguments->print_spec);
  add_source(command, arguments->source);
  add_source_options(command, arguments->source_options);
  add_moving(command, *arguments);
  add_output(command, *arguments);
  command.callback([arguments, command, &together] { inspect(command, *arguments, together); });
}

}  // namespace reshard::cli
