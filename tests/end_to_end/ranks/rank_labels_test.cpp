// Files of ranks say which rank they are of, in every layout and format, and are held to it.

#include <nlohmann/json.hpp>

#include "reshard/formats/read_container.h"
#include "reshard/layouts/ranks/rank_layout.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
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

/// A model none of whose matrices are replicated on two tensor-parallel ranks.
TinyModel without_replicas() {
  TinyModel model;
  model.heads = model.kv_heads = 4;
  return model;
}

/// A sharded model; unless said otherwise without_replicas() on 2 × 2 ranks.
std::filesystem::path path_of(const Form& form, RankId rank) {
  return static_cast<const RankLayout*>(layout(form.layout_name))->rank_path(form.format, rank);
}

struct Case {
  TempDir temp;
  Form form;
  TensorMap tensors;

  explicit Case(const Form& wanted, std::uint32_t pp = 2) : Case(wanted, without_replicas(), 2, pp) {}
  Case(const Form& wanted, const TinyModel& model, std::uint32_t tp, std::uint32_t pp, std::uint32_t vpp = 1)
      : form(wanted) {
    Random random(7);
    tensors = random_tensors(model, random);
    write_model(temp / "model", model, tensors);
    ShardRequest request = shard_request(temp / "model", temp / "out", tp, pp);
    request.target.vpp = vpp;
    request.target.layout = layout(form.layout_name), request.target.format = form.format;
    shard(request);
  }
  fs::path rank(std::uint32_t tp_rank, std::uint32_t pp_rank = 0) const {
    return temp / "out" / path_of(form, {tp_rank, pp_rank});
  }
  /// What stands beside a file of xser belongs to it.
  std::vector<fs::path> entries(const fs::path& rank) const {
    if (form.format != Format::kXser) return {rank};
    std::vector<fs::path> entries{rank, rank.string() + ".tensors", rank.string() + ".info.pt"};
    if (form.layout_name == std::string("ranks")) entries.pop_back();
    return entries;
  }
  void swap(const fs::path& a, const fs::path& b) const {
    for (std::size_t i = 0; i < entries(a).size(); ++i) {
      fs::rename(entries(a)[i], temp / "aside");
      fs::rename(entries(b)[i], entries(a)[i]);
      fs::rename(temp / "aside", entries(b)[i]);
    }
  }
  Error error() const {
    const Error error = error_of([&] { consolidated(temp / "out", temp / "whole"); });
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(fs::exists(temp / "whole"));
    return error;
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
          CHECK(metadata_of(c.rank(tp_rank, pp_rank), form.format) == expected);
        }
      CHECK((consolidated(c.temp / "out", c.temp / "whole") == c.tensors));
      const Case one_stage(form, 1);
      CHECK(metadata_of(one_stage.rank(1), form.format).count("reshard.pp_rank") == 0);
    }
  }
}

TEST_CASE("Ranks that were swapped or copied over each other are errors that name the file, in every layout") {
  for (const Form& form : kForms) {
    DYNAMIC_SECTION(form.layout_name << " " << name(form.format)) {
      const Case c(form);
      c.swap(c.rank(0, 1), c.rank(1, 1));
      check_error(c.error(), {.path = c.rank(0, 1),
                              .says = "its name says tensor-parallel rank 0, its metadata rank 1",
                              .hint = "swapped"});
      c.swap(c.rank(0, 1), c.rank(1, 1));
      c.swap(c.rank(1, 0), c.rank(1, 1));
      check_error(c.error(), {.path = c.rank(1, 0), .says = "its name says pipeline rank 0, its metadata rank 1"});
      c.swap(c.rank(1, 0), c.rank(1, 1));
      for (std::size_t i = 0; i < c.entries(c.rank(0)).size(); ++i) {
        fs::remove_all(c.entries(c.rank(1))[i]);
        fs::copy(c.entries(c.rank(0))[i], c.entries(c.rank(1))[i], fs::copy_options::recursive);
      }
      CHECK_THAT(c.error().what(), Says("its name says tensor-parallel rank 1, its metadata rank 0"));
    }
  }
}

