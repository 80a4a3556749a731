// The optimizer in NxD's older folders: golden cases of its newer form, arranged in the older ones.

#include <fmt/format.h>

#include <functional>
#include <map>

#include "reshard/engine/check/digests.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/checkpoints.h"
#include "support/golden.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/older_folders.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/saved_trees.h"
#include "support/spoilers.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

ReadContext context_of(const fs::path& golden_case, bool with_optimizer) {
  ReadContext context;
  context.config.path = golden_case / "original";
  if (with_optimizer) context.beside = Beside::kRead;
  return context;
}

/// Names and digests of all that a checkpoint has, states among it.
std::map<std::string, std::string> content(Checkpoint checkpoint) {
  std::map<std::string, std::string> found;
  for (const OptimizerGroup& group : checkpoint.states.groups) {
    std::string& all = found[fmt::format("group {}", found.size())];
    all = to_string(PlainValue{group.values});
    for (const std::string& parameter : group.parameters) all += " " + parameter;
  }
  for (const StateNumber& number : checkpoint.states.numbers)
    found[number.parameter + "." + number.state] = to_string(number.value);
  const TrainingStates states = checkpoint.states;
  add_states(checkpoint.map, states.map);
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t l = 0; l < checkpoint.map.logical.size(); ++l)
    if (!checkpoint.map.logical[l].constant()) wanted.push_back(l);
  RunOptions options = unsynced();
  options.replicas = Replicas::kFirst;
  const auto digests = compute_digests(checkpoint.map, wanted, options, true);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const LogicalTensor& tensor = checkpoint.map.logical[wanted[i]];
    found[tensor.name] =
        fmt::format("{} {} {}", name(tensor.dtype), to_string(tensor.shape), to_hex(digests[i].digest));
  }
  return found;
}

void copy_metadata(const fs::path& from, const fs::path& to) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from))
    if (entry.path().filename().string().starts_with("mp_metadata")) fs::copy(entry.path(), to);
}

TEST_CASE("The optimizer of NxD's older folders is read as that of its newer ones") {
  std::size_t cases = 0;
  for (const fs::path& golden_case : golden_cases("zero1")) {
    const std::string name = golden_case.filename().string();
    // Only complete ones, which hold their weights.
    if (name == "optimum-llama-dp2-tp2-pp2-xser" || name == "nxd-llama-dp3-xser-weights-in-master") continue;
    ++cases;
    DYNAMIC_SECTION(name) {
      const auto expected = content(read_checkpoint(saved_of(golden_case), context_of(golden_case, true)));
      for (const OlderForm form : {OlderForm::kOfRank, OlderForm::kOptimum, OlderForm::kLightning, OlderForm::kByName})
        for (const bool xser : {false, true}) {
          if (form == OlderForm::kByName && name.find("pp2") != name.npos) continue;
          CAPTURE(static_cast<int>(form), xser);
          const TempDir temp;
          arrange_older(saved_of(golden_case), temp.path(), form, xser);
          copy_metadata(saved_of(golden_case), temp.path());
          const Checkpoint checkpoint = read_checkpoint(temp.path(), context_of(golden_case, true));
          CHECK(checkpoint.layout == layout("ranks"));
          CHECK(content(checkpoint) == expected);
          const Checkpoint model = read_checkpoint(temp.path(), context_of(golden_case, false));
          CHECK(model.states.empty());
          CHECK(model.leaves_states);
          CHECK(content(model) == content(read_checkpoint(saved_of(golden_case), context_of(golden_case, false))));
        }
    }
  }
  CHECK(cases == 5);
}

TEST_CASE("Files of NxD's older folders do not go along with the model") {
  const fs::path golden_case = testdata("golden/zero1/optimum-qwen3-dp2-tp2-replicated");
  for (const OlderForm form : {OlderForm::kOfRank, OlderForm::kOptimum, OlderForm::kByName})
    for (const bool xser : {false, true}) {
      CAPTURE(static_cast<int>(form), xser);
      const TempDir temp;
      arrange_older(saved_of(golden_case), temp / "run", form, xser);
      copy_metadata(saved_of(golden_case), temp / "run");
      fs::copy(golden_case / "original/config.json", temp / "run");
      const auto job = plan_consolidate(consolidate_request(temp / "run", temp / "out"));
      for (const CopiedFile& file : job->copied_files) CHECK(file.path == "config.json");
    }
}

