#include "reshard/plan/job/fingerprint.h"

#include <functional>
#include <map>

#include "reshard/tensor/recipes/mean.h"
#include "support/catch.h"

namespace reshard::test {
namespace {

/// A job that moves "w" and "v", of one file, to two ranks. It is planned by hand, so that every part of it is known.
Job small_job() {
  Job job;
  job.source_directory = "/models/a";
  job.output_directory = "/out/a";
  job.source.files.push_back({{"/models/a/model.safetensors", 1000}});
  job.target.files.push_back({{"rank0/model.pt", 500, 0}});
  job.target.files.push_back({{"rank1/model.pt", 500, 1}});
  const LogicalTensor w{"w", DType::kBF16, {4, 2}}, v{"v", DType::kBF16, {8}};
  for (TensorMap* map : std::initializer_list<TensorMap*>{&job.source, &job.target})
    for (const LogicalTensor& tensor : {w, v}) map->add_logical(tensor, {});
  job.source.add_stored({"w", DType::kBF16, {4, 2}, 0, 100});
  job.source.add_stored({"v", DType::kBF16, {8}, 0, 116});
  job.source.pieces = {{{0, {{0, 0}, {4, 2}}, {0, 0}}}, {{1, {{0}, {8}}, {0}}}};
  job.source.stored[0].set_view({{4, 2}, {1, 4}});
  for (const std::uint32_t rank : {0u, 1u}) {
    TargetFile& file = job.target.files[rank];
    file.first_stored = 2 * rank;
    file.stored_count = 2;
    file.encoding = TargetFile::Encoding::kTorch;
    file.aliases = {{"u", "w"}};
    job.target.add_stored({"w", DType::kBF16, {2, 2}, rank, 64});
    job.target.add_stored({"v", DType::kBF16, {8}, rank, 128});
    job.target.pieces[0].push_back({2 * rank, {{2ull * rank, 0}, {2, 2}}, {0, 0}});
    job.target.pieces[1].push_back({2 * rank + 1, {{0}, {8}}, {0}});
  }
  RankRecord record;
  record.tp_degree = 2;
  record.originals = std::make_shared<const OriginalShapes>(OriginalShapes{{"w", {4, 2}}});
  job.target.files[0].record = record;
  job.program = make_program(job.source, job.target);
  job.program.transfers[0].source->checks = {{job.source.pieces[0][0], CheckReason::kReplica}};
  job.text_files = {{"meta.json", "{}"}};
  job.copied_files = {{"/models/a/config.json", "config.json", 77}};
  job.whole_folders = {"rank0"};
  return job;
}

using Change = std::function<void(Job&)>;

TEST_CASE("Whatever changes a byte of the outputs changes a job's fingerprint") {
  const Dims turned{2, 4};
  const auto constant = [](Constant::Kind kind, std::uint64_t element_bits) {
    return std::make_shared<Computed>(Computed{std::make_shared<Constant>(kind, DType::kBF16, element_bits), {}});
  };
  const std::map<std::string, Change> changes{
      {"source file name", [](Job& job) { job.source.files[0].path = "/models/a/other.safetensors"; }},
      {"source file size", [](Job& job) { ++job.source.files[0].size_bytes; }},
      {"source file rank", [](Job& job) { job.source.files[0].tp_rank = 1; }},
      {"source stored name", [](Job& job) { job.source.stored[0].name = std::string("x"); }},
      {"source stored dtype", [](Job& job) { job.source.stored[0].dtype = DType::kF16; }},
      {"source stored shape", [&](Job& job) { job.source.stored[0].shape = turned; }},
      {"source stored offset", [](Job& job) { job.source.stored[0].offset_bytes += 2; }},
      {"source stored label", [](Job& job) { job.source.stored[0].label = PartitionLabel::kTied; }},
      {"source stored tied", [](Job& job) { job.source.stored[0].tied = true; }},
      {"source stored replicated", [](Job& job) { job.source.stored[0].replicated = true; }},
      {"source strides",
       [](Job& job) {
         job.source.stored[0].set_view(View::of({4, 2}));
       }},
      {"source strides of a tensor in C order",
       [](Job& job) {
         job.source.stored[1].set_view({{8}, {2}});
       }},
      {"views of two tensors exchanged",
       [](Job& job) { std::swap(job.source.stored[0].in_file, job.source.stored[1].in_file); }},
      {"shape in the file",
       [](Job& job) {
         job.target.stored[1].set_view(View::of({2, 4}));
       }},
      {"logical name", [](Job& job) { job.source.logical[0].name = "x"; }},
      {"logical dtype", [](Job& job) { job.target.logical[0].dtype = DType::kF16; }},
      {"logical shape", [](Job& job) { job.target.logical[0].shape = {8}; }},
      {"padding", [&](Job& job) { job.target.logical[0].computed = constant(Constant::Kind::kPadding, 0); }},
      {"a constant in place of padding",
       [&](Job& job) { job.target.logical[0].computed = constant(Constant::Kind::kRequired, 0); }},
      {"other padding", [&](Job& job) { job.target.logical[0].computed = constant(Constant::Kind::kPadding, 1); }},
      {"source piece", [](Job& job) { job.source.pieces[0][0].stored_begin[0] = 1; }},
      {"target piece's stored tensor", [](Job& job) { job.target.pieces[0][0].stored = 2; }},
      {"target piece's begin", [](Job& job) { job.target.pieces[0][0].box.begin[0] = 1; }},
      {"target piece's size", [](Job& job) { job.target.pieces[0][0].box.size[0] = 1; }},
      {"piece of another tensor",
       [](Job& job) {
         job.target.pieces[1].insert(job.target.pieces[1].begin(), job.target.pieces[0].back());
         job.target.pieces[0].pop_back();
       }},
      {"target path", [](Job& job) { job.target.files[0].path = "rank9/model.pt"; }},
      {"target size", [](Job& job) { ++job.target.files[0].size_bytes; }},
      {"target encoding", [](Job& job) { job.target.files[0].encoding = TargetFile::Encoding::kSafetensors; }},
      {"target alias", [](Job& job) { job.target.files[0].aliases[0].source = "v"; }},
      {"no target alias", [](Job& job) { job.target.files[0].aliases.clear(); }},
      {"target's tensors", [](Job& job) { job.target.files[1].first_stored = 1; }},
      {"target record", [](Job& job) { job.target.files[0].record->tp_rank = 1; }},
      {"no target record", [](Job& job) { job.target.files[0].record.reset(); }},
      {"experts", [](Job& job) { job.target.stored[0].expert_parallel = true; }},
      {"a read", [](Job& job) { job.program.transfers[0].source->reads[0].box.size[0] = 3; }},
      {"no check", [](Job& job) { job.program.transfers[0].source->checks.clear(); }},
      {"the reason of a check",
       [](Job& job) { job.program.transfers[0].source->checks[0].reason = CheckReason::kTied; }},
      {"a check that may drift", [](Job& job) { job.program.transfers[0].source->checks[0].may_drift = true; }},
      {"a check that may differ", [](Job& job) { job.program.transfers[0].source->checks[0].may_differ = true; }},
      {"no source", [](Job& job) { job.program.transfers[0].source.reset(); }},
      {"an input",
       [](Job& job) { job.program.transfers[0].source->inputs.push_back(*job.program.transfers[1].source); }},
      {"a recipe",
       [](Job& job) {
         job.source.logical[0].computed = std::make_shared<Computed>(Computed{mean_recipe(), {}});
       }},
      {"nothing written", [](Job& job) { job.program.transfers[0].target.reset(); }},
      {"another tensor written", [](Job& job) { job.program.transfers[0].target = 1; }},
      {"another order", [](Job& job) { std::swap(job.program.transfers[0], job.program.transfers[1]); }},
      {"a transfer less", [](Job& job) { job.program.transfers.pop_back(); }},
      {"text file", [](Job& job) { job.text_files[0].text = "[]"; }},
      {"text file's path", [](Job& job) { job.text_files[0].path = "x.json"; }},
      {"copied file's path", [](Job& job) { job.copied_files[0].path = "x.json"; }},
      {"copied file's size", [](Job& job) { ++job.copied_files[0].size_bytes; }},
      {"no copied file", [](Job& job) { job.copied_files.clear(); }},
      {"replaced folder", [](Job& job) { job.whole_folders.clear(); }},
  };
  std::map<std::string, std::string> found{{to_string(fingerprint_of(small_job())), "no change"}};
  for (const auto& [what, change] : changes) {
    Job job = small_job();
    change(job);
    const auto [same, is_new] = found.emplace(to_string(fingerprint_of(job)), what);
    INFO(what << " as " << same->second);
    CHECK(is_new);
  }
  for (const std::vector<std::uint64_t>& options : {std::vector<std::uint64_t>{0}, {1}, {0, 0}, {0, 1}})
    CHECK(found.emplace(to_string(fingerprint_of(small_job(), options)), "options").second);
}

TEST_CASE("What changes no byte of the outputs does not change a job's fingerprint") {
  const std::map<std::string, Change> changes{
      {"directories",
       [](Job& job) {
         job.source_directory = job.model_directory = "/elsewhere";
         job.output_directory = "/elsewhere/out";
         job.source.files[0].path = "/elsewhere/model.safetensors";
         job.copied_files[0].source = "/elsewhere/config.json";
       }},
      {"when the source was written", [](Job& job) { job.source.files[0].stamp = FileStamp("another"); }},
      {"whether outputs are replaced", [](Job& job) { job.force = true; }},
      {"notes", [](Job& job) { job.notes.hint("mind this"); }},
      {"the command", [](Job& job) { job.command = "convert"; }},
      {"what is only counted", [](Job& job) { job.program.skipped_bytes = 7; }},
      {"a copy", [](Job& job) { job = Job(job); }},
      {"a view that is replaced by an equal one",
       [](Job& job) { job.source.stored[0].set_view(job.source.stored[0].view()); }},
  };
  for (const auto& [what, change] : changes) {
    Job job = small_job();
    change(job);
    INFO(what);
    CHECK(fingerprint_of(job) == fingerprint_of(small_job()));
  }
}

TEST_CASE("A fingerprint is printed as 32 digits") {
  CHECK(to_string(Fingerprint{1, 0xabc}) == "00000000000000010000000000000abc");
}

}  // namespace
}  // namespace reshard::test
