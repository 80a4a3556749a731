// Files of ranks say which rank they are of, in every layout and format, and are held to it.

#include "support/checkpoints.h"
#include "support/input.h"
#include "support/local_files.h"
#include "support/refusals.h"
#include "support/spoilers.h"
#include "support/torch_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Metadata = std::map<std::string, std::string>;

struct Form {
  const char* layout_name;
  Format format;
};
constexpr Form kForms[] = {{"ranks", Format::kSafetensors}, {"ranks", Format::kPytorch}, {"ranks", Format::kXser},
                           {"optimum", Format::kPytorch},   {"optimum", Format::kXser},  {"nxd", Format::kPytorch},
                           {"nxd", Format::kXser}};

/// What a file records of itself, without the keys that only say that it is described (state_dict.h).
Metadata metadata_of(const fs::path& file, Format format) {
  auto metadata = read_container(file, format).metadata;
  std::erase_if(metadata, [](const auto& entry) { return entry.second.empty(); });
  return {metadata.begin(), metadata.end()};
}

/// None of its matrices are replicated on two tensor-parallel ranks.
const TinyModel kNoReplicas{.heads = 4, .kv_heads = 4};

/// A sharded model, of kNoReplicas on 2 × 2 ranks if nothing else is said.
struct Case : Input {
  explicit Case(const Form& form, std::uint32_t pp = 2) : Case(form, kNoReplicas, 2, pp) {}
  Case(const Form& form, const TinyModel& tiny, std::uint32_t tp, std::uint32_t pp, std::uint32_t vpp = 1)
      : Input(tiny, {.layout = form.layout_name, .format = form.format, .tp = tp, .pp = pp, .vpp = vpp}, 7) {}

  /// What stands beside a file of xser belongs to it.
  std::vector<fs::path> entries(const fs::path& rank) const {
    if (to.format != Format::kXser) return {rank};
    std::vector<fs::path> entries{rank, rank.string() + ".tensors", rank.string() + ".info.pt"};
    if (to.layout == "ranks") entries.pop_back();
    return entries;
  }
  void swap(const fs::path& a, const fs::path& b) const {
    for (std::size_t i = 0; i < entries(a).size(); ++i) swap_files(entries(a)[i], entries(b)[i]);
  }
};

TEST_CASE("Every rank's file says which rank it is of, whatever its layout and format") {
  for (const Form& form : kForms) {
    DYNAMIC_SECTION(form.layout_name << " " << name(form.format)) {
      const Case c(form);
      for (std::uint32_t pp_rank : {0u, 1u})
        for (std::uint32_t tp_rank : {0u, 1u}) {
          Metadata expected{{"reshard.tp_rank", std::to_string(tp_rank)},
                            {"reshard.tp_degree", "2"},
                            {"reshard.pp_rank", std::to_string(pp_rank)},
                            {"reshard.pp_degree", "2"}};
          if (form.format == Format::kSafetensors) expected["format"] = "pt";
          CHECK(metadata_of(c.rank_file(tp_rank, pp_rank), form.format) == expected);
        }
      CHECK((c.whole() == c.tensors));
      const Case one_stage(form, 1);
      CHECK(metadata_of(one_stage.rank_file(1), form.format).count("reshard.pp_rank") == 0);
    }
  }
}

TEST_CASE("The error about files of ranks under names of no rank names one") {
  const Case c({"nxd", Format::kPytorch});
  for (std::uint32_t pp_rank : {0u, 1u})
    for (std::uint32_t tp_rank : {0u, 1u}) {
      const fs::path file = c.rank_file(tp_rank, pp_rank);
      fs::rename(file, file.parent_path() / ("my_" + file.filename().string()));
    }
  check_refused([&] { c.whole(); },
                {.says = "contains no rank files", .hint = {"no file in model/", "; one of them is my_dp_rank_0"}});
}