TEST_CASE("Metadata alone says that a head of its own is the optimizer's, too") {
  for (const char* name : {"optimum-llama-dp1-tp4-m2-fused", "optimum-qwen3-dp2-tp2-replicated"}) {
    CAPTURE(name);
    const fs::path golden_case = testdata("golden/zero1") / name;
    const auto expected = content(read_checkpoint(saved_of(golden_case), context_of(golden_case, true)));
    const TempDir temp;
    fs::copy(golden_case / "checkpoint", temp / "run", fs::copy_options::recursive);
    fs::remove(temp / "run/config.json");
    ReadContext context;
    context.beside = Beside::kRead;
    const Checkpoint checkpoint = read_checkpoint(temp / "run", context);
    CHECK_FALSE(checkpoint.model.has_value());
    CHECK(expected.count("lm_head.weight") == 1);
    CHECK(content(checkpoint) == expected);
  }
}

/// A golden case in an older form.
struct Older {
  explicit Older(OlderForm form, const std::string& name = "nxd-llama-dp2-tp2")
      : golden_case(testdata("golden/zero1") / name) {
    arrange_older(saved_of(golden_case), temp.path(), form, false);
  }

  fs::path file(const std::string& rank) const { return temp / rank / "checkpoint.pt"; }
  Checkpoint read() const { return read_checkpoint(temp.path(), context_of(golden_case, true)); }
  void change(const std::string& rank, const std::function<void(SavedTree&)>& how) const {
    SavedTree tree = read_saved_tree(file(rank));
    how(tree);
    write_saved_tree(file(rank), tree);
  }
  Error refused(const fs::path& path, const std::string& says, ErrorKind kind = ErrorKind::kBadInput) const {
    return check_refused([&] { read(); }, {.kind = kind, .path = path, .says = says});
  }

  fs::path golden_case;
  TempDir temp;
};

TEST_CASE("Data-parallel ranks that NxD's older folders lack are named as the others are") {
  const Older of_rank(OlderForm::kOfRank);
  fs::remove_all(of_rank.temp / "tp_rank_01_pp_rank_00_dp_rank_01");
  of_rank.refused(of_rank.temp.path(),
                  "1 of the optimizer's 4 files (tp 2 × pp 1 × dp 2) is missing: "
                  "tp_rank_01_pp_rank_00_dp_rank_01");
  const Older by_name(OlderForm::kByName);
  fs::remove(by_name.temp / "optim.dp_rank_00.tp_rank_01");
  by_name.refused(by_name.temp.path(), "is missing: optim.dp_rank_00.tp_rank_01");

  // What is there is one data-parallel rank's, as NxD's saver leaves it unless it is told of ZeRO-1.
  fs::remove_all(of_rank.temp / "tp_rank_00_pp_rank_00_dp_rank_01");
  of_rank.refused(of_rank.temp.path(), "the ZeRO-1 shard of one data-parallel rank was saved as if it were complete",
                  ErrorKind::kUnsupported);
}

TEST_CASE("Files of a rank that hold two optimizers, or one twice, are refused") {
  const Older of_rank(OlderForm::kLightning);
  const std::string first = "tp_rank_00_pp_rank_00_dp_rank_00";
  of_rank.change(first, [](SavedTree& tree) {
    tree.structure["optimizer_states"].push_back(tree.structure["optimizer_states"][0]);
  });
  of_rank.refused(of_rank.file(first), "contains 2 optimizers under \"optimizer_states\"", ErrorKind::kUnsupported);
  of_rank.change(first, [](SavedTree& tree) {
    tree.structure["optimizer_states"].erase(1);
    tree.structure["optimizer"] = {{"state", nlohmann::json::object()}};
  });
  of_rank.refused(of_rank.file(first), "contains \"optimizer\" and \"optimizer_states\"");
  of_rank.change(first, [](SavedTree& tree) {
    tree.structure.erase("optimizer_states");
    tree.structure["optimizer"] = 5;
  });
  of_rank.refused(of_rank.file(first), "its \"optimizer\" is an int, not a dict");
  of_rank.change(first, [](SavedTree& tree) { tree.structure["optimizer_state_dict"] = 5; });
  of_rank.refused(of_rank.file(first), "contains \"optimizer\" and \"optimizer_state_dict\"");
  of_rank.change(first, [](SavedTree& tree) { tree.structure.erase("optimizer"); });
  of_rank.refused(of_rank.file(first), "its \"optimizer_state_dict\" is an int, not a dict");

  const Older both(OlderForm::kOfRank);
  arrange_older(saved_of(both.golden_case), both.temp / "other", OlderForm::kByName, false);
  fs::copy(both.temp / "other/optim.dp_rank_00.tp_rank_00", both.temp / "optim.dp_rank_00.tp_rank_00");
  fs::remove_all(both.temp / "other");
  both.refused(both.temp / "optim.dp_rank_00.tp_rank_00",
               "is a second optimizer: the files of the weights also contain one");
}

