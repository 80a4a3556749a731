// All cases of testdata/golden: what runs.json of each says is done with its files, and what must come out.
// testdata/README.md lists the fields.

#include "support/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "end_to_end/golden_checks.h"
#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/plan/output/joined_models.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/fields.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

OptionValues options_of(const json& fields) {
  OptionValues options;
  for (const auto& [name, value] : fields.items())
    if (value.is_boolean())
      options.set_flag(name, value);
    else
      options.set(name, value.is_string() ? value.get<std::string>() : value.dump());
  return options;
}

TargetRequest target_of(Fields& to) {
  TargetRequest target;
  if (const json* name = to.find("layout")) target.layout = layout(name->get<std::string>());
  if (const json* name = to.find("format")) target.format = format_from_name(name->get<std::string>()).value();
  if (const json* degree = to.find("tp")) target.tp = *degree;
  if (const json* degree = to.find("pp")) target.pp = *degree;
  if (const json* degree = to.find("ep")) target.ep = *degree;
  target.vpp = to.get<std::uint32_t>("vpp", 1);
  target.pipeline_cuts = to.get<std::vector<std::string>>("cuts");
  target.options = options_of(to.all("options"));
  return target;
}

class GoldenRun {
 public:
  GoldenRun(const fs::path& golden_case, const json& run, const fs::path& work, const fs::path& source = {})
      : case_{golden_case}, run_(run, run.at("title")), work_{work}, source_{source} {}

  void perform() {
    const std::string title = run_.get<std::string>("title");
    INFO(title);
    lay_out();
    if (const json* read = run_.find("read")) source_ = at(*read);
    const json& expected = run_.all("expect");
    if (expected.empty() && run_.all("then").empty())
      throw std::invalid_argument(title + ": a run needs \"expect\" or \"then\"");
    Fields expect(expected, title + ", expect");
    const std::string command = run_.get<std::string>("command", "convert");
    if ((command == "read" || expected.contains("error")) && !run_.all("then").empty())
      throw std::invalid_argument(title + ": nothing comes after a run without an output");
    if (command == "read")
      check_read(expect);
    else
      check_job(command, expect);
    expect.validate();
    run_.validate();
  }

 private:
  /// A path in the case, or below the working directory if it begins with "@".
  fs::path at(const std::string& path) const { return path.starts_with("@") ? work_ / path.substr(1) : case_ / path; }