TEST_CASE("Ranks that were swapped or copied over each other are errors that name the file, in every layout") {
  for (const Form& form : kForms) {
    DYNAMIC_SECTION(form.layout_name << " " << name(form.format)) {
      const Case c(form);
      c.swap(c.rank_file(0, 1), c.rank_file(1, 1));
      check_error(c.refusal(), {.path = c.rank_file(0, 1),
                                .says = "its name says tensor-parallel rank 0, its metadata rank 1",
                                .hint = "swapped"});
      c.swap(c.rank_file(0, 1), c.rank_file(1, 1));
      c.swap(c.rank_file(1, 0), c.rank_file(1, 1));
      check_error(c.refusal(),
                  {.path = c.rank_file(1, 0), .says = "its name says pipeline rank 0, its metadata rank 1"});
      c.swap(c.rank_file(1, 0), c.rank_file(1, 1));
      for (std::size_t i = 0; i < c.entries(c.rank_file(0)).size(); ++i) {
        fs::remove_all(c.entries(c.rank_file(1))[i]);
        fs::copy(c.entries(c.rank_file(0))[i], c.entries(c.rank_file(1))[i], fs::copy_options::recursive);
      }
      CHECK_THAT(c.refusal().what(), Says("its name says tensor-parallel rank 1, its metadata rank 0"));
    }
  }
}

TEST_CASE("Swapped ranks are errors with replicated key/value heads, tied embeddings and virtual stages, too") {
  struct Variant {
    const char* what;
    TinyModel model;
    std::uint32_t tp, pp, vpp;
  };
  for (const Variant& variant : {Variant{"replicated heads", {.heads = 4, .kv_heads = 2}, 4, 1, 1},
                                 Variant{"tied", {.heads = 4, .kv_heads = 4, .tied = true}, 2, 2, 1},
                                 Variant{"virtual stages", {.layers = 4, .heads = 4, .kv_heads = 4}, 2, 2, 2}})
    for (const Form& form : kForms) {
      DYNAMIC_SECTION(variant.what << ", " << form.layout_name << " " << name(form.format)) {
        const Case c(form, variant.model, variant.tp, variant.pp, variant.vpp);
        CHECK((c.whole() == c.tensors));
        const std::uint32_t last = variant.pp - 1;
        c.swap(c.rank_file(0, last), c.rank_file(1, last));
        check_error(c.refusal(), {.path = c.rank_file(0, last),
                                  .says = "its name says tensor-parallel rank 0, its metadata rank 1"});
      }
    }
}

TEST_CASE("Folders of xser's tensors that were swapped alone are an error that names one of their files") {
  for (const char* const kind : {"ranks", "optimum", "nxd"}) {
    DYNAMIC_SECTION(kind) {
      const Case c({kind, Format::kXser});
      swap_files(c.rank_file(0).string() + ".tensors", c.rank_file(1).string() + ".tensors");
      check_error(c.refusal(),
                  {.path = c.rank_file(0).string() + ".tensors/tensor_0.pt",
                   .says = "its metadata names another rank than that of " + c.rank_file(0).filename().string()});
    }
  }
}

TEST_CASE("Files that another program has written again say nothing: all of them are read, some of them are an error") {
  const Case c({"optimum", Format::kPytorch});
  write_torch(c.rank_file(1, 1), read_torch_tensors(c.rank_file(1, 1)));
  check_error(c.refusal(), {.path = c.rank_file(1, 1),
                            .says = "does not record its rank, but " + c.rank_file(0).string() + " does"});
  for (std::uint32_t pp_rank : {0u, 1u})
    write_torch(c.rank_file(0, pp_rank), read_torch_tensors(c.rank_file(0, pp_rank)));
  check_error(c.refusal(), {.path = c.rank_file(1),
                            .says = "records its rank, but " + c.rank_file(0).string() + " does not",
                            .hint = "another program"});
  write_torch(c.rank_file(1), read_torch_tensors(c.rank_file(1)));
  CHECK_THAT(joined_notes(*plan_consolidate(consolidate_request(c.path(), c / "whole"))),
             Says("files that were swapped between ranks cannot be detected"));
  CHECK((c.whole() == c.tensors));
}