TEST_CASE("Swapped ranks are errors with replicated key/value heads, tied embeddings and virtual stages, too") {
  struct Variant {
    const char* what;
    TinyModel model;
    std::uint32_t tp, pp, vpp;
  };
  TinyModel repeated, tied = without_replicas(), interleaved = without_replicas();
  repeated.kv_heads = 2;  // each on two of four ranks
  tied.tied = true;
  interleaved.layers = 4;
  for (const Variant& variant : {Variant{"replicated heads", repeated, 4, 1, 1}, Variant{"tied", tied, 2, 2, 1},
                                 Variant{"virtual stages", interleaved, 2, 2, 2}})
    for (const Form& form : kForms) {
      DYNAMIC_SECTION(variant.what << ", " << form.layout_name << " " << name(form.format)) {
        const Case c(form, variant.model, variant.tp, variant.pp, variant.vpp);
        CHECK((consolidated(c.temp / "out", c.temp / "whole") == c.tensors));
        fs::remove_all(c.temp / "whole");
        const std::uint32_t last = variant.pp - 1;
        c.swap(c.rank(0, last), c.rank(1, last));
        check_error(c.error(),
                    {.path = c.rank(0, last), .says = "its name says tensor-parallel rank 0, its metadata rank 1"});
      }
    }
}

TEST_CASE("Folders of xser's tensors that were swapped alone are an error that names one of their files") {
  for (const char* const kind : {"ranks", "optimum", "nxd"}) {
    DYNAMIC_SECTION(kind) {
      const Case c({kind, Format::kXser});
      fs::rename(c.rank(0).string() + ".tensors", c.temp / "aside");
      fs::rename(c.rank(1).string() + ".tensors", c.rank(0).string() + ".tensors");
      fs::rename(c.temp / "aside", c.rank(1).string() + ".tensors");
      check_error(c.error(), {.path = c.rank(0).string() + ".tensors/tensor_0.pt",
                              .says = "its metadata names another rank than that of " + c.rank(0).filename().string()});
    }
  }
}

TEST_CASE("Files that another program has written again say nothing: all of them are read, some of them are an error") {
  const Case c({"optimum", Format::kPytorch});
  write_torch(c.rank(1, 1), read_torch_tensors(c.rank(1, 1)));
  check_error(c.error(),
              {.path = c.rank(1, 1), .says = "does not say which rank it is of, but " + c.rank(0).string() + " does"});
  for (std::uint32_t pp_rank : {0u, 1u}) write_torch(c.rank(0, pp_rank), read_torch_tensors(c.rank(0, pp_rank)));
  check_error(c.error(), {.path = c.rank(1),
                          .says = "says which rank it is of, but " + c.rank(0).string() + " does not",
                          .hint = "another program"});
  write_torch(c.rank(1), read_torch_tensors(c.rank(1)));
  CHECK((consolidated(c.temp / "out", c.temp / "whole") == c.tensors));
}

TEST_CASE("A rank of a mesh of another size is an error, and without metadata the ranks that lack are named") {
  const Case two({"nxd", Format::kPytorch});
  const Case one({"nxd", Format::kPytorch}, 1);
  fs::remove(two.rank(1, 1));
  fs::remove(two.rank(0, 1));
  CHECK_THAT(two.error().what(), Says("2 of the 4 ranks (tp 2 × pp 2) are missing: dp_rank_00_tp_rank_00_pp_rank_01"));
  for (std::uint32_t tp_rank : {0u, 1u})
    fs::copy_file(one.rank(tp_rank), two.rank(tp_rank), fs::copy_options::overwrite_existing);
  CHECK((consolidated(two.temp / "out", two.temp / "whole") == one.tensors));

  const Case stages({"optimum", Format::kPytorch});
  const Case stage({"optimum", Format::kPytorch}, 1);
  fs::copy_file(stage.rank(0), stages.rank(0), fs::copy_options::overwrite_existing);
  CHECK_THAT(stages.error().what(), Says("its metadata says that there is 1 pipeline rank, but the folder holds 2"));
}