TEST_CASE("A rank's file without an optimizer beside others with one is refused, and where all lack it there is none") {
  const Older of_rank(OlderForm::kOfRank);
  const auto drop = [](SavedTree& tree) {
    tree.structure.erase("optimizer");
    std::erase_if(tree.tensors, [](const auto& item) { return item.first.starts_with("optimizer/"); });
  };
  of_rank.change("tp_rank_01_pp_rank_00_dp_rank_01", drop);
  of_rank.refused(of_rank.file("tp_rank_01_pp_rank_00_dp_rank_01"), "has no \"param_groups\"");
  for (const char* rank :
       {"tp_rank_00_pp_rank_00_dp_rank_00", "tp_rank_00_pp_rank_00_dp_rank_01", "tp_rank_01_pp_rank_00_dp_rank_00"})
    of_rank.change(rank, drop);
  of_rank.refused(of_rank.temp.path(), "contains no optimizer files");
  const Checkpoint model = read_checkpoint(of_rank.temp.path(), context_of(of_rank.golden_case, false));
  CHECK_FALSE(model.leaves_states);
}

TEST_CASE("Files of an optimizer that were swapped, or whose stages wrote over each other, are refused") {
  const Older by_name(OlderForm::kByName);
  swap_files(by_name.temp / "optim.dp_rank_00.tp_rank_01", by_name.temp / "optim.dp_rank_01.tp_rank_01");
  by_name.refused(by_name.temp / "optim.dp_rank_00.tp_rank_01", "records that it belongs to dp rank 1");

  const Older stages(OlderForm::kByName, "nxd-llama-dp4-tp2-pp2");
  stages.refused(stages.temp / "optim.dp_rank_00.tp_rank_00", "the model has 2 pipeline stages");
}

TEST_CASE("An older optimizer goes to newer NxD and to DCP as the newer form does, and its master weights are read") {
  const Older of_rank(GENERATE(OlderForm::kLightning, OlderForm::kOptimum));
  const fs::path config = of_rank.golden_case / "original", newer_form = saved_of(of_rank.golden_case);
  const TempDir out;
  for (const char* to : {"nxd", "dcp"}) {
    CAPTURE(to);
    const RequestFields fields{.layout = to, .config = config, .with_optimizer = true};
    convert(of_rank.temp.path(), out / to / "older", fields);
    convert(newer_form, out / to / "newer", fields);
    auto older = snapshot(out / to / "older"), newer = snapshot(out / to / "newer");
    for (auto* files : {&older, &newer})
      std::erase_if(*files, [](const auto& file) {
        return file.first.find("user_content") != std::string::npos ||
               file.first.find("scheduler") != std::string::npos;
      });
    CHECK((older == newer));
  }
  check_refused(
      [&] {
        convert(of_rank.temp.path(), out / "again", {.layout = "ranks", .config = config, .with_optimizer = true});
      },
      {.kind = ErrorKind::kUsage, .says = "layout ranks have no place for optimizer states", .hint = "nxd"});

  ReadContext masters = context_of(of_rank.golden_case, false);
  masters.options.set("weights", "master");
  CHECK(content(read_checkpoint(of_rank.temp.path(), masters)) == content(read_checkpoint(newer_form, masters)));
}

}  // namespace
}  // namespace reshard::test