TEST_CASE("A rank of a mesh of another size is an error, and without metadata the ranks that lack are named") {
  const Case two({"nxd", Format::kPytorch});
  const Case one({"nxd", Format::kPytorch}, 1);
  fs::remove(two.rank_file(1, 1));
  fs::remove(two.rank_file(0, 1));
  CHECK_THAT(two.refusal().what(),
             Says("2 of the 4 ranks (tp 2 × pp 2) are missing: dp_rank_00_tp_rank_00_pp_rank_01"));
  for (std::uint32_t tp_rank : {0u, 1u})
    fs::copy_file(one.rank_file(tp_rank), two.rank_file(tp_rank), fs::copy_options::overwrite_existing);
  CHECK((two.whole() == one.tensors));

  const Case stages({"optimum", Format::kPytorch});
  const Case stage({"optimum", Format::kPytorch}, 1);
  fs::copy_file(stage.rank_file(0), stages.rank_file(0), fs::copy_options::overwrite_existing);
  CHECK_THAT(stages.refusal().what(),
             Says("its metadata records that there is 1 pipeline rank, but the folder contains 2"));
}

TEST_CASE("Other data-parallel replicas of ranks are held to what they say, too") {
  const Case c({"optimum", Format::kPytorch}, 1);
  const fs::path copy = c.rank_file(0).parent_path() / "dp_rank_01_tp_rank_00_pp_rank_00.pt";
  fs::copy_file(c.rank_file(0), copy);
  CHECK((c.whole() == c.tensors));
  fs::copy_file(c.rank_file(1), copy, fs::copy_options::overwrite_existing);
  CHECK(c.refusal().path() == copy.string());
}

TEST_CASE("Ranks of two digits, whose labels are longer, come back in every layout") {
  const TinyModel model{.hidden = 32, .intermediate = 32, .heads = 16, .kv_heads = 16, .head_dim = 2};
  for (const Form& form : kForms) {
    DYNAMIC_SECTION(form.layout_name << " " << name(form.format)) {
      const Case c(form, model, 16, 1);
      for (std::uint32_t rank = 0; rank < 16; ++rank)
        CHECK(metadata_of(c.rank_file(rank), form.format).at("reshard.tp_rank") == std::to_string(rank));
      CHECK((c.whole() == c.tensors));
    }
  }
}

TEST_CASE("Ranks of an adapter that were swapped are an error") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    DYNAMIC_SECTION(name(format)) {
      Input input;
      write_file(input / "peft/adapter_config.json", R"({"peft_type": "LORA", "r": 1})");
      const std::string down = "base_model.model.model.layers.0.mlp.down_proj.";
      const TensorMap adapter{
          {down + "lora_A.weight", random_tensor(input.random, DType::kF32, {1, input.model.intermediate})},
          {down + "lora_B.weight", random_tensor(input.random, DType::kF32, {input.model.hidden, 1})}};
      write_safetensors(input / "peft/adapter_model.safetensors", adapter);
      Request request = shard_request(input / "model", input / "out", {.layout = "optimum", .format = format, .tp = 2});
      request.adapters = {input / "peft"};
      shard(request);
      consolidate(consolidate_request(input / "out", input / "again"));
      CHECK((read_tensors(input / "again/adapter_model.safetensors") == adapter));
      const std::string ranks = input / "out/adapter_default/adapter_shards/model";
      std::vector<const char*> endings{""};
      if (format == Format::kXser) endings = {"", ".tensors", ".info.pt"};
      for (const std::string ending : endings)
        swap_files(ranks + "/dp_rank_00_tp_rank_00_pp_rank_00.pt" + ending,
                   ranks + "/dp_rank_00_tp_rank_01_pp_rank_00.pt" + ending);
      check_refused([&] { consolidate(consolidate_request(input / "out", input / "again", {.force = true})); },
                    {.path = ranks + "/dp_rank_00_tp_rank_00_pp_rank_00.pt"});
    }
  }
}

}  // namespace
}  // namespace reshard::test