  /// Makes the files that the run reads, where those of the case do not stand as users have them.
  void lay_out() {
    for (const auto& [place, from] : run_.all("files").items()) {
      fs::create_directories((work_ / place).parent_path());
      fs::copy(at(from), work_ / place, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    }
    for (const auto& [place, content] : run_.all("write").items())
      write_file(work_ / place, content.is_string() ? content.get<std::string>() : content.dump());
    for (const auto& [place, fields] : run_.all("merge").items()) merge_json(work_ / place, fields);
    for (const std::string place : run_.all("remove")) REQUIRE(fs::remove_all(work_ / place) > 0);
    for (const auto& [from, to] : run_.all("rename").items()) fs::rename(work_ / from, work_ / to);
    for (const auto& [a, b] : run_.all("swap").items()) swap_files(work_ / a, work_ / b);
    for (const auto& [place, offset] : run_.all("flip").items()) flip_byte(work_ / place, offset);
    for (const auto& [place, bytes] : run_.all("shorten").items()) shorten(work_ / place, bytes);
  }

  SourceRequest source_request() {
    SourceRequest source;
    source.path = source_;
    if (const json* config = run_.find("config")) source.config = at(*config);
    source.options = options_of(run_.all("from"));
    source.with_optimizer = run_.get("with_optimizer", false);
    if (const json* family = run_.find("family")) source.family = builtin_family(family->get<std::string>());
    return source;
  }

  template <typename Request>
  Request request_to(const fs::path& output, const TargetRequest& target) {
    Request request;
    request.source = source_request();
    request.output_directory = output;
    request.target = target;
    request.dtype = dtype_;
    if (const json* dtype = run_.find("dtype")) request.dtype = dtype_from_name(dtype->get<std::string>()).value();
    return request;
  }

  std::unique_ptr<Job> plan(const std::string& command, const fs::path& output, const TargetRequest& target) {
    const bool first_replicas = run_.get("first_replicas", false);
    if (command == "shard") {
      auto request = request_to<Request>(output, target);
      for (const std::string adapter : run_.all("adapters")) request.adapters.push_back(at(adapter));
      if (run_.get("exact_adapters", false)) request.target.lora_fuse = LoraFuse::kExact;
      for (const auto& [role, place] : run_.all("joined").items()) {
        JoinedModel& model = request.joined.emplace_back(JoinedModel{role, {}});
        if (place.is_array())
          for (const std::string adapter : place) model.adapters.push_back(at(adapter));
        else
          model.source.path = at(place);
        if (fs::is_directory(model.source.path)) model.source.kind = SourceKind::kWhole;
      }
      if (compiled_) complete_joined(request, *compiled_);
      return plan_shard(request);
    }
    if (command == "consolidate") {
      auto request = request_to<Request>(output, target);
      request.check_replicas = !first_replicas;
      return plan_consolidate(request);
    }
    if (command != "convert") throw std::invalid_argument("unknown command " + command);
    auto request = request_to<Request>(output, target);
    request.check_replicas = !first_replicas;
    for (const std::string pattern : run_.all("drop")) request.names.drop.emplace_back("drop", pattern);
    return plan_convert(request);
  }

  void check_job(const std::string& command, Fields& expect) {
    const fs::path output = work_ / run_.get<std::string>("into", source_.filename().string() + "-out");
    Fields to(run_.all("to"), "to");
    TargetRequest target = target_of(to);
    if (const json* compiled = to.find("for")) {
      compiled_ = complete_for(all_files(), at(*compiled), target, false);
      dtype_ = compiled_->dtype;
    }
    to.validate();
    RunOptions options = unsynced();
    if (run_.get("first_replicas", false)) options.replicas = Replicas::kFirst;
    if (const json* expected = expect.find("error")) {
      const auto before = snapshot(work_);
      check_error(*expected, error_of([&] { execute(*plan(command, output, target), options); }));
      CHECK(snapshot(work_) == before);
      return;
    }
    const auto before = snapshot(case_);
    const auto job = plan(command, output, target);
    check_plan(*job, expect);
    CHECK(execute(*job, options).divergent.empty());
    check_output(output, *job, expect);
    if (const json* expected = tensors_expected(expect)) check_others(*expected);
    int runs = 0;
    for (const json& then : run_.all("then")) {
      json named = then;
      if (!named.contains("into")) named["into"] = output.filename().string() + std::to_string(++runs);
      GoldenRun(case_, named, work_, output).perform();
    }
    CHECK(snapshot(case_) == before);
  }

  void check_read(Fields& expect) {
    run_.find("into");  // of a run after another
    ReadContext context;
    const SourceRequest source = source_request();
    context.use = source.config.empty() ? ConfigUse::kLenient : ConfigUse::kStrict;
    context.config.path = source.config;
    context.options = source.options;
    if (source.with_optimizer) context.beside = Beside::kRead;
    if (const json* expected = expect.find("error")) {
      check_error(*expected, error_of([&] {
        const Checkpoint checkpoint = read_checkpoint(source.path, context);
        if (checkpoint.unexplained) throw Error(*checkpoint.unexplained);
      }));
      return;
    }
    const Checkpoint checkpoint = read_checkpoint(source.path, context);
    check_notes(checkpoint.notes, expect);
    if (const json* found = expect.find("found")) CHECK(checkpoint.path == at(*found));
    if (const json* other = expect.find("same_as")) check_same(checkpoint, at(*other));
  }

  void check_error(const json& expected, const Error& error) const {
    INFO(error.with_hint());
    Fields fields(expected, "error");
    CHECK(describe(error.kind()).name == fields.get<std::string>("kind"));
    if (const json* path = fields.find("path")) CHECK(error.path() == at(*path).string());
    if (const json* directory = fields.find("below")) CHECK_THAT(error.path(), Says(at(*directory).string()));
    if (const json* tensor = fields.find("tensor")) CHECK(error.tensor() == tensor->get<std::string>());
    for (const std::string& text : texts(fields.find("says"))) CHECK_THAT(error.what(), Says(text));
    if (fields.find("hint") != nullptr) CHECK_FALSE(error.hint().empty());
    for (const std::string& text : texts(fields.find("hint"))) CHECK_THAT(error.hint(), Says(text));
    for (const std::string& text : texts(fields.find("no_hint"))) CHECK_THAT(error.hint(), !Says(text));
    fields.validate();
  }

  /// One text or several.
  static std::vector<std::string> texts(const json* field) {
    if (field == nullptr) return {};
    return field->is_string() ? std::vector<std::string>{*field} : field->get<std::vector<std::string>>();
  }

  void check_notes(const Notes& notes, Fields& expect) const {
    const std::string all = fmt::format("{}", fmt::join(notes.texts(), "\n"));
    for (const std::string& text : texts(expect.find("notes"))) CHECK_THAT(all, Says(text));
    for (const std::string& text : texts(expect.find("no_notes"))) CHECK_THAT(all, !Says(text));
  }

  void check_plan(const Job& job, Fields& expect) {
    check_notes(job.notes, expect);
    if (const json* cuts = expect.find("cuts")) CHECK(job.cut_names == cuts->get<std::vector<std::string>>());
    if (const json* bytes = expect.find("read_bytes")) CHECK(job.program.read_bytes == bytes->get<std::uint64_t>());
    if (const json* other = expect.find("same_as"))
      check_same(read_checkpoint(source_, {ConfigUse::kStrict}), at(*other));
  }

  static void check_same(const Checkpoint& checkpoint, const fs::path& path) {
    const Checkpoint other = read_checkpoint(path, {ConfigUse::kStrict});
    for (const auto& [a, b] : {std::pair(&checkpoint, &other), std::pair(&other, &checkpoint)}) {
      const Verification result = verify(a->map, b->map, {}, unsynced());
      CHECK(result.same());
      CHECK(result.compared_tensors == other.map.logical.size());
    }
  }

  /// Only the tensors that `of` of golden.json lists, if the run says so.
  json chosen(json tensors, Fields& expect) const {
    const json* of = expect.find("of");
    if (of == nullptr) return tensors;
    const json& names = golden_.at(of->get<std::string>());
    std::erase_if(tensors.get_ref<json::object_t&>(), [&](const auto& entry) { return !names.contains(entry.first); });
    return tensors;
  }

  /// The digests of the model's tensors by name, if the run expects any.
  const json* tensors_expected(Fields& expect) {
    const json* parts = expect.find("tensors");
    if (parts == nullptr) return nullptr;
    tensors_ = json::object();
    for (const std::string& part : texts(parts)) tensors_.update(golden_.at(part));
    if (const json* without = expect.find("without")) {
      const std::regex pattern(without->get<std::string>());
      std::erase_if(tensors_.get_ref<json::object_t&>(),
                    [&](const auto& entry) { return std::regex_search(entry.first, pattern); });
    }
    tensors_ = chosen(std::move(tensors_), expect);
    return &tensors_;
  }

  void check_output(const fs::path& output, const Job& job, Fields& expect) {
    const GoldenOutput checks{output, case_, golden_, job.format.value_or(Format::kSafetensors)};
    if (const json* expected = tensors_expected(expect))
      CHECK(chosen(describe_tensors(read_model(output)), expect) == *expected);
    if (const json* model = expect.find("model")) CHECK((read_model(output) == read_model(at(*model))));
    if (const json* dtype = expect.find("dtype"))
      for (const auto& [name, tensor] : read_model(output)) CHECK(describe(tensor.dtype).name == *dtype);
    if (expect.get("files", false)) checks.check_files();
    if (expect.get("ranks", false)) checks.check_ranks(expect.get<std::string>("without", ""));
    if (const json* directory = expect.find("as")) checks.check_as(at(*directory));
    for (const auto& [folder, reference] : expect.all("json").items()) checks.check_json(folder, at(reference));
    for (const auto& [file, pointer] : expect.all("digests").items()) checks.check_digests(file, pointer);
    for (const auto& [file, reference] : expect.all("bytes").items())
      CHECK((read_file(output / file) == read_file(at(reference))));
    for (const auto& [file, text] : expect.all("texts").items())
      CHECK(read_file(output / file) == text.get<std::string>());
    for (const auto& [folder, count] : expect.all("entries").items())
      CHECK(std::distance(fs::directory_iterator(output / folder), {}) == count.get<int>());
    for (const std::string name : expect.all("exists")) CHECK(fs::exists(output / name));
    for (const std::string name : expect.all("lacks")) CHECK_FALSE(fs::exists(output / name));
    if (const json* names = expect.find("tensor_names")) checks.check_names(*names);
    if (const json* states = expect.find("states")) checks.check_states(*states);
    for (const std::uint64_t block_bytes : expect.all("in_blocks_of")) checks.check_blocks(job, block_bytes);
  }

  /// The same source, written in other layouts, is the same model.
  void check_others(const json& expected) {
    int others = 0;
    for (const json& other : run_.all("also_to")) {
      INFO("also to " << other.dump());
      Fields to(other, "also_to");
      const fs::path output = work_ / fmt::format("other{}", ++others);
      execute(*plan("convert", output, target_of(to)), unsynced());
      for (const std::string name : to.all("exists")) CHECK(fs::exists(output / name));
      to.validate();
      convert(convert_request(output, output.string() + "-whole"));
      CHECK(describe_tensors(read_model(output.string() + "-whole")) == expected);
    }
  }

  fs::path case_;
  Fields run_;
  fs::path work_;
  fs::path source_;
  std::optional<CompiledModel> compiled_;
  std::optional<DType> dtype_;  // of the compiled model
  json golden_ = golden_of(case_);
  json tensors_;
};

/// The runs of every case. An empty list for a case that has none.
const std::vector<std::pair<fs::path, json>>& all_runs() {
  static const auto kRuns = [] {
    std::vector<std::pair<fs::path, json>> found;
    for (const auto& group : fs::directory_iterator(testdata("golden")))
      for (const fs::path& one : golden_cases(group.path().filename())) {
        if (!fs::is_directory(one)) continue;
        found.emplace_back(one, fs::exists(one / "runs.json") ? json::parse(read_file(one / "runs.json")) : json());
      }
    std::sort(found.begin(), found.end());
    return found;
  }();
  return kRuns;
}

TEST_CASE("Golden: every case of the reference systems is read and written as its runs.json says") {
  for (const auto& [golden_case, runs] : all_runs())
    for (const json& run : runs) {
      const fs::path name = fs::relative(golden_case, testdata("golden"));
      DYNAMIC_SECTION(name.string() << ": " << run.at("title").get<std::string>()) {
        const TempDir temp;
        GoldenRun(golden_case, run, temp.path()).perform();
      }
    }
}

TEST_CASE("Golden: no case is without expectations") {
  CHECK(all_runs().size() >= 115);
  for (const auto& [golden_case, runs] : all_runs()) {
    CAPTURE(golden_case);
    CHECK_FALSE(runs.empty());
  }
}

TEST_CASE("Golden: unknown fields and runs without expectations are refused") {
  const fs::path golden_case = testdata("golden/nxdi/llama-tp4");
  const auto refused = [&](const json& run, const std::string& text) {
    const TempDir temp;
    CHECK_THROWS_WITH(GoldenRun(golden_case, run, temp.path()).perform(), Says(text));
  };
  const json good = {{"title", "t"}, {"read", "original"}, {"expect", {{"tensors", "original"}}}};
  const auto with = [&](const json& change) {
    json run = good;
    run.merge_patch(change);
    return run;
  };
  refused(with({{"optoins", {{"pad", true}}}}), "unknown field \"optoins\"");
  refused(with({{"expect", {{"note", "a"}}}}), "unknown field \"note\"");
  refused(with({{"to", {{"layuot", "dcp"}}}}), "unknown field \"layuot\"");
  refused(with({{"command", "red"}}), "unknown command red");
  refused(with({{"expect", nullptr}}), "a run needs \"expect\" or \"then\"");
  refused(with({{"read", "absent"}, {"expect", {{"error", {{"kind", "bad input"}, {"sais", ""}}}}}}),
          "unknown field \"sais\"");
}

}  // namespace
}  // namespace reshard::test