TEST_CASE("Other data-parallel replicas of ranks are held to what they say, too") {
  const Case c({"optimum", Format::kPytorch}, 1);
  const fs::path copy = c.rank(0).parent_path() / "dp_rank_01_tp_rank_00_pp_rank_00.pt";
  fs::copy_file(c.rank(0), copy);
  CHECK((consolidated(c.temp / "out", c.temp / "whole") == c.tensors));
  fs::remove_all(c.temp / "whole");
  fs::copy_file(c.rank(1), copy, fs::copy_options::overwrite_existing);
  CHECK(c.error().path() == copy.string());
}

TEST_CASE("Ranks of two digits, whose labels are longer, come back in every layout") {
  TinyModel model;
  model.hidden = 32;
  model.intermediate = 32;
  model.heads = model.kv_heads = 16;
  model.head_dim = 2;
  Random random(8);
  const TensorMap tensors = random_tensors(model, random);
  for (const Form& form : kForms) {
    DYNAMIC_SECTION(form.layout_name << " " << name(form.format)) {
      const TempDir temp;
      write_model(temp / "model", model, tensors);
      ShardRequest request = shard_request(temp / "model", temp / "out", 16);
      request.target.layout = layout(form.layout_name), request.target.format = form.format;
      shard(request);
      for (std::uint32_t rank = 0; rank < 16; ++rank)
        CHECK(metadata_of(temp / "out" / path_of(form, {rank}), form.format).at("reshard.tp_rank") ==
              std::to_string(rank));
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
  }
}

TEST_CASE("Ranks of an adapter that were swapped are an error") {
  for (const Format format : {Format::kPytorch, Format::kXser}) {
    DYNAMIC_SECTION(name(format)) {
      const TempDir temp;
      const TinyModel model;
      write_file(temp / "model/config.json", model.config().dump());
      write_file(temp / "peft/adapter_config.json", R"({"peft_type": "LORA", "r": 1})");
      const std::string down = "base_model.model.model.layers.0.mlp.down_proj.";
      Random random(9);
      const TensorMap tensors{{down + "lora_A.weight", random_tensor(random, DType::kF32, {1, model.intermediate})},
                              {down + "lora_B.weight", random_tensor(random, DType::kF32, {model.hidden, 1})}};
      write_safetensors(temp / "peft/adapter_model.safetensors", tensors);
      ShardRequest request = shard_request(temp / "model", temp / "out", 2);
      request.target.layout = layout("optimum"), request.target.format = format;
      request.adapters = {temp / "peft"};
      shard(request);
      ConsolidateRequest back;
      back.source.path = temp / "out";
      back.output_directory = temp / "again";
      consolidate(back);
      CHECK((read_tensors(temp / "again/adapter_model.safetensors") == tensors));
      const fs::path ranks = temp / "out/adapter_default/adapter_shards/model";
      const auto swap = [&](const std::string& ending) {
        fs::rename(ranks / ("dp_rank_00_tp_rank_00_pp_rank_00.pt" + ending), ranks / "aside");
        fs::rename(ranks / ("dp_rank_00_tp_rank_01_pp_rank_00.pt" + ending),
                   ranks / ("dp_rank_00_tp_rank_00_pp_rank_00.pt" + ending));
        fs::rename(ranks / "aside", ranks / ("dp_rank_00_tp_rank_01_pp_rank_00.pt" + ending));
      };
      swap("");
      if (format == Format::kXser)
        for (const char* ending : {".tensors", ".info.pt"}) swap(ending);
      back.force = true;
      check_refused([&] { consolidate(back); }, {.path = ranks / "dp_rank_00_tp_rank_00_pp_rank_00.pt"});
    }
  }
}

}  // namespace
}  // namespace reshard::test
